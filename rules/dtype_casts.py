"""Kernels that only change a tensor's type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import Floats, Ints
from advisor.knowledge.kernel_names import Family, op_family
from advisor.knowledge.op_costs import DTYPE_BYTES
from advisor.report.model import Clear, Code, Fix
from advisor.rules._phrases import a_step, milliseconds
from advisor.timeline import GpuKind, Timeline
from advisor.views.replay.edits import Edits, WithoutTime
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.schedule import Schedule
from advisor.views.trace import arguments
from advisor.views.trace.arguments import Arguments
from advisor.views.trace.evidence import Witness
from advisor.views.trace.ops import Ops
from advisor.views.trace.steps import Steps

WEIGHT, INPUT, ISLAND, SUM, OTHER = "weight", "input", "island", "accumulator", "other"
"""What a cast is for: a parameter or an input of a matrix product that autocast casts, the way into or out of a stretch in
another type, the operand of a sum in a wider type, something that the trace does not tell."""

ISLAND_KERNELS = 16
"""Kernels between a cast and its way back: a written-out norm has ten."""

_SUMS = {"sum", "mean", "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm", "cumsum", "logsumexp", "prod"}
"""Ops before which values may need FP32: what is rounded before a sum stays wrong after it."""

_PRODUCTS = (Family.GEMM, Family.CONV, Family.ATTENTION)
_CASTING = {"aten::copy_", "aten::_to_copy", "aten::to", "aten::type_as", "aten::clone"}
_BACKWARD = re.compile(r"^(autograd::engine::evaluate_function: )?ToCopyBackward")
_IN_PLACE = re.compile(r"^aten::(add|sub|addcmul|addcdiv|lerp)_$")
_FLOATING = {"double", "float", "c10::Half", "c10::BFloat16"}
_SHORT = {"double": "FP64", "float": "FP32", "c10::Half": "FP16", "c10::BFloat16": "BF16"}


@dataclass(frozen=True)
class _Cast:
    """One cast kernel: its position in the schedule, the copy op, what it is for, types and shape, and the ops between it
    and the way back."""

    position: int
    op: int
    kind: str
    source: str
    target: str
    shape: tuple[int, ...]
    between: tuple[str, ...] = ()
    backward: bool = False

    @property
    def label(self) -> str:
        way = f"{_SHORT[self.source]} → {_SHORT[self.target]}"
        shape = list(self.shape)
        if self.kind == ISLAND and self.between:
            return f"{way} {shape} around {' → '.join(self.between)}"
        return {
            WEIGHT: f"{way} {'gradient of a weight' if self.backward else 'weight'} {shape}",
            INPUT: f"{way} input of a product {shape}",
            SUM: f"{way} {shape} before {' → '.join(self.between)}",
        }.get(self.kind, f"{way} {shape}")


@rule("dtype-casts", relies_on=("kernels",), min_saving_share=0.03, explains=("unfused-elementwise",))
def dtype_casts(
    timeline: Timeline, steps: Steps, work: GpuWork, recorded: Arguments, witness: Witness, *, min_cast_share: float = 0.03
) -> Outcome:
    """Kernels only change a tensor's type

    What it is
    Copies of a whole tensor from FP32 to BF16 or FP16, or back: the weights that autocast casts in each forward pass, the
    FP32 inputs of its products, `.float()` and `.half()` around a few ops.

    Why it costs time
    A cast reads and writes the whole tensor and computes nothing. A weight of FP32 that serves few rows is read for its
    cast (4 bytes), written (2) and read again by the product (2): four times the traffic of a weight kept in BF16.

    How it is measured
    Kernels of copy ops whose recorded input and output differ in floating type alone: same shape, same strides; copies
    from and to the host are memcpy's concern, those that turn the layout memory-layout's. Autograd's sequence numbers say
    to which cast one of the backward pass belongs. The rule looks further where they take `min_cast_share` of the time
    the GPU works ({min_cast_share}). The step is replayed with these kernels at no time, the host's part as it was. `low`: what one
    line avoids (weights where nothing is trained, weights cast again in each micro-step, operands of in-place sums);
    `expected`: also the inputs of products, and casts there and back with no product between; `high`: all, the weights of
    a training step and FP32 before the loss among them. Reported from `min_saving_share` of the step ({min_saving_share}).

    How to fix it
    Weights: `model.to(torch.bfloat16)` for inference. In training autocast casts each weight once in each autocast
    context: one context around all micro-steps, or parameters in BF16 whose FP32 copy the optimizer keeps. A stretch in
    FP32: most ops of PyTorch compute in FP32 inside and only read and write BF16, so the casts can go; `torch.compile`
    fuses those that must stay.

    When to ignore it
    When values need the range or the digits of FP32 between those ops (sums over many terms, exponentials without a
    maximum taken off), or when the weights are trained in FP32 on purpose and are large beside the batch.

    References
    https://docs.pytorch.org/docs/stable/amp.html
    https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference
    """
    casts = _casts(timeline, work.ops, work.schedule, work.step)
    positions = np.array([c.position for c in casts], np.int64)
    total = float(work.dur_us[positions].sum())
    quiet = f"kernels that only change a type take {total / work.busy_us:.1%} of busy time"
    if total < min_cast_share * work.busy_us:
        return Clear(why=f"{quiet}, reported from {min_cast_share:.0%}")
    training = any(name.startswith("autograd::engine::") for name in work.ops.categories)
    easy = [c.position for c in casts if c.kind == SUM or (c.kind == WEIGHT and not training)]
    if training:
        easy += _again(casts, work.step, _backwards(work.ops, steps, timeline))
    likely = easy + [c.position for c in casts if c.kind in (INPUT, ISLAND)]
    spent = _by_kind([c for c in casts if c.position in {*likely}], work.dur_us)
    if not spent:
        return Clear(why=f"{quiet}; the fix would gain 0.0%: they are there on purpose, or for something the trace does not tell")
    main = sorted(spent, key=lambda kind: -spent[kind])
    text = {WEIGHT: "weights", INPUT: "inputs of products", ISLAND: "stretches in another type", SUM: "operands of sums"}
    return Found(
        summary=f"{a_step(work.a_step(casts), 'kernel', 'only cast')} between floating types, for "
        f"{milliseconds(work.us_a_step(positions))} of {milliseconds(steps.step_us)}, {spent[main[0]] / total:.0%} of it for {text[main[0]]}.",
        edits=Edits(*(WithoutTime(np.array(some, np.int64)) for some in (easy, likely, positions))),
        removes="copies that only change a tensor's type",
        quiet=quiet,
        evidence=witness.of_gpu(work.rows[positions], [c.label for c in casts]),
        confidence=0.85 if main[0] in (WEIGHT, SUM) else 0.7,
        fix=_fix(main, training, _longest_between(casts, work.dur_us)),
    )


def _again(casts: Sequence[_Cast], step: Ints, backwards: float) -> list[int]:
    """Casts of weights (positions) that one autocast context around all micro-steps would not repeat: of the casts of one
    shape in a step, which has as many micro-steps as backward passes, all but the first part."""
    found, seen = [], dict[tuple[int, tuple[int, ...]], list[int]]()
    for cast in casts:
        if cast.kind == WEIGHT and not cast.backward:
            seen.setdefault((int(step[cast.position]), cast.shape), []).append(cast.position)
    for positions in seen.values():
        found += positions[ceil(len(positions) / backwards) :]
    return found


def _backwards(ops: Ops, steps: Steps, timeline: Timeline) -> float:
    """How often a step calls `backward()`: each makes the gradient of the loss, a one. At least 1."""
    ones = np.array([n == "aten::ones_like" for n in ops.categories], bool)[ops.names] & (ops.parent < 0)
    start = timeline.cpu_ops["start_us"].to_numpy()
    inside = (start >= steps.host_start_us) & (start < steps.host_end_us)
    return max(1.0, float((ones & inside).sum()) / steps.steps)


def _casts(timeline: Timeline, ops: Ops, schedule: Schedule, step: Ints) -> list[_Cast]:
    """Every kernel of the window that only changes a tensor's floating type."""
    frame = timeline.cpu_ops
    rows, op = schedule.op_row, ops.of_gpu[schedule.op_row]
    kernel = (timeline.gpu_ops["kind"] == GpuKind.KERNEL.value).to_numpy()[rows]
    staged = {int(o) for o in op[~kernel]}
    names = np.array([n == "aten::copy_" for n in ops.categories], bool)
    if not len(names):
        return []
    chosen = np.flatnonzero(kernel & (op >= 0) & names[np.where(op >= 0, ops.names[op], 0)])
    known: dict[tuple[str, str, str], tuple[str, str, tuple[int, ...]] | None] = {}
    found = []
    for position in chosen:
        o = int(op[position])
        if staged & set(_outside(ops, o).casting):  # part of a copy from or to the host
            continue
        key = (str(frame["types"].iat[o]), str(frame["dims"].iat[o]), str(frame["strides"].iat[o]))
        if key not in known:
            known[key] = _types_alone(arguments.names(key[0]), arguments.numbers(key[1]), arguments.numbers(key[2]))
        if cast := known[key]:
            found.append(_Cast(int(position), o, OTHER, *cast))
    return _told(timeline, ops, found, _Following(timeline, ops, schedule, step, {c.position: c for c in found}))


