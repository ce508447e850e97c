"""What every format promises: found without a registry, the same words as before, and nothing in a name is markup."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from json import dumps as json_lines
from json import loads
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from markdown_it import MarkdownIt

import advisor.reports
from advisor.engine.checklist import checklist
from advisor.report import wording
from advisor.report.finding import Evidence
from advisor.report.kernels import KernelRow
from advisor.report.model import Report
from advisor.report.recording import Health, Idle, matrix_units
from advisor.reports import _clean, _pages, _text, formats
from advisor.reports.comparison import formats as of_a_comparison
from advisor.reports.report import html, json, markdown, text
from tests.differences import rounded
from tests.paths import slow, slowly
from tests.reports.by_hand import BY_HAND, comparison
from tests.reports.examples import EXAMPLES, NASTY, healthy, hostile, launch_bound, memory_bound

GOLDEN = Path(__file__).with_name("golden")
"""What is said, whole, for a person to read: of reports made by hand, and of recordings made by hand as they are analysed."""

FIGURES = 3
"""Of each number that a golden in JSON holds: a person reads no more."""


def golden(name: str, made: str) -> None:
    """Compare with the file; `ADVISOR_UPDATE_GOLDEN=1 pytest tests/reports` writes it instead, for you to read the diff."""
    path = GOLDEN / name
    if os.environ.get("ADVISOR_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(made, encoding="utf-8", newline="\n")
    assert made == path.read_text(encoding="utf-8")


def readable(made: str) -> str:
    """The same JSON, a field a line and no number longer than a person reads."""
    return f"{json_lines(rounded(loads(made), FIGURES), indent=1, ensure_ascii=False)}\n"


def many(report: Report, number: int) -> Report:
    """The report with so many findings, kernels and rules of each kind."""

    def times(items: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(items[at % len(items)] for at in range(number)) if items else ()

    lists = ("findings", "kernels", "clear", "skipped", "failed", "health", "devices", "time")
    return msgspec.structs.replace(report, **{name: times(getattr(report, name)) for name in lists})


class Parsed(HTMLParser):
    """Elements with their attributes, and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.comments: list[str] = []
        self.closed: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.closed.append(tag)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def handle_data(self, data: str) -> None:
        self.text += data

    def attributes(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.elements if name in attrs]


# --- discovery


def test_formats_are_the_modules() -> None:
    found = formats()
    files = {path.stem for path in (Path(advisor.reports.__file__).parent / "report").glob("*.py") if not path.stem.startswith("_")}
    assert {module.__name__.rpartition(".")[2] for module in found.values()} == files  # type: ignore[attr-defined]
    assert len({form.SUFFIX for form in found.values()}) == len(found)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("form", formats())
def test_rendering_is_deterministic_and_encodable(name: str, form: str) -> None:
    report = EXAMPLES[name]()
    made = formats()[form].render(report)
    assert made.encode() == formats()[form].render(report).encode()
    assert made.endswith("\n")


@pytest.mark.parametrize("form", formats())
def test_a_report_of_nothing_is_written(form: str) -> None:
    """No device, no check, no rule; and a device whose window is empty."""
    bare = healthy()
    nothing = msgspec.structs.replace(bare.time[0], **dict.fromkeys(("window_us", "compute_us", "exposed_copy_us", "idle_us"), 0.0), idle=Idle())
    lists = ("devices", "health", "clear", "skipped", "kernels")
    for time in ((), (nothing,)):
        assert formats()[form].render(msgspec.structs.replace(bare, **dict.fromkeys(lists, ()), time=time))


# --- golden files


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("form", [text, markdown], ids=["text", "markdown"])
def test_what_is_said_of_a_report(name: str, form: ModuleType) -> None:
    golden(f"{name}{form.SUFFIX}", form.render(EXAMPLES[name]()))


@pytest.mark.parametrize("name", ["launch-bound", "memory-bound", "healthy"])
def test_what_json_holds_of_a_report(name: str) -> None:
    golden(f"{name}.json", json.render(EXAMPLES[name]()))


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("form", [text, markdown, json], ids=["text", "markdown", "json"])
def test_what_is_said_of_a_recording(name: str, form: ModuleType) -> None:
    made = form.render(BY_HAND[name]())
    golden(f"{name}{form.SUFFIX}", readable(made) if form is json else made)


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_what_is_said_of_a_comparison(form: str) -> None:
    made = of_a_comparison()[form].render(comparison())
    golden(f"comparison{of_a_comparison()[form].SUFFIX}", readable(made) if form == "json" else made)


