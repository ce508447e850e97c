"""Patterns as pairs of texts: ops in, groups out.

A case begins with `# why`. Each of its lines is an op as `mm 8x1024 1024x16`, its tensors by their sides; `:half` behind the sides is another type than
FP32 (see `TYPES`), `8x16@1x8` gives strides, a blank is a number, `| NAME` names its kernel, or the way of its copy (`HtoD`, `DtoH`), `*3` at the end repeats the line. `-> 2-4, 7` names the lines of the first group, if any; a further
`->` the next.
"""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from typing import NamedTuple

from tests.build import Trace

TYPES = {"": "float", "half": "c10::Half", "bf16": "c10::BFloat16", "double": "double", "long": "long int", "bool": "bool"}
KERNELS = {
    "gemm_kernel": r"mm$|matmul|linear",
    "softmax_kernel": "softmax",
    "layer_norm_kernel": "norm$",
    "reduce_kernel": "^(sum|mean|amax|var)$|vector_norm",
    "flash_fwd_kernel": "attention",
}


class Case(NamedTuple):
    """What a text says: why, its ops one line each, and the lines of each group, counted from 1."""

    why: str
    lines: list[str]
    groups: list[list[int]]


def cases(name: str) -> list[Case]:
    """Those of `texts/NAME.txt`."""
    text = Path(__file__).with_name("texts").joinpath(f"{name}.txt").read_text()
    return [_case(part) for part in re.split(r"^# ", text, flags=re.MULTILINE)[1:]]


def _case(text: str) -> Case:
    why, *rest = text.strip().splitlines()
    lines, groups = [], []
    for line in filter(None, map(str.strip, rest)):
        if line.startswith("->"):
            groups.append([n for part in line[2:].split(",") if part.strip() for n in _lines(part)])
        else:
            op, _, times = line.partition("*")
            lines += [op.strip()] * int(times or 1)
    return Case(why, lines, groups)


def _lines(part: str) -> range:
    first, _, last = part.strip().partition("-")
    return range(int(first), int(last or first) + 1)


def recorded(lines: list[str]) -> Trace:
    """A step that launches them one after the other, a kernel each: the k-th is the schedule's position k."""
    trace = Trace()
    trace.step(0, 20.0 * len(lines) + 50)
    for k, line in enumerate(lines):
        text, _, own = (part.strip() for part in line.partition("|"))
        name, *tensors = text.split()
        try:
            sides, types, strides = zip(*map(_tensor, tensors), strict=True) if tensors else ((), (), ())
        except (ValueError, KeyError) as error:
            raise ValueError(f"line {k + 1}, {line!r}: a tensor is as 8x1024, 8x1024@1x8 or 8x1024:half, its type one of {', '.join(TYPES)[2:]}") from error
        kernel = own or next((kernel for kernel, ops in KERNELS.items() if re.search(ops, name)), "elementwise_kernel")
        trace.op(f"aten::{name}", 20.0 * k, 15, [list(s) for s in sides] or None, list(types))
        trace.rows["cpu_ops"][-1]["strides"] = str([list(s) for s in strides]).replace("'", '"')
        if kernel in ("HtoD", "DtoH"):
            trace.copy(20.0 * k + 5, 1, 20.0 * k + 25, 20.0 * k + 40, size=4 * prod(sides[0]), kind=kernel)
        else:
            trace.launch(20.0 * k + 5, 20.0 * k + 25, 20.0 * k + 40, kernel)
    return trace


def _tensor(text: str) -> tuple[list[int], str, list[int]]:
    if text == "-":
        return [], "Scalar", []
    body, _, kind = text.partition(":")
    body, _, steps = body.partition("@")
    sides = [int(n) for n in body.split("x")]
    strides = [int(n) for n in steps.split("x")] if steps else [prod(sides[k + 1 :]) for k in range(len(sides))]
    return sides, TYPES[kind], strides
