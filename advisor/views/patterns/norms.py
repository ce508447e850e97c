"""Norms and softmaxes that are written out as separate ops, forward and backward, and what each takes as one kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.expressions import expression
from advisor.knowledge.measured_costs import cost, costs
from advisor.knowledge.op_costs import DTYPE_BYTES
from advisor.knowledge.op_tokens import ELEMENTARY, elementary, elementary_kernel, has_token, names_of
from advisor.knowledge.shortest_kernel import SHORTEST_US
from advisor.knowledge.structs import replace
from advisor.views.patterns.dataflow import SMALLEST, Dataflow
from advisor.views.patterns.fusion import Fusion
from advisor.views.replay.edits import Edits, Fused, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.trace.shapes import Shapes

_OTHER = "."
_SIGN = {token: chr(ord("a") + i) for i, token in enumerate(ELEMENTARY)}
"""A stream is searched as text, one sign a kernel."""
_TOKEN = {sign: token for token, sign in _SIGN.items()}


def _pattern(text: str) -> re.Pattern[str]:
    """A regular expression over tokens, written with their names."""
    return expression(re.sub(r"[a-z]+", lambda token: _SIGN[token[0]], text).replace(" ", ""))


_SHIFT = "((sub|add) mul?)?"
_EPSILON = "(add|clamp)?"
_ROOT = f"(rsqrt|sqrt reciprocal?|pow) {_EPSILON}"
_REACHED = "cast? mul? (add|addcmul)? cast?"
_SCALED = "cast? (cast? add)? mul? cast?"
_SPREAD = "(mean var|var mean|var)"
# A cast may stand where mixed precision puts it, and a scale before the norm as well as after.
_PATTERNS = (
    ("LayerNorm", _pattern(f"cast? mean (sub|add) (pow|mul) mean {_SHIFT} {_EPSILON} {_SHIFT} {_ROOT} (mul|div) {_REACHED}")),
    ("LayerNorm", _pattern(f"cast? mean (pow|mul) mean (pow|mul) {_SHIFT} (sub|add) {_EPSILON} {_SHIFT} {_ROOT} (mul|div) {_REACHED}")),
    # The mean is subtracted before the variance, next to it, or just before dividing: statistics alone, as kept for inference, are no norm.
    ("LayerNorm", _pattern(f"cast? mean (sub|add) mul? var {_SHIFT} {_EPSILON} {_SHIFT} ({_ROOT})? (sub|add)? (mul|div) {_REACHED}")),
    ("LayerNorm", _pattern(f"cast? {_SPREAD} (sub|add) mul? {_EPSILON} {_SHIFT} ({_ROOT})? (sub|add)? (mul|div) {_REACHED}")),
    ("LayerNorm", _pattern(f"cast? {_SPREAD} {_EPSILON} ({_ROOT})? (sub|add) (mul|div) {_REACHED}")),
    ("RMSNorm", _pattern(f"mul? cast? (pow|mul) (mean|sum div) {_EPSILON} {_ROOT} (mul|div) {_SCALED}")),
    ("RMSNorm", _pattern(f"cast? norm (mul|div) {_EPSILON} (mul|div) {_SCALED}")),
    ("RMSNorm", _pattern("cast? norm clamp? div mul cast? mul cast?")),
    ("log-softmax", _pattern("cast? (max (sub|add))? exp sum log add? (sub|add) cast?")),
    ("softmax", _pattern(f"cast? (max (sub|add) (mul|div)?)? exp? exp mul? sum {_EPSILON} (div|reciprocal mul) cast?")),
    ("log-softmax", _pattern("softmax (add|clamp)? log")),
)

_FUSED_ALREADY = names_of("decomposed_by_torch")
"""Ops that are written out inside PyTorch: calling them is all that a user can do."""

COMPOSITE = names_of("rms_norm")
"""Ops that decompose inside only if tensor and weight have different types, or before PyTorch 2.9."""

_BACKWARD = names_of("autograd_node_of_op")


class Chain(msgspec.Struct, frozen=True):
    """The kernels (positions) of a decomposed op, forward or backward, its kind, and bytes of x and result (NaN without shapes). mixed: the weight of an
    RMSNorm has more bytes per element than x, while PyTorch's kernel takes a single type. inside: the op itself had no kernel. core, core_bytes: of a mixed
    chain outside an op, the same without casts, since the op in the weight's type keeps all digits; None otherwise."""

    kind: str
    members: Ints
    bytes: float
    backward: bool = False
    mixed: bool = False
    inside: bool = False
    core: Ints | None = None
    core_bytes: float = 0.0

    @property
    def in_its_type(self) -> tuple[Ints, float]:
        """The kernels, and bytes, of the op in the type of its weight."""
        return (self.members, self.bytes) if self.core is None else (self.core, self.core_bytes)


