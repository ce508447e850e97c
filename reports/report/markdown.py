"""Markdown for a pull-request comment: always short enough for one, and nothing in a name is read as markup."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from advisor.knowledge.expressions import expression
from advisor.report.finding import Finding
from advisor.report.model import Report
from advisor.report.numbers import counted, cut, duration, percent, rate, share, size
from advisor.report.priorities import first_findings, other_findings
from advisor.report.wording import (
    after_fixes,
    aside,
    check_name,
    checks_passed,
    combined,
    compile_cost_kind,
    compile_cost_line,
    compile_cost_price,
    compile_costs_listed,
    framework,
    hardware,
    improves,
    last_line,
    left_out,
    likely,
    measured,
    nothing_found,
    occupancy,
    of_steps,
    per_whole,
    place,
    processor,
    profiler_overhead,
    rated_lower,
    read_instead,
    rules_run,
    saves,
    saving_basis,
    scales,
    seen,
    slices,
    source_line,
    speedup_range,
    stalls,
    step_noun,
    step_now,
    steps,
    taken,
    titled,
    trust,
    unseen,
    user_line,
    wait_place,
    waits_listed,
    window_basis,
)
from advisor.reports._bars import SMALLEST, Bar, drawn, fenced
from advisor.reports._clean import Limits, clean
from advisor.reports._text import code_spans, first_up
from advisor.reports.report import _host_time, _job, _serving, _tpu
from advisor.reports.report._checklist import checklist, tally
from advisor.reports.report._memory import op_and_module, title, totals

NAME = "markdown"
SUFFIX = ".md"

LIMIT = 65_536
"""The longest comment that GitHub takes, in characters; kept in bytes here, which is never more."""
_LIMITS = Limits(text=1_200, findings=500, evidence=5, steps=8, kernels=8, rows=60)
_TABLE = 20
_HELD = 12
_DETAILED = 20
_DEVICES = 8
# Shares of the limit: the table of findings, then their details, leave room for what follows.
_TABLE_END, _DETAILS_END, _END = 26_000, 54_600, 64_500

_MARKUP = expression(
    r"[&<>|`*\[\]\\~$!^{}]"  # always markup, or the start of some
    r"|(?<![^\W_])_|_(?![^\W_])"  # an underscore inside a word is none
    r"|:(?=\S)"  # addresses, :emoji:
    r"|(?<=[wW]{3})\."  # www. is a link by itself
    r"|^[-+=#]|(?<=^\d)[.)](?=\s|$)|(?<=^\d\d)[.)](?=\s|$)"  # a list, a heading
)
# GitHub looks for mentions and references after entities are decoded: a zero-width space breaks them there.
_REFERENCE = expression(r"@|#(?=\d)|(?<=\b[Gg][Hh])-(?=\d)")
_EITHER = expression(f"(?P<reference>{_REFERENCE.pattern})|{_MARKUP.pattern}")


def escape(text: str) -> str:
    """The text so that Markdown, HTML and GitHub's own links leave it alone, on one line."""
    return _EITHER.sub(lambda match: _entity(match[0]) + ("&#8203;" if match["reference"] else ""), re.sub(r"\s+", " ", text))


def code(text: str) -> str:
    """A name in a code element, where GitHub looks for no mentions; safe in a table, as a backtick span is not."""
    inner = _MARKUP.sub(lambda match: _entity(match[0]), " ".join(text.split()))
    return f"<code>{inner}</code>" if inner else ""


def _entity(char: str) -> str:
    return f"&#{ord(char)};"


def prose(text: str) -> str:
    """Prose of a rule: what it has in backticks is code."""
    return "".join(code(piece) if is_code else escape(piece) for is_code, piece in code_spans(text))


MARKER = "<!-- trace-advisor -->"
"""First line of the comment: by it a bot finds the one to update, and the command line knows a file of its own."""


