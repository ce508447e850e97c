"""Judges the timeline of a process: savings are parts of its step."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import msgspec
import numpy as np

from advisor.engine.checklist import checklist
from advisor.engine.consistency import consistent
from advisor.engine.evaluate import WEAKER
from advisor.engine.folding import folded
from advisor.engine.grade import Weight, in_true_time
from advisor.engine.headline import APART_MOST, hardly_works, headline
from advisor.engine.outcome import Outcomes, as_told, counted
from advisor.engine.rule import Found, Judged
from advisor.engine.served import served
from advisor.engine.served_load import load_beside, load_check
from advisor.engine.together import best_together
from advisor.engine.uncertainty import cut_short, doubted, first_seen, left_open, paced
from advisor.knowledge.demangled import function_name, same_name
from advisor.knowledge.devices import RATES, find
from advisor.knowledge.how_to_record import Recipe, record_lines
from advisor.knowledge.release import release
from advisor.knowledge.shares import HARDLY_ANY
from advisor.recordings.recording import Recording
from advisor.recordings.timeline import Device, Timeline
from advisor.report.finding import SEVERITIES, SUMMARY_CHARACTERS, AnySaving, BytesSaved, Finding, Saving, severity_of
from advisor.report.kernels import KernelRow
from advisor.report.model import Report
from advisor.report.numbers import percent
from advisor.report.recording import DeviceInfo, DeviceTime, Health, Idle, Recorded, SourceInfo, Window
from advisor.report.roofline import rates
from advisor.report.step import PathPart
from advisor.views.charts.memory import TracedPeaks
from advisor.views.device_rates import DeviceRates
from advisor.views.health import TraceHealth
from advisor.views.kernels.measured import MeasuredKernels
from advisor.views.kernels.table import MeasuredTable
from advisor.views.memory.attached_snapshot import MemoryBeside
from advisor.views.memory.health import MemoryHealth
from advisor.views.memory.joined import MemoryJoined
from advisor.views.replay.edits import changes, combine
from advisor.views.replay.replay import Replay
from advisor.views.time.breakdown import Breakdown
from advisor.views.time.critical_path import CriticalPath, parts_of_schedule
from advisor.views.time.device_time import Partition, total
from advisor.views.time.host_profile import HostProfile
from advisor.views.time.idle_gaps import Gaps
from advisor.views.time.kernel_table import KernelTable
from advisor.views.time.op_table import OpTable
from advisor.views.time.step_work import StepWork
from advisor.views.time.utilization import Utilization
from advisor.views.trace.annotated_graphs import AnnotatedGraphs
from advisor.views.trace.captured_graphs import CapturedGraphs
from advisor.views.trace.first_pass import FirstPass
from advisor.views.trace.origins import Origins
from advisor.views.trace.program import Program
from advisor.views.trace.steps import Steps
from advisor.views.trace.unseen import Unseen
from advisor.views.workspace import Workspace


def health(workspace: Workspace) -> tuple[Health, ...]:
    """The checks of the trace."""
    checks = workspace.get(TraceHealth).results
    measured = (_joined(workspace),) if workspace.can_build(MeasuredTable.build) else ()
    loaded = (load_check(serving.load if (serving := served(workspace)) else None),) if workspace.can_build(load_beside) else ()
    captured = (_captures_joined(workspace),) if workspace.can_build(CapturedGraphs.build) else ()
    annotated = (_annotations_joined(workspace),) if workspace.can_build(AnnotatedGraphs.build) else ()
    return (*checks, *measured, *captured, *annotated, *loaded, *(_of_memory(workspace) if workspace.can_build(MemoryBeside.build) else ()))


def _of_memory(workspace: Workspace) -> tuple[Health, ...]:
    """The checks of the memory snapshot that was given too."""
    return (_same_program(workspace), *workspace.get(MemoryBeside).workspace.get(MemoryHealth).results)


def _same_program(workspace: Workspace) -> Health:
    """Whether the memory snapshot that was given too is of the program, and of the run, that the timeline shows."""
    check, joined = "memory-joined", workspace.get(MemoryJoined)
    again = "record the snapshot of the program that the trace shows"
    if joined.strangers:
        detail = f"the memory snapshot is of another program: {'; '.join(filter(None, (joined.looked_for, joined.differ)))}"
        return Health(check=check, status="failed", detail=detail, touches=(), record_with=again, reason="other-recording")
    if joined.differ and not joined.same_run:
        detail = f"the memory snapshot may be of another program: {joined.differ}"
        return Health(check=check, status="degraded", detail=detail, touches=("memory",), record_with=again, reason="other-recording")
    told = {
        True: "the memory snapshot is of the same run",
        False: "the memory snapshot is of another run: its causes carry over, its moments do not",
        None: "whether the memory snapshot is of the same run was not recorded",
    }
    return Health(check=check, status="ok", detail=told[joined.same_run], touches=(), reason="within-threshold" if joined.same_run else "other-recording")


def _joined(workspace: Workspace) -> Health:
    """The share of the GPU's time in kernels that Nsight Compute measured, if its report was given too."""
    join = workspace.get(MeasuredKernels).join
    share, again = join.share if join else 0.0, Recipe("profile the same program with the same shapes: ncu --set full …", "counters")
    if join and join.strangers:
        told = f"the report of Nsight Compute is of another program: of its {len(join.at):,} kernels, looked for by name, the trace has {percent(join.known)} of their time"
        return Health(
            check="kernels-joined", status="failed", detail=told, touches=("counters",), record_with=again.text, missing=again.missing, reason="other-recording"
        )
    return Health(
        check="kernels-joined",
        status="ok" if share > 0 else "degraded",
        detail=f"the separately measured kernels take {share:.0%} of the GPU's time",
        touches=("counters",),
        record_with="" if share > 0 else again.text,
        missing="" if share > 0 else again.missing,
        reason="within-threshold" if share > 0 else "other-recording",
        measured=share,
        threshold=0.0,
        unit="share",
    )


