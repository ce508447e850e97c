"""Attention that is written out, by what its ops work on: two products that share a tensor of scores, and a softmax of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from math import prod

import msgspec
import numpy as np

from advisor.intervals import Ints, Mask, Spans, subtract, union
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.op_tokens.families import Family
from advisor.knowledge.structs import replace
from advisor.views.patterns.dataflow import REACH, Tensor, multiplied
from advisor.views.patterns.dataflow import Product as Batched
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.shapes import Shapes

NARROWEST = 16
"""Heads are hardly ever narrower: below it, sizes that coincide are those of the first words that are decoded."""

MIN_SCORES = 16
"""Least scores per head: those of a word decoded after fifteen others. Products of smaller matrices are something else."""

MOST_AS_MANY = 2
"""Times as many elements as there are scores that a kernel on them works on at most."""

MOST_BETWEEN = 12
"""Maximum kernels between two GEMMs of an attention without shapes: scale, mask, casts, softmax, dropout, each up to twice."""

MIN_BETWEEN_SHARE = 0.3
"""What these take of the products' time, at least, if not even ops were recorded."""

_EXPONENTIAL = names_of("exponential")
_PRODUCT_OP = names_of("activation_product")
_DROPOUT = names_of("dropout")
_MASK = names_of("mask_or_add")
_MASKING = names_of("write_mask")
_ADD = names_of("add")


class Product(msgspec.Struct, frozen=True):
    """A batched product [batch, rows, inner] x [batch, inner, columns] and the kernels (positions) that compute it."""

    at: Ints
    batch: int
    rows: int
    inner: int
    columns: int
    first: bool | None
    """Which it is of the scores' products: it makes them, or (in the backward pass) their gradient. None if a head is as wide as
    a sequence of keys is long, so that sizes do not tell."""

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.rows * self.inner * self.columns


