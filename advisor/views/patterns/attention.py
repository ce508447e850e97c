"""Attention that is written out, by what its ops work on: two products that share a tensor of scores, and a softmax of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from math import prod

import msgspec
import numpy as np

from advisor.intervals import Ints, Mask, Spans, subtract, union
from advisor.knowledge.op_tokens import elementary, names_of
from advisor.knowledge.op_tokens.families import Family
from advisor.knowledge.shares import CONSIDERABLE
from advisor.knowledge.structs import replace
from advisor.views.patterns.dataflow import NEAR, REACH, SMALLEST, Dataflow, Product, Sure, Tensor, multiplied
from advisor.views.replay.gpu_work import GpuWork

MOST_AS_MANY = 2
"""Times as many elements as there are scores that a kernel on them works on at most."""

MIN_BETWEEN_SHARE = CONSIDERABLE
"""Minimum time between the GEMMs of an attention without shapes or ops, as a share of their own."""

_PRODUCT_OP = names_of("activation_product")
_DROPOUT = names_of("dropout")
_MASK = names_of("mask_or_add")
_MASKING = names_of("write_mask")
_ADD = names_of("add")


class WrittenOut(msgspec.Struct, frozen=True):
    """An attention, forward or backward: its kernels (positions, in order), its GEMMs among them, its work and type.

    scores: [batch and heads, queries, keys]. flops: of the GEMMs. masked, dropped: whether scores are masked, weights dropped. causal: the mask is a single
    square for all heads and sequences. of_sequences: a square per sequence, shared by its heads. axes: of the multiplied tensors; fused kernels take four.
    """

    members: Ints
    products: Ints
    scores: tuple[int, int, int]
    flops: float
    backward: bool
    dtype: str
    masked: bool
    causal: bool
    of_sequences: bool
    dropped: bool
    axes: int


class Attentions(msgspec.Struct, frozen=True):
    """Every written-out attention of the steps replayed; none if shapes were not recorded."""

    found: tuple[WrittenOut, ...]

    @classmethod
    def build(cls, flow: Dataflow) -> Attentions:
        found = list(_Reader(flow).attentions()) if flow.work.timeline.source.shapes else []
        # The backward pass reads what the mask left, and not the mask.
        causal = {(one.scores, one.dtype) for one in found if one.causal}
        return cls(tuple(replace(one, causal=one.causal or (one.backward and (one.scores, one.dtype) in causal)) for one in found))

    def members(self, work: GpuWork) -> Ints:
        """The kernels of all of them; by their order where no shapes were recorded."""
        found = [one.members for one in self.found] if work.timeline.source.shapes else attentions_by_order(work)
        return np.concatenate([work.op[:0], *found])


class _Reader(msgspec.Struct, frozen=True, eq=False, dict=True):
    flow: Dataflow

    @property
    def work(self) -> GpuWork:
        return self.flow.work

    @cached_property
    def size(self) -> Ints:
        """(n,) elements of the largest tensor that each kernel's op reads; -1 where unknown."""
        return self.flow.shapes.elements[self.work.rows]

    @cached_property
    def dense(self) -> Mask:
        return self.work.in_families(Family.GEMM)

    @cached_property
    def exponential(self) -> Mask:
        """(n,) calls of a softmax, or of the exponential of an unfused softmax."""
        return self.flow.of_families(Family.SOFTMAX) | self.flow.calls_with_token("exponential")

    def _undoes(self, call: int) -> bool:
        """Whether a call sums a product of two equally large tensors, as the gradient of an unfused softmax does."""
        read = self.flow.reads(call)[:1]
        before = self.flow.origins(call, self.flow.of_families(Family.ELEMENTWISE), Sure.NEAREST)
        return any(elementary(self.flow.name(other)) == "mul" and self.flow.reads(other) == read * 2 for other in before)

    @cached_property
    def products(self) -> dict[int, Product]:
        """The batched GEMMs, by their calls."""
        return {call: size for call, _ in self.flow.products if (size := batched(self.flow.inputs(call)))}

    def attentions(self) -> Iterator[WrittenOut]:
        """Each softmax with the GEMMs around it, or in the backward pass its gradient."""
        flow, taken = self.flow, set[int]()
        of_scores = np.isin(self.size[flow.firsts], [*map(self._made, self.products)])
        for softmax in np.flatnonzero(of_scores & (self.exponential | flow.of_families(Family.REDUCTION))).tolist():
            if not self.exponential[softmax] and not self._undoes(softmax):
                continue
            first, users = self._gemms_around(softmax)
            users = [call for call in users if call not in taken]
            if not users or first in taken or self.products[first].rows * self.products[first].columns < SMALLEST:
                continue
            other = self._value_gradient(first, taken)
            if other >= 0 and len(users) > 1 and (flow.backward[softmax] or not flow.backward.any()):
                chosen = sorted((other, first)) + users[:2]
            elif self.exponential[softmax] and not flow.backward[softmax]:
                chosen = [first, users[0]]
            else:
                continue
            if chosen[-1] - chosen[0] <= REACH and flow.part[chosen[0]] == flow.part[chosen[-1]]:
                taken.update(chosen)
                yield self._single_attention(chosen, first)

    def _gemms_around(self, softmax: int) -> tuple[int, list[int]]:
        """The GEMM that makes the input of a softmax, and those after it that may read the weights; (-1, []) without both."""
        flow, scores = self.flow, int(self.size[self.flow.firsts[softmax]])
        between = ~flow.of_families(Family.GEMM)
        for first in flow.origins(softmax, between, Sure.GUESS if self.exponential[softmax] else Sure.NEAREST):
            if self._made(first) == scores:
                users = [call for call in sorted(flow.uses(first, between)) if call > softmax and self._uses(call, first)]
                if users:  # what else is added to the scores, as of relative places, has other batches
                    return first, users
        return -1, []

    def _value_gradient(self, first: int, taken: set[int]) -> int:
        """The GEMM that makes the gradient of the values, next to that of the scores; -1 if there is none."""
        flow = self.flow
        for step in (-1, 1):
            call = first + step
            while 0 <= call < len(flow.op) and call not in self.products and (flow.op[call] < 0 or flow.has_token(call, "copy")):
                call += step
            if call not in taken and self._uses(call, first):
                return call
        return -1

    def _made(self, call: int) -> int:
        """Elements of a batched GEMM's result; 0 of other calls."""
        product = self.products.get(call)
        return product.batch * product.rows * product.columns if product else 0

    def _uses(self, call: int, first: int) -> bool:
        """Whether a call multiplies a tensor of the sides that another makes."""
        product, sides = self.products.get(call), self.products[first]
        return (
            product is not None
            and product.batch == sides.batch
            and {sides.rows, sides.columns} in ({product.rows, product.inner}, {product.inner, product.columns})
        )

    def _single_attention(self, calls: list[int], first: int) -> WrittenOut:
        flow, work, sides, scores, backward = self.flow, self.work, self.products[first], self._made(first), len(calls) == 4
        own = np.concatenate([at[self.dense[at]] for at in (flow.kernels(call, call + 1) for call in calls)])
        span = flow.kernels(calls[0], calls[-1] + 1)
        members = np.union1d(own, span[self._of_scores(span, scores) & ~self.dense[span]])
        members = np.union1d(members, self._operand_copies(calls, own))
        biased = not backward and self._biased(np.setdiff1d(members, own), scores)
        if biased:
            # One call takes either a causal mask or a bias: into a bias that the program computes the mask has to be written as before.
            members = members[work.ops.enclosing(work.op[members], _MASKING) < 0]  # with copies for it
        names = [work.name(int(k)) for k in np.setdiff1d(members, own)]
        return WrittenOut(
            members=members,
            products=own,
            scores=(sides.batch, sides.rows, sides.columns),
            flops=sum(2.0 * prod(self.products[call]) for call in calls),
            backward=backward,
            dtype=flow.shapes.dtype(int(flow.op[first])),
            masked=any(_MASK.search(name) for name in names),
            causal=not biased and self._causal(np.setdiff1d(members, own), sides.rows, sides.columns),
            of_sequences=not biased and self._of_sequences(np.setdiff1d(members, own), sides),
            dropped=any(_DROPOUT.search(name) for name in names),
            axes=max((len(shape) for op in self._calls(own) for shape, _ in flow.shapes.inputs(op)), default=0),
        )

    def _of_scores(self, at: Ints, scores: int) -> Mask:
        """(n,) which kernels work on about as many elements as there are scores: not on all words that may come next."""
        return (self.size[at] * 2 >= scores) & (self.size[at] <= MOST_AS_MANY * scores)

    def _biased(self, between: Ints, scores: int) -> bool:
        """Whether a bias is added that has a value of its own for each score of each head and sequence."""
        return any(
            sum(prod(shape) == scores for shape, _ in self.flow.shapes.inputs(int(self.work.op[k]))) > 1
            for k in between.tolist()
            if _ADD.search(self.work.name(k))
        )

    def _causal(self, between: Ints, rows: int, columns: int) -> bool:
        """Whether all heads and sequences share a square mask, as causal masks are."""
        return rows == columns and any(
            shape[-2:] == (rows, columns) and prod(shape) == rows * columns
            for k in between.tolist()
            if _MASK.search(self.work.name(k))
            for shape, _ in self.flow.shapes.inputs(int(self.work.op[k]))
        )

    def _of_sequences(self, between: Ints, of: Product) -> bool:
        """Whether a square mask per sequence is added to the scores of all its heads: libraries express causal and padded that way."""
        return of.rows == of.columns and any(
            len(shape) == 4 and shape[0] > 1 and shape[1:] == (1, of.rows, of.columns)
            for k in between.tolist()
            if _ADD.search(self.work.name(k))
            for shape, _ in self.flow.shapes.inputs(int(self.work.op[k]))
        )

    def _operand_copies(self, calls: list[int], products: Ints) -> Ints:
        """Copies that the product's own op makes of its operands: a matmul of expanded heads, an einsum of turned ones."""
        near = self.flow.kernels(max(calls[0] - REACH, int(np.searchsorted(self.flow.part, self.flow.part[calls[0]]))), calls[-1] + 1)
        near = near[self.work.op[near] >= 0]
        return near[np.isin(self.work.ops.outermost[self.work.op[near]], self._calls(products))]

    def _calls(self, products: Ints) -> list[int]:
        """The ops that the program called for its products."""
        return [op for op in np.unique(self.work.ops.outermost[self.work.op[products]]).tolist() if _PRODUCT_OP.search(self.work.ops.name(op))]


