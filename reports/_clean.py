"""A report made fit to show: control characters made visible, texts and lists cut to a length, and what was cut."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from advisor.report.encoded import UNSEEN
from advisor.report.finding import SUMMARY_CHARACTERS
from advisor.report.model import Report

_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_SEVERAL_LINES = frozenset({"before", "after", "error", "record_with"})
_PROSE = frozenset({"steps", "why", "detail", "risk", "removes", "title"})
"""Written by rules, perhaps over several lines of source: a line break is a space."""


class Limits(msgspec.Struct, frozen=True):
    """The most of each that a format shows. Lists are cut at their end: they come with what matters first."""

    text: int = 2_000
    findings: int = 200
    evidence: int = 20
    steps: int = 20
    kernels: int = 300
    ops: int = 200
    rows: int = 200
    """Of any other list."""
    pages: int = 40
    page: int = 12_000
    """Rules' pages, and characters of each."""
    slices: int = 600_000
    """Of the timeline; 0 draws nothing."""


def visible(text: str, *, lines: bool = False) -> str:
    """The text with each unseen character written as its escape; line breaks and tabs stay where `lines` are wanted."""

    def escape(match: re.Match[str]) -> str:
        char = match[0]
        if lines and char in "\n\t":
            return char
        return _NAMED.get(char) or (f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}")

    return UNSEEN.sub(escape, text.replace("\r\n", "\n") if lines else text)


def clip(text: str, most: int) -> str:
    """The text, or its start and how many characters are missing."""
    return text if len(text) <= most else f"{text[:most]}… (+{len(text) - most:,} characters)"


def shortened(text: str, most: int, *, lines: bool = False) -> str:
    """The text made visible and clipped; what is cut off is not looked at, however long it is."""
    start = visible(text[:most], lines=lines)
    missing = max(len(text) - most, 0) + max(len(start) - most, 0)
    return f"{start[:most]}… (+{missing:,} characters)" if missing else start


def clean(report: Report, limits: Limits) -> Report:
    """The same report, every string visible and clipped, every list cut."""

    def walk(value: Any, key: str) -> Any:
        if key == "curve":
            return value  # columns of numbers, of which a part is not the same curve
        if isinstance(value, str):
            if key in _PROSE:
                value = " ".join(filter(None, map(str.strip, value.split("\n")))) if "\n" in value else value
            return shortened(value, limits.text, lines=key in _SEVERAL_LINES)
        if isinstance(value, (list, tuple)):
            return [walk(item, key) for item in value[: getattr(limits, key, limits.rows)]]
        if isinstance(value, dict):
            return {name: walk(item, name) for name, item in value.items()}
        return value

    made = walk(msgspec.to_builtins(report), "")
    # A summary has its own limit, which escapes may pass: each ESC becomes four characters.
    for finding in made["findings"]:
        finding["summary"] = finding["summary"][:SUMMARY_CHARACTERS]
    return msgspec.convert(made, Report)


Struct = TypeVar("Struct", bound=msgspec.Struct)


def legible(shown: Struct) -> Struct:
    """The same, every text of it visible."""

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return visible(value)
        if isinstance(value, (list, tuple)):
            return [walk(item) for item in value]
        return {name: walk(item) for name, item in value.items()} if isinstance(value, dict) else value

    return msgspec.convert(walk(msgspec.to_builtins(shown)), type(shown))
