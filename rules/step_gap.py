"""An inference server's own work between two steps, for which the device waits."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, Share, rule
from advisor.intervals import overlap_with
from advisor.knowledge.shares import HARDLY_ANY
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import duration, percent, threshold, times
from advisor.report.wording.period import PER_STEP, THE_STEP
from advisor.rules.fixes import planning_of
from advisor.views.patterns.served_work import ServedWork
from advisor.views.replay.edits import Edits, WithoutWaits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.replay.host_time import HostTime
from advisor.views.time.idle_gaps import Gaps
from advisor.views.trace.evidence import folded
from advisor.views.trace.program import Program

AT_ONCE = Fix(
    title="Read the tokens of all requests at once",
    steps=(
        "Sample on the device for the whole batch, and copy all tokens to pinned memory at once.",
        "Launch the next step before waiting for that copy, if no request can end by its generated tokens.",
    ),
    code=Code(
        before="tokens = [int(sample(row)) for row in logits]  # waits for each",
        after="tokens = sample(logits).tolist()  # waits once",
    ),
    url="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    risk="What chooses tokens on the host, as a grammar does, must be done on the device too.",
)

_KINDS = {
    "sync": "waiting for a step's tokens",
    "launch": "launching ops between steps, as for sampling",
    "host": "scheduling, and processing the step's tokens",
    "allocator": "taking memory between steps",
}


_AHEAD = " Once the host runs ahead, idle time inside the step shrinks too."
"""Why more than the named idle time may be saved."""


@rule("step-gap", relies_on=("host",), min_saving_share=0.03, explains=("sync-stall", "host-bound"))
def step_gap(
    served: ServedWork,
    work: GpuWork,
    calls: HostCalls,
    gaps: Gaps,
    host_time: HostTime,
    program: Program,
    *,
    min_idle_share: Share = 0.05,
    min_reads: float = 2.5,
) -> Outcome:
    """The device waits between the steps of a server

    What
    Between two steps, a server reads the last tokens, sends responses, selects the next requests and prepares
    their inputs. If this happens serially, the GPU idles meanwhile.

    Why
    A decode step takes a few milliseconds. A millisecond of Python between two steps is a large part of each
    token's time.

    How to fix
    Overlap scheduling with the GPU's work, and read all tokens in a single copy:

        vllm serve MODEL --async-scheduling

    SGLang and TensorRT-LLM overlap by default. Sample on the GPU. Detokenise and send responses in another
    process.

    When to ignore
    The gap is a server without requests. A higher load fills it.

    How it is measured
    The gap is GPU idle time outside the server's step marks. The rule reports `min_idle_share` ({min_idle_share}) of the
    step or more. In the replay, tokens are read while the next step runs. If the host waits `min_reads` ({min_reads})
    times per step or more, a single wait remains. Savings below `min_saving_share` ({min_saving_share}) of the step are not
    reported.

    | Estimate | Assumption |
    |---|---|
    | `low` | no gain: some features need the tokens first |
    | `expected` | CPU work remains but overlaps the GPU |
    | `high` | CPU work disappears too |

    References
    https://docs.vllm.ai/en/latest/configuration/engine_args.html
    https://docs.sglang.ai/advanced_features/server_arguments.html
    """
    if not served.known:
        return Clear(why="no inference server's steps are marked")
    if len(served.steps) == 1:
        return Clear(why="only a single step is marked")
    # What of a gap recording made is not the server's.
    dur = np.maximum(gaps.dur_us, 1e-9)
    waits = overlap_with(gaps.start_us, gaps.end_us, served.between) * (1 - gaps.causes["profiler"] / dur)
    share = float(waits.sum()) / gaps.run_us
    told = f"the GPU idles {percent(share, min_idle_share)} of {THE_STEP} between server steps"
    if share < min_idle_share:
        return Clear(why=f"{told} (threshold {threshold(min_idle_share)})")
    at = np.flatnonzero(calls.waits)
    at = at[calls.mostly_covered(at, served.between)]
    reads = len(at) / work.schedule.steps
    hidden = WithoutWaits(at)
    one_by_one = reads >= min_reads
    # The last read of a step waits for all that the others wait for.
    gap = np.searchsorted(served.between[0], calls.timeline.api_calls["start_us"][calls.rows[at]])
    expected = WithoutWaits(at[:-1][np.diff(gap) == 0]) if one_by_one else hidden
    big = np.flatnonzero(waits > 0)
    inside = float(gaps.causes["launch"][waits <= 0].sum()) / gaps.run_us
    kinds = np.array([*_KINDS.values()], object)[np.argmax([gaps.causes[cause][big] for cause in _KINDS], axis=0)]
    return Found(
        title=f"The GPU waits for the server between {served.phase} steps",
        summary=f"Between two {served.phase} steps the GPU idles for {duration(share * work.step_us)} of each {duration(work.step_us)} ({percent(share)}). The host waits there for the GPU "
        f"{times(reads)} {PER_STEP}.{_AHEAD * (inside >= HARDLY_ANY)}",
        edits=Edits(combine(), expected, combine(hidden, host_time.cut_time(served.between))),
        removes="the GPU's wait for the server between steps",
        quiet=told,
        evidence=folded(kinds, gaps.start_us[big], waits[big]),
        confidence=0.6,
        at_most="medium",
        fix=AT_ONCE if one_by_one else planning_of(program) or AT_ONCE,
    )
