"""One HTML file that needs nothing else: no network, no inline script but its own, readable without JavaScript."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.engine.analysis import Analysis, picture_in, report_in
from advisor.knowledge.structs import replace
from advisor.report import numbers, wording
from advisor.report.finding import Finding
from advisor.report.model import Kind, Report
from advisor.report.priorities import first_findings
from advisor.report.roofline import peaks_of, reach
from advisor.reports import _pages, _text
from advisor.reports._clean import Limits, clean, visible
from advisor.reports._names import short, trace_id
from advisor.reports.report import _draw, _host_time, _job, _memory, _queue, _serving, _tpu
from advisor.reports.report._checklist import checklist, tally
from advisor.reports.report._launches import launches_drawn
from advisor.reports.report._occupancy import occupancy_curve, occupancy_limits

if TYPE_CHECKING:
    from jinja2 import Environment, FileSystemBytecodeCache

    from advisor.report.charts import Picture

NAME = "html"
SUFFIX = ".html"
DRAWS = True

LIMIT = 3_000_000
"""The largest file, in bytes: one that mail, chat and CI artifacts still take and show."""
_TEMPLATES = Path(__file__).parents[1] / "templates"
# The first that fits. What the last one lets through is under the limit whatever the names hold.
_LIMITS = (
    Limits(),
    Limits(slices=180_000),
    Limits(text=800, findings=100, evidence=10, kernels=150, pages=20, slices=40_000),
    Limits(text=300, findings=50, evidence=5, steps=8, kernels=80, rows=100, pages=10, page=8_000, slices=8_000),
    Limits(text=100, findings=20, evidence=3, steps=5, kernels=30, rows=30, pages=0, slices=0),
)
_NAME_LENGTH = 72
_IGNORE = "When to ignore"


def render(shown: Analysis | Report) -> str:
    """The report, with its picture if there is one, as one HTML document of at most `LIMIT` bytes; what is cut is said in it."""
    for limits in _LIMITS:
        document = _document(report_in(shown), picture_in(shown) if limits.slices else None, limits)
        if len(document.encode()) <= LIMIT:
            break
    return document


def _document(report: Report, cut: Picture | None, limits: Limits) -> str:
    shown = clean(report, limits)
    # Drawings take all rows, of which tables show the first.
    drawn = clean(report, replace(limits, rows=sys.maxsize)) if report.kind == "job" or report.memory else shown
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    picture = _draw.shown(cut, limits.text) if cut else None
    pages = _rule_pages(shown, limits)
    peaks = peaks_of(shown)
    answers = checklist(shown, picture)
    return _environment().get_template("report.html.j2").render(
        report=shown,
        whole=report,
        anchors=_text.anchors(shown.findings),
        checklist=answers,
        answered=tally(answers),
        sections=_sections(report),
        drawings=_job.drawn(drawn) or _memory.drawn(drawn),
        totals=_memory.totals(drawn, drawn.memory) if drawn.memory else "",
        held_title=_memory.title(drawn.memory) if drawn.memory else "",
        data=_draw.embedded(shown, picture, limits.slices),
        ignore={at: _pages.section(page, _IGNORE) for at, page in pages.items()},
        left_out=visible(wording.left_out(report)),
        scales=wording.scales(shown),
        lanes=_draw.lanes(picture.step) if picture and picture.step else (),
        pages={at: _pages.without_section(page, _IGNORE) for at, page in pages.items()},
        peaks=peaks,
        picture=picture,
        queues=[_queue.said(curve) for curve in picture.queues] if picture else [],
        roofline=any(at.intensity > 0 for row in shown.kernels if (at := reach(row, peaks))),
        rows=limits.rows,
        cpu=_host_time,
        served=_serving,
        experts=_job.experts(shown),
        top=_first(shown),
        tpu_used=_tpu.used(shown),
        trace_id=trace_id(report.source.path),
        trust=wording.trust(shown),
        unrecorded_lines=_unrecorded_lines(shown),
        noun=wording.step_noun(shown),
        style=_asset("report.css"),
        script=script,
        digest=digest,
    )  # fmt: skip


def page(template: str, title: str, **context: object) -> str:
    """A document of another kind in the same clothes: a template that extends page.html.j2."""
    return _environment().get_template(template).render(title=title, style=_asset("report.css"), **context)


_FINDINGS = ("findings", "Findings")
_SECTIONS: dict[Kind, tuple[tuple[str, str], ...]] = {
    "trace": (
        ("cpu", "CPU"), ("timeline", "Timeline"), ("time", "Time"), _FINDINGS, ("serving", "Serving"), ("waits", "Waits"), ("compiled", "torch.compile"), ("tree", "Breakdown"), ("kernels", "Kernels"), ("ops", "Ops"), ("steps", "Steps"),
        ("roofline", "Roofline"), ("answers", "Questions"),
    ),
    "kernels": (_FINDINGS, ("roofline", "Roofline"), ("kernels", "Kernels"), ("why", "Kernel by kernel"), ("answers", "Questions")),
    "job": (("ranks", "Ranks"), _FINDINGS, ("serving", "Serving"), ("worst", "Timeline"), ("heat", "Steps"), ("waits", "Waits"), ("links", "Links")),
    "tpu": (("time", "Time"), _FINDINGS, ("categories", "Categories"), ("kernels", "Ops")),
    "collectives": (_FINDINGS,),
    "memory": (_FINDINGS, ("memory", "Over time"), ("peak", "Peak"), ("segments", "Segments")),
}  # fmt: skip
"""Of each kind's page, in its order, for the navigation: anchor and title."""


