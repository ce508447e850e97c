"""Kernels of libraries inside command buffers: these bear neither an instruction's name nor its number, so their order has to tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from advisor.intervals import Floats, Ints
from advisor.knowledge.op_tokens.families import PRODUCTS, family
from advisor.sources.jax.programs import Programs

_AFTERWARDS = ("splitk", "split_k", "reduce_1block")
"""Names of kernels that finish what the product before them began."""

UNJOINED = -2
"""In place of a row, and below it: an op inside a command buffer, of the first program of a list, of the second …"""


def joined(rows: Ints, names: Sequence[str], device: Ints, start_us: Floats, waiting: Sequence[tuple[str, int]], programs: Programs) -> Ints:
    """Rows of `Programs.table` of each GPU op, those of libraries inside command buffers found.

    rows: (n,) what is known, or `UNJOINED - k` for an op inside a command buffer of `waiting[k]`, a program's name and number.
    names, device, start_us: (n,) of the ops.

    A program's products that no kernel bears the name of are those inside its command buffers. If there are as many unnamed kernels as
    such products, or so many again and again, they are these in the program's order, provided that equal products then have equal kernels.
    Where the program lists them in another order than it runs them, how often each runs may still tell what it multiplies, not its line.
    """
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
    """Whether a library always took the same kernel for the same product."""
    kernels: dict[object, str] = {}
    return all(kernels.setdefault(setting, name) == name for name, setting in zip(names, settings, strict=True))


def _by_counts(names: list[str], settings: dict[str, tuple[object, ...]]) -> dict[str, str]:
    """One of the equal products that each kernel computes, where each runs as often as no other and a kernel runs as often; else nothing."""
    runs = len(names) // len(settings)
    wanted = {count * runs: setting for setting, count in Counter(settings.values()).items()}
    ran = Counter(names)
    if len(wanted) < len(set(settings.values())) or sorted(wanted) != sorted(ran.values()):
        return {}
    return {kernel: next(name for name, setting in settings.items() if setting == wanted[count]) for kernel, count in ran.items()}


def _finish(found: Ints, here: list[int], names: Sequence[str]) -> None:
    """What finishes a product belongs to it."""
    for before, at in pairwise(here):
        if found[at] < 0 and _finishes(names[at]):
            found[at] = found[before]
