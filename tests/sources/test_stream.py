"""Bytes of a file, whatever is asked for."""

from __future__ import annotations

import io

from advisor.sources.stream import DEFAULT_MAX_BYTES, Stream


def test_asking_for_everything_sets_no_memory_aside_for_it():
    """Python allocates what `read` is asked for before it reads: 16 GiB for a file of two bytes."""
    asked = []

    class File(io.BytesIO):
        def read(self, n=-1):
            asked.append(n)
            return super().read(n)

    assert Stream(File(b"{}")).read(DEFAULT_MAX_BYTES + 1) == b"{}"
    assert max(asked) <= 1 << 26