# --- json


@pytest.mark.parametrize("name", ["launch-bound", "memory-bound", "healthy"])
def test_json_round_trips(name: str) -> None:
    report = EXAMPLES[name]()
    assert Report.from_json(json.render(report).encode()) == report


def test_json_writes_a_lone_surrogate_as_its_escape() -> None:
    report = msgspec.structs.replace(healthy(), advisor="\udc80 x")
    assert Report.from_json(json.render(report).encode()).advisor == r"\udc80 x"


# --- markdown


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("number", [1, 500])
def test_markdown_fits_a_comment(name: str, number: int) -> None:
    made = markdown.render(many(EXAMPLES[name](), number))
    assert len(made) < markdown.LIMIT
    if number == 500 and EXAMPLES[name]().findings:
        assert "in the full report" in made
        assert "### 500 findings" in made


@pytest.mark.parametrize("char", slowly(["<", "@", "`", "\n", "😀", "#1"], quick=1))
def test_markdown_fits_whatever_the_names_hold(char: str) -> None:
    def fill(value: object, key: str = "") -> object:
        if isinstance(value, str):
            if key in ("severity", "basis", "true_step_basis", "status", "kind", "unit", "judged", "judged_reason", "reason", "missing", "excluded", "per"):
                return value
            return " " * 240 if key == "summary" else char * 5_000
        if isinstance(value, (list, tuple)):
            return [fill(item, key) for item in value]
        return {name: fill(item, name) for name, item in value.items()} if isinstance(value, dict) else value

    report = msgspec.convert(fill(msgspec.to_builtins(many(memory_bound(), 60))), Report)
    assert len(markdown.render(report).encode()) < markdown.LIMIT
    assert len(html.render(report).encode()) < html.LIMIT
    assert len(text.render(report).splitlines()) < 90


def test_markdown_of_hostile_names_has_no_element_link_or_broken_table() -> None:
    made = markdown.render(hostile())
    parser = MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough")
    page = Parsed(parser.render(made))
    allowed = {"h2", "h3", "p", "strong", "sub", "code", "pre", "details", "summary", "b", "ol", "ul", "li"}
    allowed |= {"table", "thead", "tbody", "tr", "th", "td"}
    assert {tag for tag, _ in page.elements} <= allowed
    assert {name for _, attrs in page.elements for name in attrs} <= {"style", "class"}
    assert page.comments == [" trace-advisor "], "our marker alone"
    for table in re.findall(r"(?:^\|.*\n)+", made, re.MULTILINE):
        columns = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(columns) == 1
    assert [tag for tag, _ in page.elements].count("details") == page.closed.count("details") == 12


def test_markdown_mentions_nobody() -> None:
    """Outside of code, where GitHub does not look, each @ and #1 is cut from what follows it."""
    made = MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown.render(hostile()))
    outside = re.sub(r"<(code|pre)\b.*?</\1>", "", made, flags=re.DOTALL)
    outside = unescape(outside)
    assert "torvalds" in outside
    assert not re.search(r"@\w|#\d|\bGH-\d", outside)


@pytest.mark.parametrize("plain", ["aten::add 3 #x", "a_b_c", "12:30", "1.5 ms (3%)", "a-b", "x = y"])
def test_escape_leaves_plain_text_readable(plain: str) -> None:
    assert markdown.escape(plain).replace("&#58;", ":") == plain


def test_a_fence_is_longer_than_any_in_the_code() -> None:
    block = markdown._diff("````", "x")
    assert block[0] == "`````diff"
    assert block[-1] == "`````"


# --- text


@pytest.mark.parametrize("name", ["launch-bound", "memory-bound", "healthy"])
def test_text_fits_a_screen(name: str) -> None:
    lines = text.render(EXAMPLES[name]()).splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("width", [40, 60, 100, 200])
@pytest.mark.parametrize("name", EXAMPLES)
def test_text_keeps_to_its_width(name: str, width: int) -> None:
    assert max(map(len, text.render(EXAMPLES[name](), width=width).splitlines())) <= width


