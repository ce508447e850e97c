"""Steps of an inference server that run in graphs of more rows than they have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.engine.rule import Found, Outcome, Share, rule
from advisor.errors import Unavailable
from advisor.intervals import Floats, Ints
from advisor.knowledge.op_tokens.families import Family
from advisor.report.finding import Clear
from advisor.report.numbers import duration, percent, threshold
from advisor.rules.fixes.serving import sizes_of
from advisor.views.patterns.served_work import ServedWork
from advisor.views.replay.edits import Edits, WithDurations
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import ADD_DEVICE, Roofline
from advisor.views.trace.evidence import Witness
from advisor.views.trace.serving import ServedStep

UNPADDED = (Family.ATTENTION, Family.COMMUNICATION)
"""Padding has no keys to look at, and what few rows more there are costs a short message nothing."""


@rule("padding-waste", relies_on=("kernels",), min_saving_share=0.03)
def padding_waste(served: ServedWork, work: GpuWork, roofline: Roofline, witness: Witness, *, min_padding_share: Share = 0.1) -> Outcome:
    """A server's steps are padded to a larger captured size

    What
    A batch between two captured sizes runs in the CUDA graph of the larger size. The additional rows are
    computed and discarded.

    Why
    Up to two hundred rows, a GEMM takes the same time for any number of rows, since it reads the same weights.
    Beyond that, GEMMs, norms and activations take time for each row.

    How to fix
    Capture the sizes that occur, including the largest allowed batch:

        vllm serve MODEL --cudagraph-capture-sizes 1 2 4 8 16 24 32
        python -m sglang.launch_server --model MODEL --cuda-graph-bs-decode 1 2 4 8 16 24 32

    TensorRT-LLM has `batch_sizes` of `cuda_graph_config`.

    When to ignore
    The recorded batch size is rare, or no memory is free for more graphs.

    How it is measured
    The server's marks give requests and tokens per step. The number of rows in a graph comes from the mark, or
    from kernels with a block per row. The rule reports `min_padding_share` ({min_padding_share}) of the rows or more. The
    replay shortens the graph's kernels: by the times of other graphs in the recording, or by the roofline.
    Savings below `min_saving_share` ({min_saving_share}) of the step are not reported.

    References
    https://docs.vllm.ai/en/latest/design/cuda_graphs.html
    Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009
    """
    if not served.known:
        return Clear(why="no inference server's steps are marked with their phase and CUDA graphs")
    told = [step for step in served.steps if step.padded_to >= 0 and step.mark.query_tokens >= 0]
    if not told:
        return Clear(why=f"how many rows the graphs of {served.phase} steps compute is not recorded" if len(served.graphs) else "no step ran in a graph")
    rows, computed = (sum(getattr(item, name) for item in items) for items, name in (([s.mark for s in told], "query_tokens"), (told, "padded_to")))
    padding = 1 - rows / computed
    padded = [step for step in told if 1 - step.mark.query_tokens / step.padded_to >= min_padding_share]
    if padding < min_padding_share or not padded:
        return Clear(
            why=f"{percent(padding, min_padding_share)} of the rows that graphs of {served.phase} steps compute are padding (threshold {threshold(min_padding_share)})"
        )
    fix = sizes_of(served.engine, served.phase, *(sorted(set(sizes)) for sizes in ([s.mark.query_tokens for s in padded], [s.padded_to for s in padded])))
    if fix is None:
        return Clear(
            why=f"{percent(padding)} of the rows are padding; which option of {served.engine} captures more sizes of {served.phase} steps is not known"
        )
    at, real, run = _on_padding(served, padded, work)
    likely = _by_size(served, padded)
    expected, least_left = _by_kernel(work, roofline, at, real, run) if likely is None else (np.full(len(at), likely),) * 2
    dur = work.dur_us[at]
    example = max(padded, key=lambda step: step.padded_to - step.mark.query_tokens)
    return Found(
        title=f"{percent(padding)} of what {served.phase} steps compute is padding",
        summary=f"A {served.phase} step of {example.mark.query_tokens:,} rows runs in a graph of {example.padded_to:,}. In the window, {percent(padding)} of the rows are padding. "
        f"A step takes {duration(work.step_us)}.",
        edits=Edits(*(WithDurations(at, dur * share) for share in ((1 + expected) / 2, expected, least_left))),
        removes="computing rows that are padding",
        quiet=f"{percent(padding)} of the rows that graphs of {served.phase} steps compute are padding",
        evidence=witness.of_gpu(work.rows[at], [f"a graph of {rows:.0f} rows" for rows in run]),
        confidence=0.6 if likely is None else 0.8,
        fix=fix,
    )


def _on_padding(served: ServedWork, padded: Sequence[ServedStep], work: GpuWork) -> tuple[Ints, Floats, Floats]:
    """Positions of the ops that graphs of padded steps launch, the rows that the step of each has, and those that its graph computes."""
    of = np.searchsorted([step.start_us for step in padded], work.launched_us, side="right") - 1
    at = np.flatnonzero(served.in_graph & (of >= 0) & (work.launched_us < np.array([step.end_us for step in padded])[of]))
    real, run = (np.array(rows, float)[of[at]] for rows in ([step.mark.query_tokens for step in padded], [step.padded_to for step in padded]))
    return at, real, run


def _by_size(served: ServedWork, padded: Sequence[ServedStep]) -> float | None:
    """What share of a graph's time is left, by graphs of other sizes that the recording holds: on the line between the own and the next one that is no larger than
    the step. None if there is none."""
    took: dict[int, list[float]] = {}
    for step in (*served.steps, *served.elsewhere):
        if step.mark.phase == served.phase and step.padded_to > 0 and step.graph_us > 0:
            took.setdefault(step.padded_to, []).append(step.graph_us)
    usual = {size: float(np.median(times)) for size, times in took.items()}
    left = whole = 0.0
    for step in padded:
        smaller = [size for size in usual if size <= step.mark.query_tokens]
        if not smaller:
            return None
        size, us = max(smaller), usual[step.padded_to]
        slope = max(us - usual[size], 0.0) / (step.padded_to - size)
        left, whole = left + us - slope * (step.padded_to - step.mark.query_tokens), whole + us
    return left / whole


def _by_kernel(work: GpuWork, roofline: Roofline, at: Ints, real: Floats, run: Floats) -> tuple[Floats, Floats]:
    """(n,) what share of each kernel's time is left, by what it is: the more and the less of the two ways in which a product may read and compute."""
    devices = work.column("device")[at]
    full = np.maximum(work.timeline.sm_counts(devices), 1)
    more: Floats = np.maximum(real, full) / np.maximum(run, full)
    more[work.in_families(*UNPADDED)[at]] = 1.0
    less = more.copy()
    products = np.flatnonzero(work.in_families(Family.GEMM)[at])
    precision = np.asarray(work.kernels.precision, object)[work.rows[at]]
    for device, name in {*zip(devices[products].tolist(), precision[products].tolist(), strict=True)}:
        mine = products[(devices[products] == device) & (precision[products] == name)]
        ridge = roofline.peaks_of(work.timeline.device(device)).ridge(name or "bf16")
        if ridge is None:
            raise Unavailable(f"the device's rate in {name} is not known", ADD_DEVICE)
        # Two FLOP for each weight and row: of weights of two bytes the ridge point in FLOP a byte is as many rows.
        knee = ridge * _weight_bytes(name or "bf16") / 2
        overlapped, apart = np.maximum(real, knee) / np.maximum(run, knee), (knee + real) / (knee + run)
        more[mine], less[mine] = np.maximum(overlapped, apart)[mine], np.minimum(overlapped, apart)[mine]
    return more, less


def _weight_bytes(precision: str) -> float:
    """Of a weight that products in this precision read: fp8, bf16, tf32 say their bits."""
    return int("".join(filter(str.isdigit, precision))) / 8