FOUND = 1 - HARDLY_ANY
"""Of the time of replayed graphs: if captures explain less, something did not fit."""


def _captures_joined(workspace: Workspace) -> Health:
    """How much of what graphs replay the traces of their captures name."""
    captured, frame = workspace.get(CapturedGraphs), workspace.get(Timeline).gpu_ops
    replayed = np.flatnonzero(captured.replay >= 0)
    us = frame["dur_us"][replayed]
    places, place = workspace.get(Origins).places(replayed)
    in_module = np.array([bool(one.modules) for one in places], bool)[place]
    shares = [percent(float(us[chosen].sum()) / max(float(us.sum()), 1e-9)) for chosen in (captured.op[replayed] >= 0, captured.shaped[replayed], in_module)]
    fits = captured.share >= FOUND
    told = f"traces of captures hold {percent(captured.share)} of the time of what CUDA graphs replay: {shares[0]} with an op, {shares[1]} with shapes, {shares[2]} in a module"
    return Health(
        check="captures-joined",
        status="ok" if fits else "degraded",
        detail=told if fits else f"{told}; {captured.why}",
        touches=(),
        record_with="" if fits else "record the captures of the same start of the server, of every size that runs",
        reason="within-threshold" if fits else "beyond-threshold",
        measured=captured.share,
        threshold=FOUND,
        unit="share",
    )


def _annotations_joined(workspace: Workspace) -> Health:
    """How much of what graphs replay the program named itself; it need not name all."""
    annotated, frame = workspace.get(AnnotatedGraphs), workspace.get(Timeline).gpu_ops
    us = frame["dur_us"]
    share = float(us[annotated.of >= 0].sum()) / max(float(us[annotated.replayed].sum()), 1e-9)
    told = f"annotations of CUDA graphs name {percent(share)} of the time of replayed kernels"
    return Health(
        check="annotations-joined",
        status="degraded" if annotated.why else "ok",
        detail=f"{told}: {annotated.why}" if annotated.why else told,
        touches=(),
        record_with="write the annotations in the process that is profiled, while its graphs exist" if annotated.why else "",
        reason="other-recording" if annotated.why else "within-threshold",
        measured=share,
        threshold=0.0,
        unit="share",
    )


UNREPEATED = WEAKER
"""The remaining confidence if no step repeats: the recording may show start-up."""


def weigh(workspace: Workspace, found: Found) -> Weight:
    """The edits replayed, as a part of the recorded step."""
    replay, repeats = workspace.get(Replay), workspace.get(Steps).repeats
    if found.edits is not None:
        saving: AnySaving = msgspec.structs.replace(replay.saving(found.edits, found.removes, found.at_most_us, found.likely_at_most_us), per=found.per)
    elif found.saving is not None:
        saving = found.saving
    else:
        raise TypeError("a finding has edits, or says what it saves")
    in_trace_time = replay.step_us / max(replay.true_step.expected_us, 1e-9)
    lost_us = found.at_most_us * in_trace_time
    amiss, open, removable_us = "", None, inf
    if found.edits is not None:
        removable_us = replay.removable_share(found.edits) * replay.step_us
        likely_us = min(lost_us, found.likely_at_most_us * in_trace_time)
        amiss, open = replay.amiss(found.edits), left_open(replay, found.edits, likely_us, workspace.get(Timeline).source)
    return Weight(saving, replay.step_us if isinstance(saving, Saving) else 1.0, 1.0 if repeats else UNREPEATED, lost_us, amiss, open, removable_us)


