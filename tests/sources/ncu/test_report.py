"""Reports of Nsight Compute, written byte by byte."""

import gzip
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.errors import TraceError
from advisor.recordings.kernel_profiles import KernelProfiles
from advisor.reports import formats
from advisor.sources import read
from advisor.sources.stream import zstd
from tests.kernels import NAMES_HELD, block, field, plain_report, report, result
from tests.paths import examples


def opened(tmp_path: Path, data: bytes, name: str = "k.ncu-rep") -> KernelProfiles:
    path = tmp_path / name
    path.write_bytes(data)
    recording = read(path)
    assert recording.kind == "kernels"
    (profiles,) = recording.parts
    assert isinstance(profiles, KernelProfiles)
    return profiles


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd.compress])
def test_kernels_are_read_whatever_the_packing(tmp_path, pack):
    found = opened(tmp_path, pack(plain_report()))
    first, second = found.kernels
    assert (first.name, first.grid, first.block, first.stream, first.process) == (
        "void f<int>(float*)",
        (10, 2, 1),
        (256, 1, 1),
        7,
        77,
    )
    assert first.duration_us == 5 and first.blocks == 20 and first.metrics[NAMES_HELD[1]] == 12.5
    assert found.devices == {0: "NVIDIA H200"} and not found.damage
    # The second block's empty table means the first one's; what is not finite is as if it were not collected.
    assert second.metrics == {NAMES_HELD[0]: 7000.0}


@pytest.mark.parametrize("value", [field(3, v) for v in (float("inf"), 1e300, -1e19, 1e-300)] + [field(n, (1 << 64) - 1) for n in (4, 5)])
def test_what_no_counter_gives_is_as_if_it_were_not_collected(tmp_path, value):
    names = ["gpu__time_duration.sum", "b", "c", "d", "e"]
    given = {0: field(3, 5000.0), 1: value, 2: field(5, 1 << 63), 3: field(3, 0.0), 4: field(3, -(2.0**-63))}
    (found,) = opened(tmp_path, report(block([result("f", given)], names))).kernels
    assert found.metrics == {"gpu__time_duration.sum": 5000.0, "c": 2.0**63, "d": 0.0, "e": -(2.0**-63)}


def test_names_go_on_in_later_blocks_for_results_before_and_after_them(tmp_path):
    early = result("early", {0: field(3, 5000.0), 2: field(3, 2.0), 3: field(3, 3.0)})
    late = result("late", {0: field(3, 7000.0), 3: field(3, 4.0)})
    found = opened(tmp_path, report(block([early], ["gpu__time_duration.sum", "b"]), block(strings=["c"]), block(strings=["d"]), block([late])))
    assert [(k.name, k.metrics) for k in found.kernels] == [
        ("early", {"gpu__time_duration.sum": 5000.0, "c": 2.0, "d": 3.0}),
        ("late", {"gpu__time_duration.sum": 7000.0, "d": 4.0}),
    ]
    assert not found.damage


def test_a_table_that_begins_as_the_one_before_is_whole_by_itself(tmp_path):
    names = ["gpu__time_duration.sum", "b"]
    found = opened(tmp_path, report(*[block([result("f", {0: field(3, 5000.0), 1: field(3, n)})], names) for n in (1.0, 2.0)]))
    assert [k.metrics["b"] for k in found.kernels] == [1.0, 2.0] and all(len(k.metrics) == 2 for k in found.kernels)


def test_nothing_of_the_session_is_kept(tmp_path):
    import advisor

    path = tmp_path / "k.ncu-rep"
    path.write_bytes(plain_report())
    found = advisor.analyze(path)
    for form in formats().values():
        shown = form.render(found)
        assert "hunter2" not in shown and "secret" not in shown, form.NAME


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_report_that_ends_early_gives_what_was_before(tmp_path, cut):
    found = opened(tmp_path, plain_report()[:-cut])
    assert len(found.kernels) == 1 and "after 1 kernels" in found.damage


HOSTILE = {
    "a block longer than any": report(struct.pack("<I", 0xFFFFFFFF)),
    "a payload that is not there": report(struct.pack("<I", 8) + field(2, 1) + field(5, 1 << 40)[:6]),
    "a result longer than its block": report(block([b""], NAMES_HELD).replace(struct.pack("<I", 0), struct.pack("<I", 99999))),
    "no table of strings": report(block([result("f", {0: field(3, 1.0)})])),
    "a name beyond the table": report(block([result("f", {9: field(3, 1.0)})], NAMES_HELD)),
    "a field of no wire type": report(block([b"\x0f\x00"], NAMES_HELD)),
    "a number without end": report(block([b"\x08" + b"\xff" * 30], NAMES_HELD)),
    "a text where a metric belongs": report(block([field(13, 5)], NAMES_HELD)),
    "no kernel": report(block(payload=b"abc")),
    "nothing but a magic": b"NVR\0",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_reports_are_refused_with_what_is_wrong(tmp_path, name):
    with pytest.raises(TraceError) as caught:
        opened(tmp_path, HOSTILE[name])
    assert caught.value.hint and "k.ncu-rep" in caught.value.message


def test_a_zstd_bomb_is_refused(tmp_path):
    bomb = zstd.compress(report(block(payload=bytes(300 << 20))))
    with pytest.raises(TraceError, match="times its size"):
        opened(tmp_path, bomb)


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_no_damage_breaks_the_reader(tmp_path_factory, data):
    good = plain_report()
    at = data.draw(st.integers(0, len(good) - 1))
    damage = data.draw(st.binary(min_size=0, max_size=12))
    cut = data.draw(st.integers(0, 8))
    bad = good[:at] + damage + good[at + cut :]
    try:
        found = opened(tmp_path_factory.mktemp("fuzz"), bad)
    except TraceError:
        return
    assert all(isinstance(k.name, str) for k in found.kernels)
