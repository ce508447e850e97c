"""Text for a terminal: the answer on one screen."""

from __future__ import annotations

import io
import shlex
from math import ceil

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from advisor.report import wording
from advisor.report.finding import Finding
from advisor.report.model import Report
from advisor.report.numbers import counted, cut, duration, percent, share
from advisor.report.priorities import first_findings, other_findings
from advisor.report.recording import DeviceTime
from advisor.report.roofline import peaks_of, reach
from advisor.reports._clean import Limits, clean
from advisor.reports._text import first_up, short_path
from advisor.reports.report import _host_time, _job, _memory, _serving, _tpu
from advisor.reports.report._checklist import Answer, checklist

NAME = "text"
SUFFIX = ".txt"

_LIMITS = Limits(text=400, findings=500, evidence=1, steps=1, kernels=3)
_WIDTH = 100
_SENTENCES = 4
"""Lines that hold a summary, what else must be known of a finding, or a step of its fix, to their end."""
_NARROW = 72
"""Columns in which a title, what it saves and a bar stand side by side."""
_IN_FULL = 3
_IN_A_LINE = 10
_DEVICES = 4
_GAIN_BAR = 12
_SEVERITY = {"high": "bold red", "medium": "yellow", "low": "cyan", "info": "dim"}
_TRUST = {"ok": "green", "degraded": "yellow", "failed": "bold red", "unknown": "yellow"}
# A glyph each, so that the bar is read without colour.
_SLICES = {
    "compute": ("█", "blue"),
    "exposed_comm": ("▓", "red"),
    "exposed_copy": ("▒", "magenta"),
    "exposed_memset": ("░", "magenta"),
    "launch": ("-", "yellow"),
    "sync": ("=", "yellow"),
    "host": (":", "yellow"),
    "data_loading": ("+", "yellow"),
    "allocator": ("a", "yellow"),
    "dependency": ("~", "yellow"),
    "profiler": ("p", "dim"),
    "unknown": ("?", "dim"),
}


def render(report: Report, *, width: int | None = None, color: bool = False) -> str:
    """The report in about one screen. ANSI colours only if asked for; nothing in a name is markup or an escape.

    width: of the terminal that it goes to; None if it goes to none, and commands stay whole, to be copied or read by a program.
    """
    shown = clean(report, _LIMITS)
    out = io.StringIO()
    console = Console(
        file=out, width=max(width or _WIDTH, 40), force_terminal=color, no_color=not color, color_system="standard" if color else None,
        markup=False, highlight=False, emoji=False, legacy_windows=False, _environ={},
    )  # fmt: skip
    _headline(console, shown)
    first = _first_findings(console, shown, [answer.praise for answer in _answers(shown) if answer.praise])
    _verdict(console, shown)
    _time(console, shown)
    _held(console, shown)
    console.print()
    _other_findings(console, shown, first, len(report.findings))
    _waits(console, shown)
    _compiled(console, shown)
    _measured(console, shown)
    _footer(console, shown, whole_commands=width is None)
    return "\n".join(line.rstrip() for line in out.getvalue().split("\n"))


def _answers(report: Report) -> list[Answer]:
    return checklist(report, None)


def _text(*parts: str | tuple[str, str]) -> Text:
    """Pieces and styled pieces; never rich's markup."""
    return Text.assemble(*parts)


def _wrapped(console: Console, text: Text, indent: int, lines: int = 2) -> None:
    """Print it indented, on so many lines of the usual width at most; a narrower terminal takes more, for the end of a sentence may be what
    decides. What must fit one line is cut within a word, as a kernel's name is one."""
    room = max(console.width - indent, 20)
    lines = max(lines, ceil(lines * _WIDTH / console.width)) if lines > 1 else lines
    wrapped = text.wrap(console, room, no_wrap=lines == 1, overflow="ellipsis" if lines == 1 else "fold")
    if len(wrapped) > lines:
        wrapped[lines - 1].truncate(room - 1)
        wrapped[lines - 1].append("…")
    for line in wrapped[:lines]:
        console.print(Padding(line, (0, 0, 0, indent)), soft_wrap=False)


def _headline(console: Console, report: Report) -> None:
    """What bounds the step, and its time now and with all compatible fixes."""
    head, noun = report.headline, wording.step_noun(report)
    about = (
        f"advisor {report.advisor}",
        short_path(report.source.path),
        wording.hardware(report),
        wording.framework(report),
        wording.steps(report),
    )
    _wrapped(console, _text((" · ".join(part for part in about if part), "dim")), 0)
    console.print()
    _wrapped(console, _text((head.bottleneck.upper(), "bold reverse"), "  ", (head.summary, "bold")), 0, _SENTENCES)
    if head.step_us is not None:
        line = _text(f"A {noun} takes ", (wording.step_now(report), "bold"))
        if wording.improves(report):
            line.append_text(_text(f". {first_up(wording.combined(report))} ", (wording.after_fixes(report), "bold green")))
            if times := wording.speedup_range(report):
                line.append(f" ({times} speedup)")
        _wrapped(console, line.append("."), 0)


