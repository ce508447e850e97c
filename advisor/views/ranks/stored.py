"""Arrays of a stored rank summary: unpacked within bounds and checked against their declaration.

Summaries are copied between machines, so a file may be damaged or malicious: positions must be in range, or a job would be judged by wrong rows.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping

import numpy as np

from advisor.views.ranks.lane import PARTS

Arrays = Mapping[str, np.ndarray]

MOST_BYTES = 1 << 30
"""Of all arrays unpacked: a thousand times a long trace's summary."""

_COLLECTIVES = [
    "kind",
    "known",
    "group",
    "dtype",
    "peers",
    "communicator",
    "split",
    "sequence",
    "sent",
    "received",
    "size_bytes",
    "start_us",
    "end_us",
    "launch_us",
    "stream",
    "step",
    "needed",
    "trigger",
    "lag_us",
    "after",
    "after_lag_us",
    "before",
]
_SEGMENTS = ("segment_start_us", "segment_end_us", "own", "waits_for", "segment_step", "held")
_BY_PART = ("before", "own", "steps_us")
_FINITE = ("start_us", "end_us", "segment_start_us", "segment_end_us", "own", "steps_us")


def unpacked(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of an `.npz`. Raises ValueError if they are no such file, or hold more than `MOST_BYTES`."""
    import zipfile

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            if sum(entry.file_size for entry in packed.infolist()) > MOST_BYTES:
                raise ValueError("it unpacks to more than a summary holds")
        with warnings.catch_warnings(), np.load(io.BytesIO(data), allow_pickle=False) as stored:
            warnings.simplefilter("error")  # numpy helps out with headers of other versions, which none of ours has
            # What does not begin as an array does, numpy hands on as bytes.
            return {name: np.asarray(stored[name]) for name in stored.files}
    except Exception as error:  # of damage, readers of archives, headers and numbers raise what they meet
        raise ValueError(f"{type(error).__name__}: {error}") from None


def check(arrays: Arrays, kinds: Mapping[str, str], lists: Mapping[str, int]) -> None:
    """Raises ValueError if an array differs from its declaration. kinds: numpy's type letter by name (b, i, f). lists: for position arrays, the length of the
    list that they index.
    """
    for name in kinds:
        if not arrays[name].ndim:
            raise ValueError(f"{name} is no array")
    collectives, segments = len(arrays["kind"]), len(arrays["segment_start_us"])
    rows = {
        **dict.fromkeys(_COLLECTIVES, collectives),
        **dict.fromkeys(_SEGMENTS, segments),
        "steps_us": len(arrays["steps_us"]),
        "strip": len(arrays["strip"]),
    }
    for name, kind in kinds.items():
        array = arrays[name]
        if array.dtype.kind != kind:
            raise ValueError(f"{name} holds {array.dtype}")
        if array.shape != ((rows[name], len(PARTS)) if name in _BY_PART else (rows[name],)):
            raise ValueError(f"{name} has the shape {array.shape}")
        if name in _FINITE and not np.isfinite(array).all():
            raise ValueError(f"{name} holds what is no number")
    for name, (low, high) in {
        **{name: (0, size) for name, size in lists.items()}, "trigger": (-1, segments), "after": (-1, collectives), "waits_for": (-1, collectives), "strip": (-1, len(PARTS)),
    }.items():  # fmt: skip
        if len(arrays[name]) and not (low <= arrays[name].min() and arrays[name].max() < high):
            raise ValueError(f"{name} points outside of what there is")
    if (arrays["end_us"] < arrays["start_us"]).any() or (arrays["segment_end_us"] < arrays["segment_start_us"]).any():
        raise ValueError("something ends before it begins")
