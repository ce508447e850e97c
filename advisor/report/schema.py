"""The JSON Schemas of a report and of one in short, made from their types: what `--format json` writes, for those who read it elsewhere."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from advisor.report.brief import BRIEF, Brief
from advisor.report.model import SCHEMA, Report

ID = f"urn:trace-advisor:report:{SCHEMA}"
"""Names the version; fields are added within one, and never renamed."""


def schema() -> dict[str, Any]:
    """The schema of a report, draft 2020-12."""
    return _schema(Report, ID, f"A report of trace-advisor, schema {SCHEMA}")


def brief_schema() -> dict[str, Any]:
    """The schema of a report in short."""
    return _schema(Brief, f"urn:trace-advisor:brief:{BRIEF}", f"A report of trace-advisor in short, version {BRIEF}")


def text(made: dict[str, Any]) -> str:
    """A schema as it is in docs/."""
    return msgspec.json.format(msgspec.json.encode(made), indent=1).decode()


def _schema(of: type[msgspec.Struct], name: str, title: str) -> dict[str, Any]:
    made = msgspec.json.schema(of)
    for one in made["$defs"].values():
        if "description" in one:
            one["description"] = inspect.cleandoc(one["description"])  # msgspec before 0.23 leaves the source's indentation, as Python before 3.13 does
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": name, "title": title, **made}
