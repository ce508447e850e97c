"""Peaks, lives and curves, worked out by hand; and torch's own figures of every sample."""

import json
from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.sources import read
from advisor.sources.memory.snapshot import from_value
from advisor.views.memory.attribution import CATEGORIES, Attribution
from advisor.views.memory.health import MemoryHealth
from advisor.views.memory.history import MemoryHistory
from advisor.views.memory.replay import MemoryReplay
from advisor.views.memory.summary import MemorySummary
from advisor.views.workspace import Workspace
from tests.memory_build import MIB, Memory, at, backward, optimizer, parameter
from tests.paths import ROOT, SHARED, examples, slow


def history(memory):
    return MemoryHistory.build(memory.snapshot()).main


def test_the_peak_counts_what_is_older_than_the_window():
    m = Memory()
    kept, dropped = m.older(100), m.older(50)
    first = m.alloc(30, at(3))
    m.free(dropped)
    m.alloc(10, at(4))
    m.free(first)
    device = history(m)
    assert (device.allocated // MIB).tolist()[:2] == [150, 180]
    assert device.peak_allocated == 180 * MIB and device.peak_reserved == 180 * MIB
    assert device.allocated[-1] == 110 * MIB
    assert set(device.allocations.address[device.allocations.born < 0].tolist()) == {kept, dropped}


def test_what_cannot_be_split_off_counts_as_taken():
    m = Memory()
    block = m.alloc(20, at(3))
    m.events = [e for e in m.events if e["action"] == "segment_alloc"]
    # 19.5 MiB of a segment of 20: half a MiB is too little to split off; 10 MiB of it is not.
    m.event("alloc", block, int(19.5 * MIB), at(3))
    m.event("free_requested", block, int(19.5 * MIB))
    m.event("free_completed", block, int(19.5 * MIB))
    m.event("alloc", block, 10 * MIB, at(4))
    m.event("alloc", block + 10 * MIB, 9 * MIB, at(5))
    m.segments = {block: {**m.segments[block], "blocks": [
        {"address": block, "size": 10 * MIB, "requested_size": 10 * MIB, "state": "active_allocated", "frames": at(4)},
        {"address": block + 10 * MIB, "size": 10 * MIB, "requested_size": 9 * MIB, "state": "active_allocated", "frames": at(5)},
    ]}}  # fmt: skip
    assert (history(m).allocated / MIB).tolist() == [0, 20, 0, 0, 10, 20]


def test_a_block_that_a_stream_still_uses_is_not_allocated_but_not_free():
    m = Memory()
    first = m.alloc(8, at(3))
    m.event("free_requested", first, 8 * MIB)
    m.alloc(8, at(4))
    m.event("free_completed", first, 8 * MIB)
    m.segments[first]["blocks"][0]["state"] = "inactive"
    device = history(m)
    assert device.peak_allocated == 8 * MIB and device.peak_reserved == 16 * MIB
    assert device.allocations.completed.tolist()[0] > device.allocations.freed.tolist()[0]


def test_a_snapshot_without_events_shows_what_is_held():
    m = Memory()
    m.older(100, at(3))
    device = history(m)
    assert device.peak_allocated == 100 * MIB == device.peak_reserved


MANIFESTS = [ROOT / "samples" / "memory" / "manifest.json", SHARED / "corpus" / "memory" / "manifest.json"]


def recorded():
    for manifest in MANIFESTS:
        for number, (name, case) in enumerate(json.loads(manifest.read_text())["cases"].items() if manifest.is_file() else ()):
            quick = manifest is MANIFESTS[0] and number % 4 == 0
            for side in ("slow", "fixed"):
                if side in case:
                    yield pytest.param(manifest.parent / case[side]["file"].split("/")[-1], case[side], id=f"{name}-{side}", marks=() if quick else slow)


@cache
def views(path):
    return Workspace(*read(path).parts)


@pytest.mark.parametrize(("path", "measured"), list(recorded()))
def test_peaks_are_those_that_torch_measured(path, measured):
    device = views(path).get(MemoryHistory).main
    assert device.peak_allocated == measured["peak_allocated"] and device.peak_reserved == measured["peak_reserved"]


@pytest.mark.parametrize(("path", "measured"), list(recorded()))
def test_the_simulated_allocator_reserves_what_was_recorded(path, measured):
    replay = views(path).get(MemoryReplay)
    births = replay.device.allocations.born
    births = births[births >= 0]
    assert replay.fidelity == 0
    if not (np.diff(replay.device.reserved) < 0).any():
        assert (replay.reserved_curve(replay.recorded)[births] == replay.device.reserved[births]).all()


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap"]),
        st.integers(0, 12).map(lambda n: n * MIB),
        st.sampled_from([1, 512, MIB, 2 * MIB, 5 * MIB]),
    ),
    max_size=40,
)


@given(EVENTS, st.booleans())
@settings(max_examples=examples(100), deadline=None)
def test_a_history_whose_start_was_overwritten_contradicts_itself_and_breaks_nothing(events, expandable):
    trace = [{"action": a, "addr": at, "size": size, "stream": 0, "time_us": i, "frames": []} for i, (a, at, size) in enumerate(events)]
    block = {"address": 3 * MIB, "size": MIB, "requested_size": 700_000, "state": "active_allocated", "frames": []}
    segment = {"device": 0, "address": 0, "total_size": 6 * MIB, "stream": 0, "segment_type": "large", "blocks": [block], "is_expandable": expandable}
    snapshot = from_value({"segments": [segment], "device_traces": [trace], "allocator_settings": {"expandable_segments": expandable}}, "s", 1)
    workspace = Workspace(snapshot)
    workspace.get(MemorySummary)
    workspace.get(MemoryHealth)


def test_state_that_an_update_makes_anew_is_the_optimizer_s():
    """Two moments, older than the history, of a parameter whose gradient the window shows; the step gives both back for new ones."""
    m = Memory()
    m.older(64, parameter())
    old = [m.older(64) for _ in range(2)]
    m.alloc(64, backward())
    for moment in old:
        m.alloc(64, optimizer("add"))
        m.free(moment)
    m.alloc(1, optimizer("add"))
    attribution = Workspace(m.snapshot()).get(Attribution)
    found = Counter(CATEGORIES[c].value for c in attribution.category[attribution.device.allocations.born < 0])
    assert found == {"parameters": 1, "optimizer state": 2}
