"""An inference server's own work between two steps, for which the device waits."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, Share, rule
from advisor.intervals import overlap_with
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import duration, percent, times
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
        "Sample on the device for the whole batch, and copy all tokens to pinned memory in one copy.",
        "Launch the next step before that copy is waited for, where no request may end by what was generated.",
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
    "launch": "issuing ops between steps, as for sampling",
    "host": "scheduling, and taking in what a step generated",
    "allocator": "taking memory between steps",
}


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

    What it is
    Between two steps a server reads the tokens of the last, appends them, sends answers, picks the requests of the next and prepares their inputs. Done one after the
    other, the device has nothing to do meanwhile.

    Why it costs time
    A decode step takes a few milliseconds, so that one millisecond of Python between two of them is a large part of each token's time.

    How it is measured
    The server marks its steps on the host. Time outside of the marks in which the device idles is the gap, from `min_idle_share` of the step
    ({min_idle_share}). It is divided by what the host does: waiting for tokens, issuing ops as for sampling, or else. The saving is a replay of steps whose tokens are read
    while the next step runs: no wait between steps, where the host's work stays and hides beside the device's; where the host waits there `min_reads` times a step or more ({min_reads}: a copy and the wait for it may be two calls), one wait is left of these
    (`low`: nothing, as some features need the tokens first; `high`: no wait, and without the host's work there too). Reported from `min_saving_share` ({min_saving_share}).

    How to fix it
    Overlap scheduling: `--async-scheduling` in vLLM, in SGLang and TensorRT-LLM what is on by default. Sample on the device, and read the tokens of all requests at
    once. Detokenise and send answers in another process, and only what is new.

    When to ignore it
    When the gap is a server without requests: then a higher load fills it.

    References
    https://docs.vllm.ai/en/latest/configuration/engine_args.html
    https://docs.sglang.ai/advanced_features/server_arguments.html
    """
    if not served.known:
        return Clear(why="no step of one phase is marked as an inference server's, with what its graphs ran")
    if len(served.steps) == 1:
        return Clear(why="one step is marked: what a server does between two is not known")
    # What of a gap recording made is not the server's.
    dur = np.maximum(gaps.dur_us, 1e-9)
    waits = overlap_with(gaps.start_us, gaps.end_us, served.between) * (1 - gaps.causes["profiler"].to_numpy() / dur)
    share = float(waits.sum()) / gaps.run_us
    told = f"the device idles {percent(share)} of the step while the server is between two"
    if share < min_idle_share:
        return Clear(why=f"{told}; reported from {min_idle_share:.0%}")
    at = np.flatnonzero(calls.waits)
    at = at[calls.inside(at, served.between)]
    reads = len(at) / work.schedule.steps
    hidden = WithoutWaits(at)
    one_by_one = reads >= min_reads
    # The last read of a step waits for all that the others wait for.
    gap = np.searchsorted(served.between[0], calls.timeline.api_calls["start_us"].to_numpy()[calls.rows[at]])
    expected = WithoutWaits(at[:-1][np.diff(gap) == 0]) if one_by_one else hidden
    big = np.flatnonzero(waits > 0)
    kinds = np.array([*_KINDS.values()], object)[gaps.causes[[*_KINDS]].to_numpy()[big].argmax(axis=1)]
    return Found(
        title=f"The device waits for the server between {served.phase} steps",
        summary=f"Between two {served.phase} steps the device idles for {duration(share * work.step_us)} of each {duration(work.step_us)} ({percent(share)}); the host waits there for the device "
        f"{times(reads)} a step.",
        edits=Edits(combine(), expected, combine(hidden, host_time.without(served.between))),
        removes="the device's wait for the server's own work between steps",
        quiet=told,
        evidence=folded(kinds, gaps.start_us[big], waits[big]),
        confidence=0.6,
        at_most="medium",
        fix=AT_ONCE if one_by_one else planning_of(program) or AT_ONCE,
    )
