"""Names of ops, kernels and ranges: `table.toml` maps the field's terms (tokens) to names, and `families.py` maps kernels to families.

Views, rules and the engine contain no op names and no patterns for them: `names_of` gives all names of a token.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from advisor.knowledge.data import read
from advisor.knowledge.expressions import expression

TORCH = "aten::"
"""How the names of PyTorch's own ops begin."""

AUTOGRAD = "autograd::engine::evaluate_function"
"""How the names of ops begin with which autograd runs a node of the backward pass."""

_TABLE = read(Path(__file__).with_name("table.toml"))

_OVERLOADED = expression(r"(?P<op>(?:[\w.]+::)+\w+)\.(?P<overload>\w+)")
"""A name in a namespace, and the part after its last dot (torch/csrc/profiler/collection.cpp). Ranges such as `Optimizer.step#SGD.step` have no
namespace. DistributedDataParallel's `torch.distributed.ddp.reducer::` has dots of its own.
"""


@cache
def names_of(token: str) -> re.Pattern[str]:
    """What finds the names of a token: whole names of PyTorch's own ops, or parts of any name. Raises KeyError if the table has no such token."""
    if token in _TABLE["ops"]:
        return expression(rf"^{TORCH}({'|'.join(_TABLE['ops'][token].split())})$")
    if token not in _TABLE["names"]:
        raise KeyError(f"no token {token!r}: add it to [ops] or [names] of advisor/knowledge/op_tokens/table.toml")
    return expression("".join(line.lstrip() for line in _TABLE["names"][token].splitlines()))


def has_token(name: str, token: str) -> bool:
    """Whether a name is one of a token's."""
    return names_of(token).search(name) is not None


def split_overload(name: str) -> tuple[str, str]:
    """The op's normal name, and its overload ("" if not recorded). PyTorch writes `aten::add`, or `aten::add.Tensor` if overloads are requested."""
    found = _OVERLOADED.fullmatch(name)
    return (found["op"], found["overload"]) if found else (name, "")


def plain(op_name: str) -> str:
    """An op's name as a program writes it: without the namespace of PyTorch's own."""
    return op_name.removeprefix(TORCH)


ELEMENTARY: tuple[str, ...] = tuple(_TABLE["elementary"])
"""Tokens of what makes one pass over a tensor: `cast`, `mul`, `mean`, `rsqrt` and the like."""


@cache
def elementary(op_name: str) -> str:
    """The token of a PyTorch op that makes a single pass over a tensor, in place or not; "" for other ops."""
    base = plain(op_name) if op_name.startswith(TORCH) else ""
    base = base if base.startswith("_") else base.rstrip("_")
    return next((token for token, (ops, _) in _TABLE["elementary"].items() if base and re.fullmatch("|".join(ops.split()), base)), "")


@cache
def elementary_kernel(kernel_name: str) -> str:
    """The same by the name of a kernel whose op was not recorded."""
    return next((token for token, (_, kernel) in _TABLE["elementary"].items() if kernel and re.search(kernel, kernel_name)), "")
