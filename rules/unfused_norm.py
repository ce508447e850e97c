"""Norms and softmaxes that are written out where one op exists."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import Ints
from advisor.knowledge.op_costs import DTYPE_BYTES
from advisor.report.model import Clear, Code, Fix
from advisor.rules._phrases import milliseconds
from advisor.timeline import GpuKind, Timeline
from advisor.views.replay.edits import Edits, Fused
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.schedule import Schedule
from advisor.views.time.roofline import Roofline
from advisor.views.trace import arguments
from advisor.views.trace.evidence import Witness
from advisor.views.trace.ops import Ops
from advisor.views.trace.steps import Steps

KERNEL_US = 2.0
"""No kernel takes less, whatever it moves."""

SLOWEST, LIKELY, FASTEST = 4.0, 1.8, 1.0
"""Time of a fused kernel over its traffic at the bandwidth that large copies reach. PyTorch's own on an H200: rms_norm 1.4
forward and 1.7 backward, layer_norm 2.4, softmax over 8192 columns 4; Inductor's come close to 1."""

FORWARD_PASSES, BACKWARD_PASSES = 2.0, 5.0
"""Tensors moved: forward x read and y written; backward gradient and x read and a gradient written, and both read once
more for the gradients of scale and shift."""

MIN_ROW = 16
"""Elements of a row: a reduction over fewer is not a norm over features or classes."""

# Each kernel of a stream is one letter; a written-out op is a pattern of letters. In and out of the patterns a cast (c)
# may stand where mixed precision puts it. Subtraction without recorded ops cannot be told from addition.
_LETTERS = (
    ("c", r"^(copy|_to_copy|to)$", r"(direct|float\w*|half)_copy_kernel|\bLoadWithCast"),
    ("p", r"^(pow|square)$", r"pow_tensor_scalar|square_kernel"),
    ("m", r"^mul$", r"MulFunctor"),
    ("d", r"^(div|true_divide)$", r"DivFunctor"),
    ("s", r"^(sub|rsub)$", r"(?!x)x"),
    ("a", r"^add$", r"CUDAFunctor(OnSelf)?_add"),
    ("e", r"^mean$", r"MeanOps"),
    ("v", r"^(var|std|var_mean|std_mean)$", r"WelfordOps"),
    ("S", r"^sum$", r"sum_functor"),
    ("M", r"^(max|amax)$", r"MaxOps|max_functor"),
    ("r", r"^rsqrt$", r"rsqrt_kernel"),
    ("q", r"^sqrt$", r"sqrt_kernel"),
    ("i", r"^reciprocal$", r"reciprocal_kernel"),
    ("x", r"^exp$", r"exp_kernel"),
    ("l", r"^log$", r"log_kernel"),
    ("f", r"^_softmax$", r"softmax_?(warp_)?forward|SoftMaxForward"),
)  # fmt: skip

_ROOT = r"(?:r|qi?)"
_PATTERNS = (
    ("LayerNorm", re.compile(rf"c?e[sa][pm]e(?:[sa]m?)?a?(?:[sa]m?)?{_ROOT}[md]c?m?a?c?")),
    ("LayerNorm", re.compile(rf"c?(?:ev|ve|v)(?:[sa]m?)?a?(?:[sa]m?)?{_ROOT}?[sa]?[md]c?m?a?c?")),
    ("RMSNorm", re.compile(rf"c?[pm](?:e|Sd)a?{_ROOT}[md]c?m?c?")),
    ("log-softmax", re.compile(r"c?(?:M[sa])?xSl[sa]c?")),
    ("softmax", re.compile(r"c?(?:M[sa])?xSdc?")),
    ("log-softmax", re.compile(r"fl")),
)

_FUSED_ALREADY = re.compile(
    r"(layer|rms|batch|group|instance)_norm|normalize|logsumexp|(?<!_)softmax|cross_entropy|optimizer|Optimizer"
)
"""Ops that are written out inside PyTorch: calling them is all that a user can do."""

_BACKWARD = re.compile(r"^autograd::engine::evaluate_function: (?!torch::autograd::AccumulateGrad)")


@dataclass(frozen=True)
class _Chain:
    """The kernels (positions) of one written-out op, forward or backward, what it is, and bytes of x and of the result."""

    kind: str
    members: Ints
    bytes: float
    backward: bool = False


