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
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": name, "title": title, **_normal(msgspec.json.schema(of))}


def _normal(node: Any) -> Any:
    """A schema as every version of msgspec and Python would write it: they differ in a docstring's indentation and in where a union holds null."""
    if isinstance(node, list):
        return [_normal(one) for one in node]
    if not isinstance(node, dict):
        return node
    made = {key: _normal(value) for key, value in node.items()}
    if isinstance(text := made.get("description"), str):
        made["description"] = inspect.cleandoc(text)
    if "anyOf" in made:
        made["anyOf"].sort(key=lambda one: one == {"type": "null"})
    return made