def batched(inputs: list[Tensor]) -> Product | None:
    """The sizes of a product of batches of matrices; None if they are none."""
    return multiplied([shape for shape, _ in inputs if len(shape) >= 3])


def attentions_by_order(work: GpuWork, min_between_share: float = MIN_BETWEEN_SHARE) -> list[Ints]:
    """Positions of the kernels of each attention without shapes: a GEMM, elementwise kernels with a softmax among them, a GEMM."""
    # What is fetched by index is a bias for each place.
    filler = work.in_families(Family.ELEMENTWISE, Family.COPY, Family.FILL, Family.RANDOM, Family.FUSED, Family.LAYOUT, Family.EMBEDDING)
    signs = np.select([work.in_families(Family.GEMM), work.in_families(Family.SOFTMAX), filler], ["P", "S", "f"], ".")
    layer = work.launched_by(names_of("layer_product").search)
    found: list[Ints] = []
    for part in work.parts:
        used = -1
        for match in re.finditer(f"(?=(P(?=f*S)[fS]{{1,{NEAR - 1}}}P))", "".join(signs[part])):
            first, end = match.span(1)
            ends, between = part[[first, end - 1]], float(work.dur_us[part[first + 1 : end - 1]].sum())
            told = work.op[ends[0]] >= 0 or between >= min_between_share * float(work.dur_us[ends].sum())
            if first > used and told and not layer[ends].any():
                while first - 1 > used and _of_one_node(work, part[first - 1], ends[0]):
                    first -= 1
                while end < len(part) and _of_one_node(work, part[end], ends[1]):
                    end += 1
                found.append(part[first:end])
                used = end - 1
    return found


def _of_one_node(work: GpuWork, at: int, product: int) -> bool:
    """Whether the node of autograd that launched a product launched this kernel too: it makes a gradient of both operands."""
    return bool(work.backward[product] and work.op[at] >= 0 and work.ops.outermost[work.op[at]] == work.ops.outermost[work.op[product]])


def host_between(work: GpuWork, patterns: Iterable[Ints], gone: Ints) -> Spans:
    """Host spans of patterns, from the first kernel's op to the last's, except ops that also launch other kernels.

    Both are positions. Views and autograd nodes without launches in between disappear too when the pattern becomes a single op.
    """
    ops = work.timeline.cpu_ops
    start, end = ops.bounds()
    issued = [op[op >= 0] for op in (work.op[members] for members in patterns)]
    issued = [op for op in issued if len(op)]
    staying = np.unique(np.delete(work.op, gone))
    staying = staying[staying >= 0]
    between = union(np.array([end[op].min() for op in issued]), np.array([start[op].max() for op in issued]))
    return subtract(between, union(start[staying], end[staying]))
