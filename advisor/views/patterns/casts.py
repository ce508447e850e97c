"""Kernels that only change a floating type, what each is for, and which are needless; activations that autocast leaves in FP32."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import groupby
from math import prod
from typing import Any

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints
from advisor.knowledge.op_costs import DTYPE_BYTES
from advisor.knowledge.op_tokens import has_token, names_of, plain
from advisor.knowledge.op_tokens.families import PRODUCTS, Family, op_family
from advisor.knowledge.structs import replace
from advisor.views.patterns.dataflow import Dataflow, Sure
from advisor.views.replay.edits import Edit, WithDurations
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.arguments import Arguments
from advisor.views.trace.ops import Ops
from advisor.views.trace.shapes import Shapes


class Purpose(Enum):
    """Purpose of a cast: a parameter or an input that is cast for a GEMM, the start or end of a region in another type, or unknown."""

    WEIGHT = "weights"
    INPUT = "inputs of GEMMs"
    ISLAND = "stretches in another type"
    OTHER = "other"


_BACKWARD = names_of("cast_backward")
_FLOATING = {"double", "float", "c10::Half", "c10::BFloat16"}
_SHORT = {"double": "FP64", "float": "FP32", "c10::Half": "FP16", "c10::BFloat16": "BF16"}


class Cast(msgspec.Struct, frozen=True):
    """A cast kernel: its position in the schedule, copy op, purpose, types and shape, the ops between it and the cast back, and the op of its GEMM (-1
    without)."""

    position: int
    op: int
    purpose: Purpose
    source: str
    target: str
    shape: tuple[int, ...]
    between: tuple[str, ...] = ()
    backward: bool = False
    product: int = -1

    @property
    def label(self) -> str:
        way = f"{_SHORT[self.source]} → {_SHORT[self.target]}"
        shape = list(self.shape)
        if self.purpose == Purpose.ISLAND and self.between:
            return f"{way} {shape} around {' → '.join(self.between)}"
        return {
            Purpose.WEIGHT: f"{way} {'gradient of a weight' if self.backward else 'weight'} {shape}",
            Purpose.INPUT: f"{way} input of a GEMM or convolution {shape}",
        }.get(self.purpose, f"{way} {shape}")


class Casts(msgspec.Struct, frozen=True):
    """Every kernel of the replayed steps that only changes a tensor's floating type. Unavailable without recorded types."""

    all: tuple[Cast, ...]

    @classmethod
    def build(cls, work: GpuWork, arguments: Arguments, flow: Dataflow) -> Casts:
        staged = {int(o) for o in work.op[~work.kernel]}
        known: dict[tuple[int, ...], tuple[str, str, tuple[int, ...]] | None] = {}
        found = []
        columns = [work.timeline.cpu_ops[column].codes for column in ("types", "dims", "strides")]
        for position in np.flatnonzero(work.kernel & work.launched_by(names_of("copy").search)).tolist():
            op = int(work.op[position])
            if staged & set(_first_outside(work.ops, op).casting):  # part of a copy from or to the host
                continue
            # Layers repeat: each distinct op is judged once.
            key = tuple(int(codes[op]) for codes in columns)
            if key not in known:
                known[key] = _types_alone(arguments.types(op), arguments.shapes(op), arguments.strides(op))
            if cast := known[key]:
                found.append(Cast(position, op, Purpose.OTHER, *cast))
        following = _Readers(flow, arguments, {flow.call_at(cast.position): cast for cast in found})
        return cls(tuple(_told(work, arguments, found, following)))

    def of_weights(self, products: Ints) -> Ints:
        """Positions of the forward casts that make the weight of a product. products: rows of `cpu_ops`."""
        wanted = {*products.tolist()}
        chosen = (cast for cast in self.all if cast.purpose is Purpose.WEIGHT and not cast.backward)
        return np.array([cast.position for cast in chosen if cast.product in wanted], np.int64)


def _types_alone(types: Any, dims: Any, strides: Any) -> tuple[str, str, tuple[int, ...]] | None:
    """Source and target type and the shape of a `copy_(target, source)` that changes nothing but a floating type."""
    if len(types) < 2 or len(dims) < 2 or dims[0] != dims[1] or types[0] == types[1] or not {*types[:2]} <= _FLOATING:
        return None
    if len(strides) > 1 and _order(dims[0], strides[0]) != _order(dims[1], strides[1]):
        return None
    return types[1], types[0], tuple(dims[0])


