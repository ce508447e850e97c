"""The fields of events for each table, and a table's fields as typed columns.

Both decoders produce these: msgspec's structs (`OfStructs`), and the native decoder if it is installed (`native`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter, is_
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from advisor.recordings.timeline import GpuKind
from advisor.sources.kineto.columns import INT64, Strings, floats, integers, strings
from advisor.sources.kineto.events import NOTHING, Args, Event

GPU_KINDS = {
    "kernel": GpuKind.KERNEL,
    "Kernel": GpuKind.KERNEL,
    "gpu_memcpy": GpuKind.MEMCPY,
    "Memcpy": GpuKind.MEMCPY,
    "gpu_memset": GpuKind.MEMSET,
    "Memset": GpuKind.MEMSET,
}
"""Only the category makes an event GPU work: an op that Inductor compiled has a `stream` argument too."""

MTIA = "mtia_ccp_events"

TABLE_OF = {
    **dict.fromkeys((*GPU_KINDS, MTIA), "gpu_ops"),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime", "glow_runtime", "hpu_op"), "api_calls"),
    **dict.fromkeys(("xpu_runtime", "xpu_driver", "privateuse1_runtime", "privateuse1_driver"), "api_calls"),
    **dict.fromkeys(("cpu_op", "Operator"), "cpu_ops"),
    "python_function": "python_calls",
    "user_annotation": "annotations",
    "gpu_user_annotation": "gpu_annotations",
    "cuda_sync": "syncs",
    "overhead": "overheads",
}
"""The table of each category of spans."""

WINDOW = "Trace"
"""The category of the span in which Kineto recorded: no work of anybody's."""

MARKS = {("i", "[memory]"): "memory", ("I", "[memory]"): "memory", ("M", "thread_name"): "threads", ("M", "process_name"): "processes"}
"""The table of an event that is no span, by its phase and name."""
HALVES = "BE"
"""Phases of spans that are recorded in two events."""

MISSING = INT64.min
"""An optional integer that was not recorded."""

Kind = Literal["integer", "float", "text", "either", "label", "raw"]
"""integer: of any value. text: a string. either: a string, or a number without meaning. label: a string, or a number as a
string. raw: any value, as recorded JSON text."""

_LABELS = ("group", "communicator", "source_rank", "target_rank", "thread")
_KIND_OF_TYPE: dict[Any, Kind] = {msgspec.Raw: "raw", str | None: "text", str | int | None: "either"}
KINDS: dict[str, Kind] = {
    **{field.name: _KIND_OF_TYPE.get(field.type, "integer") for field in msgspec.structs.fields(Args)},
    **dict.fromkeys(_LABELS, "label"),
    "occupancy": "float",
    **dict.fromkeys(("cat", "name"), "text"),
    **dict.fromkeys(("pid", "tid"), "integer"),
}

_THREAD = ("pid", "tid")
_PLACE = ("device", "stream", *_THREAD)
_EXTERNAL = ("external_id", "external_id_2021")

TABLE_FIELDS: dict[str, tuple[str, ...]] = {
    "gpu_ops": (
        "cat", "name", *_PLACE, "original_stream", "correlation", *_EXTERNAL, "shared_bytes", "bytes", "dma_bytes", "grid", "block", "registers", "occupancy",
        "graph_id", "graph_node_id", "collective", "dtype", "group", "group_ranks", "group_size", "communicator", "collective_sequence",
        "in_elements", "out_elements", "in_split", "out_split", "direction", "kind", "copy_kind", "src_kind", "dst_kind",
    ),
    "api_calls": ("name", *_THREAD, "correlation", *_EXTERNAL),
    "cpu_ops": (
        "name", *_THREAD, *_EXTERNAL, "sequence", "forward_thread", "dims", "dims_2021", "types", "strides", "concrete",
        "kernel_file", "call_stack", "module", "source_rank", "target_rank", "group_ranks",
    ),
    "python_calls": ("name", *_THREAD, "python_id", "parent_id", "module_id"),
    "annotations": ("name", *_THREAD),
    "overheads": ("name", *_THREAD),
    "gpu_annotations": ("name", *_PLACE),
    "syncs": ("name", "sync_kind", *_PLACE, "correlation", "waits_on_stream", "waits_on_correlation"),
    "memory": (*_THREAD, "address", "memory_bytes", "allocated_bytes", "reserved_bytes", "device_type", "device_id"),
    "threads": (*_THREAD, "thread"),
    "processes": (*_THREAD, "thread"),
}  # fmt: skip

OF_THREADS = ("threads", "processes")
"""Tables with rows that name their thread by two integers, or are left out."""
TIMED = tuple(table for table in TABLE_FIELDS if table not in OF_THREADS)
LASTING = tuple(table for table in TIMED if table != "memory")


class Fields(Protocol):
    """The rows of a table of a piece; a field is requested by its name in `KINDS`."""

    @property
    def rows(self) -> int: ...

    def integers(self, name: str) -> NDArray[np.int64]:
        """-1 if it was not recorded."""

    def optional(self, name: str) -> NDArray[np.int64]:
        """`MISSING` if it was not recorded."""

    def numbers(self, name: str) -> NDArray[np.int64]:
        """Only integers count, all other values are 0."""

    def floats(self, name: str) -> NDArray[np.float64]:
        """NaN if it was not recorded."""

    def texts(self, name: str) -> Strings:
        """ "" if it was not recorded."""


class OfStructs:
    """Of decoded events."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.rows = len(events)
        self._events, self._args = events, get(events, "args")

    def _values(self, name: str) -> list[Any]:
        return get(self._args if name in Args.__struct_fields__ and name != "name" else self._events, name)

    def integers(self, name: str) -> NDArray[np.int64]:
        values = self._values(name)
        # A column that nobody recorded costs a comparison a row.
        return np.full(self.rows, -1, np.int64) if values.count(-1) == self.rows else integers(values)

    def optional(self, name: str) -> NDArray[np.int64]:
        values = self._values(name)
        return integers([MISSING if value is None else value for value in values] if None in values else values)

    def numbers(self, name: str) -> NDArray[np.int64]:
        return integers([value if isinstance(value, int) else 0 for value in self._values(name)])

    def floats(self, name: str) -> NDArray[np.float64]:
        return floats(self._values(name))

    def texts(self, name: str) -> Strings:
        values = self._values(name)
        match KINDS[name]:
            case "raw":
                return _raw(values)
            case "label":
                return repeated_value("", self.rows) if values.count(None) == self.rows else strings(["" if value is None else str(value) for value in values])
            case "either":
                return strings([str(value or "") for value in values])
        if values.count("") == self.rows:
            return repeated_value("", self.rows)
        return strings([value or "" for value in values] if None in values else values)


def get(rows: Sequence[Any], attribute: str) -> list[Any]:
    return list(map(attrgetter(attribute), rows))


def repeated_value(value: str, rows: int) -> Strings:
    """The same value in every row."""
    return Strings(np.zeros(rows, np.int32), [value] if rows else [])


def _raw(values: list[msgspec.Raw]) -> Strings:
    """Nested values as the JSON text that was recorded."""
    if all(map(partial(is_, NOTHING), values)):
        return repeated_value("", len(values))
    coded = strings(list(map(bytes, values)))  # type: ignore[arg-type]
    return Strings(coded.codes, [bytes(value).decode("utf-8", "replace") for value in coded.values])  # type: ignore[arg-type]
