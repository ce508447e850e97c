"""Results of reading the file: losses, unsupported data, and its device."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import NANOSECOND_US
from advisor.knowledge.counts import USUAL
from advisor.knowledge.how_to_record import Missing
from advisor.knowledge.shares import HARDLY_ANY, NEARLY_ALL
from advisor.recordings import links
from advisor.recordings.timeline import GpuKind, Timeline
from advisor.report.numbers import counted, duration, percent
from advisor.report.recording import LOOK_AT_EACH, Health
from advisor.views.health.grades import FEW, HOST, KERNELS, Status, compared, graded
from advisor.views.trace.host_activity import LONGEST_DISPATCH_US
from advisor.views.trace.program import Program
from advisor.views.trace.python_frames import PythonFrames

GRAPH_SHARE = 0.2
"""Where graphs recorded whole, or kernels without a name, take more of the busy time than this, the kernels that are known say little."""


def as_read(timeline: Timeline, check: str, good: str, record_with: str, missing: Missing = "") -> Health:
    """Problems of the same kind that the reader found."""
    issues = [i for i in timeline.source.issues if i.check == check]
    if not issues:
        return Health(check=check, status="ok", detail=good, reason="absent")
    lost, put_right = [i for i in issues if not i.of], [i for i in issues if i.of]
    share = sum(i.events for i in lost) / max(timeline.source.events, 1)
    failed = any(i.status == "failed" for i in issues) or graded(share) == "failed"
    fit = not lost and all(graded(i.events / i.of) == "ok" for i in put_right)
    return compared(
        check,
        "failed" if failed else "ok" if fit else "degraded",
        "; ".join(i.detail for i in issues),
        share,
        FEW,
        record_with="" if fit else record_with,
        missing="" if fit else missing,
        reason="recording-cut" if timeline.source.cut and check == "complete-file" else "within-threshold" if fit else "beyond-threshold",
    )


USUAL_US = HARDLY_ANY * LONGEST_DISPATCH_US
"""No op takes a millisecond to launch, and in any program a tenth of the calls and of the kernels takes hardly any of that."""


def start_times(timeline: Timeline) -> Health:
    """Whether events have start times, in the unit of the format: tools that rewrite a trace may leave nanoseconds in place of its microseconds."""
    made = as_read(timeline, "timestamps", "no event that was read lacks a valid start time", "record with another version of the profiler")
    # Not runtime calls: each launch waits where the GPU's queue is full, and other formats say their unit.
    host_us, gpu_us = timeline.cpu_ops["dur_us"], timeline.gpu_ops["dur_us"]
    if made.status == "failed" or timeline.source.format != "kineto" or min(len(host_us), len(gpu_us)) < USUAL:
        return made
    short_us = min(float(np.quantile(of, 1 - NEARLY_ALL)) for of in (host_us, gpu_us))
    # Nanoseconds are whole numbers; microseconds have fractions, but for those of old versions.
    whole = all(np.mean(np.abs(of - np.rint(of)) < NANOSECOND_US) > NEARLY_ALL for of in (host_us, gpu_us))
    if short_us <= USUAL_US or not whole:
        return made
    return Health(
        check="timestamps",
        status="failed",
        detail=f"nearly all ops and kernels take longer than {duration(short_us)}: times are probably in nanoseconds, and the format has microseconds",
        record_with="the profiler's file unchanged, or with ts and dur divided by 1,000",
        reason="beyond-threshold",
        measured=short_us,
        threshold=USUAL_US,
        unit="us",
    )


def complete(timeline: Timeline) -> Health:
    """Whether the file was read to its end. A cut file lacks the last events, mostly kernels, so nothing is certain. Without GPU work nothing can be judged,
    and a hint to record GPU work would not help.
    """
    again = "let the profiler finish (leave its context, or call prof.step() past the last active step) before the program ends, and copy the whole file"
    made = as_read(timeline, "complete-file", "the file was read to its end, and no event in it was unreadable", again, "file-end")
    if not timeline.source.cut or made.status == "failed":
        return made
    return msgspec.structs.replace(made, status="failed", touches=() if len(timeline.gpu_ops) else made.touches)


def open_ranges(timeline: Timeline) -> tuple[Health, ...]:
    """Ranges without an end, which are left out; it touches no rule, since none says what a range that is not known holds."""
    hint = "begin and end the recording between steps, for example with nsys profile --capture-range=cudaProfilerApi"
    issues = [i for i in timeline.source.issues if i.check == "open-ranges"]
    return tuple(
        Health(check=i.check, status="degraded", detail=i.detail, touches=(), record_with=hint, missing="ranges", reason="recording-cut") for i in issues
    )


def several(timeline: Timeline) -> tuple[Health, ...]:
    """Files that hold more than one recording: the first of documents represents itself, merged ranks for nothing."""
    kinds = {
        "one-document": ((), "give each recording as a file of its own"),
        "one-rank": ((*HOST, *KERNELS), "give the directory of the ranks' own traces, from which the merge was made, or a single trace of it"),
    }
    return tuple(
        Health(check=i.check, status="failed", detail=i.detail, touches=kinds[i.check][0], record_with=kinds[i.check][1], reason="other-recording")
        for i in timeline.source.issues
        if i.check in kinds
    )


def recorded_links(timeline: Timeline, frames: PythonFrames) -> tuple[Health, ...]:
    """Links of the recording that lead in a ring, or further than any program nests: they touch the lines and modules that are shown, and no figure."""
    said = [i.detail for i in timeline.source.issues if i.check == links.CHECK]
    if cut := frames.callers.cut:
        said.append(links.told("Python frames to their callers", cut))
    hint = "record again: a recorder that links its events so has lost some, or the file was changed since"
    return (Health(check=links.CHECK, status="degraded", detail="; ".join(said), touches=(), record_with=hint, reason="beyond-threshold"),) if said else ()


def unnamed(timeline: Timeline) -> tuple[Health, ...]:
    """Kernels and calls without names in the file: their purpose is unknown."""
    ops, calls = timeline.gpu_ops, timeline.api_calls
    kernels = ops[ops["kind"] == GpuKind.KERNEL.value]
    found = []
    for check, what, rows, weight, touches in (
        ("kernel-names", "kernel", kernels, kernels["dur_us"], KERNELS),
        ("call-names", "call", calls, np.ones(len(calls)), HOST),
    ):
        missing = rows["name"] == ""
        if missing.any():
            share = float(weight[missing].sum()) / max(float(weight.sum()), 1e-9)
            of = f", {percent(share)} of their time" if what == "kernel" else ""
            detail = f"without a name in the file: {counted(int(missing.sum()), what)} of {len(rows):,}{of}; their work is unknown"
            status: Status = "failed" if share > GRAPH_SHARE else "degraded" if share > FEW else "ok"
            found.append(compared(check, status, detail, share, FEW, touches=touches, record_with="record it again, or export it again if it was exported"))
    return tuple(found)


def poorer_format(timeline: Timeline) -> tuple[Health, ...]:
    """Contents of files that were not read, or not instead of this: of the same recording, or of the same process. Touches no rule, since rules that need
    them are skipped.
    """
    hints = {
        "poorer-format": "give the .xplane.pb that it was made from",
        "fuller-file": "",
        "latest-recording": LOOK_AT_EACH,
        "one-process": "Record another alone to see its steps",
    }
    issues = [i for i in timeline.source.issues if i.check in hints]
    return tuple(
        Health(
            check=i.check, status="ok" if i.status == "ok" else "degraded", detail=i.detail, touches=(), record_with=hints[i.check], reason="other-recording"
        )
        for i in issues
    )


def runtime(program: Program) -> tuple[Health, ...]:
    """A device of neither NVIDIA nor AMD: what its runtime's calls do is not known, so that no rule speaks of the host."""
    detail = "the runtime that launches this device's work is neither CUDA nor ROCm, so the waits of its calls are unknown"
    return (Health(check="runtime", status="failed", detail=detail, touches=HOST, record_with="", reason="not-recorded"),) if program.maker == "other" else ()


def graphs(timeline: Timeline) -> Health:
    """Graphs that were recorded as one event each: their kernels are unknown."""
    check = "graph-trace"
    issues = [i for i in timeline.source.issues if i.check == check]
    if not issues:
        return Health(check=check, status="ok", detail="no CUDA graph was recorded as a whole", touches=KERNELS, reason="absent")
    ops = timeline.gpu_ops
    dur = ops["dur_us"]
    share = float(dur[ops["kind"] == GpuKind.GRAPH.value].sum()) / max(float(dur.sum()), 1e-9)
    failed = share > GRAPH_SHARE or any(i.status == "failed" for i in issues)
    return compared(
        check,
        "failed" if failed else "degraded",
        "; ".join(i.detail for i in issues) + f"; they take {share:.0%} of the GPU's time",
        share,
        GRAPH_SHARE,
        touches=KERNELS,
        record_with="nsys profile --cuda-graph-trace=node",
        missing="graph-kernels",
    )
