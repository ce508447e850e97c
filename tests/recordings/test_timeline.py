"""A timeline's tables, and which device an id is of."""

from __future__ import annotations

from advisor.knowledge.structs import replace
from advisor.recordings.timeline import Device
from tests.build import H200, Trace


def device_of(number: int, *listed: Device) -> Device:
    return Trace(devices=listed).timeline().device(number)


def test_a_device_that_is_not_listed_is_as_those_that_are_where_they_are_alike() -> None:
    """ROCm numbers them in its own way."""
    second, other = replace(H200, id=1), Device(1, "NVIDIA H100", 114, (9, 0))
    assert device_of(1, H200, second) == second
    assert device_of(4, H200, second) == replace(H200, id=4)
    assert device_of(4, H200, other) == device_of(4) == Device(4)
    assert device_of(1, H200, other) == other


def test_rows_are_sorted_by_start_and_ties_stay_as_they_were() -> None:
    ops = Trace().op("late", 5, 1).op("first", 1, 1).op("second", 1, 1).timeline().cpu_ops
    assert ops["name"].tolist() == ["first", "second", "late"]
