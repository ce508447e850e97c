"""Beginnings that spare formats' patterns: no file that a pattern matches begins otherwise."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.knowledge.expressions import beginning
from advisor.knowledge.formats import known

STARTS = [(first, re.compile(pattern.pattern)) for one in known() for first, pattern in one.starts]


@settings(max_examples=20, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize(("first", "pattern"), STARTS, ids=lambda value: str(getattr(value, "pattern", ""))[:40])
def test_what_a_pattern_matches_begins_as_said(first: bytes, pattern: re.Pattern[bytes], data: st.DataObject) -> None:
    if first:
        text = data.draw(st.from_regex(pattern))
        at = next(at for at in range(len(text) + 1) if pattern.match(text, at))
        assert b"".join(text[at:].split()).startswith(first)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (rb'\s*\{\s*"a b":', b'{"ab":'),
        (rb"ab?", b"a"),
        (rb"ab{0,3}c", b"a"),
        (rb"a+b", b""),
        (rb"ab|cd", b""),
        (rb"a\|b", b"a|b"),
        (rb"a(?:b|c)", b"a"),
        (rb"(?s)ab", b""),
        (rb"\x00ab", b""),
        (rb"[ab]c", b""),
    ],
)
def test_only_what_is_plain_is_a_beginning(pattern: bytes, said: bytes) -> None:
    assert beginning(pattern) == said
