"""The JSON Schema in docs/ is the one that the types make, and reports keep it."""

from __future__ import annotations

import json

import jsonschema
import pytest

import advisor
from advisor.report.model import SCHEMA
from advisor.report.schema import brief_schema, schema, text
from advisor.reports.report import json as json_format
from tests.paths import ROOT
from tests.reports.examples import EXAMPLES


def test_the_document_is_what_the_types_make() -> None:
    assert (ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8") == text(schema()) + "\n", "advisor schema > docs/report.schema.json"
    short = (ROOT / "docs" / "brief.schema.json").read_text(encoding="utf-8")
    assert short == text(brief_schema()) + "\n", "advisor schema --brief > docs/brief.schema.json"
    assert schema()["$id"].endswith(f":{SCHEMA}")


@pytest.mark.parametrize("name", EXAMPLES)
def test_reports_keep_the_schema(name: str) -> None:
    jsonschema.Draft202012Validator(schema()).validate(json.loads(json_format.render(EXAMPLES[name]())))


def test_an_analysed_trace_keeps_it_too() -> None:
    report = advisor.analyze(ROOT / "samples" / "launch-gap" / "slow.json.gz")
    jsonschema.Draft202012Validator(schema()).validate(json.loads(report.to_json()))
    assert report.ops and repr(report).startswith("<Report of ") and len(repr(report)) < 250
