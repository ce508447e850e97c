"""rocpd: the SQLite database that rocprofv3 and rocprof-sys write, schema 3. Tables carry the recording's id behind their name."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from advisor.intervals import Ints
from advisor.recordings.timeline import Device, LeftOut, Timeline
from advisor.sources.limits import MOST_LEFT_OUT
from advisor.sources.nsys.tables import Database, categorical
from advisor.sources.rocprof.parts import blocks, copies, kernels, markers, timeline

_PLACE = ("start", "end", "pid", "tid")
_READ = ("kernel_dispatch", "memory_copy", "region", "info_process", "info_thread", "memory_allocate")


def has_rocpd_schema(db: Database) -> bool:
    """Whether a database has this schema: the first version, which rocmProfileData keeps, has `rocpd_op`."""
    return bool(_name(db, "kernel_dispatch") or _name(db, "info_agent"))


def _name(db: Database, table: str) -> str:
    """A table's name in this file, "" if it has none. If recordings were merged into a file, the name of the first."""
    names = (name for name in db.tables if name == f"rocpd_{table}" or name.startswith(f"rocpd_{table}_"))
    return min(names, default="")


def read(db: Database, path: str) -> Timeline:
    """The timeline. Raises TraceError if it is damaged or holds no GPU work."""
    texts = db.texts(_name(db, "string"), "id", "string")
    events = _Events(db)
    agents = _agents(db)
    calls, marked = _regions(db, texts, events)
    parts = {"gpu_ops": [_kernels(db, events, agents), _copies(db, texts, events, agents)], "api_calls": [calls], **marked}
    return timeline(path, os.path.getsize(path), parts, _devices(db, agents), (), _left_out(db))


class _Events:
    """Content of the table of events, by the ids that other tables use."""

    def __init__(self, db: Database) -> None:
        columns = db.integers(_name(db, "event"), ("id", "stack_id", "category_id"), needs=("id",))
        self._ids, first = np.unique(columns["id"], return_index=True)
        self._stack, self._category = columns["stack_id"][first], columns["category_id"][first]

    def _column_at(self, ids: Ints, column: Ints) -> Ints:
        if not len(self._ids):
            return np.full(len(ids), -1, np.int64)
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[at] == ids, column[at], -1)

    def correlation(self, ids: Ints) -> Ints:
        """The number that a call shares with its GPU work."""
        return self._column_at(ids, self._stack)

    def category(self, ids: Ints) -> Ints:
        """The number of the text that says what kind of call it is."""
        return self._column_at(ids, self._category)


def _agents(db: Database) -> dict[int, tuple[int, tuple[Any, ...]]]:
    """The GPU of each agent, counted among GPUs, and its properties."""
    rows = db.rows(_name(db, "info_agent"), "id", "type", "type_index", "product_name", "name", "extdata")
    gpus = [row for row in rows if isinstance(row[0], int) and row[1] == "GPU"]
    return {row[0]: (row[2] if isinstance(row[2], int) and 0 <= row[2] < 1 << 20 else at, row) for at, row in enumerate(gpus)}  # type: ignore[misc]


def _devices(db: Database, agents: dict[int, tuple[int, tuple[Any, ...]]]) -> list[Device]:
    return [described(number, row[3] or row[4], row[5]) for number, row in agents.values()]


def described(number: int, name: object, about: object) -> Device:
    """A device from the data of rocprofiler's agent: a JSON text, or its decoded values."""
    try:
        found = json.loads(about) if isinstance(about, str) else about
    except (ValueError, RecursionError):
        found = None
    found = found if isinstance(found, dict) else {}

    def whole(key: str) -> int:
        value = found.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 30 else 0

    return Device(number, name if isinstance(name, str) else "", whole("cu_count"), (0, 0), 0, whole("wave_front_size"))


def _device(ids: Ints, agents: dict[int, tuple[int, tuple[Any, ...]]]) -> Ints:
    known, which = np.unique(ids, return_inverse=True)
    return np.array([agents[one][0] if one in agents else max(one, 0) % (1 << 30) for one in known.tolist()] or [0], np.int64)[which]


def _stream(columns: dict[str, Ints]) -> Ints:
    """HIP's streams; the hardware's queues if streams were not recorded, as in older versions."""
    stream, queue = columns["stream_id"], columns["queue_id"]
    return queue if len(stream) and stream.max() <= 0 and queue.max() > 0 else stream


