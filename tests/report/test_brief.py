"""A report in short: small whatever it holds, its figures the report's own, and only what is a change of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from advisor.report.brief import BRIEF_BYTES, brief
from advisor.report.encoded import as_json
from advisor.report.finding import Finding
from advisor.report.model import Report
from advisor.report.priorities import MOST, first_findings
from advisor.report.schema import brief_schema
from tests.command import advisor
from tests.paths import ROOT
from tests.reports.examples import EXAMPLES

SLOW = ROOT / "samples" / "launch-gap" / "slow.json.gz"
OF_THE_BRIEF = {"brief", "left_out", "rules", "record_with", "from_trace"}


def same(short: Any, whole: Any) -> bool:
    """Whether what a brief holds is what the report holds there: a text may be cut, a list may end sooner, a figure has three decimals."""
    if isinstance(short, dict):
        return all(same(value, whole[key]) for key, value in short.items() if key not in OF_THE_BRIEF and not (key == "removes" and value == ""))
    if isinstance(short, list):
        return len(short) <= len(whole) and all(map(same, short, whole))
    if isinstance(short, str) and short != whole:
        return short == "" or whole.startswith(short.rstrip("…").rstrip("."))
    return short == whole or short in (round(whole, 2), round(whole, 3))


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_small_and_says_what_the_report_says(name: str) -> None:
    report = EXAMPLES[name]()
    data = brief(report)
    short, whole = json.loads(data), json.loads(report.to_json())
    assert len(data) <= BRIEF_BYTES
    jsonschema.Draft202012Validator(brief_schema()).validate(short)
    ids = [found["id"] for found in short["findings"]]
    assert ids == [found.id for found in first_findings(report)][: len(ids)] and short["left_out"] == len(whole["findings"]) - len(ids)
    assert same({key: value for key, value in short.items() if key != "findings"}, whole)
    assert all(same(found, json.loads(as_json(of))) for found, of in zip(short["findings"], first_findings(report), strict=False))


def changed(report: Report, **what: Any) -> list[Finding]:
    """What is to do where the first finding is changed so."""
    first, *others = report.findings
    return first_findings(msgspec.structs.replace(report, findings=(msgspec.structs.replace(first, **what), *others)))


@pytest.mark.parametrize(
    "what",
    [{"folded_into": "sync-stall"}, {"allowed": "we know"}, {"left_out": "an alternative to sync-stall", "excluded": "alternative"}, {"severity": "info"}],
)
def test_what_is_no_change_of_its_own_is_left_to_the_report(what: dict[str, Any]) -> None:
    import advisor

    report = advisor.analyze(SLOW).report
    assert changed(report)[0].id == "launch-gap-1"
    assert "launch-gap-1" not in {found.id for found in changed(report, **what)}
    assert changed(report, status="possible", severity="low")[0].id == "launch-gap-1"  # nothing is surer


def test_texts_as_long_as_they_come_make_it_no_longer() -> None:
    import advisor

    report = advisor.analyze(SLOW).report
    first = report.findings[0]
    long = msgspec.structs.replace(
        first, title="é" * 9_000, decide_with="advisor " + "x" * 9_000, fix=msgspec.structs.replace(first.fix, title="\x1b" * 999, steps=("word " * 2_000,))
    )
    made = msgspec.structs.replace(report, findings=(long,) * 9, source=msgspec.structs.replace(report.source, path="/" + "é" * 4_000))
    data = brief(made)
    short = json.loads(data)
    assert len(data) <= BRIEF_BYTES and 0 < len(short["findings"]) <= MOST and short["findings"][0]["decide_with"] == ""
    assert short["left_out"] == 9 - len(short["findings"])


def test_the_command_writes_it_and_says_where_it_cannot(tmp_path: Path) -> None:
    done = advisor("analyze", SLOW, "-f", "json", "--brief", cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)["findings"][0]["id"] == "launch-gap-1"
    assert advisor("analyze", SLOW, "-o", "report.json", cwd=tmp_path).returncode == 0
    again = advisor("report", "report.json", "-f", "json", "--brief", cwd=tmp_path)
    assert json.loads(again.stdout) == json.loads(done.stdout)
    for _ in range(2):  # one of ours is written over
        assert advisor("analyze", SLOW, "-o", "brief.json", "--brief", cwd=tmp_path).returncode == 0
    refused = advisor("diff", "brief.json", "report.json", cwd=tmp_path)
    assert refused.returncode == 3 and b"in short" in refused.stderr
    for wrong in (["--brief"], ["-f", "markdown", "--brief"], ["-o", "x.html", "--brief"]):
        refused = advisor("analyze", SLOW, *wrong, cwd=tmp_path)
        assert refused.returncode == 2 and b"--brief is a form of JSON" in refused.stderr
    job = advisor("analyze", ROOT / "samples" / "jobs" / "ddp_forward_host_2", "-o", "pages", "--brief", cwd=tmp_path)
    assert job.returncode == 2 and not (tmp_path / "pages").exists()
