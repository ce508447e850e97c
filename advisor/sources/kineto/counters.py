"""Samples of hardware counters in a Chrome trace: events of phase `C` on a device's process, as Kineto's counter activities and torch 2.15 write them."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from advisor.sources.kineto.columns import START, Column, strings
from advisor.sources.limits import LARGEST, MOST_DEVICES

TABLE = "gpu_metrics"
_COUNTER = re.compile(rb'"ph"\s*:\s*"C"')
_QUOTED = re.compile(rb'C"(?<="C")')
"""The mark alone, found in a third of the time that `in` takes, which looks for the last quote first."""
_VALUE = "value"
"""The name of an argument with the only number of its event."""


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: Any = ""
    pid: Any = None
    ts: Any = None
    args: Any = None


_EVENTS = msgspec.json.Decoder(list[_Event])


def counters(piece: bytes) -> dict[str, Column]:
    """Columns of `gpu_metrics` of `{…}, {…}`: a row for each number of each counter event; {} without counters, or if the piece is no JSON."""
    if _QUOTED.search(piece) is None or _COUNTER.search(piece) is None:
        return {}
    try:
        events = [event for event in _EVENTS.decode(b"[" + piece + b"]") if event.ph == "C"]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    rows = [row for event in events for row in _rows(event)]
    if not rows:
        return {}
    start, device, name, value = zip(*rows, strict=True)
    return {START: np.array(start, np.int64), "device": np.array(device, np.int32), "name": strings(name), "value": np.array(value, np.float64)}


def _rows(event: _Event) -> list[tuple[int, int, str, float]]:
    """Start in ns, device, name and value of each number."""
    if not isinstance(event.pid, int) or not 0 <= event.pid < MOST_DEVICES or not isinstance(event.args, dict) or not _is_number(event.ts):
        return []
    called = event.name if isinstance(event.name, str) else ""
    start = event.ts * 1000
    if not abs(start) < LARGEST:
        return []
    return [(round(start), event.pid, called if key in (_VALUE, called) else key, float(number)) for key, number in event.args.items() if _is_number(number)]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST
