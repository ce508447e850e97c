"""Every regular expression takes time in proportion to its text, on texts made of its own parts: names of a trace are anybody's."""

from __future__ import annotations

import ast
import importlib
import random
import re
import sys
import time
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import advisor
import advisor.reports
import advisor.rules
from advisor.knowledge import formats
from advisor.knowledge.expressions import Expression
from tests.fuzz.targets import ANALYSED, check_analysis, check_redacted
from tests.paths import slow

pytestmark = slow

LENGTHS = (400, 1600, 6400)
"""Of the longest, one that takes quadratic time looks at 20 million pairs: tens of milliseconds."""
WORTH_S = 0.004
"""Below this a time is noise."""
STEEPER = 9.0
"""Four times the text takes four times as long, or sixteen times where it is quadratic: no machine's noise comes near."""

PARTS = (
    "a", "A", "0", "_", "-", ".", ":", "/", "\\", '"', " ", "\n", "@", "#", "<", ">", "(", ")", "[", "]", "{", "}", ",", "=", "*", "`", "~", "\0", "é", "a.", "a-", "-a", "/a",
    "a:", "::", "a::", "a@", '\\"', "}{", "},{", "0.", "1e", "a ", "a,", "a=", "x\n", "void ", "<a", "(a", "~a/", "C:/a", "sk-", "at::", "aA", "a0", "%",
)  # fmt: skip