def settle(workspace: Workspace, found: list[Judged]) -> list[Judged]:
    """The most severe first, then the largest saving. Possible effects of the profiler are marked, symptoms are folded into their causes, and all times are
    of the true step. Gains per request with an unchanged step come after gains of the step."""
    found = sorted(found, key=lambda f: (-f.finding.saving.expected, f.finding.rule))
    replay = workspace.get(Replay)
    health = workspace.get(TraceHealth)
    untold = next((check for check in health.failed if "host" in check.touches), None)
    if not untold and hardly_works(workspace) is not None:
        untold = next(check for check in health.results if check.check == "steps")
    steps = workspace.get(Steps)
    alone = steps.repeats and steps.steps == 1
    found = paced([doubted(f, replay, workspace.get(Timeline).source, untold, alone) for f in found])
    first = workspace.get(FirstPass)
    if first.only or first.taken or first.brief:
        found = [first_seen(f, replay, first.brief) for f in found]
    if workspace.get(Timeline).source.cut:
        found = [cut_short(f) for f in found]
    found = [_of_a_part(_with_changes(f, replay), replay.step_us, workspace.get(Steps).apart) for f in best_together(replay, folded(replay, found))]
    found.sort(key=lambda f: (SEVERITIES.index(f.finding.severity), not f.finding.shortens, -_share(f.finding, workspace), f.finding.rule))
    timeline, program = workspace.get(Timeline), workspace.get(Program)
    return [_with_lines(in_true_time(f, replay.true_step), timeline, program) for f in found]


def _share(finding: Finding, workspace: Workspace) -> float:
    """The gain of a finding as a share of the step, or of the peak of memory: µs and bytes do not compare."""
    saving = finding.saving
    if isinstance(saving, BytesSaved):
        held = workspace.get(MemoryBeside).memory if workspace.can_build(MemoryBeside.build) else None
        return saving.expected / peak if held and (peak := held.peak(saving.of)) else 0.0
    return saving.expected / workspace.get(Replay).step_us if isinstance(saving, Saving) else saving.expected


def _of_a_part(found: Judged, step_us: float, apart: float) -> Judged:
    """The finding, with its severity limited by its gain for the whole program if most of the device's work is outside the repeats."""
    finding = found.finding
    if apart <= APART_MOST or not isinstance(finding.saving, Saving):
        return found
    severity = max(finding.severity, severity_of(finding.saving, step_us / (1 - apart)), key=SEVERITIES.index)
    told = f"{finding.summary.rstrip('.')}; what repeats is {percent(1 - apart)} of the device's work."
    return found._replace(finding=msgspec.structs.replace(finding, severity=severity, summary=told if len(told) <= SUMMARY_CHARACTERS else finding.summary))


def _with_lines(found: Judged, timeline: Timeline, program: Program) -> Judged:
    """The finding with how to record the lines that it comes from, if no stacks were recorded."""
    finding = found.finding
    if timeline.source.stacks or len(timeline.python_calls) or any(item.source for item in finding.evidence):
        return found
    lines = record_lines(timeline.source.format, program.framework, program.maker)
    return found._replace(finding=msgspec.structs.replace(finding, lines_with=lines))


def _with_changes(found: Judged, replay: Replay) -> Judged:
    """The finding with the expected effect of its fix on the step."""
    made = tuple(changes(replay.corrected, found.edits.expected)) if found.edits else ()
    return found._replace(finding=msgspec.structs.replace(found.finding, edits=made))