def _order(dims: Any, strides: Any) -> list[tuple[int, int]]:
    """Size and stride of each axis with a length, which define element positions."""
    return [(n, s) for n, s in zip(dims, strides, strict=False) if n != 1]


def _told(work: GpuWork, arguments: Arguments, casts: Sequence[Cast], following: _Readers) -> list[Cast]:
    """The casts with purposes: of forward casts by surrounding and later ops, of backward casts by their forward cast."""
    ops, sequence = work.ops, work.timeline.cpu_ops["sequence"]
    taken: dict[tuple[int, tuple[int, ...]], int] = {}
    by_sequence: dict[int, Cast] = {}
    told, backward, closed = [], [], set()
    for cast in casts:
        around = _first_outside(ops, cast.op)
        if _BACKWARD.match(ops.name(around.op)):
            backward.append((cast, _sequence(ops, sequence, around.op)))
            continue
        done = cast
        if cast.position in closed:
            done = replace(cast, purpose=Purpose.ISLAND)
        elif around.op >= 0 and op_family(ops.name(around.op)) in PRODUCTS:
            done = replace(cast, purpose=_argument(arguments, cast, around.op, taken), product=around.op)
        elif (end := following.way_back(cast)) is not None:
            done = replace(cast, purpose=Purpose.ISLAND, between=end[1])
            closed.add(end[0])
        else:
            product = following.weighed(cast)
            done = replace(cast, purpose=Purpose.WEIGHT if product >= 0 else Purpose.OTHER, product=product)
        told.append(done)
        by_sequence.update({int(n): done for n in sequence[around.casting] if n >= 0})
    for cast, number in backward:
        forward = by_sequence.get(number)
        purpose = forward.purpose if forward else Purpose.OTHER
        stretch = forward.between if forward and forward.purpose is Purpose.ISLAND else ()
        between = ("the backward pass of", *stretch) if stretch else ()
        told.append(replace(cast, purpose=purpose, between=between, backward=True))
    return told


class _CastContext(msgspec.Struct, frozen=True):
    """The casting ops around a kernel and the first op outside them, -1 if there is none."""

    casting: list[int]
    op: int


def _first_outside(ops: Ops, op: int) -> _CastContext:
    casting = []
    while op >= 0 and has_token(ops.name(op), "cast_call"):
        casting.append(op)
        op = int(ops.parent[op])
    return _CastContext(casting, op)


def _sequence(ops: Ops, sequence: Ints, op: int) -> int:
    """The sequence number of a backward op or the first op around it that has one."""
    while op >= 0 and sequence[op] < 0:
        op = int(ops.parent[op])
    return int(sequence[op]) if op >= 0 else -1


def _argument(arguments: Arguments, cast: Cast, product: int, taken: dict[tuple[int, tuple[int, ...]], int]) -> Purpose:
    """Whether autocast casts a product's weight or its input, by the shapes of the product's own arguments.

    Autocast casts the last argument first (observed), so of two with one shape the first cast is the weight.
    """
    fits = _fitting(arguments, product, cast.source, cast.shape)[::-1]
    turn = taken[(product, cast.shape)] = taken.get((product, cast.shape), -1) + 1
    return Purpose.INPUT if not fits or fits[min(turn, len(fits) - 1)] == 0 else Purpose.WEIGHT


def _fitting(arguments: Arguments, op: int, kind: str, shape: tuple[int, ...]) -> list[int]:
    """Which arguments of an op are tensors of that type and shape."""
    pairs = zip(arguments.shapes(op), arguments.types(op), strict=False)
    return [i for i, (dims, text) in enumerate(pairs) if text == kind and tuple(dims) == shape]