def _kernels(db: Database, events: _Events, agents: dict[int, tuple[int, tuple[Any, ...]]]) -> dict[str, Any]:
    shape = [f"{what}_size_{axis}" for what in ("grid", "workgroup") for axis in "xyz"]
    wanted = ("start", "end", "agent_id", "kernel_id", "queue_id", "stream_id", "event_id", "group_segment_size", *shape)
    c = db.integers(_name(db, "kernel_dispatch"), wanted, needs=("start", "end"))
    symbol = _name(db, "info_kernel_symbol")
    names = db.texts(symbol, "id", "kernel_name") | db.texts(symbol, "id", "display_name")
    of_grid, of_block = blocks([c[f"grid_size_{axis}"] for axis in "xyz"], [c[f"workgroup_size_{axis}"] for axis in "xyz"])
    place = {
        "start_ns": c["start"], "end_ns": c["end"], "device": _device(c["agent_id"], agents), "stream": _stream(c),
        "correlation": events.correlation(c["event_id"]), "grid_blocks": of_grid, "block_threads": of_block, "shared_bytes": c["group_segment_size"],
    }  # fmt: skip
    return kernels(place, names, c["kernel_id"])


def _copies(db: Database, texts: dict[int, str], events: _Events, agents: dict[int, tuple[int, tuple[Any, ...]]]) -> dict[str, Any]:
    wanted = ("start", "end", "name_id", "dst_agent_id", "src_agent_id", "size", "queue_id", "stream_id", "event_id")
    c = db.integers(_name(db, "memory_copy"), wanted, needs=("start", "end"))
    gpu = np.where(np.isin(c["dst_agent_id"], list(agents)), c["dst_agent_id"], c["src_agent_id"])
    place = {
        "start_ns": c["start"], "end_ns": c["end"], "device": _device(gpu, agents), "stream": c["stream_id"],
        "correlation": events.correlation(c["event_id"]), "bytes": c["size"],
    }  # fmt: skip
    return copies(place, {code: texts.get(code, "") for code in np.unique(c["name_id"]).tolist()}, c["name_id"])


def _regions(db: Database, texts: dict[int, str], events: _Events) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """Calls of HIP, and what markers and RCCL's calls open. HSA's calls lie inside of HIP's and are left out."""
    region = _name(db, "region")
    c = db.integers(region, (*_PLACE, "name_id", "event_id"), needs=("start", "end"))
    kinds = {code: text for code, text in texts.items() if text.startswith(("HIP_", "MARKER_", "RCCL_"))}
    category = events.category(c["event_id"])
    hip, marker, rccl = (np.isin(category, [code for code, text in kinds.items() if text.startswith(kind)]) for kind in ("HIP_", "MARKER_", "RCCL_"))
    place = {"start_ns": c["start"], "end_ns": c["end"], "pid": c["pid"], "tid": c["tid"]}
    calls = {
        **{key: value[hip] for key, value in place.items()},
        "name": categorical(c["name_id"][hip], texts), "correlation": events.correlation(c["event_id"][hip]), "error": np.zeros(int(hip.sum()), np.int64),
    }  # fmt: skip
    chosen = marker | rccl
    named = [texts.get(code, "") for code in c["name_id"][chosen].tolist()]
    said = _messages(db, c["event_id"][marker]) if marker.any() else {}
    ids = c["event_id"][chosen].tolist()
    return calls, markers([said.get(one) or name for one, name in zip(ids, named, strict=True)], {key: value[chosen] for key, value in place.items()})


def _messages(db: Database, wanted: Ints) -> dict[int, str]:
    """What markers say, by event."""
    needed, found = set(wanted.tolist()), {}
    for number, text in db.iterate(_name(db, "event"), ("id", "extdata"), """typeof("extdata") = 'text' AND "extdata" <> '{}'"""):
        if number in needed and isinstance(text, str):  # a column that the table lacks is none
            try:
                held = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(held, dict) and isinstance(held.get("message"), str):
                found[number] = held["message"]
    return found


def _left_out(db: Database) -> list[LeftOut]:
    """Tables of what lasts some time that are not read."""
    read = {_name(db, table) for table in _READ}
    spans = {name: db.spans(name) for name in db.tables if name not in read}
    return [LeftOut(f"rows of the table {name}", count, ns / 1000, of_host=True) for name, (count, ns) in spans.items() if count][:MOST_LEFT_OUT]
