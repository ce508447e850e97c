"""Reads a GPU profile and says what makes the program slow, what to change, and what that gains.

    import advisor
    report = advisor.analyze("trace.json.gz")
    timeline = advisor.load("trace.json.gz")   # tables as pandas DataFrames

Names are imported on first use, so that `import advisor` and `advisor --help` cost nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advisor.catalog import rule
    from advisor.engine import analyze
    from advisor.readers import load
    from advisor.report import Evidence, Finding, Fix, Report, Saving
    from advisor.timeline import Timeline

_HOMES = {
    "analyze": "advisor.engine",
    "load": "advisor.readers",
    "rule": "advisor.catalog",
    "Timeline": "advisor.timeline",
    "Finding": "advisor.report",
    "Evidence": "advisor.report",
    "Fix": "advisor.report",
    "Saving": "advisor.report",
    "Report": "advisor.report",
}

__all__ = ["Evidence", "Finding", "Fix", "Report", "Saving", "Timeline", "analyze", "load", "rule"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'advisor' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
