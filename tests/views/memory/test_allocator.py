"""The caching allocator, step by step, as CUDACachingAllocator.cpp has it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.views.memory.allocator import LARGE_SEGMENT, SMALL_SEGMENT, Allocator, Settings, segment_size
from tests.paths import examples

MIB = 1 << 20


def test_requests_are_rounded_and_segments_shared():
    a = Allocator(Settings())
    first = a.alloc(1)
    assert a.allocated == 512 and a.reserved == SMALL_SEGMENT
    assert a.alloc(600) == first + 512 and a.allocated == 512 + 1024
    a.alloc(2 * MIB)
    assert a.reserved == SMALL_SEGMENT + LARGE_SEGMENT
    a.alloc(21 * MIB)
    assert a.reserved == SMALL_SEGMENT + LARGE_SEGMENT + 22 * MIB and segment_size(21 * MIB) == 22 * MIB


def test_the_smallest_free_block_that_fits_is_taken_and_neighbours_merge():
    a = Allocator(Settings())
    blocks = [a.alloc(5 * MIB) for _ in range(4)]
    assert a.reserved == LARGE_SEGMENT
    a.free(blocks[0])
    a.free(blocks[1])
    assert a.alloc(9 * MIB) == blocks[0] and a.reserved == LARGE_SEGMENT


def test_a_rest_of_a_mebibyte_is_not_split_off():
    a = Allocator(Settings())
    a.free(a.alloc(20 * MIB))
    a.alloc(19 * MIB)
    assert a.allocated == 20 * MIB
    b = Allocator(Settings())
    b.free(b.alloc(20 * MIB))
    b.alloc(18 * MIB)
    assert b.allocated == 18 * MIB


def test_streams_and_private_pools_share_nothing():
    a = Allocator(Settings())
    a.free(a.alloc(30 * MIB))
    a.alloc(30 * MIB, stream=1)
    a.alloc(30 * MIB, private=(0, 1))
    assert a.reserved == 90 * MIB


def test_an_expandable_segment_grows_at_its_end():
    a = Allocator(Settings(expandable=True))
    first, second = a.alloc(30 * MIB), a.alloc(30 * MIB)
    assert a.reserved == 60 * MIB or a.reserved == 80 * MIB
    a.free(first)
    a.free(second)
    before = a.reserved
    a.alloc(100 * MIB)
    assert a.reserved == max(before, 100 * MIB)


def test_growing_requests_leave_holes_unless_segments_expand():
    def peak(expandable):
        a = Allocator(Settings(expandable=expandable))
        for size in range(100, 200, 10):
            a.free(a.alloc(size * MIB))
        return a.reserved

    assert peak(False) == sum(range(100, 200, 10)) * MIB and peak(True) == 200 * MIB


def test_emptying_the_cache_gives_back_whole_segments_only():
    a = Allocator(Settings())
    kept, dropped = a.alloc(5 * MIB), a.alloc(30 * MIB)
    a.free(dropped)
    a.release_cached()
    assert a.reserved == LARGE_SEGMENT
    a.free(kept)
    a.release_cached()
    assert a.reserved == 0


def test_divisions_round_to_steps_between_powers_of_two():
    s = Settings(divisions=(4,) * 16)
    assert s.rounded(5 * MIB) == 5 * MIB and s.rounded(int(4.5 * MIB)) == 5 * MIB and s.rounded(9 * MIB) == 10 * MIB


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40 * MIB), st.integers(0, 1)), max_size=60), st.booleans(), st.randoms())
def test_nothing_is_lost_whatever_is_asked(requests, expandable, random):
    a = Allocator(Settings(expandable=expandable))
    held = []
    for size, stream in requests:
        held.append(a.alloc(size, stream))
        assert sum(have for have, _ in a._free.values()) + a.allocated == a.reserved
        if random.random() < 0.5:
            a.free(held.pop(random.randrange(len(held))))
    for address in held:
        a.free(address)
    a.release_cached()
    assert a.allocated == 0 and a.reserved == 0


@pytest.mark.parametrize(("asked", "reserved"), [(MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB - 1, 20 * MIB), (10 * MIB, 10 * MIB), (10 * MIB + 1, 12 * MIB)])
def test_a_segment_is_as_large_as_torchs_own(asked, reserved):
    """`get_allocation_size` of CUDACachingAllocator.cpp, at each of its limits."""
    assert segment_size(asked) == reserved