def _verdict(console: Console, report: Report) -> None:
    """Whether all that can be trusted, in one line."""
    told = wording.trust(report)
    _wrapped(console, _text("Can it be trusted? ", (f"{told.answer}.", _TRUST[told.status]), f" {told.detail}"), 0, _SENTENCES)


def _time(console: Console, report: Report) -> None:
    times = report.time or ()
    if times:
        console.print()
    for time in times[:_DEVICES]:
        parts = wording.slices(time, report.kind)
        bar = Text(f"{wording.processor(report)} {time.device}  ")
        start = cell_len(bar.plain)
        room = max(min(console.width, 100) - start, 10)
        cells = _cells([part.us for part in parts], room)
        for part, number in zip(parts, cells, strict=True):
            bar.append(_SLICES[part.key][0] * number, _SLICES[part.key][1])
        console.print(bar, no_wrap=True, overflow="crop")
        _legend(console, [part for part, number in zip(parts, cells, strict=True) if number or part.share >= 0.005], start)
    if len(times) > _DEVICES:
        _wrapped(console, _text(_more_devices(times[_DEVICES:], wording.processor(report))), 0)
    for said in (wording.critical_path(report), wording.measured(report), _tpu.used(report)):
        if said:
            _wrapped(console, _text(said), 0, _SENTENCES)


def _held(console: Console, report: Report) -> None:
    """What holds the peak of memory, a line a category; of a job its ranks, a line each; of a TPU its ops, a line a category; of a server its phases."""
    for lines in (_host_time.in_text(report) or _memory.lines(report) or _job.lines(report) or _tpu.lines(report), _serving.lines(report)):
        for at, line in enumerate(lines):
            if not at:
                console.print()
            console.print(Text(line), no_wrap=True, overflow="ellipsis")
    for said in filter(None, (_job.experts(report), _serving.load(report))):
        console.print(Text(said))


def _legend(console: Console, parts: list[wording.Slice], indent: int) -> None:
    """Glyph, class and share of each part, none broken across lines."""
    line = Text(" " * indent)
    for part in parts:
        item = _text(_SLICES[part.key], f" {part.label[:1].lower()}{part.label[1:]} {percent(part.share)}   ")
        if line.cell_len + item.cell_len - 3 > min(console.width, 100) and line.cell_len > indent:
            console.print(line, no_wrap=True, overflow="crop")
            line = Text(" " * indent)
        line.append_text(item)
    console.print(line, no_wrap=True, overflow="crop")


def _more_devices(times: tuple[DeviceTime, ...], processor: str) -> str:
    compute = [share(time.compute_us, time.window_us) for time in times]
    between = f"{percent(min(compute))} to {percent(max(compute))}"
    return f"and {counted(len(times), f'more {processor}')}, computing for {between} of the window"


def _cells(values: list[float], room: int) -> list[int]:
    """Whole cells in proportion that fill the room: largest remainders get what is left over."""
    total = sum(values)
    if total <= 0:
        return [0] * len(values)
    exact = [value / total * room for value in values]
    cells = [int(value) for value in exact]
    for at in sorted(range(len(values)), key=lambda at: cells[at] - exact[at])[: room - sum(cells)]:
        cells[at] += 1
    return cells


def _first_findings(console: Console, report: Report, praise: list[str]) -> tuple[Finding, ...]:
    """What to do first, in full. Returns these findings."""
    console.print()
    first = first_findings(report, _IN_FULL)
    if not first and not report.host_time:
        _healthy(console, report, praise)
    for number, finding in enumerate(first, 1):
        _finding(console, report, finding, number)
        console.print()
    return first


def _other_findings(console: Console, report: Report, first: tuple[Finding, ...], total: int) -> None:
    """The other findings, a line each."""
    rest = other_findings(report, first)
    for number, finding in enumerate(rest[: _IN_A_LINE - len(first)], len(first) + 1):
        _title(console, report, finding, number)
        if remark := wording.remark(finding):
            _wrapped(console, _text((remark, "dim")), 2, 1)
    if total > _IN_A_LINE:
        console.print(_text((f"and {counted(total - _IN_A_LINE, 'smaller finding')}", "dim")))
    if left := wording.left_out(report):
        _wrapped(console, _text((left, "dim")), 0, _SENTENCES)
    if rest or left:
        console.print()


