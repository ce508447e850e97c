"""Measured costs: each says what it is, on what it was measured and which row of the ablation tries it; none lies about."""

import re

import pytest

from advisor.knowledge import data
from advisor.knowledge.measured_costs import cost, costs
from advisor.lab.ablation.mechanisms import MECHANISMS
from tests.paths import ROOT

ENTRIES = data.load("measured_costs")
KEYS = {"unit", "device", "versions", "range", "script", "ablation", "why"}

MOST_WITHOUT_A_DEVICE, MOST_WITHOUT_A_SCRIPT = 60, 95
"""Entries of which it was not noted where they were measured, and whose script is not kept: both are to become fewer."""


@pytest.fixture(scope="module")
def asked():
    """Names of entries that code asks for, one a call."""
    code = [file.read_text(encoding="utf-8") for folder in ("advisor", "rules") for file in (ROOT / folder).rglob("*.py")]
    return [name for text in code for name in re.findall(r"\bcosts?\(\"([\w-]+)\"\)", text)]


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_says_what_it_is(name):
    entry = ENTRIES[name]
    assert (set(entry) - {"value", "values"}) <= KEYS and ("value" in entry) != ("values" in entry)
    assert entry["unit"] and entry["why"].strip()
    numbers = entry.get("values", [entry.get("value")])
    assert all(type(number) is float for number in numbers) and ("values" not in entry or len(numbers) > 1)


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if "ablation" in entry])
def test_its_row_of_the_ablation_is_one(name):
    assert ENTRIES[name]["ablation"] in {mechanism.name for mechanism in MECHANISMS}


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if "script" in entry])
def test_its_script_is_here(name):
    assert (ROOT / ENTRIES[name]["script"]).is_file()


def test_each_entry_is_asked_for_once(asked):
    assert sorted(asked) == sorted(ENTRIES)


def test_more_becomes_known_of_where_they_come_from():
    assert sum("device" not in entry for entry in ENTRIES.values()) <= MOST_WITHOUT_A_DEVICE
    assert sum("script" not in entry for entry in ENTRIES.values()) <= MOST_WITHOUT_A_SCRIPT


def test_one_number_and_several_are_told_apart():
    assert cost("compiled-call") == 150.0 and costs("compiled-part") == (500.0, 2.5)
    with pytest.raises(KeyError):
        cost("compiled-part")
