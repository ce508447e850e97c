"""Lives and block sizes are those of a walk over the events, one by one, whatever contradicts itself; in C they are the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.recordings.extension import EXTENSION
from advisor.recordings.snapshot import Action, Block, DeviceSnapshot, Events, Segment
from advisor.views.memory import layout
from advisor.views.memory.allocator import Settings
from tests.paths import examples

MIB = 1 << 20
SIZES = st.sampled_from([1, 512, 700, MIB, MIB + 512, 2 * MIB, 3 * MIB])
installed = pytest.mark.skipif(EXTENSION is None, reason="trace_advisor_native is not installed")
SETTINGS = st.builds(Settings, st.booleans(), st.sampled_from([-1, MIB, 2 * MIB]), st.sampled_from([(), (4,) * 16]))


def events_of(rows):
    """Events of (action, address, size); each has a stack of its own."""
    columns = np.array(rows, "i8").reshape(-1, 3).T
    n = np.arange(len(rows))
    return Events(columns[0].astype("i1"), columns[1], columns[2], n % 3, n, n.astype("i4"))


@st.composite
def snapshots(draw):
    """Events at few addresses, half a MiB apart, so that they meet; two segments whose blocks fill them."""
    address = st.integers(0, 12).map(lambda place: place * MIB // 2)
    actions = st.sampled_from([*(Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED) * 3, *Action])
    events = events_of(draw(st.lists(st.tuples(actions, address, SIZES), max_size=40)))
    segments, at = [], 0
    for _ in range(draw(st.integers(0, 2))):
        start, blocks = at, []
        for size, allocated in draw(st.lists(st.tuples(st.sampled_from([MIB // 2, MIB, 2 * MIB]), st.booleans()), max_size=4)):
            blocks.append(Block(at, size, size - draw(st.sampled_from([0, 100])), allocated, allocated, draw(st.integers(-1, 90))))
            at += size
        segments.append(Segment(start, at - start, 0, True, (0, 0), False, tuple(blocks)))
        at += draw(st.sampled_from([0, MIB]))
    return DeviceSnapshot(0, tuple(segments), events)


def walked(device):
    """Rows of (address, requested, born, freed, completed, stream, stack), and how many are older than the window."""
    end = len(device.events) + 1
    older, born, held, pending = [], [], {}, {}
    e = device.events
    for i, (action, address, size, stream, stack) in enumerate(zip(*(c.tolist() for c in (e.action, e.address, e.size, e.stream, e.stack)), strict=True)):
        if action == Action.ALLOC:
            held[address] = [address, size, i, end, end, stream, stack]
            born.append(held[address])
        elif action == Action.FREE_REQUESTED:
            if address not in held:
                held[address] = [address, size, -1, end, end, stream, -1]
                older.append(held[address])
            pending[address] = held.pop(address)
            pending[address][3] = i
        elif action == Action.FREE_COMPLETED and address in pending:
            pending.pop(address)[4] = i
    for address, (block, segment) in {b.address: (b, s) for s in device.segments for b in s.blocks if b.allocated}.items():
        if address in held:
            held[address][6] = max(held[address][6], block.stack)
        else:
            older.append([address, block.requested, -1, end, end, segment.stream, block.stack])
    return older + born, len(older)


@settings(max_examples=examples(300), deadline=None)
@given(snapshots())
def test_lives_are_those_of_a_walk(device):
    lives = layout.lives_of(device)
    columns = (lives.address, lives.requested, lives.born, lives.freed, lives.completed, lives.stream, lives.stack)
    rows, older = walked(device)
    assert ([list(row) for row in zip(*(c.tolist() for c in columns), strict=True)], lives.older) == (rows, older)


def sizes(device, chosen, extension):
    before, layout.EXTENSION = layout.EXTENSION, extension
    try:
        return layout.sizes_of(layout.lives_of(device), device.segments, device, chosen).tolist()
    finally:
        layout.EXTENSION = before


@installed
@settings(max_examples=examples(300), deadline=None)
@given(snapshots(), SETTINGS)
def test_blocks_are_as_large_in_c(device, chosen):
    assert sizes(device, chosen, EXTENSION) == sizes(device, chosen, None)


def test_sums_beyond_64_bits_are_left_to_python():
    huge = DeviceSnapshot(0, (), events_of([(Action.SEGMENT_ALLOC, place << 51, 1 << 50) for place in range(1 << 10)] + [(Action.ALLOC, 0, 512)]))
    assert sizes(huge, Settings(), EXTENSION) == sizes(huge, Settings(), None) == [512]


def columns(**changes):
    """One request of 512 bytes in a segment, as the extension takes it."""
    made = {
        "action": np.array([Action.SEGMENT_ALLOC, Action.ALLOC], "i1"), "address": np.array([0, 0]), "length": np.array([MIB, 512]), "size": np.array([512]),
        "old": np.array([], "i8"), "free": np.array([], "i8"), "free_size": np.array([], "i8"), "starts": np.array([], "i8"),
    }  # fmt: skip
    return [np.asarray(one).tobytes() for one in {**made, **changes}.values()]


@installed
@pytest.mark.parametrize(
    "wrong",
    [
        {"address": np.array([0])}, {"length": np.array([-1, 512])}, {"size": np.array([512, 512])}, {"size": np.array([], "i8")}, {"size": np.array([-512])},
        {"old": np.array([0])}, {"free": np.array([0])}, {"free": np.array([0]), "free_size": np.array([1 << 61])}, {"address": np.array([1 << 62, 0])},
    ],
)  # fmt: skip
def test_columns_that_are_no_events_are_refused(wrong):
    assert np.frombuffer(EXTENSION.block_sizes(*columns(), -1, False)).tobytes() == np.array([512]).tobytes()
    with pytest.raises(ValueError, match=r"not events|different lengths"):
        EXTENSION.block_sizes(*columns(**wrong), -1, False)
