"""C's spellings of values that are no number, `inf` and `-nan`, which are no JSON. An example is the bandwidth of a copy that took no time."""

from __future__ import annotations

import re

import numpy as np

from advisor.sources.kineto.structure import brackets

_NO_NUMBER = re.compile(rb"(?<=[:\[,\s])[-+]?(?:nan(?:\([^()\s\"]{0,40}\))?|inf(?:inity)?)(?=[\s,\]}])", re.IGNORECASE)
"""Also Python's NaN and Infinity, and the `-nan(ind)` of Windows."""


def without_no_numbers(text: bytes) -> bytes:
    """The text, which starts outside of a string, with `null` for each such value; inside of strings they stay."""
    found = [match.span() for match in _NO_NUMBER.finditer(text)]
    if not found:
        return text
    inside = brackets(text).in_string(np.array([start for start, _ in found], np.int64))
    parts, at = [], 0
    for (start, end), quoted in zip(found, inside.tolist(), strict=True):
        if not quoted:
            parts += [text[at:start], b"null"]
            at = end
    return b"".join((*parts, text[at:]))
