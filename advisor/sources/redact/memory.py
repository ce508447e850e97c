"""Memory snapshots with the data that the reader uses: sizes, times and stacks, frames named as everywhere."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any

from advisor.errors import TraceError
from advisor.sources.memory import pprof, snapshot
from advisor.sources.memory.pickles import loads
from advisor.sources.protobuf import fields, text, whole, written
from advisor.sources.redact.names import Names
from advisor.sources.sniff import PPROF_HEAD
from advisor.sources.stream import Stream

# Tuples: what a damaged file holds instead may not be hashable.
_STATES = ("active_allocated", "active_pending_free", "active_awaiting_free", "inactive")
_ACTIONS = (*snapshot._ACTIONS, "snapshot")
_SEGMENT_NUMBERS = ("device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "is_expandable")
_EVENT_NUMBERS = ("addr", "size", "stream", "time_us")
_SETTINGS = ("expandable_segments", "max_split_size", "garbage_collection_threshold")


def redacted(stream: Stream, head: bytes, path: str, names: Names) -> Iterator[bytes]:
    """A snapshot or a memory profile to give away. Raises TraceError if it is damaged."""
    data = b"".join(iter(lambda: stream.read(1 << 24), b""))
    if stream.truncated:
        raise TraceError(f"{path} cannot be unpacked: {stream.truncated}", "Copy or record the file again.")
    try:
        if head.startswith(PPROF_HEAD):
            pprof.read(data, path)
            return iter([*_profile(data, names)])
        value = loads(data, path)
        snapshot.from_value(value, path, len(data))
        return iter((pickle.dumps(_Snapshot(names).as_dict(value), 4),))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
        raise TraceError(f"{path} is damaged in a part that the reader skips: {type(error).__name__}: {str(error)[:120]}", "Record it again.") from None


class _Snapshot:
    """Rebuilds a snapshot. Lists of frames that the file shares stay shared: a snapshot has millions of references to thousands."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._frames: dict[int, list[dict[str, Any]]] = {}

    def as_dict(self, value: Any) -> dict[str, Any]:
        whole = {"segments": value} if isinstance(value, list) else value
        return {
            "segments": [self._segment(one) for one in whole["segments"]],
            "device_traces": [[self._event(one) for one in trace] for trace in whole.get("device_traces") or []],
            "external_annotations": [self._mark(one) for one in whole.get("external_annotations") or []],
            "allocator_settings": _settings(whole.get("allocator_settings")),
        }

    def _segment(self, segment: Mapping[str, Any]) -> dict[str, Any]:
        made = _numbers(segment, _SEGMENT_NUMBERS)
        made["segment_type"] = "large" if segment.get("segment_type", "large") == "large" else "small"
        made["segment_pool_id"] = tuple(int(part) for part in segment.get("segment_pool_id") or (0, 0))
        made["blocks"] = [self._block(one) for one in segment["blocks"]]
        return made

    def _block(self, block: Mapping[str, Any]) -> dict[str, Any]:
        frames = block.get("frames") or next((h.get("frames") for h in block.get("history") or ()), None)
        state = block["state"] if block["state"] in _STATES else "inactive"
        return {**_numbers(block, ("address", "size", "requested_size")), "state": state, "frames": self._stack(frames)}

    def _event(self, event: Mapping[str, Any]) -> dict[str, Any]:
        action = event["action"] if event["action"] in _ACTIONS else "other"
        return {**_numbers(event, _EVENT_NUMBERS), "action": action, "frames": self._stack(event.get("frames"))}

    def _mark(self, note: Mapping[str, Any]) -> dict[str, Any]:
        stage = note["stage"] if note.get("stage") in ("START", "END") else "END"
        return {**_numbers(note, ("device", "time_us")), "name": self.names.range(str(note["name"])), "stage": stage}

    def _stack(self, frames: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
        if not frames:
            return []
        made = self._frames.get(id(frames))
        if made is None:
            made = self._frames[id(frames)] = [
                {"name": self.names.function(str(f["name"])), "filename": self.names.path(str(f["filename"])), "line": int(f["line"])} for f in frames
            ]
        return made


def _numbers(of: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: of[key] for key in keys if isinstance(of.get(key), (int, float))}


def _settings(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        return {}
    made = _numbers(given, _SETTINGS)
    if isinstance(by_size := given.get("roundup_power2_divisions"), dict):
        made["roundup_power2_divisions"] = {size: n for size, n in by_size.items() if str(size).isdigit() and isinstance(n, int)}
    return made


def _profile(data: bytes, names: Names) -> Iterator[bytes]:
    """JAX's profile: each sample with its size, its device and its stack."""
    texts = {one: i for i, one in enumerate(("", "allocations", "count", "space", "bytes", "device"))}
    held = [text(value) for number, value in fields(memoryview(data)) if number == 6]
    functions = {whole(f[1][0]): f for number, value in fields(memoryview(data)) if number == 5 for f in [pprof._message(value)]}
    for kind, unit in ((1, 2), (3, 4)):
        yield written(1, written(1, kind) + written(2, unit))
    for number, value in fields(memoryview(data)):
        if number == 2:
            sample = pprof._message(value)
            labels = {held[whole(label[1][0])]: held[whole(label[2][0])] for label in map(pprof._message, sample[3]) if 2 in label}
            shown = written(3, written(1, 5) + written(2, texts.setdefault(_device(labels["device"]), len(texts)))) if "device" in labels else b""
            values = [v if v < 1 << 63 else v - (1 << 64) for v in pprof._numbers(sample[2])]
            yield written(2, b"".join([written(1, n) for n in pprof._numbers(sample[1])] + [written(2, n) for n in values]) + shown)
        elif number == 4:
            location = pprof._message(value)
            lines = b"".join(
                written(4, written(1, whole(line[1][0])) + (written(2, whole(line[2][0])) if line[2] else b"")) for line in map(pprof._message, location[4])
            )
            yield written(4, written(1, whole(location[1][0])) + lines)
    for key, function in functions.items():
        name, file = (held[whole(function[n][0])] if function[n] else "" for n in (2, 4))
        yield written(
            5, written(1, key) + written(2, texts.setdefault(names.function(name), len(texts))) + written(4, texts.setdefault(names.path(file), len(texts)))
        )
    for one in texts:
        yield written(6, one)


def _device(label: str) -> str:
    return "device:" + ("".join(filter(str.isdigit, label))[:6] or "0")
