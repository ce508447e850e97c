"""What no sentence of ours holds: `1 chains`, a word twice, `0.0%`, `3.3e+03`, a number of which nobody reads the last digits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_UNITS = "ms|s|ns|less|as|is|was|has|its|us|across|this|thus|minus|plus|always|puts|others"
_PATTERNS = {
    "one of several": re.compile(rf"(?<![\w.,/=\[-])(?<![Rr]ank )(?<!GPU )1 (?!(?:{_UNITS})\b)(?:[a-z]+[- ]){{0,2}}?(?!(?:{_UNITS})\b)[a-z]+(?<!s)s\b"),
    "one of all": re.compile(r"\b(?:[Aa]ll|[Bb]oth) (?:1|one)\b(?! place)"),
    "twice": re.compile(r"\b([A-Za-z]{2,}) \1\b"),
    "exponent": re.compile(r"\d\.?\d*[eE][+-]\d"),
    "nothing": re.compile(r"(?<![\d.,])0\.0+(?!\d)"),
    "less than nothing": re.compile(r"[-−]0(?:\.0+)?(?:%| )"),
    "no word": re.compile(r"(?<!grad )\b(?:None|nan|NaN|inf|null|undefined)\b(?! (?:runs|that)\b)"),
    "article": re.compile(r"\b[Aa] (?:all-|op\b|idle|element|activation|attention|hour)|\b[Aa]n (?:kernel|step|GPU|launch|product|copy|stream|fused)"),
    "space": re.compile(r"\w  +\w| [,;:.](?:\s|$)|[,;]{2}|\.\.$"),
}
_NUMBER = re.compile(r"(?<![\w./:×-])\d[\d,]*\.\d+(?![\w.]*\.\d)(?!\d)")
_CODE = re.compile(r"`[^`]*`|\S*[=(_/\[]\S*|v?\d+\.\d+\.\d+\S*")
"""Names and code are as their owners write them."""

_OF_THE_TRACE = frozenset(
    ("name", "op", "label", "path", "code", "shapes", "module", "url", "file", "kernels", "breakdown", "ops", "advisor", "trace", "page", "device", "source",
     "function", "collectives", "at_peak", "timeline", "origin", "record_with", "lines_with", "decide_with", "version")
)  # fmt: skip
"""Fields of a report whose text is not ours, or is to be pasted."""


def faults(text: str) -> list[str]:
    """What is wrong with a sentence or a line, each fault with its kind."""
    text = _CODE.sub("x", text)
    found = [f"{kind}: {match[0]!r}" for kind, pattern in _PATTERNS.items() for match in pattern.finditer(text)]
    digits = (match[0] for match in _NUMBER.finditer(text))
    return found + [f"digits: {number!r}" for number in digits if len(re.sub(r"[.,]", "", number).lstrip("0")) > 3]


def said(report: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Every text of ours in a report as JSON holds it, and where."""
    if isinstance(report, str):
        yield where, report
    elif isinstance(report, list):
        for item in report:
            yield from said(item, where)
    elif isinstance(report, dict):
        for key, value in report.items():
            if key not in _OF_THE_TRACE:
                yield from said(value, f"{where}.{key}" if where else key)