class WrittenOut(msgspec.Struct, frozen=True):
    """Every norm and softmax that is written out in the replayed steps, those of the backward pass after the others."""

    chains: tuple[Chain, ...]

    @classmethod
    def build(cls, flow: Dataflow) -> WrittenOut:
        forward = list(_forward(flow))
        return cls((*forward, *_backward(flow.work, forward)))


def _forward(flow: Dataflow) -> Iterator[Chain]:
    """Unfused ops of the forward pass (or of inference), each by the first pattern that fits."""
    signs, composite = _signs(flow), flow.work.ops.enclosing(flow.op, COMPOSITE) >= 0
    for calls in flow.parts:
        text, taken = "".join(signs[calls.start : calls.stop]), np.zeros(len(calls), bool)
        for kind, pattern in _PATTERNS:
            for match in pattern.finditer(text):
                here = slice(*match.span())
                if not taken[here].any() and (chain := _checked(flow, kind, calls[here], [_TOKEN[sign] for sign in match[0]], composite)):
                    taken[here] = True
                    yield chain


def _signs(flow: Dataflow) -> np.ndarray:
    """(n,) the sign of each call's token."""
    work, names = flow.work, flow.work.timeline.gpu_ops["name"]
    by_kernel = np.array([_SIGN.get(elementary_kernel(n), _OTHER) for n in (*names.categories, "")])
    signs: np.ndarray = by_kernel[names.codes[work.rows[flow.firsts]]]
    if len(work.ops.names):
        by_op = np.array([_SIGN.get(elementary(n), _OTHER) for n in (*work.ops.categories, "")])
        signs = np.where(flow.op >= 0, by_op[work.ops.codes(flow.op)], signs)
        parent, fused = work.ops.parent, work.ops.within_chosen(work.ops.named(_FUSED_ALREADY))
        inside = (parent >= 0) & fused[parent]
        signs[(flow.op >= 0) & inside[flow.op]] = _OTHER
    return signs


