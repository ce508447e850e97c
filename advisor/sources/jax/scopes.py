"""Names of HLO ops as JAX writes them: `jit(step)/transpose(jvp(mlp))/layer1/dot_general`."""

from __future__ import annotations

import re
from functools import lru_cache

_OPENS = re.compile(r"(?:[A-Za-z_]\w*\()+")
"""The prefix of a wrapped name: `transpose(jvp(`."""
_MARKS = re.compile(r"[()/]")
# Steps in the path that are JAX's own, not the program's.
_OWN = frozenset(
    ["main", "while", "body", "cond", "scan", "checkpoint", "remat", "remat2", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call",
     "custom_vjp_call_jaxpr", "pjit", "rematted_computation", "shard_map", "xla_call", "branch_0_fun", "branch_1_fun", "custom_lin", "named_call"]
)  # fmt: skip
_FUNCTIONS = ("jit", "pjit", "pmap", "xla_call", "xla_pmap")


@lru_cache(maxsize=1 << 16)
def scopes_of(path: str) -> tuple[str, bool]:
    """Scopes around an op, outermost first, joined by "/", without the op itself; and whether it belongs to a backward pass."""
    found: list[str] = []
    for part in _parts(path)[:-1]:
        found += _named_scope(part, len(found) == 0)
    return "/".join(found), "transpose(" in path


def _named_scope(part: str, outermost: bool) -> list[str]:
    """The program's name in a step of the path: the jitted function, or a scope, without transformations around it."""
    how, opens = "", _OPENS.match(part)
    if opens:
        names = opens[0][:-1].split("(")
        layers = min(len(names), len(part) - len(part.rstrip(")")))
        if layers:
            how = names[layers - 1]
            part = part[sum(len(name) + 1 for name in names[:layers]) : len(part) - layers]
    if how in _FUNCTIONS:
        return [part] if outermost and part not in _OWN else []
    return [name for name in _parts(part) if name and name not in _OWN] if "/" in part else [part] if part and part not in _OWN else []


def _parts(path: str) -> list[str]:
    """Steps of a path; slashes in brackets belong to a step."""
    parts, depth, begun = [], 0, 0
    for mark in _MARKS.finditer(path):
        depth += (mark[0] == "(") - (mark[0] == ")")
        if mark[0] == "/" and depth <= 0:
            parts.append(path[begun : mark.start()])
            begun = mark.end()
    return [*parts, path[begun:]]
