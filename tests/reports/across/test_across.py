"""One program on two devices: each side against its own peaks, no verdict, and names that stay names."""

from __future__ import annotations

import msgspec
import pytest

from advisor.compare.across import compare_programs
from advisor.errors import UsageError
from advisor.report.model import Report
from advisor.report.recording import DeviceInfo
from advisor.report.step import Work
from advisor.reports.across import formats
from advisor.reports.across._phrases import heads
from tests.reports.examples import NASTY, healthy, hostile, launch_bound


def on(report: Report, device: str, **more: object) -> Report:
    return msgspec.structs.replace(report, devices=(DeviceInfo(id=0, name=device, sm_count=108),), **more)


def test_families_are_held_against_their_own_device() -> None:
    found = compare_programs(healthy(), on(healthy(), "NVIDIA A100-SXM4-80GB"))
    left, right = (side.family("gemm") for side in (found.left, found.right))
    assert left.us == right.us == pytest.approx(118_400 / 4)
    assert left.reached is not None and right.reached is not None and right.reached > left.reached
    assert not found.doubt


def test_sides_of_one_device_are_told_apart_by_their_format_else_by_their_file() -> None:
    left = healthy()
    assert heads(compare_programs(left, on(left, "A100"))) == (left.devices[0].name, "A100")
    saved = msgspec.structs.replace(left, source=msgspec.structs.replace(left.source, path="runs/other.json.gz"))
    assert heads(compare_programs(left, saved))[1] == f"{left.devices[0].name}, other.json.gz"
    jax = msgspec.structs.replace(left, source=msgspec.structs.replace(left.source, format="jax"))
    assert heads(compare_programs(left, jax)) == (f"{left.devices[0].name}, {left.source.format}", f"{left.devices[0].name}, jax")


def test_other_work_is_doubted() -> None:
    found = compare_programs(on(healthy(), "a", work=Work(flops=1e9)), on(healthy(), "b", work=Work(flops=2e9)))
    assert "1 GFLOP" in found.doubt


@pytest.mark.parametrize("name", list(formats()))
def test_no_format_calls_one_faster_and_names_stay_names(name: str) -> None:
    shown = formats()[name].render(compare_programs(launch_bound(), hostile()))
    assert "faster" not in shown and "slower" not in shown
    if name == "html":
        assert "<script" not in shown and NASTY[0] not in shown
    if name != "json":
        assert "\x1b" not in shown


def test_what_has_no_step_is_refused() -> None:
    with pytest.raises(UsageError, match="no step"):
        compare_programs(healthy(), msgspec.structs.replace(healthy(), window=None))
