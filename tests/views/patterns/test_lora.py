"""Adapters beside their layers, by pairs of texts."""

import pytest

from advisor.views.patterns.lora import Adapters
from tests.views.patterns.texts import cases, recorded


@pytest.mark.parametrize("case", cases("lora"), ids=lambda case: case.why)
def test_adapters(case):
    found = recorded(case.lines).get(Adapters).found
    assert [[at + 1 for at in one.members.tolist()] for one in found] == case.groups