def _types_alone(types: Any, dims: Any, strides: Any) -> tuple[str, str, tuple[int, ...]] | None:
    """Source and target type and the shape of a `copy_(target, source)` that changes nothing but a floating type."""
    if len(types) < 2 or len(dims) < 2 or dims[0] != dims[1] or types[0] == types[1] or not {*types[:2]} <= _FLOATING:
        return None
    if len(strides) > 1 and _order(dims[0], strides[0]) != _order(dims[1], strides[1]):
        return None
    return types[1], types[0], tuple(dims[0])


def _order(dims: Any, strides: Any) -> list[tuple[int, int]]:
    """Size and stride of each axis that has a length, which decide where an element lies."""
    return [(n, s) for n, s in zip(dims, strides, strict=False) if n != 1]


def _told(timeline: Timeline, ops: Ops, casts: list[_Cast], following: _Following) -> list[_Cast]:
    """The same casts with what each is for: forward ones by what stands around and after them, backward ones as their forward."""
    sequence = timeline.cpu_ops["sequence"].to_numpy()
    taken: dict[tuple[int, tuple[int, ...]], int] = {}
    by_sequence: dict[int, _Cast] = {}
    told, backward, closed = [], [], set()
    no_ops: tuple[str, ...] = ()
    for cast in casts:
        around = _outside(ops, cast.op)
        numbers = [int(n) for n in sequence[around.casting] if n >= 0]
        if _BACKWARD.match(ops.name(around.op)):
            backward.append((cast, _sequence(ops, sequence, around.op)))
            continue
        kind, between = OTHER, no_ops
        if cast.position in closed:
            kind = ISLAND
        elif around.op >= 0 and op_family(ops.name(around.op)) in _PRODUCTS:
            kind = _argument(timeline, cast, around.op, taken)
        elif (end := following.way_back(cast)) is not None:
            kind, between = ISLAND, end[1]
            closed.add(end[0])
        elif name := following.sum_in_place(cast):
            kind, between = SUM, (name,)
        done = _Cast(cast.position, cast.op, kind, cast.source, cast.target, cast.shape, between)
        told.append(done)
        by_sequence.update(dict.fromkeys(numbers, done))
    for cast, number in backward:
        forward = by_sequence.get(number)
        kind = forward.kind if forward else OTHER
        between = ("the backward pass of", *forward.between) if forward and forward.kind == ISLAND and forward.between else no_ops
        told.append(_Cast(cast.position, cast.op, kind, cast.source, cast.target, cast.shape, between, backward=True))
    return told


