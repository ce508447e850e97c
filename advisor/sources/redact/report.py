"""A saved report to give away: figures and advice unchanged, files under new directory names, texts without secrets and addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from advisor.report.encoded import as_json
from advisor.report.saved import read_report
from advisor.sources.redact.names import Names, accounts, device

_FILES = frozenset({"path", "file"})
_HOSTS = frozenset({"host"})
_DEVICES = "devices"


def redacted(path: Path, names: Names) -> bytes:
    """The report. Raises TraceError if the file is none."""
    report = msgspec.to_builtins(read_report(path))
    names.know(*accounts(as_json(report).decode()))
    return as_json(given_away(report, names))


def given_away(part: Any, names: Names) -> Any:
    """A report or a part of it as plain values, without names of people and machines."""

    def walk(value: Any, key: str, within: str) -> Any:
        if isinstance(value, str):
            if key in _FILES:
                return names.path(value)
            if key in _HOSTS:
                return names.given("host", value) if value else ""
            return device(value) if within == _DEVICES and key == "name" else names.plain(value)
        if isinstance(value, (list, tuple)):
            return [walk(item, key, within) for item in value]
        return {name: walk(item, name, key) for name, item in value.items()} if isinstance(value, dict) else value

    return walk(msgspec.to_builtins(part), "", "")
