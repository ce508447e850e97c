"""The host waits for the device inside the step, and the device then waits for the host."""

from __future__ import annotations

from advisor.engine.rule import Found, Outcome, Table, rule
from advisor.knowledge import host_waits
from advisor.knowledge.shares import SEVERAL
from advisor.report.finding import MEDIUM_SHARE, Clear
from advisor.report.numbers import duration, percent, threshold, times
from advisor.report.wording.period import PER_STEP, THE_STEP
from advisor.rules import _phrases as phrases
from advisor.rules import fixes
from advisor.rules.fixes import waits as waiting
from advisor.views.patterns.device_waits import DeviceWaits
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.replay import Replay
from advisor.views.trace.evidence import Witness
from advisor.views.trace.program import Program
from advisor.views.trace.steps import Steps
from advisor.views.trace.waited_calls import WaitedCalls


@rule("sync-stall", relies_on=("host",), table=lambda: Table(host_waits.measured_with(), tuple(host_waits.as_rows())))
def sync_stall(
    steps: Steps,
    work: GpuWork,
    waits: DeviceWaits,
    replay: Replay,
    witness: Witness,
    program: Program,
    waited: WaitedCalls,
    *,
    min_saving_share: float = 0.01,
    min_per_step: float = 2.0,
) -> Outcome:
    """The host waits for the GPU inside the step

    What
    Calls in the loop block the host until the GPU has finished: `torch.cuda.synchronize()`, `.item()`,
    `.tolist()`, `.cpu()`, `print(tensor)`, `if tensor:`, `nonzero()` and boolean indexing. They need a value or
    a size on the host.

    Why
    While the host waits, it cannot launch the next kernels. After the wait, the launch queue is empty and the
    GPU idles. A wait during which the queue stays filled costs nothing.

    How to fix
    Keep values on the GPU, and read them rarely:

        total += loss.detach()                       # was: total += loss.item()
        if step % 100 == 0:
            print(total.item() / 100)

    Replace `if tensor.any():` by `torch.where`, and boolean indexing by a mask. To read a value, copy it with
    `non_blocking=True` into pinned memory and use it a step later. In JAX, read many arrays with a single
    `jax.device_get`.

    When to ignore
    The program must react to the value immediately (early exit, sampling), or it measures time.

    How it is measured
    The rule finds calls that block the host, and copies that return only after their transfer. The replay
    removes them, so a wait in a launch-bound loop shows its real cost, often nothing. Savings below
    `min_saving_share` ({min_saving_share}) of the step are not reported; `min_per_step` ({min_per_step}) waits or more are still listed
    as `low`.

    | Estimate | Waits that disappear |
    |---|---|
    | `low` | all except those of an `if` |
    | `expected` | all, with ops that exist only to wait |
    | `high` | also reductions and comparisons right before a wait |

    References
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization
    https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_sync_debug_mode.html
    """
    if not len(waits.at):
        left = f", except for timing, start-up or the end of the run ({len(waits.every)})" if len(waits.every) else ""
        return Clear(why=f"no call makes the host wait for the GPU{left}")
    share, per_step = replay.share(replay.corrected, waits.removed), waits.a_step
    costs = share >= min_saving_share
    if not costs and (per_step < min_per_step or not steps.repeats):
        return Clear(
            why=f"the host waits {times(per_step)} {PER_STEP}; removing that would gain {percent(share, min_saving_share)} (threshold {threshold(min_saving_share)})"
        )
    rows, names = waits.calls.rows[waits.at], waits.labels
    evidence = witness.of_calls(rows, names)
    known, lost = waited.rows_of(rows, names), waits.lost_us
    timed, way = waits.end_ranges, "sync-stall of copies" if "Memcpy" in evidence[0].label else "sync-stall"
    edits = waits.edits(program)
    planning = fixes.planning_of(program) if per_step < SEVERAL else None
    # What is said to be gained is what is saved: no more than the device was seen to lose.
    gain = replay.saving(edits, "", *lost).expected / replay.step_us
    return Found(
        title=f"The host waits for the GPU inside {THE_STEP}",
        summary=f"{phrases.a_step(per_step, 'call', 'block')} the host for {duration(waits.calls.us_a_step(waits.at))} as recorded, {phrases.led_by(evidence)}. "
        + (
            "The GPU then idles until the host launches again: that idle time is the saving."
            if gain >= MEDIUM_SHARE
            else f"Removing {'it' if round(per_step) == 1 else 'them'} alone gains {percent(gain)}, because something else limits {THE_STEP}."
        ),
        edits=edits,
        removes="the host's waits for the GPU",
        at_most_us=lost[0],
        likely_at_most_us=lost[1],
        evidence=evidence,
        confidence=0.85,
        at_most="high" if costs else "low",
        status="possible" if timed or planning else "found",
        possible_why=fixes.PLANS_WHY if planning else "each wait ends the range that marks the step, so it may only time that range" if timed else "",
        decide_with=fixes.PLANS_DECIDE if planning else "check in the source whether these waits are there for timing only" if timed else "",
        fix=planning or fixes.for_program(program, way, waiting.fix_of_waits(known, waits.ops_around, program.training)),
    )
