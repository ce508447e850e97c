"""Fusion groups of a compiler: elementwise ops, casts, copies, reductions, norms and softmaxes between GEMMs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import msgspec
import numpy as np

from advisor.intervals import Ints, Mask
from advisor.knowledge.measured_costs import cost, costs
from advisor.knowledge.op_costs.arguments import DTYPE_BYTES
from advisor.knowledge.op_tokens import has_token, names_of
from advisor.knowledge.op_tokens.families import Family
from advisor.knowledge.shares import CONSIDERABLE
from advisor.knowledge.shortest_kernel import LATENCY_BOUND_US, SHORTEST_US
from advisor.views.patterns.dataflow import Size, sizes
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.optimizer_ranges import update_spans
from advisor.views.trace.shapes import Shapes, broadcasts
from advisor.views.trace.table_filters import matches

FUSED = (
    Family.ELEMENTWISE, Family.COPY, Family.REDUCTION, Family.NORM, Family.SOFTMAX, Family.RANDOM, Family.FILL,
)  # fmt: skip
"""Families that a compiler fuses with their neighbours."""

FULL = CONSIDERABLE
"""Of a stretch's largest tensor: smaller tensors cost nothing next to it."""

AGAIN = 0.5
"""How often a further operand of a size that was read before is another tensor, not the same tensor again."""

ROW_BYTES = 16384
"""A row of at most this stays on the chip between the reduction and the next op; a longer row is read again."""

SLOWER, LIKELY, FASTER = costs("generated-kernel")

RANDOM_PER_S = cost("random-numbers")

NARROW_US = LATENCY_BOUND_US
"""Shorter kernels take as long as they take to start, on however few SMs (as for small-grid)."""

_OPTIMIZER = names_of("optimizer_work")
_RANDOM = names_of("random")
_JOINING = names_of("concatenate_or_stack")
_ACROSS_ROWS = names_of("norm_across_rows")
_STATISTICS = names_of("norm_statistics")
"""In the names of a norm's kernels that need all of a tensor before they can write any of it: not those of inference."""
_BY_ROW = names_of("any_softmax")
_COPYING = names_of("copy")
_OF_COMPLEX = names_of("complex_template")
"""In the names of kernels: a type that they are made for."""
_PICKING = names_of("gather_or_scatter")


class Traffic(msgspec.Struct, frozen=True):
    """Memory traffic of consecutive ops, for any set of kernels.

    largest: elements of the largest input, or output without inputs; 0 if shapes do not show it. least, likely, most: bytes that must cross memory; left:
    written part. random: random numbers made. kernels: number after fusion; a second pass over a tensor needs a kernel for the statistics and another for
    the rest. apart: casts of other tensors. joins: ops that join tensors into a tensor that no op here reads, which must be written. moved_on: of ops that
    only move, whether the joined tensor moves again.
    """

    largest: int
    least: float
    likely: float
    most: float
    left: float
    random: float
    kernels: int
    apart: int
    joins: tuple[int, ...]
    moved_on: bool


class Stretch(Traffic, frozen=True):
    """Kernels that a compiler fuses, and their traffic.

    members: positions; full: those on the largest tensors. own_us: their time. narrow_us: of that, softmaxes with so few rows that half of the device
    idles, fused or not. joined_us: time of joining ops. casts: casts of the largest tensors.
    """

    members: Ints
    full: Ints
    own_us: float
    narrow_us: float
    joined_us: float
    casts: int

    @property
    def known(self) -> bool:
        """Whether shapes show the traffic."""
        return self.largest > 0

    def fused_us(self, bytes_per_s: float) -> tuple[float, float, float]:
        """Time of the kernel in their place, slowest first; never above their own."""
        floor = max(SHORTEST_US, self.random / RANDOM_PER_S * 1e6, self.narrow_us)
        # What the stretch made of it, its other kernels wrote, and that is counted. What takes longer than all of them joins what came from elsewhere.
        elsewhere = self.joined_us > self.own_us - self.joined_us
        joined_us = max(self.joined_us - LIKELY * 2 * self.left / bytes_per_s * 1e6, 0.0) if elsewhere else 0.0
        slow, likely, fast = (
            min(max(floor, moved / bytes_per_s * 1e6) + joined_us, self.own_us) for moved in (SLOWER * self.most, LIKELY * self.likely, FASTER * self.least)
        )
        return slow, likely, fast