@rule("unfused-norm", relies_on=("kernels",), min_saving_share=0.03, explains=("unfused-elementwise",))
def unfused_norm(timeline: Timeline, steps: Steps, work: GpuWork, roofline: Roofline, witness: Witness) -> Outcome:
    """A norm or softmax is written out where one op exists

    What it is
    LayerNorm, RMSNorm, softmax or log-softmax as separate ops: `pow`, `mean`, `add`, `rsqrt`, `mul`; `exp`, `sum`, `div`.

    Why it costs time
    Each op reads and writes the whole tensor, though a row fits on the chip: the fused kernel reads it once and writes
    it once. In mixed precision the written-out form also works on FP32 copies of twice the size. The backward pass has
    twice as many kernels again.

    How it is measured
    Kernels that follow each other on a stream in the order of such an op: a reduction along the last dimensions, a root
    on the few reduced values (at least 16 elements a row where shapes were recorded), a product or quotient on the whole
    tensor; for softmax `exp`, `sum`, quotient. What PyTorch writes out inside one of its own ops does not count. Kernels
    of the backward pass belong to it by autograd's sequence numbers. One kernel takes their place: two passes over the
    tensor forward, five backward, at the bandwidth that large copies reach, times 1.8 (`low` 4, `high` 1), never less
    than 2 µs; without shapes as long as the chain's longest kernel. The step is replayed with it; reported from
    `min_saving_share` ({min_saving_share}). Chains without a reduction are left to unfused-elementwise.

    How to fix it
    Call `F.layer_norm`, `F.rms_norm`, `torch.softmax` or `F.cross_entropy`, or compile the module.

    When to ignore it
    When intermediate results are used elsewhere, or the formula differs from the op's: a statistic over other
    dimensions, an epsilon outside of the root.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.rms_norm.html
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.layer_norm.html
    """
    ops, schedule = work.ops, work.schedule
    forward = _forward(timeline, ops, schedule, work.step)
    if not forward:
        return Clear(why="no norm and no softmax is written out: no reduction stands between such pointwise kernels")
    chains = forward + _backward(timeline, ops, schedule, work.step, forward)
    times = np.array([_fused_us(roofline, timeline, schedule, c) for c in chains])
    members = np.concatenate([c.members for c in chains])
    spent = milliseconds(work.us_a_step(members))
    kinds = _by_time(chains, schedule)
    return Found(
        title=f"{kinds[0]} is written out where one op exists",
        summary=f"{work.a_step(forward):.0f} written-out {' and '.join(kinds)} a step run {work.a_step(members):.0f} kernels for "
        f"{spent} of {milliseconds(steps.step_us)}; fused they would take {milliseconds(float(times[:, 1].sum()) / schedule.steps)}.",
        edits=Edits(*(Fused.chains([c.members for c in chains], times[:, end]) for end in range(3))),
        removes="the way of a tensor through memory between the kernels of one norm or softmax",
        quiet=f"{' and '.join(kinds)} written out take {spent} a step",
        evidence=witness.of_gpu(
            work.rows[members], [label for c in chains for label in [_label(timeline, ops, schedule, c)] * len(c.members)]
        ),
        confidence=0.9 if timeline.source.shapes else 0.6,
        fix=_fix(kinds),
    )


def _forward(timeline: Timeline, ops: Ops, schedule: Schedule, step: Ints) -> list[_Chain]:
    """Written-out ops of the forward pass (or of inference), each by the first pattern that fits."""
    letters = _letters(timeline, ops, schedule)
    kernel = (timeline.gpu_ops["kind"] == GpuKind.KERNEL.value).to_numpy()[schedule.op_row]
    found: list[_Chain] = []
    for s in np.unique(schedule.stream):
        here = np.flatnonzero((schedule.stream == s) & kernel)
        # A line between steps: no chain spans two of them.
        cuts = np.flatnonzero(np.diff(step[here])) + 1
        for run in np.split(here, cuts):
            text = "".join(letters[run])
            taken = np.zeros(len(run), bool)
            for kind, pattern in _PATTERNS:
                for match in pattern.finditer(text):
                    if taken[match.start() : match.end()].any():
                        continue
                    chain = _checked(timeline, ops, schedule, kind, run[match.start() : match.end()], match[0])
                    if chain:
                        taken[match.start() : match.end()] = True
                        found.append(chain)
    return found