def report(workspace: Workspace, recording: Recording, outcomes: Outcomes) -> Report:
    """The report of a trace."""
    timeline, steps, found = workspace.get(Timeline), workspace.get(Steps), outcomes.found
    source, true_step = timeline.source, workspace.get(Replay).true_step
    made = Report(
        source=SourceInfo(
            path=source.path,
            format=source.format,
            bytes=source.bytes,
            events=source.events,
            recorded=Recorded(
                shapes=source.shapes,
                stacks=source.stacks,
                steps=steps.steps if steps.repeats else 0,
                memory=source.memory,
                syncs=source.syncs,
            ),
        ),
        devices=_devices(timeline, workspace.get(DeviceRates)),
        window=Window(
            start_us=steps.start_us,
            end_us=steps.end_us,
            steps=steps.steps,
            step_us=steps.step_us,
            basis=steps.basis,
            detail=steps.detail,
            true_step_us=true_step.interval,
            recording_us=true_step.recording_us,
            true_step_basis=true_step.basis,
            unused_step_us=true_step.unused_us,
        ),
        time=tuple(_device_time(workspace, steps)),
        health=health(workspace),
        headline=headline(workspace, outcomes),
        findings=as_told(found, steps.steps, steps.step_us),
        clear=tuple(outcomes.clear),
        skipped=tuple(outcomes.skipped),
        failed=tuple(outcomes.failed),
        kernels=_kernel_rows(workspace),
        utilization=workspace.get(Utilization).rows,
        critical_path=workspace.get(CriticalPath).parts,
        critical_path_after=_path_after(workspace, found),
        breakdown=workspace.get(Breakdown).parts,
        work=workspace.get(StepWork).work,
        memory=workspace.get(MemoryBeside).memory if workspace.can_build(MemoryBeside.build) else None,
        traced_memory=workspace.get(TracedPeaks).devices,
        ops=workspace.get(OpTable).rows,
        unseen=workspace.get(Unseen).work,
        serving=served(workspace),
        host_time=workspace.get(HostProfile).time,
        advisor=release(),
    )
    made = msgspec.structs.replace(made, rates=rates(made))
    made = msgspec.structs.replace(made, checklist=checklist(made))
    return consistent(made)


def _path_after(workspace: Workspace, found: list[Judged]) -> tuple[PathPart, ...]:
    """The critical path once every fix is in, as the replay sees it."""
    edits = [f.edits.expected for f in counted(found) if f.edits]
    if not edits:
        return ()
    schedule = combine(*edits).apply(workspace.get(Replay).corrected)
    return parts_of_schedule(schedule, workspace.get(Timeline))


def _kernel_rows(workspace: Workspace) -> tuple[KernelRow, ...]:
    """The kernels of the window, with the limits by their counters if they were measured too."""
    rows = workspace.get(KernelTable).rows
    if not workspace.can_build(MeasuredTable.build):
        return rows
    kernels = workspace.get(MeasuredKernels)
    found = [row for kernel, row in zip(kernels.kernels, workspace.get(MeasuredTable).rows, strict=True) if len(kernels.positions(kernel))]
    measured = {same_name(row.name): row for row in reversed(found)}

    def told(row: KernelRow) -> KernelRow:
        seen = measured.get(same_name(row.name)) or measured.get(function_name(row.name))
        if seen is None:
            return row
        return msgspec.structs.replace(
            row, grid=seen.grid, block=seen.block, limiter=seen.limiter, stalls=seen.stalls, occupancy=seen.occupancy, counted=seen.counted
        )

    return tuple(told(row) for row in rows)


def _devices(timeline: Timeline, rates: DeviceRates) -> tuple[DeviceInfo, ...]:
    """Devices that did something; all that are described if none did."""
    used = np.unique(timeline.gpu_ops["device"]).tolist()
    devices = [timeline.device(d) for d in used] or list(timeline.devices)
    return tuple(_device(d, rates) for d in devices)


def _device(device: Device, rates: DeviceRates) -> DeviceInfo:
    """The device, with its rates if no table has them."""
    peaks = rates.peaks_of(device)
    told = device.id, device.name, device.sm_count
    if peaks is None or peaks == find(device.name):
        return DeviceInfo(*told)
    return DeviceInfo(*told, {name: rate for name in RATES if (rate := getattr(peaks, name))}, peaks.source)


def _device_time(workspace: Workspace, steps: Steps) -> Iterable[DeviceTime]:
    gaps = workspace.get(Gaps)
    for part in workspace.get(Partition).devices:
        idle = float(total(part.idle).sum())
        yield DeviceTime(
            device=part.device,
            window_us=steps.end_us - steps.start_us,
            compute_us=float(total(part.compute).sum()),
            exposed_comm_us=float(total(part.communication).sum()),
            exposed_copy_us=float(total(part.copy).sum()),
            exposed_memset_us=float(total(part.memset).sum()),
            idle_us=idle,
            idle=Idle(**gaps.by_device[part.device]),
        )
