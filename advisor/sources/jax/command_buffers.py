"""Kernels of libraries inside command buffers: they have neither an instruction's name nor its number, so their order identifies them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from advisor.intervals import Floats, Ints
from advisor.knowledge.op_tokens.families import PRODUCTS, family
from advisor.sources.jax.programs import Programs

_AFTERWARDS = ("splitk", "split_k", "reduce_1block")
"""Names of kernels that finish the GEMM of the kernel before them."""

UNJOINED = -2
"""In place of a row, and below it: an op inside a command buffer, of the first program of a list, of the second …"""


def joined(rows: Ints, names: Sequence[str], device: Ints, start_us: Floats, waiting: Sequence[tuple[str, int]], programs: Programs) -> Ints:
    """Rows of `Programs.table` of each GPU op, including those of libraries inside command buffers.

    rows: (n,) the row, or `UNJOINED - k` for an op inside a command buffer of `waiting[k]`, a program's name and number.
    names, device, start_us: (n,) of the ops.

    A program's GEMMs without a kernel of that name are inside its command buffers. If the number of unnamed kernels is that of
    such GEMMs, or a multiple, they correspond in the program's order, provided that equal GEMMs then have equal kernels.
    If the program's order differs from the order of execution, the number of runs may still identify the GEMM, but not its line."""
    found: Ints = np.maximum(rows, -1)
    known = {programs.found[row].name for row in np.unique(found[found >= 0]).tolist()}
    for k, (module, number) in enumerate(waiting):
        program = programs.program(module, number)
        calls = [name for name in program.libraries if name not in known] if program else []
        for number_of in np.unique(device[rows == UNJOINED - k]).tolist():
            here = np.flatnonzero((rows == UNJOINED - k) & (device == number_of))
            here = here[np.argsort(start_us[here], kind="stable")]
            main = [at for at in here.tolist() if _is_product(names[at])]
            if not calls or len(main) % len(calls):
                continue
            if not program:
                continue
            turns = [calls[i % len(calls)] for i in range(len(main))]
            if _one_kernel_each([names[at] for at in main], [program.settings(name) for name in turns]):
                found[main] = [programs.row(module, number, name, "", "") for name in turns]
            elif alike := _by_counts([names[at] for at in main], {name: program.settings(name) for name in calls}):
                found[main] = [programs.row_alike(module, number, alike[names[at]]) for at in main]
            _finish(found, here.tolist(), names)
    return found


def _is_product(name: str) -> bool:
    return family(name) in PRODUCTS and not _finishes(name)


def _finishes(name: str) -> bool:
    return any(word in name.lower() for word in _AFTERWARDS)


def _one_kernel_each(names: list[str], settings: list[tuple[object, ...]]) -> bool:
    """Whether a library always used the same kernel for the same GEMM."""
    kernels: dict[object, str] = {}
    return all(kernels.setdefault(setting, name) == name for name, setting in zip(names, settings, strict=True))


def _by_counts(names: list[str], settings: dict[str, tuple[object, ...]]) -> dict[str, str]:
    """A GEMM for each kernel. Its number of runs is unique among the GEMMs, and a single kernel has that number. Otherwise empty."""
    runs = len(names) // len(settings)
    wanted = {count * runs: setting for setting, count in Counter(settings.values()).items()}
    ran = Counter(names)
    if len(wanted) < len(set(settings.values())) or sorted(wanted) != sorted(ran.values()):
        return {}
    return {kernel: next(name for name, setting in settings.items() if setting == wanted[count]) for kernel, count in ran.items()}


def _finish(found: Ints, here: list[int], names: Sequence[str]) -> None:
    """A kernel that finishes a GEMM belongs to it."""
    for before, at in pairwise(here):
        if found[at] < 0 and _finishes(names[at]):
            found[at] = found[before]