@dataclass(frozen=True)
class _Around:
    """The casting ops around a kernel and the first op outside them, -1 where there is none."""

    casting: list[int]
    op: int


def _outside(ops: Ops, op: int) -> _Around:
    casting = []
    while op >= 0 and ops.name(op) in _CASTING:
        casting.append(op)
        op = int(ops.parent[op])
    return _Around(casting, op)


def _sequence(ops: Ops, sequence: Ints, op: int) -> int:
    """The sequence number of a backward op or the first op around it that has one."""
    while op >= 0 and sequence[op] < 0:
        op = int(ops.parent[op])
    return int(sequence[op]) if op >= 0 else -1


def _argument(timeline: Timeline, cast: _Cast, product: int, taken: dict[tuple[int, tuple[int, ...]], int]) -> str:
    """Whether autocast casts a product's weight or its input, by the shapes of the product's own arguments.

    Autocast casts the last argument first (observed), so of two with one shape the first cast is the weight.
    """
    frame = timeline.cpu_ops
    dims, types = arguments.numbers(str(frame["dims"].iat[product])), arguments.names(str(frame["types"].iat[product]))
    fits = [i for i, (d, t) in enumerate(zip(dims, types, strict=False)) if t == cast.source and tuple(d) == cast.shape][::-1]
    turn = taken[(product, cast.shape)] = taken.get((product, cast.shape), -1) + 1
    return INPUT if not fits or fits[min(turn, len(fits) - 1)] == 0 else WEIGHT


