"""What every installed format keeps to, whatever it shows and whoever adds it: a name in a trace is a name and nothing else."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

import advisor.reports
from advisor.reports._clean import visible
from advisor.reports._discover import Format, formats_in
from tests.reports.shown import MAKERS, shown

PACKAGES: dict[str, ModuleType] = {
    found.name: importlib.import_module(f"advisor.reports.{found.name}")
    for found in pkgutil.iter_modules(advisor.reports.__path__)
    if found.ispkg and found.name != "templates"
}

FOR_PROGRAMS = "json"
"""The format that programs read back: a text stands in it as it was recorded, and the syntax keeps it apart."""

made = cache(shown)


def formats(package: str) -> dict[str, Format[Any]]:
    return formats_in(PACKAGES[package].__name__, PACKAGES[package].__path__)


INSTALLED = [(package, name) for package in PACKAGES for name in formats(package)]


@pytest.mark.parametrize("package", PACKAGES)
def test_there_is_a_nasty_one_of_all_that_formats_show(package: str) -> None:
    assert package in MAKERS, f"say in tests/reports/shown.py how to make what advisor.reports.{package} shows"


@pytest.mark.parametrize(("package", "name"), INSTALLED)
def test_a_format_is_called_as_its_file(package: str, name: str) -> None:
    assert name == importlib.import_module(f"advisor.reports.{package}.{name}").NAME


@pytest.mark.parametrize(("package", "name"), INSTALLED)
def test_no_name_of_a_trace_acts(package: str, name: str) -> None:
    form = formats(package)[name]
    for thing in made(package):
        check(form.render(thing), form.SUFFIX, as_recorded=name == FOR_PROGRAMS)


def check(text: str, suffix: str, *, as_recorded: bool = False) -> None:
    """Raises AssertionError where a text that was shown drives a terminal, is markup, or breaks the file's syntax."""
    kind = suffix.rpartition(".")[2]
    text.encode()
    if not as_recorded:
        assert visible(text, lines=True) == text.replace("\r\n", "\n"), "pass what is shown through advisor.reports._clean"
    assert kind in SYNTAX, f"say in SYNTAX how a name could act in a {suffix} file"
    SYNTAX[kind](text)


class _Page(HTMLParser):
    """Elements of a page that could act, but for the page's own script, which its policy names."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.bad: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag in ("img", "iframe", "object", "embed", "base", "form"):
            self.bad.append(tag)
        self.bad += [name for name in named if name.startswith("on") or name in ("src", "autofocus")]
        self.bad += [value for name in ("href", "action") if (value := named.get(name)) and value.lower().startswith("javascript:")]

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script" and "document.title='pwned'" in data and not data.lstrip().startswith("{"):
            self.bad.append("script")

    def handle_comment(self, data: str) -> None:
        if data.strip().partition(":")[0] != "trace-advisor":
            self.bad.append("comment")


def _html(text: str) -> None:
    assert not _Page(text).bad


def _markdown(text: str) -> None:
    assert not _Page(MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(text)).bad


@pytest.mark.parametrize("package", [package for package, name in INSTALLED if name == "markdown"])
def test_githubs_own_parser_makes_the_same_tables_and_nothing_that_acts(package: str) -> None:
    cmark = pytest.importorskip("cmarkgfm.cmark")
    for thing in made(package):
        text = formats(package)["markdown"].render(thing)
        page = cmark.markdown_to_html_with_extensions(text, cmark.Options.CMARK_OPT_UNSAFE, ["table", "strikethrough", "autolink"])
        assert not _Page(page).bad
        by_another = MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(text)
        assert [page.count(tag) for tag in ("<table>", "<tr>", "<th", "<td")] == [by_another.count(tag) for tag in ("<table>", "<tr>", "<th", "<td")]


def _xml(text: str) -> None:
    assert {element.tag for element in ElementTree.fromstring(text).iter()} <= {
        "testsuites", "testsuite", "testcase", "properties", "property", "failure", "error", "skipped", "system-out", "system-err"
    }  # fmt: skip


SYNTAX: dict[str, Callable[[str], Any]] = {
    "html": _html, "md": _markdown, "xml": _xml, "json": json.loads, "sarif": json.loads, "txt": lambda text: None
}  # fmt: skip
"""By the end of a format's suffix. A new one says here how a name could act in it."""

CARELESS = """
NAME, SUFFIX = "{name}", "{suffix}"

def render(report):
    return {code}
"""


@pytest.mark.parametrize(
    ("suffix", "code"),
    [
        (".txt", "'\\n'.join(f.title for f in report.findings)"),
        (".html", "f'<p>{report.findings[0].fix.steps}</p>'.replace('\\x1b', '')"),
        (".md", "'\\n'.join(f.fix.title for f in report.findings)"),
        (".careless.xml", "f'<testsuites>{report.findings[0].fix.steps}</testsuites>'"),
        (".careless.json", "f'\"{report.findings[0].fix.steps}\"'"),
    ],
)
def test_a_new_format_that_shows_names_as_they_are_fails(suffix: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found like any other, for lying there, and the test above would refuse it."""
    name = "careless" + suffix.replace(".", "_")
    (tmp_path / f"{name}.py").write_text(CARELESS.format(name=name, suffix=suffix, code=code))
    monkeypatch.setattr(PACKAGES["report"], "__path__", [*PACKAGES["report"].__path__, str(tmp_path)])
    form = formats("report")[name]
    with pytest.raises((AssertionError, ValueError, ElementTree.ParseError)):
        for thing in made("report"):
            check(form.render(thing), form.SUFFIX)
