"""What the formats say about a report, in the same words everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

from advisor.knowledge.idle import IDLE_CAUSES
from advisor.knowledge.stalls import STALLS, WORTH_SHOWING
from advisor.report.finding import AnySaving, BytesSaved, Change, Evidence, Finding, Saving, ShareSaved
from advisor.report.host_waits import HostWaitRow, HostWaits
from advisor.report.kernels import KernelRow
from advisor.report.model import DEVICE_BOUND, Kind, Report
from advisor.report.numbers import counted, duration, interval, mean, percent, share, size, speedup, times
from advisor.report.recording import READ_INSTEAD, DeviceTime
from advisor.report.step import HOST_LINKS, PathPart

_BUSY = (
    ("compute", "Compute"),
    ("exposed_comm", "Exposed communication"),
    ("exposed_copy", "Exposed copies"),
    ("exposed_memset", "Exposed memset"),
)
_IDLE = tuple((cause.name, f"Idle: {cause.title}") for cause in IDLE_CAUSES if cause.name != "profiler")
_OF_TPU = {
    "exposed_comm": "Collectives and waits for other cores",
    "exposed_copy": "Infeed, outfeed and waits for copies",
    "dependency": "Idle: within a program",
    "unknown": "Idle: between programs",
}
_CONFIDENCE = ((0.9, "very sure"), (0.7, "fairly sure"), (0.4, "unsure"), (0.0, "a guess"))
_BASES = {
    "simulated": "replayed on the trace's dependency graph",
    "bound": "from a hardware bound",
    "measured": "measured",
}
_WINDOWS = {
    "profiler-step": "the profiler's step marks",
    "nvtx": "NVTX ranges",
    "detected": "a repeating pattern found in the trace",
    "whole": "no steps found: the whole trace counts as one",
}


_LINKS = {
    "kernel": "kernels",
    "copy": "copies",
    "launch-delay": "starting a launched op on an idle GPU",
    "kernel-to-kernel": "gaps between queued ops",
    "return": "returning from a wait",
    "allocation": "allocating device memory",
    "data-loading": "waiting for a batch",
    "dispatch": "the host issuing ops",
    "host": "the host's own work",
}


def change(part: Change) -> str:
    """What one part of a fix does to a step, in a line."""
    figures = (
        (part.ops_removed, f"{_mean(part.ops_removed, 'GPU op')} fewer"),
        (part.ops_changed, f"{_mean(part.ops_changed, 'GPU op')} changed"),
        (part.waits_removed, f"{_mean(part.waits_removed, 'wait')} of the host fewer"),
        (part.gpu_us, f"{duration(abs(part.gpu_us))} {'less' if part.gpu_us > 0 else 'more'} work on the GPU"),
        (part.host_us, f"{duration(abs(part.host_us))} {'less' if part.host_us > 0 else 'more'} work on the host"),
    )
    return f"{part.edit}: {', '.join(text for amount, text in figures if amount)}"


def _mean(number: float, noun: str) -> str:
    """`1 wait`, `1.50 waits`."""
    return f"{(text := mean(number))} {noun if text == '1' else noun + 's'}"


def link(kind: str) -> str:
    """What a part of the critical path is, in words."""
    return _LINKS.get(kind, kind)


def critical_path(report: Report) -> str:
    """The critical path in a line; "" where there is none."""
    now, after = _path(report.critical_path), _path(report.critical_path_after)
    tie = _tie(report)
    return (f"Critical path: {now}" + (f"; after the fixes: {after}" if after else "") + f".{tie}") if now else ""


BUSY = 0.75
"""A GPU that works for more than this of a step whose path is the host's waits for it by no more than the rest."""