def render(report: Report) -> str:
    """The report as a comment, under GitHub's limit whatever it holds; what is cut is said."""
    shown = clean(report, _LIMITS)
    comment = _Comment()
    comment.add([MARKER], LIMIT)
    comment.add(_headline(shown), LIMIT)
    _findings(comment, shown, len(report.findings))
    comment.add(_picture(shown), _END)
    comment.add(_on_the_cpu(shown), _END)
    _waits(comment, shown)
    _compiled(comment, shown)
    comment.add(_served(shown), _END)
    comment.add(_time(shown), _END)
    comment.add(_kernels(shown), _END)
    comment.add(_held(shown), _END)
    comment.add(_ranks(shown), _END)
    _rules(comment, report, shown)
    comment.add(_health(shown), _END)
    comment.add([_footer(shown)], LIMIT)
    return "\n".join(comment.lines) + "\n"


class _Comment:
    """Lines of a comment, added in blocks that fit whole or are left out."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.bytes = 0

    def add(self, lines: Iterable[str], end: int) -> bool:
        """Add them all if the comment then ends before `end` bytes; say whether."""
        block = list(lines)
        length = sum(len(line.encode()) + 1 for line in block)
        if self.bytes + length > end:
            return False
        self.lines += block
        self.bytes += length
        return True

    def add_each(self, blocks: list[list[str]], end: int) -> int:
        """Add blocks from the first while they fit; return how many are left out."""
        for done, block in enumerate(blocks):
            if not self.add(block, end):
                return len(blocks) - done
        return 0


def _headline(report: Report) -> list[str]:
    """What bounds the step, its time now and after the fixes, and whether that can be trusted."""
    head, noun = report.headline, step_noun(report)
    line = "" if head.step_us is None else f"A {noun} takes **{step_now(report)}**"
    if line and improves(report):
        times = speedup_range(report)
        line += f". {first_up(combined(report))} **{after_fixes(report)}**" + (f" ({times} speedup)" if times else "")
    told = trust(report)
    about = f"{code(cut(report.source.path, 120))} · {escape(cut(hardware(report), 120))}" + (f" · {steps(report)}" if report.window else "")
    about += f" · {escape(cut(framework(report), 60))}" if report.framework else ""
    return [
        f"## {'CPU' if report.host_time else processor(report)} profile: {escape(cut(head.bottleneck, 80))}",
        "",
        f"{prose(cut(head.summary, 300))}",
        "",
        *([f"{line}.", ""] if line else []),
        f"Can it be trusted? **{told.answer}.** {prose(cut(told.detail, 300))}",
        "",
        f"<sub>{about}</sub>",
        "",
    ]


def _picture(report: Report) -> list[str]:
    """Where the time of the first device goes."""
    for time in (report.time or ())[:1]:
        bars = [Bar(part.label, 0.0, part.share, percent(part.share)) for part in slices(time, report.kind) if part.share >= SMALLEST]
        return [*fenced(drawn(bars), "text"), ""] if bars else []
    return []


def _on_the_cpu(report: Report) -> list[str]:
    """CPU time of a step, of a trace without GPU work."""
    if report.host_time is None:
        return []
    made = [f"### {_host_time.TITLE}", "", "| Phase | Per step | Share |", "| :-- | --: | --: |"]
    made += [f"| {escape(name)} | {us} | {part} |" for name, us, part, _ in _host_time.phases(report)]
    if lines := _host_time.lines(report):
        kind = _host_time.line_kind(report).capitalize()
        made += ["", f"| {kind} | Per step | Share |", "| :-- | --: | --: |", *(f"| {code(cut(place, 160))} | {us} | {part} |" for place, us, part in lines)]
    if found := _host_time.ops(report):
        made += ["", "| Op | Calls | Per step | Share |", "| :-- | --: | --: | --: |"]
        made += [f"| {code(cut(name, 120))} | {calls} | {us} | {part} |" for name, calls, us, part in found]
    return [*made, "", f"<sub>{escape(_host_time.NOTE)}</sub>", ""]


def _findings(comment: _Comment, report: Report, total: int) -> None:
    if not report.findings and report.host_time:
        return
    if not report.findings:
        comment.add([f"### {nothing_found(report)}", "", f"Rules: {rules_run(report)}.", ""], _END)
        return
    noun = step_noun(report)
    per = "" if noun == "peak" else f" per {noun}"
    head = [
        f"### {counted(total, 'finding')}",
        "",
        f"| # | Finding | Severity | Saves{per} | Range | Fix |",
        "| --: | :-- | :-- | --: | --: | :-- |",
    ]
    comment.add(head, _TABLE_END)
    first = first_findings(report)
    ordered = (*first, *other_findings(report, first))
    rows = [[_row(report, finding, number)] for number, finding in enumerate(ordered[:_TABLE], 1)]
    missing = comment.add_each(rows, _TABLE_END) + total - len(rows)
    comment.add([""], LIMIT)
    if missing:
        comment.add([f"{counted(missing, 'more finding')}, with smaller savings, in the full report.", ""], LIMIT)
    notes = [f"<sub>{prose(note)}</sub>" for note in (left_out(report), scales(report)) if note]
    comment.add([line for note in notes for line in (note, "")], _TABLE_END + 2_000)
    details = [_details(report, finding, number) for number, finding in enumerate(ordered[:_DETAILED], 1)]
    left = comment.add_each(details, _DETAILS_END)
    if left or total > _DETAILED:
        shown = len(details) - left
        comment.add([f"Details of the first {shown} only: a comment is short. The rest is in the full report.", ""], LIMIT)


def _row(report: Report, finding: Finding, number: int) -> str:
    saved = saves(finding, report) or "–"
    ranges = likely(finding.saving) if finding.saving.expected > 0 else "–"
    title, fix = prose(cut(titled(finding, report), 160)), prose(cut(finding.fix.title, 160))
    where = f" {code(cut(line, 120))}" if (line := user_line(finding)) else ""
    unsure = " (unconfirmed)" if finding.status == "possible" else ""
    return f"| {number} | {title}{unsure}{where} | {finding.severity} | {saved} | {ranges} | {fix} |"


def _details(report: Report, finding: Finding, number: int) -> list[str]:
    fix = finding.fix
    lines = [
        f"<details><summary><b>{number}. {prose(cut(titled(finding, report), 160))}</b></summary>",
        "",
        f"{prose(finding.summary)}{prose(aside(finding))}",
        "",
        f"{code(finding.rule)} · {saving_basis(finding)} · saves {likely(finding.saving)} {per_whole(finding, report)}"
        + (f" · {rated}" if (rated := rated_lower(finding, report)) else ""),
        "",
        f"**Fix: {prose(fix.title)}**",
        "",
        *(f"{at}. {prose(step)}" for at, step in enumerate(fix.steps, 1)),
        "",
    ]
    if fix.code:
        lines += [*_diff(fix.code.before, fix.code.after), ""]
    if fix.risk:
        lines += [f"Risk: {prose(fix.risk)}", ""]
    if re.fullmatch(r"https?://[^\s<>()\[\]|`\"\\]+", fix.url):
        lines += [f"Read more: <{fix.url}>", ""]
    lines += [
        f"| {' '.join(part for part in ('Evidence', of_steps(report)) if part)} | Count | {'Bytes' if report.kind == 'memory' else 'Time'} | Where | Source |",
        "| :-- | --: | --: | :-- | :-- |",
    ]
    for item in finding.evidence:
        label, source = prose(cut(item.label, 160)), code(cut(source_line(item), 160))
        lines.append(f"| {label} | {seen(item, report)} | {taken(item, report)} | {place(item)} | {source} |")
    if finding.lines_with:
        lines += ["", f"Source lines were not recorded. To record them: {prose(finding.lines_with)}."]
    return [*lines, "", "</details>", ""]


def _diff(before: str, after: str) -> list[str]:
    """Before and after as one coloured block, in a fence that its text cannot close."""
    old, new = before.rstrip().split("\n"), after.rstrip().split("\n")
    return fenced([line.rstrip() for line in difflib.ndiff(old, new) if not line.startswith("?")], "diff")


def _waits(comment: _Comment, report: Report) -> None:
    """Every call that waits, if they were asked for."""
    if report.host_waits is None:
        return
    head = ["| Source | Call | Waits per step | Time per step | Instead |", "| :-- | :-- | --: | --: | :-- |"]
    comment.add([f"### {escape(waits_listed(report.host_waits))}", "", *(head if report.host_waits.rows else ())], _END)
    rows = [
        [f"| {code(cut(wait_place(row), 120))} | {code(cut(row.call, 120))} | {row.waits_a_step:,.4g} | {duration(row.us)} | {prose(row.instead)} |"]
        for row in report.host_waits.rows
    ]
    left = comment.add_each(rows, _DETAILS_END)
    comment.add([*([f"{counted(left, 'more call')} in the full report."] if left else ()), ""], LIMIT)


def _compiled(comment: _Comment, report: Report) -> None:
    """Graph breaks and recompilations by line, if a log of torch.compile was given."""
    costs = report.compile_costs
    if costs is None:
        return
    head = ["| Where | What | Time per step | Reason | Instead |", "| :-- | :-- | --: | :-- | :-- |"]
    comment.add([f"### {escape(compile_costs_listed(costs))}", "", *(head if costs.rows else ())], _END)
    rows = [
        [
            f"| {code(cut(compile_cost_line(row), 120))} | {escape(compile_cost_kind(row))} | {compile_cost_price(row)} "
            f"| {code(cut(row.reason, 160))} | {prose(row.instead)} |"
        ]
        for row in costs.rows
    ]
    left = comment.add_each(rows, _DETAILS_END)
    comment.add([*([f"{counted(left, 'more line')} in the full report."] if left else ()), ""], LIMIT)


def _served(report: Report) -> list[str]:
    """Phases of an inference server."""
    found = _serving.rows(report)
    if not found:
        return []
    lines = [f"<details open><summary><b>{escape(_serving.title(report))}</b></summary>", ""]
    lines += [f"| {' | '.join(_serving.HEADINGS)} |", f"| :-- |{' --: |' * (len(_serving.HEADINGS) - 2)} :-- |"]
    lines += [f"| {' | '.join(escape(cell) for cell in row.cells)} |" for row in found[:_TABLE]]
    left = len(found) - _TABLE
    return [
        *lines,
        "",
        *([f"{counted(left, 'more row')} in the full report.", ""] if left > 0 else []),
        *([escape(said), ""] if (said := _serving.load(report)) else []),
        "</details>",
        "",
    ]


def _time(report: Report) -> list[str]:
    if not report.time:
        return []
    times = report.time[:_DEVICES]
    shares = [{part.label: part for part in slices(time, report.kind)} for time in times]
    labels = dict.fromkeys(label for parts in shares for label in parts)
    lines = [
        f"<details><summary><b>Where a {step_noun(report)}'s time goes</b></summary>",
        "",
        "| | " + " | ".join(f"{processor(report)} {time.device}" for time in times) + " |",
        "| :-- |" + " --: |" * len(times),
    ]
    for label in labels:
        cells = (percent(parts[label].share) if label in parts else "0%" for parts in shares)
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    if len(report.time) > _DEVICES:
        lines += ["", f"{counted(len(report.time) - _DEVICES, f'more {processor(report)}')} in the full report."]
    if said := measured(report):
        lines += ["", said]
    return [*lines, "", "</details>", ""]


def _kernels(report: Report) -> list[str]:
    if not report.kernels:
        return []
    if report.kind == "kernels":
        return _measured(report)
    if report.kind == "tpu":
        return _categories(report)
    lines = [
        "<details><summary><b>Largest kernels</b></summary>",
        "",
        "| Kernel | Family | Calls | Total | Share | Occupancy | GB/s | TFLOP/s |",
        "| :-- | :-- | --: | --: | --: | --: | --: | --: |",
    ]
    for row in report.kernels:
        fits = 100 * row.occupancy.theoretical if row.occupancy else row.occupancy_pct
        occupancy = f"{fits:.0f}%" if fits > 0 else "–"
        cells = (
            code(cut(row.name, 120)), escape(cut(row.family, 40)), f"{row.calls:,}", duration(row.total_us),
            percent(row.share), occupancy, rate(row.gbps), rate(row.tflops),
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", "</details>", ""]


def _measured(report: Report) -> list[str]:
    """Kernels that were measured one by one: what limits each."""
    lines = [
        "<details><summary><b>What limits each kernel</b></summary>",
        "",
        "| Kernel | Launches | Time each | Limited by | Compute | Memory | Occupancy | Warps stall on |",
        "| :-- | --: | --: | :-- | --: | --: | :-- | :-- |",
    ]
    for row in report.kernels:
        seen = row.counted
        shares = ("–" if part is None else percent(part) for part in (seen.compute if seen else None, seen.memory if seen else None))
        cells = (code(cut(row.name, 120)), f"{row.calls:,}", duration(row.dur_us), escape(row.limiter) or "–")
        lines.append("| " + " | ".join((*cells, *shares, escape(occupancy(row)) or "–", escape(stalls(row)) or "–")) + " |")
    return [*lines, "", "</details>", "", *_asked(report)]


_STATUS = {"good": "good", "look": "**to look at**", "open": "in part", "unknown": "not known"}


def _asked(report: Report) -> list[str]:
    """What is asked of every kernel."""
    answers = checklist(report, None)[1:-1]
    if not answers:
        return []
    lines = [f"<details><summary><b>{counted(len(answers), 'question')} asked of every kernel: {tally(answers)}</b></summary>", ""]
    lines += ["| Question | | Answer |", "| :-- | :-- | :-- |"]
    lines += [f"| {escape(answer.question)} | {_STATUS[answer.status]} | {escape(cut(answer.answer, 300))} |" for answer in answers]
    return [*lines, "", "</details>", ""]


def _categories(report: Report) -> list[str]:
    lines = [
        f"<details open><summary><b>Ops by HLO category, per {step_noun(report)} of a core</b></summary>",
        "",
        "| Category | Runs | Time | Share | Beside | GB/s | TFLOP/s |",
        "| :-- | --: | --: | --: | --: | --: | --: |",
    ]
    for row in _tpu.shown(report)[:_TABLE]:
        figures = (duration(row.us), percent(row.share), duration(row.beside_us) if row.beside_us > 0 else "–", rate(row.gbps), rate(row.tflops))
        lines.append(f"| {escape(cut(row.name, 80))} | {round(row.calls):,} | {' | '.join(figures)} |")
    said = [escape(_tpu.used(report)), ""] if _tpu.used(report) else []
    return [*lines, "", *said, "</details>", ""]


def _held(report: Report) -> list[str]:
    if report.memory is None:
        return []
    lines = [
        f"<details open><summary><b>{title(report.memory)}</b></summary>",
        "",
        escape(totals(report, report.memory)),
        "",
        "| Category | Op and module | Line | Lives for | Bytes | Share |",
        "| :-- | :-- | :-- | :-- | --: | --: |",
    ]
    for row in report.memory.at_peak[:_HELD]:
        place, part = code(cut(op_and_module(row), 120)), percent(share(row.bytes, report.memory.peak_allocated_bytes))
        lines.append(f"| {escape(row.category)} | {place} | {code(cut(row.source, 80))} | {escape(row.lifetime)} | {size(row.bytes)} | {part} |")
    return [*lines, "", "</details>", ""]


_RANKS = 16
"""Ranks of a job that a comment shows: those that others wait for most."""


def _ranks(report: Report) -> list[str]:
    if not report.ranks:
        return []
    read = sorted((row for row in report.ranks if not row.failed), key=lambda row: -row.lateness_us)
    lines = [
        f"<details open><summary><b>Ranks{f': the {_RANKS} of {len(read)} that others wait for most' if len(read) > _RANKS else ''}</b></summary>",
        "",
        f"{_job.AS_RECORDED}; what others wait for it is a part of their own waits.",
        "",
        "| Rank | Step | Computing | Input | Host | Waits | Transfers | Others wait for it |",
        "| --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for row in read[:_RANKS]:
        times = (row.step_us, row.compute_us, row.input_us, row.host_us, row.wait_us, row.transfer_us, row.lateness_us)
        lines.append(f"| {row.rank} | {' | '.join(duration(us) if us > 0 else '–' for us in times)} |")
    lines += ["", *([escape(told), ""] if (told := _job.experts(report)) else [])]
    lines += [f"- not read: {prose(row.failed)}" for row in report.ranks if row.failed]
    return [*lines, "", "</details>", ""]


def _rules(comment: _Comment, report: Report, shown: Report) -> None:
    """Clear, skipped and failed rules; the failed ones first, for they matter most."""
    if not (shown.clear or shown.skipped or shown.failed):
        return
    comment.add([f"<details><summary><b>Rules: {rules_run(report)}</b></summary>", ""], _END)
    lines = [f"- **failed** {code(item.rule)}: {escape(cut(last_line(item.error), 200))}" for item in shown.failed]
    rules_of = [1] * len(lines)
    alike: dict[tuple[str, str], list[str]] = {}
    for skipped in shown.skipped:
        alike.setdefault((skipped.why.rstrip("."), skipped.record_with), []).append(skipped.rule)
    for (why, record_with), rules in alike.items():
        record = f"; record with {code(record_with)}." if record_with else ""
        lines.append(f"- **skipped** {', '.join(map(code, rules))}: {prose(why)}{record}")
        rules_of.append(len(rules))
    lines += [f"- clear {code(item.rule)}: {prose(item.why)}" for item in shown.clear]
    rules_of += [1] * len(shown.clear)
    shown_lines = len(lines) - comment.add_each([[line] for line in lines], _END - 2_000)
    missing = len(report.clear + report.skipped + report.failed) - sum(rules_of[:shown_lines])
    if missing:
        comment.add(["", f"{counted(missing, 'more rule')} in the full report."], LIMIT)
    comment.add(["", "</details>", ""], LIMIT)


def _health(report: Report) -> list[str]:
    weak = [check for check in report.health if check.status != "ok"][:8]
    told = [line for said in (*read_instead(report), unseen(report)) if said for line in (prose(said), "")]
    if passed := checks_passed(report):
        told += [f"<details><summary>{counted(len(passed), 'check')} passed</summary>", "", *(f"- {prose(check)}" for check in passed), "", "</details>", ""]
    if not weak:
        return told
    return [
        *told,
        "**Weak and failed checks**",
        "",
        *(f"- {check.status}: {prose(check_name(check.check))}: {prose(check.detail)}" for check in weak),
        "",
    ]


def _footer(report: Report) -> str:
    source = report.source
    about = f"{escape(cut(source.format, 20))}, {size(source.bytes)}, {source.events:,} events"
    about += f"; steps from {window_basis(report)}" if report.window else ""
    overhead = f" · {escape(note)}" if (note := profiler_overhead(report)) else ""
    return f"<sub>advisor {escape(cut(report.advisor, 20))} · {about}{overhead}</sub>"