def _checked(flow: Dataflow, kind: str, calls: range, tokens: Sequence[str], composite: Mask) -> Chain | None:
    """The chain as matched, less the scale or cast at its end that works on another tensor; None if shapes disagree."""
    shapes = [tensors_of(flow.shapes, op) for op in flow.op[calls.start : calls.stop].tolist()]
    if not all(shapes):
        # The kernels' names alone: take only what is longer than a few kernels that anything may launch.
        return Chain(kind, flow.kernels_of(calls), np.nan) if len(calls) >= 4 and not flow.work.timeline.source.shapes else None
    sizes = [max(prod(shape) for shape, _ in s) for s in shapes]
    n, length = max(sizes), len(calls)
    while length > 2 and sizes[length - 1] != n:
        length -= 1
    if tokens[length - 1] == "cast" and tokens[0] != "cast":
        length -= 1  # no cast in, so this one belongs to what follows
    calls, tokens, shapes, sizes = calls[:length], tokens[:length], shapes[:length], sizes[:length]
    first = next((i for i, token in enumerate(tokens) if token in ("mean", "var", "sum", "norm", "softmax")), -1)
    if first < 0 or sizes[first] != n or sizes[0] != n:
        return None
    whole = shapes[first][0][0]
    square = next((i for i, token in enumerate(tokens[:first]) if token in ("pow", "mul")), first)
    if kind == "RMSNorm" and square + 1 < first and tokens[square] == "mul" and not any(_is_weight(whole, shape) for shape, _ in shapes[square]):
        # A product with something else comes before the norm and is none of it.
        calls, tokens, shapes, sizes, first = calls[1:], tokens[1:], shapes[1:], sizes[1:], first - 1
    if tokens[0] == "softmax":
        return Chain(kind, flow.kernels_of(calls), float(n * (shapes[0][0][1] + shapes[-1][0][1])))
    ending = ("mul", "div", *(("sub", "add") if kind == "log-softmax" else ()))
    last = max((i for i, token in enumerate(tokens) if token in ending), default=-1)
    statistic = any(_is_row_statistic(whole, shape) for s in shapes[first + 1 :] for shape, _ in s)
    if last <= first or not statistic:
        return None
    itemsize = shapes[0][-1][1] if tokens[0] == "cast" else shapes[0][0][1]
    written = shapes[-1][0][1] if tokens[-1] == "cast" else max(size for _, size in shapes[-1])
    weight = max((size for s in shapes[first + 1 :] for shape, size in s if len(shape) == 1 and _is_weight(whole, shape)), default=0)
    mixed, inside = kind == "RMSNorm" and weight > itemsize, bool(composite[calls[0]])
    chain = Chain(kind, flow.kernels_of(calls), float(n * (itemsize + written)), mixed=mixed, inside=inside)
    if not mixed or inside:
        return chain
    return replace(chain, core=flow.kernels_of(calls[int(tokens[0] == "cast") : len(calls) - (tokens[-1] == "cast")]), core_bytes=float(n * 2 * weight))


