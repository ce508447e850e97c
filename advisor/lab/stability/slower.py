"""Known properties of machines, for machines that are slower by a factor.

A trace with doubled times is of no known machine. These values hold for the measured machines: device rates, profiler overhead, cost of compiled
calls, the shortest kernel, and the shortest pause that counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

import msgspec

from advisor.engine.rule import catalog
from advisor.knowledge.data import load
from advisor.knowledge.devices import Peaks, all_peaks
from advisor.knowledge.structs import replace

_RATES = ("_tflops", "_tops", "_gbps")
_TIME, _PER_TIME = "_us", ("_PER_S", "_PER_US")
_MEASURED = ("advisor.knowledge", "advisor.rules", "advisor.views")
"""Packages with constants that were measured on machines; other packages hold properties of clocks or files."""


def rates(times: float) -> list[Peaks]:
    """Every known device with rates that many times as low. Those that share a name are distinguished by SMs, and left as they are."""
    return [_slower(peaks, times) for peaks in all_peaks() if not peaks.sm_count]


def _slower(peaks: Peaks, times: float) -> Peaks:
    told = {name: value / times for name, value in msgspec.structs.asdict(peaks).items() if name.endswith(_RATES) and value is not None}
    return replace(peaks, **told)


def thresholds(times: float) -> dict[str, dict[str, float]]:
    """Options of rules that are times, that many times as long."""
    found = {rule.id: {name: times * value for name, value in rule.options.items() if name.endswith(_TIME)} for rule in catalog().values()}
    return {rule: options for rule, options in found.items() if options}


@contextmanager
def machines(times: float) -> Iterator[None]:
    """Within the block, profiler overhead per event is multiplied, and so are constants in µs or per µs or second, as on slower machines."""
    table = load("recording_cost")
    before, constants = deepcopy(table), list(_constants())
    table.update(_longer(before, times))
    for module, name, value in constants:
        setattr(module, name, value / times if name.endswith(_PER_TIME) else value * times)
    try:
        yield
    finally:
        table.update(before)
        for module, name, value in constants:
            setattr(module, name, value)


def _constants() -> Iterator[tuple[ModuleType, str, float]]:
    """Each module's constants with such a unit at the end of their names. A module has its own copy of an imported constant."""
    for module in _measured():
        for name, value in vars(module).items():
            if isinstance(value, float) and name.endswith((_TIME.upper(), *_PER_TIME)):
                yield module, name, value


@cache
def _measured() -> list[ModuleType]:
    """Every module of those packages: a module that is first imported with changed constants would keep them."""
    packages = [import_module(name) for name in _MEASURED]
    return [import_module(found.name) for package in packages for found in walk_packages(package.__path__, f"{package.__name__}.")]


def _longer(table: dict[str, Any], times: float) -> dict[str, Any]:
    """The table, its times that many times as long, at every depth."""
    return {name: _longer(value, times) if isinstance(value, dict) else times * value if name.endswith(_TIME) else value for name, value in table.items()}