def _letters(timeline: Timeline, ops: Ops, schedule: Schedule) -> np.ndarray:
    """(n_ops,) the letter of each kernel, "." for one that is part of no written-out op."""
    rows = schedule.op_row
    names = timeline.gpu_ops["name"]
    by_kernel = np.array([next((c for c, _, k in _LETTERS if re.search(k, n)), ".") for n in (*names.cat.categories, "")])
    by_op = np.array([_letter_of_op(n) for n in (*ops.categories, "")])
    op = ops.of_gpu[rows]
    letters: np.ndarray = by_kernel[names.cat.codes.to_numpy()[rows]]
    if len(ops.names):
        letters = np.where(op >= 0, by_op[np.where(op >= 0, ops.names[op], -1)], letters)
        inside = {
            int(o)
            for o in np.unique(op[letters != "."])
            if o >= 0 and any(_FUSED_ALREADY.search(n) for n in ops.chain(int(o))[1:])
        }
        letters[np.isin(op, list(inside))] = "."
    return letters


def _letter_of_op(name: str) -> str:
    if not name.startswith("aten::"):
        return "."
    base = name.removeprefix("aten::")
    base = base if base.startswith("_") else base.rstrip("_")
    return next((c for c, o, _ in _LETTERS if re.search(o, base)), ".")


def _checked(timeline: Timeline, ops: Ops, schedule: Schedule, kind: str, members: Ints, text: str) -> _Chain | None:
    """The chain as matched, less the scale or cast at its end that works on another tensor; None where shapes disagree."""
    shapes = [_tensors(timeline, int(o)) for o in ops.of_gpu[schedule.op_row[members]]]
    if not all(shapes):
        # The kernels' names alone: take only what is longer than a few kernels that anything may launch.
        return _Chain(kind, members, np.nan) if len(members) >= 4 and not timeline.source.shapes else None
    sizes = [max(prod(shape) for shape, _ in s) for s in shapes]
    n = max(sizes)
    while len(members) > 2 and sizes[len(members) - 1] != n:
        members = members[:-1]
    if text[: len(members)].endswith("c") and text[0] != "c":
        members = members[:-1]  # no cast in, so this one belongs to what follows
    text, shapes, sizes = text[: len(members)], shapes[: len(members)], sizes[: len(members)]
    first = next((i for i, letter in enumerate(text) if letter in "evSf"), -1)
    if first < 0 or sizes[first] != n or sizes[0] != n:
        return None
    whole = shapes[first][0][0]
    if text == "fl":
        return _Chain(kind, members, float(n * (shapes[0][0][1] + shapes[-1][0][1])))
    last = max((i for i, letter in enumerate(text) if letter in "md" or (kind == "log-softmax" and letter in "sa")), default=-1)
    statistic = any(_is_row_statistic(whole, shape) for s in shapes[first + 1 :] for shape, _ in s)
    if last <= first or not statistic:
        return None
    itemsize = shapes[0][-1][1] if text[0] == "c" else shapes[0][0][1]
    written = shapes[-1][0][1] if text[-1] == "c" else max(size for _, size in shapes[-1])
    return _Chain(kind, members, float(n * (itemsize + written)))


def _is_row_statistic(whole: tuple[int, ...], row: tuple[int, ...]) -> bool:
    """Whether `row` holds one value for each row of `whole`: the same leading dimensions, the others reduced."""
    kept = list(row)
    while kept and kept[-1] == 1:
        kept.pop()
    count = prod(kept)
    return bool(kept) and tuple(kept) == whole[: len(kept)] and prod(whole) >= MIN_ROW * count and count > 1


def _tensors(timeline: Timeline, op: int) -> list[tuple[tuple[int, ...], int]]:
    """Shape and bytes an element of each tensor among an op's inputs; [] where they were not recorded."""
    if op < 0:
        return []
    dims, types = (str(timeline.cpu_ops[c].iat[op]) for c in ("dims", "types"))
    return [
        (tuple(shape), DTYPE_BYTES[kind])
        for shape, kind in zip(arguments.numbers(dims), arguments.names(types), strict=False)
        if kind in DTYPE_BYTES and shape and all(isinstance(k, int) for k in shape)
    ]


