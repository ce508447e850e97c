"""Reads a trace in small pieces, so that a small trace has enough of them for threads and processes."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pandas as pd

from advisor.recordings.timeline import TABLES, Timeline
from advisor.sources import kineto
from advisor.sources.stream import Stream

CHUNK = 1 << 14


def read(text: bytes, processes: int, progress: Any = None) -> Timeline:
    stream = Stream(BytesIO(text), len(text), progress=progress)
    return kineto.read(stream, "trace.json", CHUNK, processes, helped_from=0)


def assert_same(one: Timeline, two: Timeline) -> None:
    assert one.source == two.source
    assert (one.base_ns, one.devices) == (two.base_ns, two.devices)
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(one, name).to_pandas(), getattr(two, name).to_pandas())