def test_a_narrow_terminal_leaves_titles_and_sentences_whole() -> None:
    report = launch_bound()
    shown = " ".join(text.render(report, width=40).split())
    for finding in report.findings[:3]:
        assert f"{finding.title}: " in shown and (finding.folded_into or finding.summary in shown)


def test_commands_are_whole_where_no_terminal_shows_them() -> None:
    report = launch_bound()
    report = msgspec.structs.replace(report, source=msgspec.structs.replace(report.source, path="traces/" + "run" * 30 + ".json.gz"))
    command = f"advisor analyze {report.source.path} -f perfetto -o step.json"
    assert command in text.render(report) and command not in text.render(report, width=100)


def test_text_ignores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, coloured = text.render(launch_bound()), text.render(launch_bound(), color=True)
    for name, value in {"NO_COLOR": "1", "COLUMNS": "20", "FORCE_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
        assert text.render(launch_bound()) == plain
        assert text.render(launch_bound(), color=True) == coloured
        monkeypatch.delenv(name)


def test_text_emits_no_escape_of_a_name() -> None:
    made = text.render(hostile())
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b]", made)
    assert r"\x1b[31mred\x1b[0m" in made
    assert "[bold red]markup[/]" in made
    coloured = text.render(hostile(), color=True)
    assert coloured != made
    assert re.sub(r" +$", "", re.sub(r"\x1b\[[0-9;]*m", "", coloured), flags=re.MULTILINE) == made
    assert r"\x1b[31mred" in coloured


def test_text_bar_fills_its_room() -> None:
    assert text._cells([1.0, 1.0, 1.0], 10) in ([4, 3, 3], [3, 4, 3], [3, 3, 4])
    assert text._cells([], 10) == []


# --- html


@slow
def test_html_is_under_its_limit() -> None:
    for make in EXAMPLES.values():
        assert len(html.render(make()).encode()) < 400_000
        assert len(html.render(many(make(), 500)).encode()) < html.LIMIT


def test_html_runs_only_its_own_script() -> None:
    page = html.render(hostile())
    policy = next(a["content"] or "" for t, a in Parsed(page).elements if a.get("http-equiv") == "Content-Security-Policy")
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy
    assert page.count("<script") == page.count("</script>") == 2, "its own, and data that is never run"
    assert page.count('<script type="application/json" id="data">') == 1


def test_html_takes_no_element_or_attribute_from_the_data() -> None:
    """What the hostile page is made of is what the others are made of."""
    known: dict[str, set[str]] = {}
    for make in (launch_bound, memory_bound, healthy):
        distrusted = msgspec.structs.replace(make(), health=(Health(check="steps", status="failed", detail="why"),))
        for report in (make(), many(make(), 30), distrusted):
            for tag, attrs in Parsed(html.render(report)).elements:
                known.setdefault(tag, set()).update(attrs)
    page = Parsed(html.render(hostile()))
    for tag, attrs in page.elements:
        assert tag in known
        assert set(attrs) <= known[tag] | {"id"}, (tag, attrs)
    assert not page.comments
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert all(value.startswith(("#", "https://", "http://", "data:,")) for value in page.attributes("href"))
    assert all(re.fullmatch(r"(--?[a-z-]+:[0-9.]+;?)+|flex-grow:[0-9.]+", value) for value in page.attributes("style"))
    for name in NASTY[:2]:
        assert name in page.text
    assert r"\x1b[31mred\x1b[0m\x07\x00 \r\n| a | b |" in page.text
    assert "{{ 7 * 7 }}" in page.text


@pytest.mark.parametrize("url", ["javascript:alert(1)", "data:text/html,x", " https://x", "//x", "https://x y", "\x01https://x"])
def test_html_links_only_to_the_web(url: str) -> None:
    assert html.web(url) == ""


@pytest.mark.parametrize("name", EXAMPLES)
def test_html_is_sound(name: str) -> None:
    page = Parsed(html.render(EXAMPLES[name]()))
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    assert not [i for i in ids if re.search(r"\s", i)]
    targets = {value[1:] for value in page.attributes("href") if value.startswith("#")}
    assert targets <= set(ids)
    for reference in ("aria-labelledby", "aria-describedby", "data-search", "for"):
        assert set(page.attributes(reference)) <= set(ids)
    tags = [tag for tag, _ in page.elements]
    assert tags.count("h1") == tags.count("main") == tags.count("nav") == 1
    assert tags.count("table") == tags.count("caption")
    levels = [int(tag[1]) for tag in tags if re.fullmatch(r"h\d", tag)]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    loads = {"src", "srcset", "poster", "action", "formaction", "ping", "background"}
    assert not any(loads & set(attrs) for _, attrs in page.elements)