def _tie(report: Report) -> str:
    """What a path says that is mostly the host's beside a headline that is not; "" where both name the same side."""
    host = sum(part.share for part in report.critical_path if part.link in HOST_LINKS)
    time = max(report.time or (), key=lambda t: t.window_us - t.idle_us, default=None)
    if time is None or host <= 0.5:
        return ""
    if report.headline.bottleneck == "communication-bound":
        return " The host is at work as long as collectives run: which of the two holds the step up, only all ranks together tell."
    # The path is of the step without what recording added, which is idle time.
    busy = time.window_us - time.idle_us >= BUSY * (time.window_us - report.added_us(time))
    return " The host and the GPU take about as long: either could be the bound." if busy and report.headline.bottleneck in DEVICE_BOUND else ""


def _path(parts: tuple[PathPart, ...]) -> str:
    return ", ".join(f"{link(part.link)} {percent(part.share)}" for part in parts[:3] if part.share >= 0.01)


_UNITS: dict[type, Callable[[float], str]] = {Saving: duration, BytesSaved: size, ShareSaved: percent}


@dataclass(frozen=True)
class Slice:
    """One class of a device's time. `key` is stable, `share` is of the window."""

    key: str
    label: str
    us: float
    share: float
    idle: bool

    @property
    def short(self) -> str:
        """The label for a narrow place: what the exposed or idle time is about."""
        return self.label.removeprefix("Idle: ").removeprefix("Exposed ").capitalize()


def unrecorded_us(time: DeviceTime) -> float:
    """The window of a device without the idle time that recording made."""
    return time.window_us - time.idle.profiler


def slices(time: DeviceTime, kind: Kind = "trace") -> list[Slice]:
    """Where a device's window went, without what recording added: busy classes in their order, then idle causes, largest
    first; nothing that is 0. kind: of the recording."""
    whole, other = unrecorded_us(time), _OF_TPU if kind == "tpu" else {}
    busy = [Slice(k, other.get(k, label), us := getattr(time, f"{k}_us"), share(us, whole), False) for k, label in _BUSY]
    idle = [Slice(k, other.get(k, label), us := getattr(time.idle, k), share(us, whole), True) for k, label in _IDLE]
    return [part for part in (*busy, *sorted(idle, key=lambda part: -part.us)) if 0 < part.us < inf]


def processor(report: Report) -> str:
    """What its devices are."""
    return "TPU" if report.kind == "tpu" else "GPU"


_NOUNS = {"trace": "step", "job": "step", "kernels": "kernel", "memory": "peak", "tpu": "step"}


def step_noun(report: Report) -> str:
    """What savings are parts of."""
    return "run" if report.window and report.window.basis == "whole" else _NOUNS[report.kind]


def whole_noun(finding: Finding, report: Report) -> str:
    """What its saving is a part of: beside a timeline a snapshot's findings free memory; where more requests share a step, that is as long as it was."""
    if isinstance(finding.saving, Saving) and per_request(finding):
        return finding.saving.per
    if isinstance(finding.saving, BytesSaved):
        peak = "peak" if finding.saving.of == "allocated" else "reserved peak"
        return peak if report.kind == "memory" else f"{peak} of memory"
    of_recording = isinstance(finding.saving, Saving) and finding.saving.per == "recording"
    return "recorded time" if of_recording or report.kind == "memory" else step_noun(report)


def per_whole(finding: Finding, report: Report) -> str:
    """`per step`, or `of the peak`: what a saving is held against, after it."""
    noun = whole_noun(finding, report)
    return f"per {noun}" if noun in _RECURRING else f"of the {noun}"


_RECURRING = ("step", "run", "request", "sample", "kernel")
"""What comes again and again, and saves each time."""


def per_request(finding: Finding) -> bool:
    """Whether the step stays as long as it is, and serves more requests, or learns from more samples."""
    return isinstance(finding.saving, Saving) and finding.saving.per in ("request", "sample")


def saves(finding: Finding, report: Report) -> str:
    """`gain` where nothing beside it says of what: that of a request is named."""
    saved = gain(finding, report)
    return f"{saved} a {whole_noun(finding, report)}" if saved and per_request(finding) else saved


