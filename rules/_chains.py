"""Chains of elementwise kernels in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.intervals import Floats, Ints
from advisor.knowledge.op_tokens import names_of, plain
from advisor.knowledge.shares import HARDLY_ANY
from advisor.report.numbers import NAMED, duration
from advisor.views.replay.gpu_work import GpuWork

_FUNCTOR = names_of("functor")


def largest_kind(kinds: list[tuple[str, ...]], saved_us: Floats) -> str:
    """Which kind of chain gains most, if there are several: a function that is compiled alone gains no more than its own chains. kinds: the
    ops of each chain; saved_us: (n,) of each."""
    by_kind: dict[tuple[str, ...], float] = {}
    for kind, us in zip(kinds, saved_us.tolist(), strict=True):
        by_kind[kind] = by_kind.get(kind, 0.0) + us
    largest, total_us = max(by_kind, key=by_kind.__getitem__), sum(us for us in by_kind.values() if us > 0)
    if len(by_kind) < 2 or not total_us:
        return ""
    return f" {by_kind[largest] / total_us:.0%} of the gain is in 1 of {len(by_kind)} chain types: {chain_label(largest, MOST_SHOWN)}."


MOST_SHOWN = NAMED
"""Ops of a chain in a sentence; the evidence has more of them."""


def told_of_chains(work: GpuWork, spent: float, inside: Ints, passed: Ints, beside_us: float) -> str:
    """What of the chains is another finding's too, and what the gain holds that is none of theirs."""
    attention_us = work.us_a_step(inside)
    told = f" {duration(attention_us)} of that is inside attention, which fused attention covers." if attention_us >= HARDLY_ANY * spent else ""
    if len(passed):
        return told + f" Gathers and scatters with elementwise work in between take {duration(work.us_a_step(passed))}, and a compiler fuses these too."
    return told or (f" A compiler saves another {duration(beside_us)}." if beside_us >= HARDLY_ANY * spent else "")


def chain_label(names: tuple[str, ...], most: int = 12) -> str:
    """The ops of a chain in order, `most` of them at the most."""
    return " → ".join(names if len(names) <= most else [*names[: most - 1], f"… {len(names) - most + 1} more"])


def named(work: GpuWork, position: int) -> str:
    """The op as the user wrote it; the functor in the kernel's name where ops were not recorded."""
    if work.op[position] >= 0:
        return plain(work.name(position))
    name = work.kernel_name(position)
    functor = _FUNCTOR.search(name)
    return functor[1] if functor else name.replace("<unnamed>::", "").split("<", 1)[0].rsplit("::", 1)[-1]


def kinds_of(work: GpuWork, chains: Sequence[Ints]) -> list[tuple[str, ...]]:
    """The ops of each chain; each distinct one is named once."""
    at = np.concatenate(chains)
    distinct, first = np.unique(work.kind[at], return_index=True)
    names = {kind: named(work, position) for kind, position in zip(distinct.tolist(), at[first].tolist(), strict=True)}
    kind = work.kind
    return [tuple(map(names.__getitem__, kind[chain].tolist())) for chain in chains]
