"""Matches parts of two steps that do the same work, although kernels were renamed, fused or replaced."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from advisor.knowledge.demangled import same_name
from advisor.report.step import Part

Relation = Literal["same", "renamed", "replaced", "fused", "split", "new", "gone"]

_FUSED_BY_COMPILER = re.compile(r"^triton_[a-z]+_fused_(.+?)_\d+$")


@dataclass(frozen=True)
class Match:
    """Parts before and after that do the same work; one side is empty for new or removed work."""

    before: tuple[Part, ...]
    after: tuple[Part, ...]
    relation: Relation


def match(before: Sequence[Part], after: Sequence[Part]) -> list[Match]:
    """Every part of both sides in exactly one match, in order of their first run.

    First equal kernels of equal ops. Then a kernel that moved to another op or module, or has another demangled name; then different kernels of the same op and
    shapes; then the rest between matched neighbours.
    """
    left, right = list(before), list(after)
    pairs: list[tuple[int, int, Relation]] = []
    free_left, free_right = dict.fromkeys(range(len(left))), dict.fromkeys(range(len(right)))
    for key, relation in _KEYS:
        waiting: dict[Hashable, list[int]] = {}
        for j in free_right:
            if (k := key(right[j])) is not None:
                waiting.setdefault(k, []).append(j)
        for i in list(free_left):
            k = key(left[i])
            if k is not None and waiting.get(k):
                j = waiting[k].pop(0)
                pairs.append((i, j, relation))
                del free_left[i], free_right[j]
    more_left, more_right = _of_one_part(left, right, pairs, free_left), _of_one_part(right, left, [(j, i, r) for i, j, r in pairs], free_right)
    matches = [Match((left[i], *more_left.get(j, ())), (right[j], *more_right.get(i, ())), relation) for i, j, relation in sorted(pairs)]
    return matches + _by_position(left, right, pairs, list(free_left), list(free_right))


def _of_one_part(own: list[Part], other: list[Part], pairs: list[tuple[int, int, Relation]], free: dict[int, None]) -> dict[int, list[Part]]:
    """The rest of kernels that the other side has in a single part each (as without recorded ops), by the place of that part; removed from `free`."""
    whole = {_kernel(other[j]): j for _, j, relation in pairs if relation == "same" and not other[j].op}
    found: dict[int, list[Part]] = {}
    for i in list(free):
        if (j := whole.get(_kernel(own[i]))) is not None:
            found.setdefault(j, []).append(own[i])
            del free[i]
    return found


def _kernel(part: Part) -> Hashable:
    return part.kind, spelled(part), part.family


def spelled(part: Part) -> str:
    """What all demanglers' spellings of a kernel's name come to; the name itself of what is no kernel."""
    return (same_name(part.name) if part.kind in _ANCHORS else "") or part.name


Key = Callable[[Part], Hashable]

# Memsets and copies have no op in nsys exports; idleness never changes its name.
_KEYS: tuple[tuple[Key, Relation], ...] = (
    (lambda p: (p.kind, p.name, p.op, p.module, p.family), "same"),
    (lambda p: (p.kind, p.name, p.op), "same"),
    (lambda p: (p.kind, p.name), "same"),
    (lambda p: (p.kind, spelled(p), p.op), "same"),
    (lambda p: (p.kind, spelled(p)), "same"),
    (lambda p: (p.kind, p.op, p.module, p.shapes) if p.op and p.shapes else None, "renamed"),
    (lambda p: (p.kind, p.op, p.shapes) if p.op and p.shapes else None, "renamed"),
)


# Copies and memsets come and go within what one op does.
_ANCHORS = ("compute", "communication")


def _by_position(left: list[Part], right: list[Part], pairs: list[tuple[int, int, Relation]], free_left: list[int], free_right: list[int]) -> list[Match]:
    """What is left, by the nearest matched neighbour that ran before it on both sides."""
    of_left = {i: n for n, (i, _, _) in enumerate(pairs) if left[i].kind in _ANCHORS}
    of_right = {j: n for n, (_, j, _) in enumerate(pairs) if right[j].kind in _ANCHORS}
    order_left, order_right = [of_left[i] for i in sorted(of_left)], [of_right[j] for j in sorted(of_right)]
    blocks = SequenceMatcher(None, order_left, order_right, autojunk=False).get_matching_blocks()
    anchors = {order_left[b.a + k] for b in blocks for k in range(b.size)}
    groups: dict[tuple[int, str], tuple[list[Part], list[Part]]] = {}
    for side, parts, free, numbered in ((0, left, free_left, of_left), (1, right, free_right, of_right)):
        anchor = -1
        wanted = set(free)
        for at, part in enumerate(parts):
            if numbered.get(at, -1) in anchors:
                anchor = numbered[at]
            elif at in wanted:
                groups.setdefault((anchor, part.kind), ([], []))[side].append(part)
    return [m for old, new in groups.values() for m in _relate(old, new)]


def _relate(old: list[Part], new: list[Part]) -> list[Match]:
    if old and new and old[0].kind != "idle":
        return [Match(tuple(old), tuple(new), _relation(old, new))]
    gone: list[Match] = [Match((part,), (), "gone") for part in old]
    return gone + [Match((), (part,), "new") for part in new]


def _relation(old: list[Part], new: list[Part]) -> Relation:
    launched, launches = sum(p.calls for p in old), sum(p.calls for p in new)
    if launches < launched and (len(new) < len(old) or any(_FUSED_BY_COMPILER.match(p.name) for p in new)):
        return "fused"
    return "split" if len(new) > len(old) and launches > launched else "replaced"
