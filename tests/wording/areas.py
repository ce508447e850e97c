"""What is held to the language, area by area: each text with the place where to mend it."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import typer
from markdown_it import MarkdownIt

import advisor.errors
from advisor.cli import app
from advisor.engine.rule import built_in
from advisor.errors import AdvisorError
from advisor.knowledge.data import read
from tests.golden.facts import recordings
from tests.paths import ROOT
from tests.reports.by_hand import BY_HAND
from tests.reports.test_contract import formats
from tests.reports.words import said

Place = tuple[str, str]
"""Where a text is, and the text."""

CODE = ("advisor", "reports", "rules")
GENERATED = {
    "docs/reference.md", "docs/frameworks.md", "docs/inputs.md", "docs/accuracy.md", "docs/jobs-accuracy.md", "docs/true-steps.md", "docs/rules-by-sample.md",
    "docs/stability.md", "docs/ablation.md", "docs/lab.md", "rules/README.md",
}  # fmt: skip
"""Made of texts that are held where they are written."""
RECORDS = {"corpus/judged.md", "corpus/blind.md"}
"""Logs of experiments that are over: the corpus is frozen."""
ERRORS = {name for name, kind in vars(advisor.errors).items() if isinstance(kind, type) and issubclass(kind, AdvisorError)}
_MARKDOWN = MarkdownIt("commonmark").enable("table")
_SKIPPED_TAGS = ("script", "style", "code", "pre", "svg", "kbd")
_INLINE_TAGS = ("b", "i", "em", "strong", "a", "span", "abbr", "small")
_PROSE = re.compile(r"[A-Za-z]{2,}[,;:]? [a-z]{2,}[,;:]? [A-Za-z`{]")
"""Three words in a row: a string with fewer is a name or a label."""


def prose_of_markdown(text: str) -> Iterator[str]:
    """Each paragraph, item and cell of a document, without blocks of code; code in a line as `x`. A cell may be a list, parted by semicolons."""
    in_cell = False
    for token in _MARKDOWN.parse(text):
        in_cell = token.type in ("td_open", "th_open") or (in_cell and token.type == "inline")
        if token.type == "inline":
            parts = [
                "`x`" if part.type == "code_inline" else " " if part.type == "softbreak" else "" if part.type == "html_inline" else part.content
                for part in token.children or ()
            ]
            yield from "".join(parts).split("; ") if in_cell else ("".join(parts),)


class _Visible(HTMLParser):
    """The texts that a page shows, one a block."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts, self.hidden = [""], 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts += [line for name, value in attrs if name in ("title", "aria-label") and value for line in value.splitlines()] + [""] * (
            tag not in _INLINE_TAGS
        )
        if tag in _SKIPPED_TAGS:
            self.hidden += 1

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in _SKIPPED_TAGS
        if tag not in _INLINE_TAGS:
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        self.texts[-1] += " x " if self.hidden else data


def pages() -> Iterator[Place]:
    """Rules' pages and methods, without the code and links in them."""
    for rule in built_in().values():
        text = re.sub(r"^([A-Z][a-z]+(?: [a-z]+)*)$", r"\n### \1\n", rule.page, flags=re.MULTILINE)
        yield from ((f"rules/{rule.id}", part) for part in prose_of_markdown(f"{text}\n\n{rule.method}"))


def help_texts() -> Iterator[Place]:
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        yield f"advisor {name}", inspect.cleandoc(command.help or "")
        for option in command.params:  # a list of formats is parted by semicolons
            yield from ((f"advisor {name} {'/'.join(option.opts)}", part) for part in (getattr(option, "help", None) or "").split("; "))


def docs() -> Iterator[Place]:
    """Documents in Markdown that people write, but for the changelog."""
    places = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "samples").glob("*.md"), *(ROOT / "corpus").glob("*.md")]
    for path in sorted(places):
        name = path.relative_to(ROOT).as_posix()
        if name not in GENERATED | RECORDS and path.name != "CHANGELOG.md":
            yield from ((name, part) for part in prose_of_markdown(path.read_text(encoding="utf-8")))


def changelog() -> Iterator[Place]:
    yield from (("CHANGELOG.md", part) for part in prose_of_markdown((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))


@cache
def trees() -> list[tuple[str, ast.Module]]:
    """Each file of code by its path, parsed."""
    files = sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py"))
    return [(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))) for path in files]


def docstrings() -> Iterator[Place]:
    """Docstrings of modules, classes, functions and values, but for rules' pages and commands' help."""
    for name, tree in trees():
        for node in ast.walk(tree):
            body = getattr(node, "body", ()) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) else ()
            if isinstance(node, ast.FunctionDef) and (name.startswith("advisor/cli/") or any("rule(" in ast.unparse(d) for d in node.decorator_list)):
                continue
            for at in body:
                if isinstance(at, ast.Expr) and isinstance(at.value, ast.Constant) and isinstance(at.value.value, str):
                    yield f"{name}:{at.lineno}", inspect.cleandoc(at.value.value)