def _is_weight(whole: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether `shape` is that of a scale for the last dimensions of `whole`."""
    return len(shape) < len(whole) and whole[len(whole) - len(shape) :] == shape


def _is_row_statistic(whole: tuple[int, ...], row: tuple[int, ...]) -> bool:
    """Whether `row` holds a value per row of `whole`: equal leading dimensions, the others reduced. A single decoded word is one row, and its statistic has as
    many axes."""
    kept = list(row)
    while kept and kept[-1] == 1:
        kept.pop()
    if not kept:
        return len(row) == len(whole) > 1 and prod(whole) == whole[-1] >= SMALLEST
    count = prod(kept)
    return tuple(kept) == whole[: len(kept)] and prod(whole) >= SMALLEST * count and count > 1


def tensors_of(shapes: Shapes, op: int) -> list[tuple[tuple[int, ...], int]]:
    """Shape and bytes an element of each tensor with sides among an op's inputs; [] if they were not recorded."""
    return [(shape, DTYPE_BYTES[kind]) for shape, kind in shapes.inputs(op) if shape]


def _backward(work: GpuWork, forward: Sequence[Chain]) -> list[Chain]:
    """Kernels that autograd ran for the ops of each chain, by their sequence number and step."""
    ops = work.ops
    if not len(ops.names):
        return []
    sequence = work.timeline.cpu_ops["sequence"]
    node = ops.outermost_where(ops.named(_BACKWARD))
    called = ops.outermost_where(ops.named(names_of("torch_op")) & ~ops.named(COMPOSITE))
    number = np.where(work.op >= 0, np.where(node[work.op] >= 0, sequence[node[work.op]], -1), -1)
    of: dict[tuple[int, int], list[int]] = {}
    for position in np.flatnonzero(number >= 0).tolist():
        of.setdefault((int(work.step[position]), int(number[position])), []).append(position)
    found = []
    for chain in forward:
        launched_by = work.op[chain.members]
        roots = called[launched_by] if (launched_by >= 0).all() else np.empty(0, np.int64)
        keys = sorted({(int(work.step[chain.members[0]]), int(sequence[r])) for r in roots if sequence[r] >= 0})
        members = np.array(sorted(p for key in keys for p in of.pop(key, [])), np.int64)
        if len(members) >= 2:
            back, core = Chain(chain.kind, members, chain.bytes, backward=True), members[[not has_token(ops.name(op), "copy") for op in work.op[members]]]
            found.append(replace(back, core=core, core_bytes=chain.core_bytes) if chain.core is not None and len(core) else back)
    return found


SLOWEST, LIKELY, FASTEST = costs("fused-norm")


FORWARD_PASSES, BACKWARD_PASSES = costs("norm-passes")


SHARES_A_BLOCK = cost("block-bandwidth")


def as_one_kernel(chains: Sequence[Chain], times: Floats, around: list[tuple[Ints, float]]) -> Edits:
    """A kernel per chain; at the high end with its surroundings, as in a compiled module."""
    in_its_type, all_of_it = [c.in_its_type[0] for c in chains], [c.members for c in chains]
    low, expected, high = (Fused.chains(members, times[:, end]) for end, members in enumerate((in_its_type, in_its_type, all_of_it)))
    if not around:
        return Edits(low, expected, high)
    return Edits(low, expected, combine(high, Fused.chains([members for members, _ in around], np.array([us for _, us in around]))))


def in_the_way(work: GpuWork, fusion: Fusion, roofline: Roofline, members: Ints) -> list[tuple[Ints, float]]:
    """The stretches that a compiler fuses which hold any of these kernels, and the least time of each one's kernel."""
    found = []
    for stretch in fusion.stretches:
        peaks = roofline.peaks.get(work.device_at(int(stretch.members[0])).id)
        rate = peaks.achievable_bytes_per_s if peaks else None
        if rate and stretch.least and np.isin(stretch.members, members).any():
            found.append((stretch.members, stretch.fused_us(rate)[2]))
    return found


def fused_us(work: GpuWork, shapes: Shapes, roofline: Roofline, chain: Chain) -> tuple[float, float, float]:
    """Time of the one kernel at most, likely and at least; never above the chain's own."""
    dur = work.dur_us[chain.members]
    whole, longest = float(dur.sum()), float(dur.max())
    peaks = roofline.peaks.get(work.device_at(int(chain.members[0])).id)
    rate = peaks.achievable_bytes_per_s if peaks else None
    if not rate or np.isnan(chain.bytes):
        return min(1.5 * longest, whole), min(longest, whole), min(0.7 * longest, whole)
    passes, (core, own) = BACKWARD_PASSES / FORWARD_PASSES if chain.backward else 1.0, chain.in_its_type
    passes /= _bandwidth_share(work, shapes, chain)
    of_core = float(work.dur_us[core].sum())
    low, expected, high = (
        min(max(f * passes * moved / rate * 1e6, SHORTEST_US), most)
        for f, moved, most in ((SLOWEST, own, of_core), (LIKELY, own, of_core), (FASTEST, chain.bytes, whole))
    )
    return low, expected, high


def _bandwidth_share(work: GpuWork, shapes: Shapes, chain: Chain) -> float:
    """Share of the device's bandwidth that an op reaches with a block per row; 1 with many or unknown rows."""
    rows, multiprocessors = rows_of(shapes, np.unique(work.op[chain.members]).tolist()), work.device_at(int(chain.members[0])).sm_count
    return min(SHARES_A_BLOCK * rows / multiprocessors, 1.0) if rows and multiprocessors > 0 else 1.0


def rows_of(shapes: Shapes, ops: Sequence[int]) -> int:
    """Rows of a chain's tensor: values of its statistics, one per combination of leading axes, 0 without any. Smaller tensors, such as a scale, do not count."""
    rows = 0
    for op in ops:
        tensors = sorted((shape for shape, _ in shapes.inputs(op)), key=prod, reverse=True)
        for statistic in tensors[1:]:
            reduced = [one != whole for one, whole in zip(statistic, tensors[0], strict=False)]
            if len(statistic) == len(tensors[0]) and reduced and reduced[-1] and reduced == sorted(reduced):
                rows = max(rows, prod(statistic))
    return rows