class WrittenOut(msgspec.Struct, frozen=True):
    """An attention, forward or backward: its kernels (positions, in order), its GEMMs among them, its work and type.

    scores: [batch and heads, queries, keys]. flops: of the GEMMs. masked, dropped: whether scores are masked, weights dropped. causal: the mask is a
    single square for all heads and sequences. of_sequences: a square per sequence, shared by its heads. axes: of the multiplied tensors; fused kernels
    take four.
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
    def build(cls, work: GpuWork, shapes: Shapes) -> Attentions:
        found = list(_Reader(work, shapes).attentions())
        # The backward pass reads what the mask left, and not the mask.
        causal = {(one.scores, one.dtype) for one in found if one.causal}
        return cls(tuple(replace(one, causal=one.causal or (one.backward and (one.scores, one.dtype) in causal)) for one in found))

    def members(self, work: GpuWork) -> Ints:
        """The kernels of all of them; by their order where no shapes were recorded."""
        found = [one.members for one in self.found] if work.timeline.source.shapes else attentions_by_order(work)
        return np.concatenate([work.op[:0], *found])


class _Reader(msgspec.Struct, frozen=True, eq=False, dict=True):
    work: GpuWork
    shapes: Shapes

    @cached_property
    def size(self) -> Ints:
        """(n,) elements of the largest tensor that each kernel's op reads; -1 where unknown."""
        return self.shapes.elements[self.work.rows]

    @cached_property
    def exponential(self) -> Mask:
        return self.work.in_families(Family.SOFTMAX) | self.work.launched_by(_EXPONENTIAL.search)

    @cached_property
    def dense(self) -> Mask:
        return self.work.in_families(Family.GEMM)

    def attentions(self) -> Iterator[WrittenOut]:
        if not self.work.timeline.source.shapes:
            return
        for here in self.work.parts:
            by_scores: dict[tuple[int, frozenset[int]], list[Product]] = {}
            for key, product in self._products(here):
                by_scores.setdefault(key, []).append(product)
            sizes = {(batch, sides): batch * prod(sides) * (max(sides) if len(sides) == 1 else 1) for batch, sides in by_scores}
            used: set[int] = set()
            for key, products in by_scores.items():
                for made in self._pairs(here, products, sizes[key]):
                    used.update(made.products.tolist())
                    yield made
            for key, products in by_scores.items():
                wide = self._pairs(here, _as_wide([p for p in products if not used & {*p.at.tolist()}]), sizes[key])
                yield from (made for made in wide if min(made.scores[1:]) >= NARROWEST)

    def _products(self, here: Ints) -> Iterator[tuple[tuple[int, frozenset[int]], Product]]:
        """Each product of two activations under every pair of sizes that may be scores: of its result, and of its operands."""
        op = self.work.op[here]
        dense = self.dense[here] & (op >= 0)
        for value in dict.fromkeys(op[dense].tolist()):
            sizes = batched(self.shapes.inputs(value))
            if sizes is None:
                continue
            batch, rows, inner, columns = sizes
            at = here[(op == value) & dense]
            places: list[tuple[tuple[int, int], bool | None]] = [((rows, columns), True), ((rows, inner), False), ((inner, columns), False)]
            if inner == columns:
                places = [((rows, columns), None), *(places[2:] if rows != inner else [])]
            for pair, first in places:
                if pair[0] * pair[1] >= MIN_SCORES:
                    yield (batch, frozenset(pair)), Product(at, batch, rows, inner, columns, first)

    def _pairs(self, here: Ints, products: list[Product], scores: int) -> Iterator[WrittenOut]:
        """Forward: the product that makes the scores, a softmax, the one that uses them. Backward: two, the softmax's, two."""
        products.sort(key=lambda p: int(p.at[0]))
        k = 0
        while k < len(products):
            for count, softmax_after in ((2, 0), (4, 1)):
                chosen = products[k : k + count]
                if len(chosen) == count and (made := self._single_attention(here, chosen, softmax_after, scores)):
                    yield made
                    k += count - 1
                    break
            k += 1

    def _single_attention(self, here: Ints, products: list[Product], softmax_after: int, scores: int) -> WrittenOut | None:
        work, backward = self.work, len(products) == 4
        firsts = _settled([p.first for p in products], softmax_after)
        if firsts.count(True) != 1 or not any(firsts[: softmax_after + 1]):
            return None
        first = products[firsts.index(True)]
        if backward and first.rows != first.columns and len({p.rows for p in products}) == 1:
            return None  # two of the four work on keys, with as many rows: these are layers that decode a word
        if len({int(p.at[0]) for p in products}) < len(products):
            return None
        span = here[np.searchsorted(here, min(products[0].at)) : np.searchsorted(here, max(products[-1].at), side="right")]
        if len(span) > REACH:
            return None
        between = span[(span > max(products[softmax_after].at)) & (span < min(products[softmax_after + 1].at))]
        of_scores = self._of_scores(between, scores)
        if not (self.exponential[between] & of_scores).any() and not (backward and self._softmax_backward(between, of_scores)):
            return None
        own = np.concatenate([p.at for p in products])
        members = np.union1d(own, span[self._of_scores(span, scores)])
        members = np.setdiff1d(members, span[self.dense[span] & ~np.isin(span, own)])
        members = np.union1d(members, self._operand_copies(here, own))
        biased = not backward and self._biased(np.setdiff1d(members, own), scores)
        if biased:
            # One call takes either a causal mask or a bias: into a bias that the program computes the mask has to be written as before.
            members = members[work.ops.enclosing(work.op[members], _MASKING) < 0]  # with copies for it
        names = [work.name(int(k)) for k in np.setdiff1d(members, own)]
        return WrittenOut(
            members=members,
            products=own,
            scores=(first.batch, first.rows, first.columns),
            flops=sum(p.flops for p in products),
            backward=backward,
            dtype=self.shapes.dtype(int(work.op[first.at[0]])),
            masked=any(_MASK.search(name) for name in names),
            causal=not biased and self._causal(np.setdiff1d(members, own), first.rows, first.columns),
            of_sequences=not biased and self._of_sequences(np.setdiff1d(members, own), first),
            dropped=any(_DROPOUT.search(name) for name in names),
            axes=max((len(shape) for op in self._calls(own) for shape, _ in self.shapes.inputs(op)), default=0),
        )

    def _of_scores(self, at: Ints, scores: int) -> Mask:
        """(n,) which kernels work on about as many elements as there are scores: not on all words that may come next."""
        return (self.size[at] * 2 >= scores) & (self.size[at] <= MOST_AS_MANY * scores)

    def _biased(self, between: Ints, scores: int) -> bool:
        """Whether a bias is added that has a value of its own for each score of each head and sequence."""
        return any(
            sum(prod(shape) == scores for shape, _ in self.shapes.inputs(int(self.work.op[k]))) > 1 for k in between.tolist() if _ADD.search(self.work.name(k))
        )

    def _causal(self, between: Ints, rows: int, columns: int) -> bool:
        """Whether a mask is one square for every head and sequence, which is what causal masks are."""
        return rows == columns and any(
            shape[-2:] == (rows, columns) and prod(shape) == rows * columns
            for k in between.tolist()
            if _MASK.search(self.work.name(k))
            for shape, _ in self.shapes.inputs(int(self.work.op[k]))
        )

    def _of_sequences(self, between: Ints, of: Product) -> bool:
        """Whether a square mask is added to the scores of all heads of a sequence, another to those of the next: how libraries say causal and
        padded at once."""
        return of.rows == of.columns and any(
            len(shape) == 4 and shape[0] > 1 and shape[1:] == (1, of.rows, of.columns)
            for k in between.tolist()
            if _ADD.search(self.work.name(k))
            for shape, _ in self.shapes.inputs(int(self.work.op[k]))
        )

    def _operand_copies(self, here: Ints, products: Ints) -> Ints:
        """Copies that the product's own op makes of its operands: a matmul of expanded heads, an einsum of turned ones."""
        near = here[np.searchsorted(here, products.min() - REACH) : np.searchsorted(here, products.max(), side="right")]
        near = near[self.work.op[near] >= 0]
        return near[np.isin(self.work.ops.outermost[self.work.op[near]], self._calls(products))]

    def _calls(self, products: Ints) -> list[int]:
        """The ops that the program called for its products."""
        return [op for op in np.unique(self.work.ops.outermost[self.work.op[products]]).tolist() if _PRODUCT_OP.search(self.work.ops.name(op))]

    def _softmax_backward(self, between: Ints, of_scores: Mask) -> bool:
        """A softmax written out is undone by products and a sum over the scores."""
        return bool((self.work.in_families(Family.REDUCTION)[between] & of_scores).any())


def _as_wide(products: list[Product]) -> list[Product]:
    """Attentions with as many queries as head dimensions, so the first GEMM fits two roles: each GEMM once, undecided if the roles disagree. None if there are
    none."""
    places: dict[int, list[Product]] = {}
    for product in products:
        places.setdefault(int(product.at[0]), []).append(product)
    if not any(len({p.first for p in same}) > 1 and min(same[0].rows, same[0].columns) >= NARROWEST for same in places.values()):
        return []
    return [same[0] if len({p.first for p in same}) == 1 else replace(same[0], first=None) for same in places.values()]


def _settled(firsts: list[bool | None], softmax_after: int) -> list[bool]:
    """Which of the products is the scores', where sizes leave that open: the last before the softmax that may be."""
    if True not in firsts:
        open_ones = [k for k, first in enumerate(firsts[: softmax_after + 1]) if first is None]
        return [k == max(open_ones, default=-1) for k in range(len(firsts))]
    return [first is True for first in firsts]


def batched(inputs: list[Tensor]) -> Batched | None:
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
        for match in re.finditer(f"(?=(P(?=f*S)[fS]{{1,{MOST_BETWEEN - 1}}}P))", "".join(signs[part])):
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