class Fusion(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Fusion groups of the replayed steps with at least two kernels, without optimizers. elements: (n,) of the largest tensor of each op, -1 if not recorded."""

    stretches: tuple[Stretch, ...]
    elements: Ints

    def kernels(self, chains: Sequence[Ints]) -> list[int]:
        """How many kernels a compiler leaves of each chain of positions."""
        left = {int(stretch.members[0]): stretch.kernels for stretch in self.stretches}
        return [left.get(int(chain[0]), 1) for chain in chains]

    @cached_property
    def launches(self) -> list[int]:
        """How many launches a compiler leaves of each stretch."""
        return [min(stretch.kernels + stretch.apart, len(stretch.members)) for stretch in self.stretches]

    @property
    def saved(self) -> int:
        """How many launches fewer there are with all of them."""
        return sum(len(stretch.members) for stretch in self.stretches) - sum(self.launches)

    @classmethod
    def build(cls, work: GpuWork, shapes: Shapes) -> Fusion:
        reader = _Reader(work, shapes)
        member = (work.in_families(*FUSED) | reader.picking()) & work.kernel & ~in_optimizer(work)
        # No compiler that is in use makes kernels of complex numbers.
        member &= ~work.launched_by(names_of("complex").search) & ~_takes_complex(work) & ~work.named(_OF_COMPLEX)
        return cls(tuple(reader.stretches(runs(work, member))), shapes.elements[work.rows])


def _takes_complex(work: GpuWork) -> Mask:
    """(n,) whether the launching op takes complex numbers, if types were recorded."""
    return np.r_[work.timeline.cpu_ops["types"].matching(lambda text: "complex" in text), False][work.op]


def runs(work: GpuWork, member: Mask, elements: Ints | None = None) -> list[Ints]:
    """Consecutive positions on a stream in the same pass of the same step, with equally many elements if known (-1: unknown)."""
    found: list[Ints] = []
    backward = work.backward
    in_order = np.argsort(work.schedule.stream, kind="stable")
    for here in np.split(in_order, np.flatnonzero(np.diff(work.schedule.stream[in_order])) + 1) if len(in_order) else ():
        together = member[here][1:] & member[here][:-1] & (np.diff(work.step[here]) == 0) & (backward[here][1:] == backward[here][:-1])
        if elements is not None:
            n = elements[here]
            together &= (n[1:] == n[:-1]) | (n[1:] < 0) | (n[:-1] < 0)
        bounds = np.r_[0, np.flatnonzero(~together) + 1, len(here)]
        inside = np.flatnonzero(member[here[bounds[:-1]]])
        found += [here[first:last] for first, last in zip(bounds[inside].tolist(), bounds[inside + 1].tolist(), strict=True)]
    return found


def in_optimizer(work: GpuWork) -> Mask:
    """(n,) whether an op was launched inside an optimizer step."""
    notes = work.timeline.annotations
    return work.launched_by(_OPTIMIZER.search) | work.launched_inside(update_spans(work.timeline, matches(notes, _OPTIMIZER)))


Key = tuple[int, int]
"""Elements, and bytes per element."""


class _Reader(msgspec.Struct, frozen=True, eq=False, dict=True):
    work: GpuWork
    shapes: Shapes

    def stretches(self, found: Sequence[Ints]) -> Iterator[Stretch]:
        """Those of runs of two kernels or more."""
        found = [run for run in found if len(run) > 1]
        ops, alike = self.work.op.tolist(), self._alike
        made = self.shapes.made[self.work.rows]
        at = np.concatenate([*found, self.work.op[:0]])
        of = np.repeat(np.arange(len(found)), [len(run) for run in found])
        own = np.bincount(of, self.work.dur_us[at], len(found)).tolist()
        narrow = np.bincount(of, np.where(self._narrow, self.work.dur_us, 0.0)[at], len(found)).tolist()
        known: dict[tuple[Hashable, ...], Traffic] = {}
        moved: list[tuple[Traffic, list[int]]] = []
        for run in found:
            members = {ops[position]: alike[position] for position in run.tolist()}
            key = tuple(members.values())
            if key not in known:
                known[key] = self._traffic([*members])
            moved.append((known[key], [[*members][k] for k in known[key].joins]))
        largest = np.array([traffic.largest for traffic, _ in moved], np.int64)[of]
        is_full = made[at] >= FULL * largest
        casts = np.bincount(of[is_full & (made[at] == largest) & self._casting[at]], minlength=len(found)).tolist()
        in_full = np.split(at[is_full], np.searchsorted(of[is_full], np.arange(1, len(found)))) if found else []
        for run, own_us, narrow_us, (traffic, joins), full, cast in zip(found, own, narrow, moved, in_full, casts, strict=True):
            yield Stretch(
                **msgspec.structs.asdict(traffic),
                members=run,
                full=full,
                own_us=own_us,
                narrow_us=narrow_us,
                joined_us=float(self.work.dur_us[run[np.isin(self.work.op[run], joins)]].sum()) if joins else 0.0,
                casts=cast,
            )

    @cached_property
    def _casting(self) -> Mask:
        """(n,) whether a kernel does nothing but change a tensor's type."""
        casts = [
            op
            for op in np.unique(self.work.op[self.work.launched_by(_COPYING.match)]).tolist()
            if len({key[1] for key in (*self._keys(op), self._result(op))}) > 1
        ]
        return np.isin(self.work.op, casts)

    @cached_property
    def _casts(self) -> set[int]:
        """Copies that `to` calls for another type, or to take over what another device holds."""
        ops = self.work.ops
        copies = np.unique(self.work.op[self.work.launched_by(_COPYING.match)])
        return {op for op in copies.tolist() if ops.parent[op] >= 0 and has_token(ops.name(int(ops.parent[op])), "cast_copy")}

    @cached_property
    def _alike(self) -> list[Hashable]:
        """(n,) the key of each op's results: the ops of a step repeat in the next with the same traffic."""
        op = self.work.op
        names = self.work.ops.codes(op)
        asked = (np.isin(op, list(of)).tolist() for of in (self._with_statistics, self._pointwise, self._casts))
        return list(zip(names.tolist(), *self.shapes.alike(op), *asked, strict=True))

    def _traffic(self, ops: list[int]) -> Traffic:
        """The bytes of a group's ops: inputs that none of them made, and results.

        A trace shows only sizes of inputs, not tensors. An operand with a size that the group has made counts as that tensor; another size is read, and a
        further operand of that size is the same tensor as often as not (`AGAIN`).
        """
        joins = self._joins(ops)
        reads = [joins[op][0] if op in joins else self._keys(op) for op in ops]
        makes = [joins[op][1] if op in joins else self._result(op) for op in ops]
        largest = max((max(keys[0][0], out[0]) for keys, out in zip(reads, makes, strict=True) if keys), default=0)
        made: Counter[Key] = Counter()
        used: Counter[Key] = Counter()
        read: set[Key] = set()
        least = most = random = 0.0
        reduced, passes = False, 0
        joined: list[int] = []
        moved_on = False
        from_joins = {out for _, out in joins.values()}
        for nth_op, (op, out) in enumerate(zip(ops, makes, strict=True)):
            keys = [key for key in reads[nth_op] if key[0] >= FULL * largest]
            for nth, key in enumerate(keys):
                if made[key] > nth:
                    used[key] += 1
                    moved_on = moved_on or key in from_joins
                    continue
                joined.clear()
                read_before = key in read
                read.add(key)
                size = float(key[0] * key[1])
                most += size
                if nth or not read_before:
                    least += size
            if self._reads_again(op):
                passes += 1
                if keys:
                    # What was cast on the way is read again as it lies in memory.
                    smallest = min(each for n, each in {*read, keys[0]} if n == keys[0][0])
                    again = sum(n * min(each, smallest) for n, each in keys if n == keys[0][0])
                    least, most = least + again, most + again
            if _JOINING.match(self.work.ops.name(op)) and not keys:
                joined.append(nth_op)  # no types were recorded of lists of tensors, nor often shapes
            if out[0] >= FULL * largest:
                made[out] += 1
            if keys:
                reduced = not out[0]
            if _RANDOM.match(self.work.ops.name(op)):
                random += out[0]
        # What nothing in the run reads stays, the last result at least; a loss leaves a value a row.
        last = 0 if reduced else min((n * size for n, size in made), default=0)
        stays = made - used
        left = float(max(sum(count * n * size for (n, size), count in stays.items()), last))
        largest_read = max((n for n, _ in read), default=0)
        return Traffic(
            largest=min(largest, largest_read) or largest,
            least=least + left,
            likely=least + AGAIN * (most - least) + left,
            most=most + left,
            left=left,
            random=random,
            kernels=1 + passes,
            apart=self._separate_casts(ops),
            joins=tuple(joined),
            moved_on=moved_on,
        )

    def _joins(self, ops: list[int]) -> dict[int, tuple[list[Key], Key]]:
        """Reads and results of ops that join tensors for a later op, in a run that only moves. Lists of tensors have no recorded type: the next op
        that reads as many elements gives it."""
        found: dict[int, tuple[list[Key], Key]] = {}
        if not self._moving.issuperset(ops):
            return found
        read_next: dict[int, int] = {}
        for op in reversed(ops):
            parts = self.shapes.parts(op) if _JOINING.match(self.work.ops.name(op)) else ()
            if parts and (each := read_next.get(sum(parts))):
                found[op] = sorted(((n, each) for n in parts), reverse=True), (sum(parts), each)
            read_next.update(found[op][0] if op in found else self._keys(op))
        return found

    def _separate_casts(self, ops: list[int]) -> int:
        """Casts of a group with a result that no later op of it reads, of another size than its last result: weights and gradients in mixed precision, cast for
        a GEMM or the optimizer. A kernel loops over a single size, so each stays a kernel. Without shapes, a cast directly before another counts, since a
        fresh cast is not cast again."""
        if not any(self._keys(op) for op in ops):
            return sum(op in self._casts and after in self._casts for op, after in pairwise(ops))
        wanted: set[Key] = set()
        sizes: list[int] = []
        for op in reversed(ops):
            keys, result = self._keys(op), self._result(op)
            cast = bool(keys) and has_token(self.work.ops.name(op), "copy") and keys[0] != result
            if not sizes or (cast and result not in wanted):
                sizes.append(result[0])
            wanted.update(keys)
        return sum(size != sizes[0] for size in sizes)

    @cached_property
    def _narrow(self) -> Mask:
        """(n,) whether a softmax that is worth the question leaves half of its device idle."""
        blocks, sms, dur_us = self.work.column("grid_blocks"), self.work.timeline.sm_counts(self.work.column("device")), self.work.dur_us
        return self.work.in_families(Family.SOFTMAX) & (blocks > 0) & (2 * blocks < sms) & (dur_us >= NARROW_US)

    @cached_property
    def _pointwise(self) -> set[int]:
        return set(self.work.op[self.work.in_families(Family.ELEMENTWISE) & self.work.launched_by(broadcasts)].tolist())

    @cached_property
    def _moving(self) -> set[int]:
        return set(self.work.op[self.work.in_families(Family.COPY, Family.FILL) | self.work.launched_by(_JOINING.match)].tolist())

    @cached_property
    def _with_statistics(self) -> set[int]:
        return set(self.work.op[self.work.named(_STATISTICS)].tolist())

    def picking(self) -> Mask:
        """(n,) whether an op picks or sets a value per row, as losses do: a compiler compares each element's place with the index."""
        by_row = [op for op in np.unique(self.work.op[self.work.launched_by(_PICKING.match)]).tolist() if self._one_a_row(op)]
        return np.isin(self.work.op, by_row)

    def _one_a_row(self, op: int) -> bool:
        shapes = [shape for shape, _ in self.shapes.inputs(op)[:2]]
        return len(shapes) == 2 and bool(shapes[0]) and shapes[1] == (*shapes[0][:-1], 1)

    def _reads_again(self, op: int) -> bool:
        """Whether an op needs its input twice: a norm over the batch, a softmax of rows that do not stay on the chip."""
        name = self.work.ops.name(op)
        if _ACROSS_ROWS.search(name):
            return op in self._with_statistics
        shape, kind = next(iter(self.shapes.inputs(op)), ((), ""))
        return bool(_BY_ROW.search(name) and shape and shape[-1] * DTYPE_BYTES[kind] > ROW_BYTES)

    def _keys(self, op: int) -> list[Key]:
        """Elements and their size of each tensor that an op reads, the largest first."""
        return self._sizes(op)[0]

    def _result(self, op: int) -> Key:
        """The same for an op's result (0 if unknown), and for picking a value per row."""
        return self._sizes(op)[1]

    def _sizes(self, op: int) -> tuple[list[Key], Key]:
        """Both, worked out once for ops that are alike."""
        alike = self._alike_of[op]
        if alike not in self._known:
            name = self.work.ops.name(op)
            reads, makes = sizes(name, self.shapes.inputs(op), op in self._pointwise)
            self._known[alike] = sorted(map(_key, reads), reverse=True), (0, 0) if has_token(name, "gather") else _key(makes)
        return self._known[alike]

    @cached_property
    def _alike_of(self) -> dict[int, Hashable]:
        return dict(zip(self.work.op.tolist(), self._alike, strict=True))

    @cached_property
    def _known(self) -> dict[Hashable, tuple[list[Key], Key]]:
        return {}


def _key(size: Size) -> Key:
    elements, kind = size
    return elements, DTYPE_BYTES.get(kind, 0)