@dataclass(frozen=True)
class _Following:
    """What runs on a stream after a cast, in the same step."""

    timeline: Timeline
    ops: Ops
    schedule: Schedule
    step: Ints
    casts: dict[int, _Cast]

    def _after(self, position: int) -> list[int]:
        """Positions of the next kernels."""
        near = slice(position + 1, position + 1 + 4 * ISLAND_KERNELS)
        same = (self.schedule.stream[near] == self.schedule.stream[position]) & (self.step[near] == self.step[position])
        return (position + 1 + np.flatnonzero(same)[: ISLAND_KERNELS + 1]).tolist()

    def _name(self, position: int) -> str:
        return self.ops.name(int(self.ops.of_gpu[self.schedule.op_row[position]]))

    def way_back(self, cast: _Cast) -> tuple[int, tuple[str, ...]] | None:
        """The position of the cast that turns as many elements back, and the ops between."""
        between: list[str] = []
        for p in self._after(cast.position):
            op = int(self.ops.of_gpu[self.schedule.op_row[p]])
            if op >= 0 and self.ops.name(int(self.ops.outermost[op])).startswith("autograd::engine::"):
                return None  # what is FP32 up to the loss is so on purpose
            other = self.casts.get(p)
            if other and (other.source, other.target) == (cast.target, cast.source) and prod(other.shape) == prod(cast.shape):
                return (p, tuple(between)) if between else None
            if op_family(self._name(p)) in _PRODUCTS:
                return None  # the type of a product is chosen for its speed
            name = self._name(p).removeprefix("aten::") or "?"
            if not between or between[-1] != name:
                between.append(name)
        return None

    def sum_in_place(self, cast: _Cast) -> str:
        """The in-place sum in the wider type that the cast feeds, "" where the next kernel is none."""
        after = self._after(cast.position)
        if not after or DTYPE_BYTES[cast.target] <= DTYPE_BYTES[cast.source] or not _IN_PLACE.match(self._name(after[0])):
            return ""
        op = int(self.ops.of_gpu[self.schedule.op_row[after[0]]])
        frame = self.timeline.cpu_ops
        dims, types = arguments.numbers(str(frame["dims"].iat[op])), arguments.names(str(frame["types"].iat[op]))
        fits = [tuple(d) == cast.shape and t == cast.target for d, t in zip(dims, types, strict=False)]
        return self._name(after[0]).removeprefix("aten::") if len(fits) > 1 and fits[0] and any(fits[1:]) else ""


