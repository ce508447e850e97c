"""Tensors are turned from NCHW to NHWC and back around convolutions."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.errors import Unavailable
from advisor.intervals import Ints
from advisor.knowledge.how_to_record import RECORD_SHAPES
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.shares import HARDLY_ANY
from advisor.report.finding import LOW_SHARE, Clear
from advisor.report.numbers import duration, duration_of, percent, threshold
from advisor.rules._phrases import a_step
from advisor.rules._round_trips import round_trips, shapes_of
from advisor.rules.fixes.memory_layout import EITHER, REFUSED, one_layout
from advisor.views.patterns.memory_format import ChannelsLast
from advisor.views.patterns.transposes import RoundTrips
from advisor.views.replay.edits import Edits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.trace.evidence import Witness

UNTOLD = HARDLY_ANY
"""Of busy time: copies of which strides would tell what they do, as the rule asks of conversions."""

_TO_NHWC, _TO_NCHW = names_of("to_nhwc"), names_of("to_nchw")


@rule("memory-layout", relies_on=("kernels",), min_saving_share=0.03, part_of=("unfused-elementwise",))
def memory_layout(work: GpuWork, images: ChannelsLast, trips: RoundTrips, roofline: Roofline, witness: Witness, *, min_layout_share: float = 0.05) -> Outcome:
    """Tensors change layout around convolutions

    What
    PyTorch keeps images as NCHW, but convolutions on Tensor Cores need NHWC. Libraries (cuDNN, MIOpen) convert
    each input and output (`nchwToNhwcKernel`, `batched_transpose`). `.permute().contiguous()` around a
    channel-wise layer does the same by hand.

    Why
    A conversion reads and writes the whole tensor and computes nothing. Ops between the convolutions stay in
    NCHW. There, PyTorch's 16-bit batch norm runs a single block per channel and uses the GPU badly.

    How to fix
    Keep images in channels-last. Shapes and indexing stay the same; only strides change:

        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)

    When to ignore
    Most of the time is in ops without a channels-last kernel, such as group norms. In FP32 and TF32 either
    layout may be faster: measure both.

    How it is measured
    The rule finds conversion kernels inside convolutions, and copies between the two layouts. They must take
    `min_layout_share` ({min_layout_share}) of GPU busy time. Pairs of transposes that undo each other count too. The replay
    removes them. Savings below `min_saving_share` ({min_saving_share}) of the step are not reported.

    | Estimate | Batch norms in channels-last |
    |---|---|
    | `low` | unchanged |
    | `expected` | 5 times their memory limit forward, 2.7 backward |
    | `high` | 1.5 times forward, 1.67 backward |

    References
    https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
    https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/index.html#tensor-layout
    """
    chosen, shown = images.turned, np.union1d(images.turned, images.depthwise)
    share = float(work.dur_us[shown].sum()) / work.busy_us
    by_norms = images.by_norms and share < min_layout_share
    again = round_trips(work, trips, roofline, witness, chosen if images.by_norms or share >= min_layout_share else chosen[:0])
    quiet = f"kernels that only convert images between layouts take {percent(share, min_layout_share)} of busy time"
    if by_norms:
        shown = images.of_library
        quiet = f"cuDNN's batch norms of tensors in NCHW take {percent(float(work.dur_us[shown].sum()) / work.busy_us)} of busy time"
    elif share < min_layout_share or not len(shown):
        if again:
            return again
        _refuse_untold(work, trips)
        beside = float(work.dur_us[images.of_sequences].sum()) / work.busy_us
        told = f"; 1-D convolutions (no channels_last) account for {percent(beside)}" if beside >= LOW_SHARE else ""
        return Clear(why=f"{quiet} (threshold {threshold(min_layout_share)})" + (": channels_last is in use" if images.partly else "") + told)
    if images.refused:
        return again or Clear(why=f"{quiet}, and {REFUSED}: converting images costs as much as it saves")
    slow_norms = work.us_a_step(images.norms)
    known = images.in_half or images.by_norms
    conversions = Found(
        summary=f"{a_step(work.a_step(shown), 'kernel', 'take')} {duration_of(work.us_a_step(shown), work.step_us)} for cuDNN's batch norms of tensors in "
        "NCHW, with a block per channel; in channels_last they run at memory bandwidth."
        if by_norms
        else f"{a_step(work.a_step(chosen), 'kernel', 'only convert')} tensors between NCHW and NHWC, for "
        f"{duration_of(work.us_a_step(chosen), work.step_us)}"
        + (f"; PyTorch's own depthwise convolutions take {duration(work.us_a_step(images.depthwise))}" if len(images.depthwise) else "")
        + (f"; batch norms in NCHW take {duration(slow_norms)} more." if slow_norms else "."),
        edits=Edits(images.gone if images.in_half else images.normed if known else combine(), images.likely, images.best),
        title="Batch norms run a single block per channel" if by_norms else "",
        removes="batch norms with a block per channel" if by_norms else "converting tensors between NCHW and NHWC",
        quiet=quiet,
        evidence=witness.of_gpu(work.rows[shown], [_label(work, position, turned=not by_norms) for position in shown.tolist()]),
        confidence=(0.9 if len(work.timeline.cpu_ops) else 0.75) * (1.0 if images.in_half else 0.85 if known else 0.6),
        status="found" if known else "possible",
        possible_why="" if known else EITHER,
        decide_with="" if known else "advisor verify --before 'python SCRIPT' --after 'python SCRIPT_IN_CHANNELS_LAST'",
        fix=one_layout(images.partly, _image(work, shown)),
    )
    return [conversions, again] if again else conversions


def _refuse_untold(work: GpuWork, trips: RoundTrips) -> None:
    """Raises Unavailable if copies that lie as those of round trips do take enough of the time, and no strides tell what they turn."""
    share = float(work.dur_us[trips.untold].sum()) / work.busy_us
    if share >= UNTOLD:
        raise Unavailable(
            f"copies between elementwise kernels take {percent(share)} of busy time; only strides show whether they transpose back and forth",
            *RECORD_SHAPES,
        )


def _label(work: GpuWork, position: int, *, turned: bool) -> str:
    """The op with its largest tensor, and which way the tensor is turned, if it is."""
    name, op = work.kernel_name(position), int(work.op[position])
    way = "NCHW → NHWC" if _TO_NHWC.search(name) else "NHWC → NCHW" if _TO_NCHW.search(name) else "transposed"
    shapes = shapes_of(work, op)
    where = f"{work.ops.name(op)} {shapes[0] if shapes else ''}".strip() if op >= 0 else name.split("<", 1)[0][:60]
    return f"{way} in {where}" if turned else where


def _image(work: GpuWork, at: Ints) -> str:
    """The largest tensor that those ops take first, as people write a shape: behind it stand filters."""
    found = [s for op in np.unique(work.op[at]).tolist() for s in shapes_of(work, op)[:1] if len(s) in (4, 5)]
    largest: list[int] = max(found, key=lambda s: int(np.prod(s)), default=[])
    return " × ".join(str(n) for n in largest)
