"""The report of a TPU's cores: where the time goes. No rule speaks of it: advice is for GPUs."""

from __future__ import annotations

from advisor.engine.grade import Weight
from advisor.engine.outcome import Outcomes
from advisor.engine.rule import Found, Judged
from advisor.knowledge.release import release
from advisor.knowledge.shares import NEARLY_ALL
from advisor.recordings.recording import Recording
from advisor.recordings.tpu import TpuProfile
from advisor.report.model import Headline, Report
from advisor.report.numbers import NAMED, percent, threshold
from advisor.report.numbers import share as part_of
from advisor.report.recording import LOOK_AT_EACH, DeviceInfo, DeviceTime, Health, Idle, Recorded, SourceInfo, Window
from advisor.report.step import Rates, Work
from advisor.report.wording.checks import tolerated
from advisor.views.tpu.core_time import CoreTime, TpuTime
from advisor.views.tpu.steps import ALIKE, TpuSteps
from advisor.views.tpu.tables import TpuTables
from advisor.views.workspace import Workspace

RECORD = "with jax.profiler.trace('log'): several steps of the same kind, a jax.profiler.StepTraceAnnotation('train', step_num=i) around each"
KNOWN = NEARLY_ALL
"""FLOPs of the rest may be a tenth more: a rate is then still told to one figure."""
_HELD_UP = {"communication": "communication-bound", "copy": "copy-bound", "idle": "idle"}


def health(workspace: Workspace) -> tuple[Health, ...]:
    """Whether steps are known, whether all of the TPU was read, and whether the work of its ops is known."""
    profile, steps, tables = workspace.get(TpuProfile), workspace.get(TpuSteps), workspace.get(TpuTables)
    alike = steps.basis != "whole" and steps.spread <= ALIKE
    told = f"{steps.steps} steps, {steps.detail or 'as the profile marks them'}" if steps.basis != "whole" else "no program repeats and no step is marked"
    so = f" ({tolerated(ALIKE)})" if alike else ", so no step is typical"
    differ = f"; they differ by {percent(steps.spread, ALIKE)} in the median{so}" if steps.basis != "whole" else ""
    hints = {"poorer-format": "give the .xplane.pb that it was made from", "latest-recording": LOOK_AT_EACH}
    return (
        *(Health(check=i.check, status="ok" if i.status == "ok" else "degraded", detail=i.detail, touches=(), record_with=hints.get(i.check, ""), reason="other-recording" if i.check in hints else "recording-cut") for i in profile.issues),
        Health(check="steps", status="ok" if alike else "degraded", detail=told + differ, touches=(), record_with="" if alike else RECORD, reason="not-recorded" if steps.basis == "whole" else "within-threshold" if alike else "beyond-threshold",
            measured=None if steps.basis == "whole" else float(steps.spread), threshold=None if steps.basis == "whole" else ALIKE, unit="" if steps.basis == "whole" else "share"),
        Health(
            check="tpu-units",
            status="degraded" if profile.unread else "ok",
            reason="not-recorded" if profile.unread else "absent",
            detail=f"{profile.unread} planes of other units of the TPU, as SparseCores, are not read" if profile.unread else "every plane that holds work was read",
            touches=(),
        ),
        Health(
            check="tpu-work",
            status="ok" if tables.known >= KNOWN else "degraded",
            reason="within-threshold" if tables.known >= KNOWN else "beyond-threshold",
            measured=float(tables.known),
            threshold=KNOWN,
            unit="share",
            detail=f"the FLOPs of {percent(tables.known, KNOWN)} of the computing time are known ({threshold(KNOWN)} is enough); custom kernels do not say theirs",
            touches=(),
        ),
    )  # fmt: skip


def weigh(workspace: Workspace, found: Found) -> Weight:
    """No rule finds anything in a TPU's profile."""
    raise TypeError("no rule is for TPUs")


def settle(workspace: Workspace, found: list[Judged]) -> list[Judged]:
    """As they are: there are none."""
    return found