def _sections(report: Report) -> tuple[tuple[str, str], ...]:
    absent = {"kernels", "tree"} if not report.kernels else set()
    absent |= set() if report.ops or report.kind != "trace" else {"ops"}
    absent |= set() if report.host_waits or report.kind != "trace" else {"waits"}
    absent |= set() if report.compile_costs or report.kind != "trace" else {"compiled"}
    absent |= set() if report.serving else {"serving"}
    absent |= {"time", "steps", "roofline", "answers"} if report.host_time else {"cpu"}
    absent |= {"findings"} if report.host_time and not report.findings else set()
    return tuple(pair for pair in _SECTIONS[report.kind] if pair[0] not in absent)


def _first(report: Report) -> list[tuple[str, Finding]]:
    """What to do first, with the anchor of each."""
    pairs = list(zip(_text.anchors(report.findings), report.findings, strict=True))
    return [next(pair for pair in pairs if pair[1] is finding) for finding in first_findings(report)]


def _unrecorded_lines(report: Report) -> str:
    """How to record the lines of the program, if none of the first findings names one."""
    first = first_findings(report)
    return "" if any(wording.user_line(finding) for finding in first) else next((finding.lines_with for finding in first if finding.lines_with), "")


def _script() -> str:
    """All that runs: the page's own, then the charts, so that these break nothing if they fail."""
    return "\n".join([_asset("report.js"), "(() => {", *(_asset(f"{part}.js") for part in ("base", "timeline", "charts", "start")), "})();"])


def _rule_pages(report: Report, limits: Limits) -> dict[int, list[_pages.Block]]:
    """The page of each rule, by the position of the first finding of it."""
    first: dict[str, int] = {}
    for position, finding in enumerate(report.findings):
        first.setdefault(finding.rule, position)
    return {at: _pages.page_blocks(rule, limits.page) for rule, at in list(first.items())[: limits.pages]}


@cache
def _asset(name: str) -> str:
    """A file that the page inlines. It may not close its own element."""
    text = (_TEMPLATES / name).read_text(encoding="utf-8")
    if re.search(r"</(script|style)|<!--", text, re.IGNORECASE):
        raise ValueError(f"{name} would end the element that it stands in")
    return text


def web(url: str) -> str:
    """The address if it is one of the web, else nothing: a `javascript:` one is not to be clicked."""
    return url if re.fullmatch(r"https?://[^\s\\]+", url, re.IGNORECASE) else ""


def head_of(name: str) -> str:
    """A name that is too long for a table, as people say it; nothing if it is short."""
    said = short(name)
    return (f"{said[:_NAME_LENGTH]}…" if len(said) > _NAME_LENGTH else said) if len(name) > _NAME_LENGTH + 8 else ""


def _kept() -> FileSystemBytecodeCache | None:
    """Compiled templates, kept next to this module's bytecode if Python writes that. Compiling them takes a third of a small trace's page."""
    from jinja2 import FileSystemBytecodeCache

    folder = Path(__file__).with_name("__pycache__")
    if sys.dont_write_bytecode or not (folder.is_dir() and os.access(folder, os.W_OK)):
        return None
    return FileSystemBytecodeCache(str(folder), "%s.template")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        bytecode_cache=_kept(),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for function in (
        numbers.count,
        numbers.counted,
        numbers.duration,
        numbers.moment,
        numbers.percent,
        numbers.rate,
        numbers.size,
        _pages.cells,
        _text.code_spans,
        wording.first_fix_step,
        wording.place,
        wording.saving_basis,
        wording.slices,
        wording.source_line,
        head_of,
        web,
    ):
        made.filters[function.__name__] = function
    made.globals.update(launches_drawn=launches_drawn, occupancy_curve=occupancy_curve, occupancy_limits=occupancy_limits)
    made.globals.update(reach=reach, share=numbers.share, first_up=_text.first_up, short_path=_text.short_path, where=_text.section_anchor, words=wording)
    return made
