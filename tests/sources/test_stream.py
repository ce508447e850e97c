"""Bytes of a file, whatever is asked for."""

from __future__ import annotations

import gzip
import io
import struct
import time

import pytest

from advisor.sources.stream import DEFAULT_MAX_BYTES, Stream, zstd


def test_asking_for_everything_sets_no_memory_aside_for_it():
    """Python allocates what `read` is asked for before it reads: 16 GiB for a file of two bytes."""
    asked = []

    class File(io.BytesIO):
        def read(self, n=-1):
            asked.append(n)
            return super().read(n)

    assert Stream(File(b"{}")).read(DEFAULT_MAX_BYTES + 1) == b"{}"
    assert max(asked) <= 1 << 26


TEXT = bytes(range(32, 127)) * 400
SKIPPABLE = struct.pack("<II", 0x184D2A50, 4) + b"size"
PIECES = (TEXT[:5000], TEXT[5000:20_000], TEXT[20_000:])
FRAMES, MEMBERS = [*map(zstd.compress, PIECES)], [*map(gzip.compress, PIECES)]
WHOLE = {
    "a skippable frame before each, as pzstd writes": b"".join(SKIPPABLE + frame for frame in FRAMES),
    "skippable frames of every kind": b"".join(struct.pack("<II", 0x184D2A50 + kind, 0) for kind in range(16)) + b"".join(FRAMES),
    "one in the middle": FRAMES[0] + SKIPPABLE + FRAMES[1] + FRAMES[2],
    "one at the end, as seekable zstd writes": b"".join(FRAMES) + SKIPPABLE,
    "an empty frame among them": FRAMES[0] + zstd.compress(b"") + FRAMES[1] + FRAMES[2],
    "padded frames": b"".join(FRAMES) + b"\0" * 700_000,
    "members of gzip": b"".join(MEMBERS),
    "padded members": b"".join(MEMBERS) + b"\0" * 30,
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("short", [False, True])
def test_every_frame_and_member_is_read(name: str, short: bool) -> None:
    """Short reads, as of a pipe, cut each header somewhere."""

    class File(io.BytesIO):
        def read(self, n=-1):
            return super().read(min(n, 7) if short and self.tell() else n if not short else 64)

    stream = Stream(File(WHOLE[name]))
    assert b"".join(iter(lambda: stream.read(999), b"")) == TEXT
    assert not stream.truncated and not stream.trailing


@pytest.mark.parametrize("packed", [FRAMES, MEMBERS], ids=["zstd", "gzip"])
def test_what_follows_and_is_no_member_is_said(packed: list[bytes]) -> None:
    for padding in (0, 600_000):
        stream = Stream(io.BytesIO(b"".join(packed) + b"\0" * padding + b"garbage"))
        assert stream.read(1 << 20) == TEXT and not stream.truncated
        assert "was not read" in stream.trailing and (padding or f"byte {sum(map(len, packed)):,} " in stream.trailing)


@pytest.mark.parametrize("one", [zstd.compress(b""), gzip.compress(b""), SKIPPABLE], ids=["zstd", "gzip", "skippable"])
def test_nothing_but_empty_members_costs_in_proportion_to_the_file(one: bytes) -> None:
    """Each end of a member leaves the rest of what was handed over: copied whole, a megabyte took several seconds."""
    seconds = []
    for count in (2_000, 20_000):
        began = time.process_time()
        assert Stream(io.BytesIO(one * count)).read(1) == b""
        seconds.append(time.process_time() - began)
    assert seconds[1] < 30 * seconds[0] + 0.2
