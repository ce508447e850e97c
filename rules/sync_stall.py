"""The host waits for the device inside the step, and the device then waits for the host."""

from __future__ import annotations

from advisor.engine.rule import Found, Outcome, Table, rule
from advisor.knowledge import host_waits
from advisor.report.finding import MEDIUM_SHARE, Clear
from advisor.report.numbers import counted, duration, percent, times
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

SEVERAL_A_STEP = 1.5
"""Waits of an inference server, from which they are more than the one for a step's tokens."""


@rule("sync-stall", relies_on=("host",), table=lambda: Table(host_waits.about(), tuple(host_waits.as_rows())))
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

    What it is
    Calls in the loop block the host until the GPU has caught up: `torch.cuda.synchronize()`, `.item()`, `.tolist()`,
    `.cpu()`, `print(tensor)`, `if tensor:`, `nonzero()` and boolean indexing, which need a value or a size on the host.

    Why it costs time
    While it waits, the host cannot issue the kernels that come next. When the wait ends the GPU has nothing queued and
    idles until the host has launched again. A wait at which the GPU still has work queued costs nothing.

    How it is measured
    Blocking calls are those that wait by definition, copies to the host that returned only after their transfer, and values that an op sends
    (`x[index] = 1.0`). The step is replayed without them (`low`; waits of an `if` stay, as the work of both ways may cost as much), and without the ops and
    Python calls that exist only to wait, gathers by a mask, and the way into the graph behind a read that cuts a compiled one: the host
    runs ahead as far as its own speed allows. `high` also leaves out reductions and comparisons right before a wait, which may be
    there to be read. What the step gains is the saving, so a wait in a loop that is bound by launches or by the GPU shows its true worth, often nothing. Reported from
    `min_saving_share` of the step ({min_saving_share}), or as a note from `min_per_step` waits a step ({min_per_step}: one a step may be logging). In a
    recording without steps, up to a hundred waits for the whole device or for an event outside any op are left out: they time the run. So are those of convolutions
    that try algorithms, which happens once, and those that ask what is left to work on, where products work on fewer rows from pass to pass. In a recording of a single step,
    so are waits after its last launch: what they hold up was not recorded. Where each wait, outside any op, ends a range of the
    program's own that marks the step, removing them is possible only: they may be how that range is timed. So is it in an inference server that waits
    once a step, for the tokens that it sends on and plans the next step by.

    How to fix it
    Keep values on the GPU: accumulate the loss there and read it every N steps, replace `if tensor.any():` by
    `torch.where`, boolean indexing by a mask, and remove `torch.cuda.synchronize()` left from timing code. Where a value
    must be read, copy it with `non_blocking=True` into pinned memory and read it a step later. In JAX `float()`, `.item()` and
    `np.asarray()` wait: keep the array, read many with one `jax.device_get`. The saving's high end also leaves out the jitted call
    before each such wait, as it may compute only what is read.

    When to ignore it
    When the program must react to the value at once (early exit, less to do in the next pass, sampling in an autoregressive loop), or when it
    measures time on purpose.

    References
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization
    https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_sync_debug_mode.html
    """
    if not len(waits.at):
        left = (
            f" but for {counted(len(waits.every), 'wait')} of timing, of start-up, of the run's end or for what is left to work on" if len(waits.every) else ""
        )
        return Clear(why=f"no call inside the window makes the host wait for the GPU{left}")
    share, per_step = replay.share(replay.corrected, waits.removed), waits.a_step
    costs = share >= min_saving_share
    if not costs and (per_step < min_per_step or not steps.repeats):
        return Clear(why=f"the host waits {times(per_step)} a step; without that the step would gain {percent(share)}, reported from {min_saving_share:.0%}")
    rows, names = waits.calls.rows[waits.at], waits.labels
    evidence = witness.of_calls(rows, names)
    known, lost = waited.rows_of(rows, names), waits.lost_us
    timed, way = waits.end_ranges, "sync-stall of copies" if "Memcpy" in evidence[0].label else "sync-stall"
    edits = waits.edits(program)
    planning = fixes.planning_of(program) if per_step < SEVERAL_A_STEP else None
    # What is said to be gained is what is saved: no more than the device was seen to lose.
    gain = replay.saving(edits, "", *lost).expected / replay.step_us
    return Found(
        summary=f"{phrases.a_step(per_step, 'call', 'block')} the host for {duration(waits.calls.us_a_step(waits.at))} as recorded, {phrases.led_by(evidence)}; "
        + (
            "the GPU then idles until the host has launched again."
            if gain >= MEDIUM_SHARE
            else f"removing {'it' if round(per_step) == 1 else 'them'} alone gains {percent(gain)}, because something else bounds the step."
        ),
        edits=edits,
        removes="the host's waits for the GPU",
        at_most_us=lost[0],
        likely_at_most_us=lost[1],
        evidence=evidence,
        confidence=0.85,
        at_most="high" if costs else "low",
        status="possible" if timed or planning else "found",
        possible_why=fixes.PLANS_WHY if planning else "each wait ends the range that marks the step, which may be how that range is timed" if timed else "",
        decide_with=fixes.PLANS_DECIDE if planning else "the source: does the program go on without these waits where nobody times it?" if timed else "",
        fix=planning
        or (
            waiting.fix_of_jax()
            if program.framework == "jax"
            else fixes.for_program(program, way, waiting.fix_of_waits(known, waits.ops_around, program.training))
        ),
    )