def window_basis(report: Report) -> str:
    """How steps were found."""
    basis = report.window.basis if report.window else ""
    return _WINDOWS.get(basis, basis)


def saving_basis(finding: Finding) -> str:
    """How a saving was worked out."""
    if isinstance(finding.saving, BytesSaved) and finding.saving.basis == "simulated":
        return "replayed on the recorded allocations"
    return _BASES.get(finding.saving.basis, finding.saving.basis)


def amount(saving: AnySaving, value: float) -> str:
    """A value in the unit of a saving."""
    return _UNITS[type(saving)](value)


def gain(finding: Finding, report: Report) -> str:
    """`4.12 ms (33%)`: what a fix is expected to save, and of the whole; nothing where it saves nothing."""
    saving = finding.saving
    if saving.expected <= 0:
        return ""
    part = percent(report.share(finding))
    if isinstance(saving, ShareSaved):
        return part
    # Of a whole that is not known, as time in a snapshot of memory, there is no share.
    return f"{amount(saving, saving.expected)} ({part})" if report.whole(saving) > 0 else amount(saving, saving.expected)


def titled(finding: Finding, report: Report) -> str:
    """The title, with the kernel's name where each of several kernels may have the same fault."""
    return f"{finding.title}: {finding.evidence[0].label}" if report.kind == "kernels" else finding.title


def likely(saving: AnySaving) -> str:
    """`6.50 to 8.20 ms`: the interval of a saving."""
    return interval(saving.low, saving.high, _UNITS[type(saving)])


def confidence(finding: Finding) -> str:
    """How sure a finding is, in words and percent; what may be the recorder's doing is only possible, however clear it looks."""
    if finding.status == "possible":
        return "only possible"
    words = next(word for least, word in _CONFIDENCE if finding.confidence >= least)
    return f"{words}, {percent(finding.confidence)}"


def improves(report: Report) -> bool:
    """Whether the fixes make the step faster by anything that can be told."""
    after = report.headline.predicted_step_us
    return after is not None and bool(speedup(report.step_us, after.expected))


_FEW = 3


def left_out(report: Report) -> str:
    """Which findings that gain time the step with every fix leaves out, and why, in a sentence; "" where it has all, or none is predicted."""
    if report.headline.predicted_step_us is None:
        return ""
    why: dict[str, dict[str, None]] = {}
    for finding in report.findings:
        if finding.left_out and isinstance(finding.saving, Saving) and finding.saving.expected > 0:
            why.setdefault(finding.left_out, {})[finding.rule] = None
    told = "; ".join(f"{_together([*rules])} ({reason})" for reason, rules in why.items())
    noun = step_noun(report)
    # Without a fix that counts no step with every fix is shown for these to be left out of.
    of = f"Left out of the {noun} with every fix" if improves(report) else f"Not counted as making the {noun} shorter"
    return f"{of}: {told}." if told else ""


def _together(names: list[str]) -> str:
    """`a`, `a and b`, `a, b, c and 2 more`."""
    shown = [*names[:_FEW], f"{len(names) - _FEW} more"] if len(names) > _FEW + 1 else names
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


_JUDGED = {"partly": "In part", "no": "No"}


def judged(report: Report) -> str:
    """Whether the recording could be judged, where it could not in full: `In part: the trace fails replay.`; else ""."""
    head = report.headline
    return "" if head.judged == "yes" else f"{_JUDGED[head.judged]}: {head.judged_why.rstrip('.')}."


def nothing_found(report: Report) -> str:
    """What no finding means: nothing to fix, or nobody who could look."""
    if not (report.findings or report.clear or report.skipped or report.failed):
        return "No rule looked"
    return {
        "yes": "Nothing to fix was found",
        "partly": "Nothing was found in what could be judged",
        "no": "This could not be judged",
    }[report.headline.judged]


@dataclass(frozen=True)
class Trust:
    """Whether the trace can be relied on: a word, and why."""

    status: Literal["ok", "degraded", "failed", "unknown"]
    answer: str
    detail: str