class _Readers(msgspec.Struct, frozen=True):
    """Uses of a cast's result. casts: by their calls."""

    flow: Dataflow
    arguments: Arguments
    casts: dict[int, Cast]

    def _name(self, call: int) -> str:
        return self.flow.work.ops.name(int(self.flow.op[call]))

    def way_back(self, cast: Cast) -> tuple[int, tuple[str, ...]] | None:
        """Position of the cast that converts as many elements back, computed from this cast's result, and the ops between. GEMM types are chosen for speed, and
        FP32 up to the loss is intended."""
        flow, begin = self.flow, self.flow.call_at(cast.position)
        stays = flow.of_families(*PRODUCTS) | flow.backward
        for call in flow.uses(begin, ~stays, Sure.NEAREST):
            other = self.casts.get(call)
            if (
                other
                and (other.source, other.target) == (cast.target, cast.source)
                and prod(other.shape) == prod(cast.shape)
                and not stays[call]
                and call > begin + 1
            ):
                names = [plain(self._name(between)) or "?" for between in range(begin + 1, call)]
                return other.position, tuple(name for name, _ in groupby(names))
        return None

    def weighed(self, cast: Cast) -> int:
        """The op of the GEMM that reads a cast's result next as a weight (a matrix after the first operand, which can be kept; inputs are new each
        time); -1 if there is none."""
        readers = self.flow.readers(self.flow.call_at(cast.position))
        call = next((edge.call for edge in readers if edge.sure > Sure.GUESS and edge.call not in self.casts), -1)
        op = int(self.flow.op[call])
        if call < 0 or op < 0 or op_family(self._name(call)) is not Family.GEMM:
            return -1
        operands = [dims for dims, text in zip(self.arguments.shapes(op), self.arguments.types(op), strict=False) if text == cast.target]
        sizes = [prod(dims) for dims in operands]
        # Its last operand, as it is or turned; of two alike the trace does not tell.
        return op if len(sizes) > 1 and len(cast.shape) == 2 and sorted(operands[-1]) == sorted(cast.shape) and sizes[-2] != sizes[-1] else -1


LARGE = 1 << 17
"""Elements from which a kernel's time is that of what it reads and writes: half a megabyte in FP32."""

_NARROW = ("c10::Half", "c10::BFloat16")
_STREAMS = (Family.ELEMENTWISE, Family.NORM, Family.SOFTMAX, Family.REDUCTION)


class WideActivations(msgspec.Struct, frozen=True):
    """Elementwise kernels, norms and softmaxes (positions) in FP32. share: (n,) bytes left in 16 bits, as a share of all."""

    at: Ints
    dur_us: Floats
    share: Floats

    def narrowed(self, part: float) -> Edit:
        """That part of what 16 bits would spare goes."""
        return WithDurations(self.at, self.dur_us * (1 - part * (1 - self.share)))

    @classmethod
    def build(cls, work: GpuWork, shapes: Shapes, casts: Casts) -> WideActivations:
        streams = np.flatnonzero(work.in_families(*_STREAMS) & (work.op >= 0) & (shapes.made[work.rows] >= LARGE))
        chosen = np.setdiff1d(streams, [cast.position for cast in casts.all])
        share = np.array([_share(shapes.inputs(int(op)), int(shapes.made[row])) for op, row in zip(work.op[chosen], work.rows[chosen], strict=True)])
        wide = share < 1.0
        return cls(chosen[wide], work.dur_us[chosen[wide]], share[wide])


def _share(inputs: list[tuple[tuple[int, ...], str]], made: int) -> float:
    """Share of a kernel's bytes that is left with its FP32 tensors in 16 bits. Results have the widest input type."""
    widest = max((DTYPE_BYTES[kind] for _, kind in inputs if kind in ("float", *_NARROW)), default=0)
    before = sum(prod(shape) * DTYPE_BYTES[kind] for shape, kind in inputs) + made * widest
    after = sum(prod(shape) * (2 if kind == "float" else DTYPE_BYTES[kind]) for shape, kind in inputs) + made * min(widest, 2)
    return after / before if before else 1.0


def us_by_purpose(casts: Sequence[Cast], dur_us: Floats) -> dict[Purpose, float]:
    spent: dict[Purpose, float] = {}
    for cast in casts:
        spent[cast.purpose] = spent.get(cast.purpose, 0.0) + float(dur_us[cast.position])
    return spent


def longest_between(casts: Sequence[Cast], dur_us: Floats) -> tuple[str, ...]:
    """The ops of the stretch whose casts take most time."""
    forward = [c for c in casts if c.purpose == Purpose.ISLAND and c.between and not c.between[0].startswith("the ")]
    return max(forward, key=lambda c: float(dur_us[c.position])).between if forward else ()


def sixteen_bits(casts: Sequence[Cast]) -> str:
    """The type of 16 bits that the program's casts name, "" if they are all between FP64 and FP32."""
    named = [kind for cast in casts for kind in (cast.source, cast.target)]
    half, brain = (named.count(kind) for kind in ("c10::Half", "c10::BFloat16"))
    return "float16" if half > brain else "bfloat16" if brain else ""