def test_html_says_what_it_left_out() -> None:
    report = launch_bound()
    finding = msgspec.structs.replace(report.findings[0], evidence=(Evidence(label="e", start_us=0, dur_us=1),) * 50)
    kernels = tuple(KernelRow(name=f"k{at}", family="gemm", precision="", calls=1, total_us=1, mean_us=1, share=0) for at in range(400))
    page = Parsed(html.render(msgspec.structs.replace(report, findings=(finding,), kernels=kernels))).text
    assert "30 more in the JSON report" in page
    assert "The 300 largest of 400" in page
    page = Parsed(html.render(msgspec.structs.replace(report, findings=(report.findings[2],) * 250))).text
    assert "50 findings with smaller savings are in the JSON report" in page


def test_html_deep_links() -> None:
    ids = Parsed(html.render(launch_bound())).attributes("id")
    assert [i for i in ids if i.startswith("finding-")] == ["finding-launch-gap", "finding-sync-stall", "finding-launch-gap-2"]


def test_html_of_a_healthy_report_says_what_bounds_it_and_what_was_checked() -> None:
    page = Parsed(html.render(healthy())).text
    for said in ("Nothing to fix was found", "8 rules looked and found nothing", "compute-bound", "81% of the dense BF16 peak"):
        assert said in page


def test_html_shows_a_rules_page_once_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    page = "Title\n\nWhat\nA `gap` <b>.\n\nHow to fix\nTry:\n\n    a < b\n\n- one\n- two\n  more\n\nReferences\nhttps://x.y/z\n"
    monkeypatch.setattr(_pages, "page", lambda rule: page if rule == "launch-gap" else None)
    made = html.render(launch_bound())
    assert made.count("About this rule") == 1
    assert "<h5>What</h5>" in made
    assert "A <code>gap</code> &lt;b&gt;." in made
    assert "<li>two more</li>" in made
    assert "<code>a &lt; b</code>" in made
    assert '<li><a href="https://x.y/z" rel="noopener noreferrer">https://x.y/z</a></li>' in made


def test_html_finds_the_pages_of_the_rules() -> None:
    made = html.render(launch_bound())
    assert made.count("About this rule") == 2
    assert made.count("<h4>When to ignore</h4>") == 2
    assert made.count("<h5>When to ignore</h5>") == 0, "it stands outside of the page"
    assert made.count("<h4>How it was measured</h4>") == 3