def _by_kind(casts: list[_Cast], dur_us: Floats) -> dict[str, float]:
    spent: dict[str, float] = {}
    for cast in casts:
        spent[cast.kind] = spent.get(cast.kind, 0.0) + float(dur_us[cast.position])
    return spent


def _longest_between(casts: list[_Cast], dur_us: Floats) -> tuple[str, ...]:
    """The ops of the stretch whose casts take most time."""
    forward = [c for c in casts if c.kind == ISLAND and c.between and not c.between[0].startswith("the ")]
    return max(forward, key=lambda c: float(dur_us[c.position])).between if forward else ()


_CODE = {
    WEIGHT: Code(
        before='with torch.autocast("cuda", torch.bfloat16):\n    out = model(x)  # casts every weight',
        after="model = model.to(torch.bfloat16)  # once\nout = model(x.to(torch.bfloat16))",
    ),
    INPUT: Code(
        before='with torch.autocast("cuda", torch.bfloat16):\n    out = linear(norm(x))  # norm returns FP32, linear casts it',
        after='with torch.autocast("cuda", torch.bfloat16):\n    out = torch.compile(block)(x)  # the cast is part of the norm\'s kernel',
    ),
    ISLAND: Code(
        before="y = torch.nn.functional.gelu(x.float()).to(x.dtype)",
        after="y = torch.nn.functional.gelu(x)  # computes in FP32 inside",
    ),
    SUM: Code(before="total += x.float()", after="total += x  # the sum reads BF16 and adds in FP32"),
}
_TRAINED = Code(
    before='for x in micro_batches:\n    with torch.autocast("cuda", torch.bfloat16):\n        loss = model(x)\n    loss.backward()',
    after='with torch.autocast("cuda", torch.bfloat16):  # one context: each weight is cast once\n'
    "    for x in micro_batches:\n        model(x).backward()",
)
_URL = "https://docs.pytorch.org/docs/stable/amp.html"


def _fix(kinds: list[str], training: bool, between: tuple[str, ...]) -> Fix:
    steps = []
    for kind in kinds:
        if kind == WEIGHT and not training:
            steps.append(
                "Convert the model once, model.to(torch.bfloat16), and drop autocast: it casts FP32 weights in each context."
            )
        elif kind == WEIGHT:
            steps.append(
                "Autocast keeps a weight's cast until its context ends: with micro-steps put one context around all of them. "
                "Else keep the parameters in BF16 and an FP32 copy in the optimizer."
            )
        elif kind == INPUT:
            steps.append(
                "Under autocast norms and sums return FP32, which each product casts again: torch.compile fuses the cast, "
                "a model in BF16 has none."
            )
        elif kind == ISLAND:
            ops = f" around {' → '.join(between)}" if between else ""
            steps.append(
                f"Compile the stretch{ops}, or call the one op that does it (rms_norm, layer_norm, softmax): then the casts "
                "happen on the chip. Written out, a sum needs its terms in FP32."
                if _SUMS & set(between)
                else f"Drop the casts{ops}: PyTorch's pointwise ops, norms and softmaxes compute in FP32 inside. Compile what "
                "must stay, then it is one kernel."
            )
        elif kind == SUM:
            steps.append("Add the narrow tensor as it is: an in-place op converts as it reads and keeps the wide type.")
    largest = kinds[0]
    title = {
        WEIGHT: "Keep the weights in the type they are used in" if not training else "Cast each weight once a step",
        INPUT: "Give the products their own type",
        ISLAND: "Stay in one type, or compile what needs two",
        SUM: "Add without casting first",
    }[largest]
    return Fix(
        title=title,
        steps=tuple(steps),
        code=_TRAINED if largest == WEIGHT and training else _CODE[largest],
        url=_URL,
        risk="BF16 keeps 8 bits of mantissa: compare the result, and in training keep the optimizer's own copy in FP32, "
        "since small updates are lost in BF16.",
    )
