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
from advisor.report.numbers import duration, percent
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

    What it is
    PyTorch keeps images as NCHW; the convolutions that run on Tensor Cores want NHWC. cuDNN and MIOpen then turn each
    input before and each output after the kernel (`nchwToNhwcKernel`, `batched_transpose`), in the forward pass and
    twice in the backward pass. Permutes with `.contiguous()` around a channel-wise layer do the same by hand.

    Why it costs time
    A conversion reads and writes the whole tensor and computes nothing. And what stands between the convolutions stays
    in NCHW, where PyTorch's own batch norm in 16 bits runs one block a channel and so uses the GPU badly.

    How it is measured
    Conversion kernels inside convolutions, and copies of 4-D or 5-D tensors between a layout with the channels second
    and one with them last, where recorded strides show it and convolutions take a tenth of the time the GPU works. Those
    of 1-D convolutions and of matrix products are left out. The rule looks further where they take `min_layout_share` of
    the time the GPU works ({min_layout_share}: turning the network's input once stays below), or, where a step trains in TF32, cuDNN's batch norms in NCHW take a tenth of it. The step is replayed without them
    (`low`); `expected` also gives PyTorch's own NCHW batch norms the time they take in channels_last, 5 times their
    limit by memory traffic forward and 2.7 times backward, as captured; `high` 1.5 and 1.67 times, what a kernel at full
    bandwidth needs, which cuDNN's in FP32 come to. In 16 bits PyTorch's own depthwise convolutions count too: cuDNN's, used in channels_last alone, is replayed at 4
    times its traffic (`high` 1.5). Elsewhere two copies whose strides undo each other, with nothing but pointwise work, norms and reductions
    between, are not needed: the step is replayed without them (`low`: without the cheaper of the two), and without what they leave
    in the backward pass: copies that turn gradients the same way, and kernels that read one tensor turned and another not. Outside training, products of a weight without bias may stand between too, where they
    contract the axis that the copy brought to the end: multiplied from the left they read it where it was, in the same time. Where no shapes and strides
    were recorded and such copies take a twentieth of the time the GPU works, the rule is skipped. Reported from
    `min_saving_share` of the step ({min_saving_share}).

    How to fix it
    `model.to(memory_format=torch.channels_last)` and the same for the input. Shapes and indexing stay as they are: only
    strides change, and convolutions, norms and pointwise ops hand the layout on.

    When to ignore it
    When most of the time goes to ops without a channels_last kernel: these go back to NCHW, and the conversions stay.
    In FP32 and TF32 either layout may be the faster one, so it is only possible there: measure. It is found where a step trains in TF32 and
    cuDNN's batch norms in NCHW take a tenth of the time the GPU works. Beside group norms, one for
    every fourth convolution or more, nothing is said: on the GPU PyTorch's take and return NCHW.

    References
    https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
    https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/index.html#tensor-layout
    """
    chosen, shown = images.turned, np.union1d(images.turned, images.depthwise)
    share = float(work.dur_us[shown].sum()) / work.busy_us
    by_norms = images.by_norms and share < min_layout_share
    again = round_trips(work, trips, roofline, witness, chosen if images.by_norms or share >= min_layout_share else chosen[:0])
    quiet = f"kernels that only turn images from one layout into another take {percent(share)} of busy time"
    if by_norms:
        shown = images.of_library
        quiet = f"cuDNN's batch norms of tensors in NCHW take {percent(float(work.dur_us[shown].sum()) / work.busy_us)} of busy time"
    elif share < min_layout_share or not len(shown):
        if again:
            return again
        _refuse_untold(work, trips)
        beside = float(work.dur_us[images.of_sequences].sum()) / work.busy_us
        told = f"; those in 1-D convolutions, which have no channels_last, take {percent(beside)}" if beside >= LOW_SHARE else ""
        return Clear(why=f"{quiet}, reported from {min_layout_share:.0%}" + (": channels_last is in use" if images.partly else "") + told)
    if images.refused:
        return again or Clear(why=f"{quiet}, and {REFUSED}: turning images costs what it saves")
    slow_norms = work.us_a_step(images.norms)
    known = images.in_half or images.by_norms
    conversions = Found(
        summary=f"{a_step(work.a_step(shown), 'kernel', 'take')} {duration(work.us_a_step(shown))} of {duration(work.step_us)} for cuDNN's batch norms of tensors in "
        "NCHW, with a block for each channel; in channels_last they go as fast as memory."
        if by_norms
        else f"{a_step(work.a_step(chosen), 'kernel', 'only turn')} tensors between NCHW and NHWC, for "
        f"{duration(work.us_a_step(chosen))} of {duration(work.step_us)}"
        + (f"; PyTorch's own depthwise convolutions take {duration(work.us_a_step(images.depthwise))}" if len(images.depthwise) else "")
        + (f"; batch norms in NCHW take {duration(slow_norms)} more." if slow_norms else "."),
        edits=Edits(images.gone if images.in_half else images.normed if known else combine(), images.likely, images.best),
        title="Batch norms run one block a channel" if by_norms else "",
        removes="what batch norms lose by a block a channel" if by_norms else "turning tensors from NCHW to NHWC and back",
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
    """Raises Unavailable where copies that lie as those of round trips do take enough of the time, and no strides tell what they turn."""
    share = float(work.dur_us[trips.untold].sum()) / work.busy_us
    if share >= UNTOLD:
        raise Unavailable(
            f"copies between pointwise kernels take {percent(share)} of busy time; whether they turn tensors and turn them back, strides would tell",
            RECORD_SHAPES,
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