def test_templates_cannot_end_their_own_element(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.js").write_text("'</script>'")
    monkeypatch.setattr(html, "_TEMPLATES", tmp_path)
    with pytest.raises(ValueError, match="would end the element"):
        html._asset("x.js")


# --- helpers


def test_unseen_characters_are_made_visible() -> None:
    assert _clean.visible("a\x1b[0m\u202eb\n\x9b\ud800") == r"a\x1b[0m\u202eb\n\x9b\ud800"
    assert _clean.visible("a\tb\r\nc\x00", lines=True) == "a\tb\nc\\x00"


def test_what_is_cut_off_is_counted_and_not_looked_at() -> None:
    assert _clean.shortened("abc", 3) == "abc" and _clean.shortened("abcde", 3) == "abc… (+2 characters)"
    assert _clean.shortened("a\nb", 3) == "a\\n… (+1 characters)", "an escape takes two"
    assert len(_clean.shortened("\n" * 10_000_000, 3)) < 40


def test_slices_are_all_of_the_window_but_what_recording_took() -> None:
    for make in EXAMPLES.values():
        for time in make().time:
            assert sum(part.us for part in wording.slices(time)) == pytest.approx(time.window_us - time.idle.profiler)
            assert sum(part.share for part in wording.slices(time)) == pytest.approx(1)


def test_anchors_are_unique() -> None:
    finding = launch_bound().findings[0]
    rules = ("a", "a", "a-2", "team/a", "team-a", "\n<>")
    made = _text.anchors(tuple(msgspec.structs.replace(finding, rule=rule) for rule in rules))
    assert made == ["finding-a", "finding-a-2", "finding-a-2-2", "finding-team-a", "finding-team-a-2", "finding-unnamed"]


def test_what_qualifies_a_finding_is_said_where_only_its_title_is() -> None:
    report = launch_bound()
    of = report.findings[0]
    possible, folded = (msgspec.structs.replace(of, status="possible", decide_with="look"), msgspec.structs.replace(of, folded_into="launch-gap"))
    shown = text.render(msgspec.structs.replace(report, findings=(of, of, of, possible, folded)))
    assert shown.count("\n  Unconfirmed.\n") == 1 and shown.count("Mostly covered by fixing launch-gap.") == 1


@pytest.mark.parametrize("per", ["request", "sample"])
def test_what_more_requests_in_a_step_gain_is_said_of_a_request_in_every_format(per: str) -> None:
    report = launch_bound()
    finding = msgspec.structs.replace(report.findings[0], saving=msgspec.structs.replace(report.findings[0].saving, per=per))
    shown = msgspec.structs.replace(report, findings=(finding,))
    for name in ("html", "text", "markdown", "sarif", "junit", "gitlab"):
        assert f"step time per {per}" in formats()[name].render(shown), name
        assert f"time per {per}" not in formats()[name].render(msgspec.structs.replace(report, findings=report.findings[:1])), name


def test_the_legend_of_the_bar_holds_each_glyph_that_is_drawn() -> None:
    report = launch_bound()
    (time, *_) = report.time or ()
    window, drawn = msgspec.structs.replace(report.traced, recording_us=0.0), 0
    for launch in range(300, 700, 10):  # a cell that rounding leaves over may go to less than half a percent
        idle = Idle(launch=launch, host=996 - launch)
        little = msgspec.structs.replace(time, window_us=1000, compute_us=0, exposed_comm_us=0, exposed_copy_us=4, exposed_memset_us=0, idle_us=996, idle=idle)
        shown = text.render(msgspec.structs.replace(report, time=(little,), window=window))
        _, bar, legend = re.split(r"\nGPU 0|\n +(?=▒|-|:)", shown, maxsplit=2)
        drawn += "▒" in bar
        assert ("▒" in bar) == ("▒ exposed copies <0.1%" in legend or "▒ exposed copies 0.4%" in legend)
    assert drawn


def test_a_bottleneck_is_a_heading() -> None:
    assert [_text.first_up(name) for name in ("dram-bound", "gpu-bound", "launch-bound")] == ["DRAM-bound", "GPU-bound", "Launch-bound"]


@pytest.mark.parametrize(("device", "units"), [("AMD Instinct MI300X", "Matrix Cores"), ("NVIDIA H200", "Tensor Cores"), ("", "Tensor Cores")])
def test_matrix_units_are_called_what_their_maker_calls_them(device: str, units: str) -> None:
    report = healthy()
    named = msgspec.structs.replace(report, devices=tuple(msgspec.structs.replace(d, name=device) for d in report.devices))
    assert f"Are {units} used?" in {answer.question for answer in checklist(named)}
    assert matrix_units(named.devices) == units


@pytest.mark.parametrize(
    ("changes", "low_us", "reason"),
    [
        ({"status": "possible"}, None, "unconfirmed"),
        ({"folded_into": "graph-candidate"}, None, "mostly covered by the CUDA graph candidate"),
        ({"excluded": "alternative"}, None, "an alternative to another fix"),
        ({}, 0.0, "may save nothing"),
        ({}, 1.0, "may save little"),
        ({"confidence": 0.6}, None, "uncertain diagnosis"),
        ({"confidence": 0.9}, None, ""),
    ],
)
def test_a_severity_below_that_of_the_saving_has_its_reason(changes: dict[str, object], low_us: float | None, reason: str) -> None:
    report = launch_bound()
    first = msgspec.structs.replace(report.findings[0], severity="low", **changes)
    if low_us is not None:
        first = msgspec.structs.replace(first, saving=msgspec.structs.replace(first.saving, low_us=low_us))
    assert wording.rated_lower(first, report) == (f"rated low: {reason}" if reason else "")
    assert wording.rated_lower(msgspec.structs.replace(first, severity="high"), report) == ""