def trust(report: Report) -> Trust:
    """The health checks in a sentence."""
    total = len(report.health)
    failed = [h.check for h in report.health if h.status == "failed"]
    degraded = [h.check for h in report.health if h.status == "degraded"]
    if not total:
        return Trust("unknown", "Not known", "no check was run on this trace.")
    if failed:
        detail = f"{len(failed)} of {counted(total, 'check')} failed: {', '.join(failed[:4])}."
        return Trust("failed", "Not as it stands", detail)
    if degraded:
        return Trust("degraded", "Mostly", f"{len(degraded)} of {counted(total, 'check')} found a weakness: {', '.join(degraded[:4])}.")
    return Trust("ok", "Yes", f"{'both' if total == 2 else f'all {total}'} checks passed." if total > 1 else "its one check passed.")


_MOST_UNSEEN = 4


def unseen(report: Report) -> str:
    """What was asked for or stands in the file and is in no figure, in a line; "" where all of it is."""
    rows = [f"{row.what}: {row.count:,}{'' if row.us is None else f', {duration(row.us)}'}" for row in report.unseen]
    more = [f"{counted(len(rows) - _MOST_UNSEEN, 'more kind')}"] if len(rows) > _MOST_UNSEEN else []
    return f"In no figure of this report: {'; '.join((*rows[:_MOST_UNSEEN], *more))}." if rows else ""


def to_mend(report: Report) -> dict[str, str]:
    """How to record again so that the checks hold that fail, and which they are."""
    found: dict[str, list[str]] = {}
    for check in report.health:
        if check.status == "failed" and check.record_with:
            found.setdefault(check.record_with, []).append(check.check)
    return {how: f"as {' and '.join(checks)} failed" for how, checks in found.items()}


def place(evidence: Evidence) -> str:
    """Device, stream and thread of an evidence, those that are known."""
    parts = (("GPU", evidence.device), ("stream", evidence.stream), ("thread", evidence.thread))
    return " · ".join(f"{name} {value}" for name, value in parts if value is not None)


def source_line(evidence: Evidence) -> str:
    """`file:line` of an evidence, or nothing."""
    return f"{evidence.source.file}:{evidence.source.line}" if evidence.source else ""


def wait_place(row: HostWaitRow) -> str:
    """Where a call that waits stands: its line, or its op and module."""
    if row.source:
        return f"{row.source.file}:{row.source.line}"
    return f"{row.op} in {row.module}" if row.module else row.op


def waits_told(waits: HostWaits) -> str:
    """What a list of waits says of itself."""
    return waits.why or f"{counted(round(sum(row.waits_a_step for row in waits.rows)), 'wait')} for the GPU a step, the longest first"


def last_line(error: str) -> str:
    """Of a traceback, what was raised."""
    return error.strip().rpartition("\n")[2]


def occupancy(row: KernelRow) -> str:
    """A kernel's warps on a multiprocessor, of those that it holds, and what keeps more from fitting; "" where that was not collected."""
    found = row.occupancy
    if found is None:
        return ""
    limited = f", limited by {found.limiter}" * bool(found.limiter)
    return f"{percent(found.theoretical)} in theory{limited}" + ("" if found.achieved is None else f", {percent(found.achieved)} achieved")


SHOWN_STALLS = 3


def stalls(row: KernelRow) -> str:
    """What its warps wait for most, with the share of their time; "" where that was not collected."""
    most = max(row.stalls.values(), default=0.0)
    first = [(name, part) for name, part in row.stalls.items() if part >= min(WORTH_SHOWING, most)][:SHOWN_STALLS]
    return ", ".join(f"{percent(part)} {name}" + (f" ({STALLS[name]})" if name in STALLS else "") for name, part in first)


_PLACES = {"#why": "Kernel by kernel", "#health": "Checks", "#skipped": "Skipped rules", "#time": "Where time goes"}