def _title(console: Console, report: Report, finding: Finding, number: int) -> None:
    """Title, what it saves and a bar in a row; without the bar where the row would cut the title."""
    part, saves = report.share(finding), wording.saves(finding, report)
    title = _text((f"{number} ", "bold"), (finding.severity.upper(), _SEVERITY[finding.severity]), (f" {wording.titled(finding, report)}", "bold"))
    gained = _text((f"saves {saves}", "green") if saves else ("no gain expected", "dim"))
    # A kernel's name may be cut, the finding's own words not.
    own = title.cell_len - cell_len(wording.titled(finding, report)) + cell_len(finding.title)
    width = min(console.width, _WIDTH)
    if width < _NARROW or width < own + gained.cell_len + _GAIN_BAR + 4:
        _wrapped(console, title.append(": ").append_text(gained), 0)
        return
    filled = round(part * _GAIN_BAR) or int(part > 0)
    row = Table.grid(expand=True, padding=(0, 1))
    row.width = width
    row.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
    row.add_column(no_wrap=True, justify="right")
    row.add_column(no_wrap=True, width=_GAIN_BAR)
    row.add_row(
        title,
        gained,
        _text(("█" * filled, "green"), ("·" * (_GAIN_BAR - filled), "dim")),
    )
    console.print(row)


def _finding(console: Console, report: Report, finding: Finding, number: int) -> None:
    _title(console, report, finding, number)
    saving = finding.saving
    ranges = f"{wording.likely(saving)} {wording.per_whole(finding, report)}" if saving.expected > 0 else ""
    where = wording.user_line(finding) or (wording.place(finding.evidence[0]) if len(report.devices) > 1 else "")
    rated = wording.rated_lower(finding, report)
    about = " · ".join(part for part in (where, ranges, rated, finding.rule) if part)
    _wrapped(console, _text((about, "dim")), 2, 2)
    _wrapped(console, _text(finding.summary + wording.aside(finding)), 2, _SENTENCES)
    _wrapped(console, _text(("Fix: ", "bold"), wording.first_fix_step(finding)), 2, _SENTENCES)


def _healthy(console: Console, report: Report, praise: list[str]) -> None:
    style = {"yes": "bold green", "partly": "bold yellow", "no": "bold red"}[report.headline.judged]
    _wrapped(console, _text((f"{wording.nothing_found(report)}. ", style), f"Rules: {wording.rules_run(report)}."), 0)
    for said in praise:
        _wrapped(console, _text(("+ ", "green"), said), 2)
    if report.kind in ("kernels", "tpu"):
        return
    if report.kernels:
        console.print(_text(f"Largest kernels, per {wording.step_noun(report)}:"))
    peaks, steps = peaks_of(report), report.window.steps if report.window else 1
    for kernel in report.kernels:
        at = reach(kernel, peaks)
        reached = f"{percent(at.share)} of its roofline  " if at else ""
        row = f"{percent(kernel.share):>5} {duration(kernel.total_us / steps):>8}  {kernel.family}  {reached}"
        _wrapped(console, _text(row, (kernel.name, "dim")), 2, 1)
    console.print()


def _waits(console: Console, report: Report) -> None:
    """Every call that waits, if they were asked for: where it stands, how often and how long it waits, and what is in for it."""
    if report.host_waits is None:
        return
    console.print(_text((wording.waits_listed(report.host_waits), "bold")))
    for row in report.host_waits.rows:
        _wrapped(console, _text(f"{row.waits_a_step:6,.4g} per step {duration(row.us):>8}  ", (wording.wait_place(row), "bold"), f"  {row.call}"), 2, 1)
        _wrapped(console, _text((row.instead + (f" Since: {row.since}." if row.since else ""), "dim")), 4, _SENTENCES)
    console.print()


def _compiled(console: Console, report: Report) -> None:
    """Graph breaks and recompilations by line, if a log of torch.compile was given."""
    costs = report.compile_costs
    if costs is None:
        return
    console.print(_text((wording.compile_costs_listed(costs), "bold")))
    for row in costs.rows:
        line = (wording.compile_cost_line(row), "bold")
        _wrapped(console, _text(f"{wording.compile_cost_price(row):>8}  ", line, f"  {wording.compile_cost_kind(row)}"), 2, 2)
        for told in filter(None, (wording.compile_cost_parts(row), row.reason, row.instead)):
            _wrapped(console, _text((told, "dim")), 4, _SENTENCES)
    console.print()