def report(workspace: Workspace, recording: Recording, outcomes: Outcomes) -> Report:
    """The report: steps, each core's time by class, ops by category and by name."""
    profile, steps = workspace.get(TpuProfile), workspace.get(TpuSteps)
    time, tables = workspace.get(TpuTime), workspace.get(TpuTables)
    step_us = (steps.end_us - steps.start_us) / steps.steps
    return Report(
        kind="tpu",
        source=SourceInfo(
            path=profile.path,
            format="jax",
            bytes=profile.bytes,
            events=profile.events,
            recorded=Recorded(shapes=False, stacks=profile.stacks, steps=steps.steps if steps.basis == "profiler-step" else 0),
        ),
        devices=tuple(DeviceInfo(id=core.number, name=core.name, sm_count=0) for core in profile.cores),
        window=Window(start_us=steps.start_us, end_us=steps.end_us, steps=steps.steps, step_us=step_us, basis=steps.basis, detail=steps.detail),
        time=tuple(_device_time(core, steps) for core in time.cores),
        health=health(workspace),
        headline=_headline(time, tables, step_us, steps),
        findings=tuple(found.finding for found in outcomes.found),
        clear=tuple(outcomes.clear),
        skipped=tuple(outcomes.skipped),
        failed=tuple(outcomes.failed),
        kernels=tables.ops,
        categories=tables.categories,
        breakdown=tables.parts,
        work=Work(kernels=tables.calls, kernel_us=sum(row.us for row in tables.categories), flops=tables.flops if tables.known >= KNOWN else 0.0),
        rates=_rates(profile, time, tables, step_us),
        advisor=release(),
    )


def _device_time(time: CoreTime, steps: TpuSteps) -> DeviceTime:
    return DeviceTime(
        device=time.core.number, window_us=steps.end_us - steps.start_us, compute_us=time.compute_us, exposed_comm_us=time.communication_us,
        exposed_copy_us=time.copy_us, exposed_memset_us=0.0, idle_us=time.within_us + time.between_us, idle=Idle(dependency=time.within_us, unknown=time.between_us),
    )  # fmt: skip


def _headline(time: TpuTime, tables: TpuTables, step_us: float, steps: TpuSteps) -> Headline:
    """What takes most of a step in the mean of the cores."""
    spent = {
        "compute": sum(core.compute_us for core in time.cores),
        "communication": sum(core.communication_us for core in time.cores),
        "copy": sum(core.copy_us for core in time.cores),
        "idle": sum(core.within_us + core.between_us for core in time.cores),
    }
    whole = sum(spent.values())
    most = max(spent, key=lambda name: spent[name])
    named = ", ".join(f"{row.name} {percent(row.share)}" for row in tables.categories[:NAMED] if row.share >= 0.01)
    what = "profile" if steps.basis == "whole" else "step"
    busy = f"Ops run for {percent(part_of(whole - spent['idle'], whole))} of the {what}" + (f": {named}." if named else ".")
    why = {
        "communication": " Collectives and waits for other cores take most of it.",
        "copy": " Infeed, outfeed and waits for copies take most of it.",
        "idle": " Most of the time nothing runs.",
    }
    return Headline(
        bottleneck=_HELD_UP.get(most, "TPU-bound"),
        summary=busy + why.get(most, ""),
        step_us=step_us,
        judged="no",
        judged_why="the rules are for GPUs; for a TPU the report shows the time by op",
    )


def _rates(profile: TpuProfile, time: TpuTime, tables: TpuTables, step_us: float) -> Rates | None:
    """What ops do over what the TPU could, where the profile says both."""
    peak_flops = max(core.peak_flops for core in profile.cores)
    if not peak_flops:
        return None
    busy_us = sum(core.busy_us for core in time.cores) / max(sum(core.busy_us + core.within_us + core.between_us for core in time.cores), 1e-9) * step_us

    def rate(amount: float, us: float, peak: float) -> float:
        return amount / (us * 1e-6 * peak) if us > 0 else 0.0

    return Rates(
        known=tables.known, flops_busy=rate(tables.flops, busy_us, peak_flops), flops_step=rate(tables.flops, step_us, peak_flops),
        bytes_busy=None, bytes_step=None, active_warps=None, basis="estimated",
    )  # fmt: skip