def where(link: str) -> str:
    """A section of the page by the name that it bears, for a link to it."""
    return _PLACES.get(link, link.removeprefix("#").capitalize())


def short_path(path: str, most: int = 48) -> str:
    """The end of a long path, which tells files apart: `…/run-7/rank0.json.gz`."""
    if len(path) <= most:
        return path
    parts = path.split("/")
    kept = parts[-1]
    for part in reversed(parts[:-1]):
        if len(kept) + len(part) + 3 > most:
            break
        kept = f"{part}/{kept}"
    return f"…/{kept}" if len(kept) <= most else f"…{kept[-most:]}"


def first_up(text: str) -> str:
    """A bottleneck as a heading: `Launch-bound`, `GPU-bound`."""
    for short in ("gpu", "cpu", "dram"):
        text = text.replace(f"{short}-", f"{short.upper()}-", 1) if text.startswith(f"{short}-") else text
    return text[:1].upper() + text[1:]


def hardware(report: Report) -> str:
    """`NVIDIA H200`, `8 × NVIDIA H200`; "no GPU" only where nothing ran on one."""
    unnamed = f"{processor(report)} of unknown name"
    names = [device.name or unnamed for device in report.devices] or [unnamed for _ in report.time or ()]
    counts = {name: names.count(name) for name in names}
    return ", ".join(f"{number} × {name}" if number > 1 else name for name, number in counts.items()) or "no GPU"


def framework(report: Report) -> str:
    """`Transformers 4.57.1`: in whose words fixes are said; "" where in those of PyTorch, JAX or CUDA."""
    named = report.framework
    return f"{named.name} {named.version}".rstrip() if named else ""


def footnote(report: Report) -> str:
    """What the step was recorded at, and why that is not what it takes; "" where recording made no difference to speak of."""
    window, step_us = report.window, report.step_us
    if window is None or window.true_step_us is None or (abs(window.step_us / (step_us or 1) - 1) < TOLD and not window.unused_step_us):
        return ""
    true, recorded = window.true_step_us, f"Recorded: {duration(window.step_us)} a {step_noun(report)}"
    if window.true_step_basis == "measured":
        return f"{recorded}; {duration(step_us)} was measured without the profiler."
    if window.unused_step_us:
        between = "" if window.true_step_basis == "recorded" else f" Without: {interval(true.low, true.high)}."
        return f"{recorded}; {duration(window.unused_step_us)} was measured without the profiler, which this step cannot take.{between}"
    what = "its stacks" if report.source.recorded.stacks else "each op and call"
    return f"{recorded}, {duration(window.recording_us)} of it recording {what}. Without: {interval(true.low, true.high)}, by what the trace tells."


TOLD = 0.02
"""Recording that changes a step by less than this is not spoken of."""


def steps(report: Report) -> str:
    """`3 steps of 12.4 ms`, what they take without the recording: `footnote` says what was recorded."""
    if report.window is None:
        return ""
    if report.window.basis == "whole":
        return "the whole trace"
    return f"{counted(report.window.steps, 'step')} of {duration(report.step_us or report.window.step_us)}"


def of_steps(report: Report) -> str:
    """`a step, the mean of 3`, what counts and times of evidence are of; empty where the recording is one step, or knows none."""
    steps = report.evidence_steps
    return f"a step, the mean of {steps:,}" if steps > 1 else ""


def seen(item: Evidence, report: Report) -> str:
    """How often an evidence was seen a step."""
    return mean(item.count / report.evidence_steps)


def taken(item: Evidence, report: Report) -> str:
    """What an evidence takes a step, or of memory how much."""
    return duration(item.dur_us / report.evidence_steps) if item.bytes is None else size(item.bytes)


