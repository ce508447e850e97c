"""The JSON Schema of a report, made from its types: what `--format json` writes, for those who read it elsewhere."""

from __future__ import annotations

from typing import Any

import msgspec

from advisor.report.model import SCHEMA, Report

ID = f"urn:trace-advisor:report:{SCHEMA}"
"""Names the version; fields are added within one, and never renamed."""


def schema() -> dict[str, Any]:
    """The schema, draft 2020-12."""
    made = msgspec.json.schema(Report)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": ID,
        "title": f"A report of trace-advisor, schema {SCHEMA}",
        **made,
    }


def text() -> str:
    """The schema as it stands in docs/report.schema.json."""
    return msgspec.json.format(msgspec.json.encode(schema()), indent=1).decode()
