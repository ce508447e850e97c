"""What reports say, held against how people write: numbers, plurals, words."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from advisor.cli import app
from advisor.compare import compare
from advisor.engine.rule import catalog
from advisor.knowledge.stacks import packs
from advisor.report.model import Report
from advisor.reports.comparison import formats as of_a_comparison
from advisor.reports.report import text
from tests.analysed import analysed
from tests.paths import ROOT
from tests.reports.by_hand import BY_HAND
from tests.reports.words import faults, said


def wrong(report: Report) -> list[tuple[str, str, str]]:
    """Faults of a report, in its JSON and as text: where, which, and what is said there."""
    texts = [*said(json.loads(report.to_json())), *(("text", line.strip()) for line in text.render(report).splitlines() if "idle:" not in line)]
    return [(where, fault, told) for where, told in texts for fault in faults(told) if where != "text" or not fault.startswith("space")]


@pytest.mark.parametrize("name", BY_HAND)
def test_each_kind_of_recording(name: str) -> None:
    assert not wrong(BY_HAND[name]())


@pytest.mark.parametrize("recording", sorted((ROOT / "samples").glob("*/slow.*")), ids=lambda path: path.parent.name)
def test_each_rule_that_has_found_something(recording: Path) -> None:
    """Of samples that other tests analyse too."""
    assert not wrong(analysed(recording))


def test_a_comparison() -> None:
    eager, captured = BY_HAND["eager"](), BY_HAND["captured"]()
    for before, after in ((eager, captured), (captured, eager), (eager, eager)):
        made = compare([before], [after])
        told = of_a_comparison()["text"].render(made)
        assert not faults(made.summary) and not [fault for line in told.splitlines() for fault in faults(line) if not fault.startswith("space")]


def test_the_rules_pages() -> None:
    """Their numbers are their authors'; their words are held to the same."""
    assert not [
        (rule.id, fault)
        for rule in catalog().values()
        for line in rule.page.splitlines()
        if not line.startswith("    ")  # code
        for fault in faults(line.strip())
        if not fault.startswith(("digits", "no word"))
    ]


def test_what_fixes_say() -> None:
    """Held even where no sample that is read makes a rule, or a framework's words for it, say it."""
    told = [(pack.name, text) for pack in packs().values() for o in pack.options for text in (o.title, o.does, o.leave, *o.then, o.effects)]
    for file in (ROOT / "rules").glob("*.py"):
        fixes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Fix"]
        values = [word.value for fix in fixes for word in fix.keywords if word.arg in ("title", "steps", "risk")]
        told += [(file.name, part.value) for value in values for part in ast.walk(value) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    # A value of an option may be None or NaN.
    assert not [(file, fault, text) for file, text in told for fault in faults(text) if not fault.startswith("no word")]


def test_the_commands_help() -> None:
    """Each fits its line of `advisor -h` whole, and is a sentence."""
    import typer

    for command, shown in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        short = shown.get_short_help_str(64)
        assert short.endswith(".") and not short.endswith("..."), (command, short)
        assert not faults(shown.help or "") and all(option.help for option in shown.params if option.param_type_name == "option"), command


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("in 1 chains of up to 3", ["one of several"]),
        ("1 attentions a step take 2 ms", ["one of several"]),
        ("over 1 saved reports", ["one of several"]),
        ("all 1 ranks wait", ["one of all", "one of several"]),
        ("the the step", ["twice"]),
        ("does 3.3e+03 GFLOP", ["exponent"]),
        ("makes 0.0 calls a step", ["nothing"]),
        ("339.2 samples a second", ["digits"]),
        ("in None of them", ["no word"]),
        ("a op and an kernel", ["article", "article"]),
        ("it waits , then", ["space"]),
        ("rank 1 takes longest; 1 pass less, 1 chain across 1 ms: 12,345 ms, 0.05 of 1.25 and 10.0", []),
    ],
)
def test_what_is_a_fault(text: str, kinds: list[str]) -> None:
    assert sorted(fault.split(":")[0] for fault in faults(text)) == sorted(kinds)
