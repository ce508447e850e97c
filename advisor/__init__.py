"""Reads a GPU profile and says what makes the program slow, what to change, and what that gains.

    import advisor
    report = advisor.analyze("trace.json.gz")
    timeline = advisor.load("trace.json.gz")   # tables as pandas DataFrames

Names are imported on first use, so that `import advisor` and `advisor --help` cost nothing.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# In a checkout, rules and reports stand beside this folder; installed, they are inside it. Python started in a checkout finds
# this folder before any installed one.
_HERE = os.path.dirname(__file__)
if not os.path.isdir(os.path.join(_HERE, "rules")):
    __path__.append(os.path.dirname(_HERE))

if TYPE_CHECKING:
    from advisor.compare import compare
    from advisor.engine.rule import Found, rule
    from advisor.engine.run import analyze, schedule
    from advisor.lab.record import record, trace_handler
    from advisor.recording import Recording
    from advisor.report.model import (
        BytesSaved,
        Clear,
        Code,
        Evidence,
        Finding,
        Fix,
        Report,
        Saving,
        ShareSaved,
        Skipped,
        severity_of,
    )
    from advisor.sources import load, read
    from advisor.timeline import Timeline
    from advisor.views.replay.edits import Edits

_HOMES = {
    "analyze": "advisor.engine.run",
    "load": "advisor.sources",
    "read": "advisor.sources",
    "Recording": "advisor.recording",
    "BytesSaved": "advisor.report.model",
    "ShareSaved": "advisor.report.model",
    "schedule": "advisor.engine.run",
    "rule": "advisor.engine.rule",
    "compare": "advisor.compare",
    "record": "advisor.lab.record",
    "trace_handler": "advisor.lab.record",
    "Found": "advisor.engine.rule",
    "Edits": "advisor.views.replay.edits",
    "Clear": "advisor.report.model",
    "Code": "advisor.report.model",
    "Skipped": "advisor.report.model",
    "severity_of": "advisor.report.model",
    "Timeline": "advisor.timeline",
    "Finding": "advisor.report.model",
    "Evidence": "advisor.report.model",
    "Fix": "advisor.report.model",
    "Saving": "advisor.report.model",
    "Report": "advisor.report.model",
}

__all__ = [
    "BytesSaved",
    "Clear",
    "Code",
    "Edits",
    "Evidence",
    "Finding",
    "Fix",
    "Found",
    "Recording",
    "Report",
    "Saving",
    "ShareSaved",
    "Skipped",
    "Timeline",
    "analyze",
    "compare",
    "load",
    "read",
    "record",
    "rule",
    "schedule",
    "severity_of",
    "trace_handler",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'advisor' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