def patterns_in(value: Any, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    """Patterns in a module's value, in containers too."""
    if isinstance(value, Expression):
        yield re.compile(value.pattern, value.flags)
    elif isinstance(value, re.Pattern):
        yield value
    elif depth < 4 and isinstance(value, dict):
        for item in (*value.keys(), *value.values()):
            yield from patterns_in(item, depth + 1)
    elif depth < 4 and isinstance(value, (list, tuple, set, frozenset)) and len(value) < 2000:
        for item in value:
            yield from patterns_in(item, depth + 1)


def inline(tree: ast.AST) -> Iterator[re.Pattern[Any]]:
    """Patterns given to `re` where they are used: re.sub(r"…", …)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and node.func.value.id == "re":
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, (str, bytes)) and node.func.attr != "escape":
                yield re.compile(first.value)


def looks(one: formats.Format) -> tuple[tuple[re.Pattern[Any], ...], ...]:
    """What is asked only of files that no source reads."""
    return (*one.fields, *one.columns, *one.members, *one.says)


METHODS = ("search", "match", "fullmatch", "findall", "finditer", "sub", "split")


def calls(tree: ast.AST) -> dict[str, set[str]]:
    """By name, the methods that are called of it here."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in METHODS and isinstance(node.value, ast.Name):
            found.setdefault(node.value.id, set()).add(node.attr)
    return found


@cache
def all_patterns() -> dict[re.Pattern[Any], tuple[str, frozenset[str]]]:
    """Each pattern with where it stands and how it is called; by every method where that cannot be seen."""
    found: dict[re.Pattern[Any], tuple[str, frozenset[str]]] = {}
    for package in (advisor, advisor.rules, advisor.reports):
        for base in package.__path__[:1]:  # of a checkout the second one is all of it
            for path in sorted(Path(base).rglob("*.py")):
                name = ".".join((package.__name__, *path.relative_to(base).with_suffix("").parts)).removesuffix(".__init__")
                tree = ast.parse(path.read_text())
                used = calls(tree)
                if not name.endswith("__main__") and "callbacks" not in name and "at_start" not in name:
                    for key, value in vars(importlib.import_module(name)).items():
                        for pattern in patterns_in(value):
                            found.setdefault(pattern, (f"{name}.{key}", frozenset(used.get(key, {"search", "match", "fullmatch"}))))
                for pattern in inline(tree):
                    found.setdefault(pattern, (f"{name}, inline", frozenset({"search", "match"})))
    for one in formats.known():
        for method, lazy in (("match", (*(start for _, start in one.starts), *one.all_spans)), ("search", (*one.spans, *chain.from_iterable(looks(one))))):
            found |= {re.compile(each.pattern, each.flags): (f"{one.id} of formats.toml", frozenset({method})) for each in lazy}
    return found


@cache
def used_patterns() -> dict[re.Pattern[Any], tuple[str, frozenset[str]]]:
    """Those that are made, or looked up, only where they are used: seen while a recording of each kind is read, judged, shown, given away."""
    found: dict[re.Pattern[Any], tuple[str, frozenset[str]]] = {}
    compiled = re._compile  # type: ignore[attr-defined]

    def seen(pattern: Any, flags: Any) -> re.Pattern[Any]:
        made: re.Pattern[Any] = compiled(pattern, flags)
        caller = sys._getframe(2)
        if caller.f_globals["__name__"].partition(".")[0] == "advisor":
            called = sys._getframe(1).f_code.co_name
            found.setdefault(made, (f"{caller.f_globals['__name__']}, used", frozenset({called} & set(METHODS) or {"search", "match"})))
        return made

    with mock.patch.object(re, "_compile", seen):
        for make in ANALYSED.values():
            for number in range(3):
                data = make(random.Random(number))
                check_analysis(b"{}\n" + data)
                check_redacted(data)
    return found


def texts(pattern: re.Pattern[Any], rng: random.Random) -> list[str]:
    """What is repeated: the pattern's own words, parts that patterns stumble over, and pairs of them."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    own = re.findall(r"[A-Za-z0-9_:./@#<>\" -]{1,16}", source)[:25]
    every = list(dict.fromkeys((*own, *PARTS)))
    return every + [rng.choice(every) + rng.choice(every) for _ in range(25)]


def seconds(pattern: re.Pattern[Any], method: str, text: Any) -> float:
    call = getattr(pattern, method)
    began = time.process_time()
    if method == "sub":
        call(b"" if isinstance(text, bytes) else "", text)
    elif method == "finditer":
        list(call(text))
    else:
        call(text)
    return time.process_time() - began


def steep(pattern: re.Pattern[Any], methods: frozenset[str], rng: random.Random) -> str:
    """The text on which it takes more than its share of time; "" for none."""
    for part in texts(pattern, rng):
        for before, after in (("", "\x01"), ("\x01", "")):
            for method in methods:
                last = 0.0
                for length in LENGTHS:
                    text: Any = before + part * (length // len(part)) + after
                    text = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
                    took = seconds(pattern, method, text)
                    if took > WORTH_S and last > WORTH_S / 40 and took > STEEPER * last:
                        took, last = (min(seconds(pattern, method, t) for _ in range(3)) for t in (text, text[: len(text) // 4] + text[-1:]))
                        if took > STEEPER * last:
                            return f"{method} of {part!r} repeated: {last * 1e3:.1f} ms, four times as long {took * 1e3:.1f} ms"
                    last = took
    return ""


def test_those_that_are_made_where_they_are_used_are_found():
    assert {"advisor.sources.redact.kineto, used", "advisor.sources.sniff, used"} <= {place for place, _ in used_patterns().values()}


def test_they_are_found():
    where = {place for place, _ in all_patterns().values()}
    assert len(all_patterns()) > 100 and any(place.startswith("advisor.sources.redact.names.") for place in where) and any("inline" in place for place in where)


@pytest.mark.parametrize("number", range(8))
def test_time_is_in_proportion_to_the_text(number):
    rng = random.Random(number)
    mine = sorted({**used_patterns(), **all_patterns()}.items(), key=lambda item: item[1][0])[number::8]
    found = {f"{place}: {pattern.pattern!r:.80}": why for pattern, (place, methods) in mine if (why := steep(pattern, methods, rng))}
    assert not found, "\n".join(f"{place} {why}" for place, why in found.items())


def test_one_that_is_not_is_found():
    assert steep(re.compile(r"(?:x+)+y|(?:a*)*b|\s*\w+\s*="), frozenset({"search"}), random.Random(0))