def rules_run(report: Report) -> str:
    """How many rules looked, and what became of them."""
    with_findings = len({finding.rule for finding in report.findings})
    parts = [
        counted(with_findings, "rule") + " found something" if with_findings else "",
        f"{len(report.clear)} clear" if report.clear else "",
        f"{len(report.skipped)} skipped" if report.skipped else "",
        f"{len(report.failed)} failed" if report.failed else "",
    ]
    return ", ".join(part for part in parts if part) or "no rule was run"


_BELIEFS = {
    "simulated": "The recorded step was replayed on its own dependencies, with and without what the fix removes.",
    "bound": "The saving is what remains above the least time that the hardware allows for the same work.",
    "measured": "The time was measured in this trace.",
}


_ALLOCATIONS = "The recorded allocations were replayed as they would be with the fix, and both peaks compared."


def belief(finding: Finding, report: Report) -> str:
    """Why a finding is to be believed: how its saving came about, how good that is here, how often it was seen."""
    replay = next((check for check in report.health if check.check == "replay"), None)
    often = times(sum(evidence.count for evidence in finding.evidence) / report.evidence_steps)
    weak = [check.check for check in report.health if check.check in finding.checks and check.status != "ok"]
    hold = "holds" if len(finding.checks) == 1 else "all hold"
    rests = f"It rests on {counted(len(finding.checks), 'check')} of the trace" if finding.checks else ""
    parts = [
        _ALLOCATIONS if isinstance(finding.saving, BytesSaved) else _BELIEFS.get(finding.saving.basis, ""),
        f"Check of the replay itself: {replay.detail}." if replay and finding.saving.basis == "simulated" else "",
        rests and (f"{rests}, with a weakness in {', '.join(weak)}." if weak else f"{rests}, which {hold}."),
        f"It was seen {often}{' a step' if report.evidence_steps > 1 else ' in the window' if report.window else ''}.",
        "It is only possible." if finding.status == "possible" else f"We are {confidence(finding)}.",
    ]
    return " ".join(part for part in parts if part)


def anchors(findings: tuple[Finding, ...]) -> list[str]:
    """One id a finding, fit for a link: `finding-launch-gap`, and `-2` for the second of the same rule."""
    made: list[str] = []
    for finding in findings:
        base = "finding-" + (re.sub(r"[^A-Za-z0-9_.-]+", "-", finding.rule).strip("-") or "unnamed")
        number = 1
        while (anchor := base if number == 1 else f"{base}-{number}") in made:
            number += 1
        made.append(anchor)
    return made


def code_spans(text: str) -> list[tuple[bool, str]]:
    """Prose cut at its `code`: pairs of whether a piece is code, and the piece without its backticks."""
    pieces = re.split(r"`([^`\n]+)`", text)
    return [(position % 2 == 1, piece) for position, piece in enumerate(pieces) if piece]


def aside(finding: Finding) -> str:
    """What else the reader must know of a finding, after its summary: it is allowed, or another one explains it."""
    if finding.allowed:
        return f" Allowed: {finding.allowed}."
    if finding.status == "possible":
        return f" Possible only: {finding.possible_why or 'recording may have made this'}. What decides it: {finding.decide_with}."
    if finding.folded_into:
        return f" Fixing {finding.folded_into} already gains most of this."
    return ""


def remark(finding: Finding) -> str:
    """The same in a few words, for where the title stands alone."""
    if finding.status == "possible" and not finding.allowed:
        return "Only possible."
    return aside(finding).strip()


def measured(report: Report) -> str:
    """What the hardware's counters say of the window, in a sentence; "" where none were sampled."""
    by_device: dict[int, list[str]] = {}
    for row in report.utilization:
        by_device.setdefault(row.device, []).append(f"{row.unit} {row.mean_pct:.0f} %")
    return " ".join(f"Measured on GPU {device}, in percent of peak: {', '.join(units)}." for device, units in by_device.items())


def read_instead(report: Report) -> list[str]:
    """Which file was read in place of others that are there, a sentence each."""
    return [". ".join(filter(None, (check.detail, check.record_with))) + "." for check in report.health if check.check in READ_INSTEAD]