def _texts(node: ast.AST, without: frozenset[int] = frozenset()) -> Iterator[tuple[int, str]]:
    """The strings of code, values in them as `x`; without docstrings, and without the nodes of those ids."""
    if id(node) in without or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return
    if isinstance(node, ast.JoinedStr):
        yield node.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else "`x`" for part in node.values)
        for part in node.values:  # a text may be chosen inside
            yield from _texts(part, without) if isinstance(part, ast.FormattedValue) else ()
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.lineno, node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child, without)


def _raised(tree: ast.AST) -> Iterator[ast.Call]:
    """The errors of ours that code makes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (getattr(node.func, "id", "") in ERRORS or getattr(node.func, "id", "") == "unknown_name"):
            yield node


def errors() -> Iterator[Place]:
    """Messages and hints of errors, and the exit codes' meanings."""
    yield from (("advisor/errors.py", meaning) for meaning in advisor.errors.EXIT_CODES.values())
    for name, tree in trees():
        yield from ((f"{name}:{line}", text) for call in _raised(tree) for line, text in _texts(call) if _PROSE.search(text))


def strings() -> Iterator[Place]:
    """Other sentences in code and data, which reports are made of: a string of three words or more."""
    for name, tree in trees():
        if not name.startswith("advisor/cli/"):
            without = frozenset(id(call) for call in _raised(tree))
            yield from ((f"{name}:{line}", text) for line, text in _texts(tree, without) if _PROSE.search(text))
    for path in sorted(path for folder in ("rules", "reports", "advisor/knowledge") for path in (ROOT / folder).rglob("*.toml")):
        yield from ((path.relative_to(ROOT).as_posix(), text) for _, text in said(read(path)) if _PROSE.search(text))


def shown(what: Any, package: str, place: str) -> Iterator[Place]:
    """All that each format shows of a report, without the names that stand in code or in fields for names."""
    for name, form in formats(package).items():
        text, kind = form.render(what), form.SUFFIX.rpartition(".")[2]
        parts = list(TEXTS.get(kind, prose_of_text)(text))
        yield from ((f"{place} as {name}", part) for part in parts if _PROSE.search(part) and not _KERNEL.fullmatch(part.strip()))


_KERNEL = re.compile(r"(?:void )?[\w:]+(?:::|<).*[)>…]", re.DOTALL)
"""A kernel's name, and nothing else."""
_TITLE = re.compile(r"^(\d+ (?:HIGH|MEDIUM|LOW|INFO) .*|  .* · [a-z0-9]+(?:-[a-z0-9]+)*)$", re.MULTILINE)
"""A finding's title, or the line of figures below it."""
_BOTTLENECK = re.compile(r"^[A-Z][A-Z -]+(?=  [A-Z0-9])", re.MULTILINE)


def prose_of_text(text: str) -> Iterator[str]:
    """Paragraphs of a terminal's text: lines of one indent that follow each other; a title is a paragraph. The bottleneck before its sentence is not in capitals here."""
    text = _TITLE.sub(r"\1\n", _BOTTLENECK.sub(lambda match: match[0].lower(), text))
    for paragraph in re.split(r"\n\s*\n|\n(?=\S)|\n(?= +[-·█] )", text):
        yield " ".join(line.strip() for line in paragraph.splitlines())


def prose_of_xml(text: str) -> Iterator[str]:
    for node in ElementTree.fromstring(text).iter():
        yield from (node.text or "", node.get("message") or "")


TEXTS: dict[str, Callable[[str], Iterator[str]]] = {
    "html": lambda page: iter(_Visible(page).texts),
    "md": prose_of_markdown,
    "json": lambda text: (part for _, part in said(json.loads(text))),
    "sarif": lambda text: (part for place, part in said(json.loads(text)) if ".help" not in place),  # rules' pages are held where they are written
    "xml": prose_of_xml,
}
"""What a person reads in a file of that suffix."""


def reports_by_hand() -> Iterator[Place]:
    """Reports of a recording of each kind, in every format."""
    for name, make in BY_HAND.items():
        yield from shown(make(), "report", name)


def reports() -> Iterator[Place]:
    """Reports of every sample, in every format: minutes."""
    from advisor.engine.run import report_of

    for path in recordings():
        if path.is_relative_to(ROOT / "samples"):
            try:
                report = report_of(path)
            except AdvisorError as error:
                yield str(path), f"{error.message}\n\n{error.hint}"
                continue
            yield from shown(report, "report", path.relative_to(ROOT / "samples").as_posix())


AREAS: dict[str, Callable[[], Iterator[Place]]] = {
    "pages": pages,
    "help": help_texts,
    "errors": errors,
    "docs": docs,
    "changelog": changelog,
    "strings": strings,
    "docstrings": docstrings,
    "reports-by-hand": reports_by_hand,
}
SLOW_AREAS = {"reports": reports}