def _backward(timeline: Timeline, ops: Ops, schedule: Schedule, step: Ints, forward: list[_Chain]) -> list[_Chain]:
    """Kernels that autograd ran for the ops of each chain, by their sequence number and step."""
    if not len(ops.names):
        return []
    sequence = timeline.cpu_ops["sequence"].to_numpy()
    back = np.array([bool(_BACKWARD.match(n)) for n in ops.categories], bool)[ops.names]
    node = ops.outermost_where(back)
    called = ops.outermost_where(np.array([n.startswith("aten::") for n in ops.categories], bool)[ops.names])
    op = ops.of_gpu[schedule.op_row]
    number = np.where(op >= 0, np.where(node[op] >= 0, sequence[node[op]], -1), -1)
    of: dict[tuple[int, int], list[int]] = {}
    for position in np.flatnonzero(number >= 0):
        of.setdefault((int(step[position]), int(number[position])), []).append(int(position))
    found = []
    for chain in forward:
        roots = called[op[chain.members]] if (op[chain.members] >= 0).all() else np.empty(0, np.int64)
        keys = sorted({(int(step[chain.members[0]]), int(sequence[r])) for r in roots if sequence[r] >= 0})
        members = np.array(sorted(p for key in keys for p in of.pop(key, [])), np.int64)
        if len(members) >= 2:
            found.append(_Chain(chain.kind, members, chain.bytes, backward=True))
    return found


def _fused_us(roofline: Roofline, timeline: Timeline, schedule: Schedule, chain: _Chain) -> tuple[float, float, float]:
    """Time of the one kernel at most, likely and at least; never above the chain's own."""
    dur = schedule.dur_us[chain.members]
    whole, longest = float(dur.sum()), float(dur.max())
    peaks = roofline.peaks.get(int(timeline.gpu_ops["device"].to_numpy()[schedule.op_row[chain.members[0]]]))
    rate = peaks.achievable_bytes_per_s if peaks else None
    if not rate or np.isnan(chain.bytes):
        return min(1.5 * longest, whole), min(longest, whole), min(0.7 * longest, whole)
    moved = chain.bytes * (BACKWARD_PASSES / FORWARD_PASSES if chain.backward else 1.0)
    low, expected, high = (min(max(f * moved / rate * 1e6, KERNEL_US), whole) for f in (SLOWEST, LIKELY, FASTEST))
    return low, expected, high


def _by_time(chains: list[_Chain], schedule: Schedule) -> list[str]:
    """Kinds found, most time first."""
    spent: dict[str, float] = {}
    for chain in chains:
        spent[chain.kind] = spent.get(chain.kind, 0.0) + float(schedule.dur_us[chain.members].sum())
    return sorted(spent, key=lambda kind: -spent[kind])


def _label(timeline: Timeline, ops: Ops, schedule: Schedule, chain: _Chain) -> str:
    """What it is, its ops in order and the shape of its tensor."""
    op = ops.of_gpu[schedule.op_row[chain.members]]
    if chain.backward:
        return f"{chain.kind}, backward: {len(chain.members)} kernels"
    names = [ops.name(int(o)).removeprefix("aten::") or "kernel" for o in op]
    tensors = [shape for o in op for shape, _ in _tensors(timeline, int(o))]
    shape = f" {list(max(tensors, key=prod))}" if tensors else ""
    return f"{chain.kind}: {' → '.join(names)}{shape}"


_CODE = {
    "LayerNorm": Code(
        before="mean = x.mean(-1, keepdim=True)\nvar = (x - mean).pow(2).mean(-1, keepdim=True)\ny = (x - mean) / torch.sqrt(var + eps) * weight + bias",
        after="y = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)",
    ),
    "RMSNorm": Code(
        before="h = x.float()\ny = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight",
        after="y = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)",
    ),
    "softmax": Code(
        before="e = torch.exp(x - x.amax(-1, keepdim=True))\ny = e / e.sum(-1, keepdim=True)",
        after="y = torch.softmax(x, dim=-1)",
    ),
    "log-softmax": Code(
        before="log_p = torch.log(torch.softmax(x, -1))\nloss = -log_p.gather(-1, target[:, None]).mean()",
        after="loss = torch.nn.functional.cross_entropy(x, target)",
    ),
}
_URL = {
    "LayerNorm": "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.layer_norm.html",
    "RMSNorm": "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.rms_norm.html",
    "softmax": "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.softmax.html",
    "log-softmax": "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cross_entropy.html",
}


def _fix(kinds: list[str]) -> Fix:
    steps = [f"Replace the written-out {kind} by the one op." for kind in kinds]
    if "RMSNorm" in kinds:
        steps.append("torch.nn.functional.rms_norm is one kernel from PyTorch 2.8 on; before, compile the module that holds it.")
    steps.append("If the formula differs from the op's, put torch.compile on the function: Inductor fuses the reduction as well.")
    return Fix(
        title=f"Call the fused {kinds[0]}",
        steps=tuple(steps),
        code=_CODE[kinds[0]],
        url=_URL[kinds[0]],
        risk="The fused op keeps statistics in FP32 and rounds once, so the last bits differ. Check where the epsilon stands.",
    )