def _measured(console: Console, report: Report) -> None:
    """What limits each kernel that was measured by itself, its occupancy and what its warps wait for; then what is asked of all of them."""
    if report.kind != "kernels":
        return
    console.print(_text("What limits the longest kernels:"))
    for kernel in report.kernels:
        _wrapped(
            console,
            _text(f"{duration(kernel.dur_us):>8}  ", (cut(kernel.name, 60), "bold"), f"  {kernel.counted.verdict if kernel.counted else ''}"),
            2,
            3,
        )
        for what, told in (("Occupancy", wording.occupancy(kernel)), ("Warps stall on", wording.stalls(kernel))):
            _wrapped(console, _text(f"{what}: ", (told or "not collected", "" if told else "dim")), 12, 3)
    console.print()
    _asked(console, checklist(report, None)[1:-1])


def _asked(console: Console, answers: list[Answer]) -> None:
    """Questions to look at, each with its answer; the others by their names."""
    if not answers:
        return
    console.print(_text(f"{counted(len(answers), 'question')} asked of every kernel:"))
    for answer in [answer for answer in answers if answer.status in ("look", "open")]:
        style = "yellow" if answer.status == "look" else "dim"
        _wrapped(console, _text((f"{answer.question} ", "bold"), (answer.answer, style)), 2, 3)
    for status, told in (("good", "Good"), ("unknown", "Not known")):
        if alike := [answer.question for answer in answers if answer.status == status]:
            _wrapped(console, _text((f"{told}: ", "bold"), (" ".join(alike), "dim")), 2, _SENTENCES + 2)
    console.print()


_CHECKS = {"degraded": "weak check", "failed": "failed check"}


def _footer(console: Console, report: Report, whole_commands: bool) -> None:
    for check in [check for check in report.health if check.status != "ok"][:4]:
        _wrapped(console, _text((f"{_CHECKS[check.status]}: ", _TRUST[check.status]), f"{wording.check_name(check.check)}: {check.detail}"), 0, _SENTENCES)
    if unseen := wording.unseen(report):
        _wrapped(console, _text(unseen), 0)
    for told in wording.read_instead(report):
        _wrapped(console, _text(("note: ", "bold"), told), 0)
    for failed in report.failed[:3]:
        _wrapped(console, _text(("rule failed: ", "bold red"), f"{failed.rule}: {wording.last_line(failed.error)}"), 0, 1)
    if first_findings(report):  # said above where there are none
        _wrapped(console, _text((f"Rules: {wording.rules_run(report)}", "dim")), 0)
    _next(console, report, whole_commands)
    if report.findings:
        _wrapped(console, _text((wording.scales(report), "dim")), 0, _SENTENCES)
    if overhead := wording.profiler_overhead(report):
        _wrapped(console, _text((overhead, "dim")), 0)


def _next(console: Console, report: Report, whole_commands: bool) -> None:
    """Commands that may come next."""
    mend, record = wording.to_mend(report), dict[str, list[str]]()
    for skipped in report.skipped:
        if skipped.record_with and skipped.record_with not in mend:
            record.setdefault(" ".join(skipped.record_with.split()), []).append(skipped.rule)
    commands = list(mend.items())[:2]
    if first := first_findings(report, 1):
        commands.append((f"advisor explain {shlex.quote(first[0].rule)}", "why it matters, and when to ignore it"))
    commands += [(how, _for_rules(rules)) for how, rules in list(record.items())[: 2 - len(commands)]]
    trace = shlex.quote(report.source.path)
    known = report.source.path != "standard input"
    if known and any(finding.fix.code for finding in report.findings):
        commands.append((f"advisor analyze {trace} -f markdown", "shows the code of each fix, as the HTML page does"))
    if known and report.kind == "trace":
        commands.append((f"advisor analyze {trace} -f perfetto -o step.json", "opens in Perfetto"))
    for at, (command, why) in enumerate(commands):
        line = _text("Next: " if at == 0 else "      ", (command, "bold"), (f"   {why}", "dim"))
        if not whole_commands or line.cell_len <= console.width:
            _wrapped(console, line, 0, _SENTENCES)
            continue
        console.print(_text("Next: " if at == 0 else "      ", (command, "bold")), soft_wrap=True)
        _wrapped(console, _text((why, "dim")), 8)


def _for_rules(rules: list[str]) -> str:
    """`for a, b and 3 more rules`: what would look then."""
    more = f" and {counted(len(rules) - 2, 'more rule')}" if len(rules) > 2 else ""
    return f"for {', '.join(rules[:2])}{more}"
