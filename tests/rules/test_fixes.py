"""The catalogue of fixes: every entry is a fix, somebody gives it, and what is asked for is there."""

from __future__ import annotations

import re

import pytest

from advisor.engine.rule import built_in
from advisor.knowledge.data import read
from advisor.report.finding import Fix
from advisor.rules.fixes import known_fix
from advisor.rules.straggler import _FIXES
from tests.paths import ROOT

THEMES = {path.stem: read(path) for path in sorted((ROOT / "rules" / "fixes").glob("*.toml"))}
SOURCE = "\n".join(path.read_text() for path in (ROOT / "rules").rglob("*.py"))
ASKED = {(theme, name) for theme, name in re.findall(r'known_fix\("([\w-]+)", "([\w-]+)"\)', SOURCE)}
BY_NAME = {("jobs", f"straggler-{cause}") for cause in _FIXES}
CHOSEN = ("cuda", "servers", "scheduling")
"""Themes of which a program chooses: by rule, and by what serves it."""


@pytest.mark.parametrize(("theme", "name"), [(theme, name) for theme, fixes in THEMES.items() for name in fixes])
def test_every_entry_is_a_fix_that_somebody_gives(theme: str, name: str) -> None:
    assert isinstance(known_fix(theme, name), Fix) and known_fix(theme, name).steps
    assert theme in CHOSEN or (theme, name) in ASKED | BY_NAME


def test_what_is_asked_for_is_there() -> None:
    assert not [asked for asked in ASKED if asked[1] not in THEMES[asked[0]]]


def test_fixes_in_terms_of_cuda_are_of_rules() -> None:
    """By rule, or by rule and what it found."""
    others = [name for name in THEMES["cuda"] if name.split(" of ")[0] not in built_in()]
    assert others == ["needed-sums"] and '"needed-sums"' in SOURCE
