"""What is known of machines, as it is of machines on which everything takes so many times as long.

A trace whose times are all doubled is of no machine that is known: rates of its device, what recording costs its host, and how long a
pause of its host must be to count, hold for the machines that were measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

from advisor.engine.rule import catalog
from advisor.knowledge.data import load
from advisor.knowledge.devices import Peaks, all_peaks

_RATES = ("_tflops", "_tops", "_gbps")
_TIME = "_us"


def rates(times: float) -> list[Peaks]:
    """Every known device with rates that many times as low. Those that share a name are told apart by multiprocessors, and left as they are."""
    return [_slower(peaks, times) for peaks in all_peaks() if not peaks.sm_count]


def _slower(peaks: Peaks, times: float) -> Peaks:
    told = {name: value / times for name, value in vars(peaks).items() if name.endswith(_RATES) and value is not None}
    return replace(peaks, **told)


def thresholds(times: float) -> dict[str, dict[str, float]]:
    """Options of rules that are times, that many times as long."""
    found = {rule.id: {name: times * value for name, value in rule.options.items() if name.endswith(_TIME)} for rule in catalog().values()}
    return {rule: options for rule, options in found.items() if options}


@contextmanager
def recording(times: float) -> Iterator[None]:
    """While recording an event costs that many times as much, and hosts need as much longer for it."""
    table = load("recording_cost")
    before = deepcopy(table)
    table.update(_longer(before, times))
    try:
        yield
    finally:
        table.update(before)


def _longer(table: dict[str, Any], times: float) -> dict[str, Any]:
    """The table, its times that many times as long, at every depth."""
    return {name: _longer(value, times) if isinstance(value, dict) else times * value if name.endswith(_TIME) else value for name, value in table.items()}
