"""Numbers that modules give a name: each has its reason beside it, and they become fewer."""

import ast

import pytest

from tests.constants import constants, everywhere, numbers

MOST_NUMBERS = 397
"""All of them: lower it with each that goes. A new one replaces another, is measured (`advisor/knowledge/measured_costs.toml`), or is one of
`advisor/knowledge/shares.py`."""


@pytest.fixture(scope="module")
def found():
    return everywhere()


def test_each_number_has_its_reason(found):
    assert [str(one) for one in found if not one.reason] == []


def test_numbers_become_fewer(found):
    assert sum(one.numbers for one in found) <= MOST_NUMBERS, "python -m tests.constants counts them"


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("3", 1),
        ("-1", 1),
        ("3 << 20", 1),
        ("2 / 3", 1),
        ("(1.0, 0.5)", 2),
        ("((7, 0), (8, 0))", 4),
        ("{'a': 1, 'b': (2, 3)}", 3),
        ("(MOST, 3.0)", 1),
        ("(2 * MOST, 2, 3)", 2),
    ],
)
def test_numbers_are_counted(value, count):
    assert numbers(ast.parse(value).body[0].value) == count


@pytest.mark.parametrize("value", ["'3'", "True", "MOST", "2 * MOST", "('a', 1)", "{'a': 'b'}", "len('abc')", "()"])
def test_what_is_no_number_of_its_own_does_not_count(value):
    assert numbers(ast.parse(value).body[0].value) == 0


def test_numbers_that_are_named_beside_other_things_count():
    assert [(one.names, one.numbers) for one in constants('MAGIC, AT, WIDTH = b"ustar", 257, (2, 3)  # POSIX', "a.py")] == [("(MAGIC, AT, WIDTH)", 3)]


@pytest.mark.parametrize(
    "text",
    [
        'LEAST = 3\n"""Fewer are no pattern."""',
        "LEAST = 3  # fewer are no pattern",
        "# Fewer are no pattern.\nLEAST: int = 3",
        "# Both.\nA, B = 1, 2\nLEAST = 3",
    ],
)
def test_reasons_stand_beside(text):
    assert all(one.reason for one in constants(text, "a.py"))


@pytest.mark.parametrize("text", ["LEAST = 3", "# Of something else.\n\nLEAST = 3", 'A = 1\n"""Why."""\nLEAST = 3', 'LEAST = "a", 3', "LEAST[0] = 3"])
def test_a_reason_of_something_else_is_none(text):
    assert [one.names for one in constants(text, "a.py") if not one.reason] == (["LEAST"] if text.endswith("T = 3") else [])
