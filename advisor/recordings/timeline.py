"""The model that every reader fills and every view reads: typed tables on a common clock.

Times are float64 microseconds from the trace's start (`start_us`, `dur_us`), exact to the nanosecond; `Timeline.base_ns` is the absolute time of 0 in
nanoseconds. Strings are categoricals. Missing numbers are -1 (integers) or NaN (floats); missing strings are "".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np

from advisor.errors import TraceError
from advisor.knowledge.structs import replace
from advisor.recordings.columns import Categorical, Column, Table, constant, objects, of_type, row_by_row
from advisor.report.numbers import duration


class GpuKind(str, Enum):
    """What the GPU executed."""

    KERNEL = "kernel"
    MEMCPY = "memcpy"
    MEMSET = "memset"
    GRAPH = "graph"
    """A whole CUDA graph recorded as one span, its kernels unknown."""


class CopyKind(str, Enum):
    """Direction of a copy."""

    HTOD = "HtoD"
    DTOH = "DtoH"
    DTOD = "DtoD"
    HTOH = "HtoH"
    PTOP = "PtoP"
    MIGRATION_HTOD = "migration HtoD"
    """Pages of managed memory that move because somebody touched or prefetched them: no call copies them."""
    MIGRATION_DTOH = "migration DtoH"
    UNKNOWN = ""


class MemoryKind(str, Enum):
    """Kind of memory at one end of a copy. Its number differs between CUPTI and nsys: readers map it."""

    PAGEABLE = "pageable"
    PINNED = "pinned"
    DEVICE = "device"
    ARRAY = "array"
    MANAGED = "managed"
    UNKNOWN = ""


_TIMES = {"start_us": "f8", "dur_us": "f8"}
_THREAD = {"pid": "i8", "tid": "i8"}

TABLES: dict[str, dict[str, str]] = {
    # One row each kernel, copy, memset or whole graph on a device; sorted by start.
    "gpu_ops": {
        "kind": "str",
        "name": "str",
        "device": "i4",
        "stream": "i8",
        **_TIMES,
        "correlation": "i8",
        "external_id": "i8",
        "bytes": "i8",
        "copy_kind": "str",
        "src_kind": "str",
        "dst_kind": "str",
        "grid_blocks": "i8",
        "block_threads": "i4",
        "registers": "i4",
        "shared_bytes": "i8",
        "occupancy_pct": "f8",
        "graph_id": "i8",
        "graph_node_id": "i8",
        "collective": "str",
        "collective_dtype": "str",
        "group_size": "i4",
        "in_elements": "i8",
        "out_elements": "i8",
        # Which group of ranks it joins (its name and, as recorded text, its members), and which of the group's it is.
        "group": "str",
        "group_ranks": "str",
        "collective_sequence": "i8",
        "communicator": "str",
        "in_split": "str",
        "out_split": "str",
        # The compiled instruction that it runs: a row of `compiled_ops`.
        "compiled": "i8",
    },
    # What a compiler made of the program, as far as the device ran it (XLA's HLO instructions). scope: functions and named scopes
    # around it, joined by "/". operands, results: arrays as `float32[8,16]`. backward: 1 in a backward pass, 0 outside.
    "compiled_ops": {
        "name": "str",
        "module": "str",
        # Which of the compiled programs of that module's name it belongs to.
        "program": "i8",
        "opcode": "str",
        "scope": "str",
        "backward": "i4",
        "file": "str",
        "line": "i4",
        "operands": "str",
        "results": "str",
        "precision": "str",
        # What its kernel is for, "" where the kernel's name tells; what it does at least.
        "family": "str",
        "flops": "f8",
        "bytes": "f8",
    },
    # Programs that were compiled several times under one name: what each takes, as `x: float32[8,16]; w: …`.
    "programs": {"module": "str", "program": "i8", "parameters": "str"},
    # Runtime and driver calls on host threads; sorted by start. error: the code that it returned, 0 where it did what it was asked to.
    "api_calls": {"name": "str", **_THREAD, **_TIMES, "correlation": "i8", "external_id": "i8", "error": "i4"},
    # Framework ops (aten::mm, autograd nodes, compiled Triton calls). Dims, types, strides and concrete
    # inputs are the recorded JSON text, one category for each distinct value. The name is the op's without its
    # overload, which most recordings leave out: `aten::add` and `Tensor` of `aten::add.Tensor`.
    "cpu_ops": {
        "name": "str",
        "overload": "str",
        **_THREAD,
        **_TIMES,
        "external_id": "i8",
        "sequence": "i8",
        "forward_thread": "i8",
        "dims": "str",
        "types": "str",
        "strides": "str",
        "concrete": "str",
        "kernel_file": "str",
        "call_stack": "str",
        "module": "str",
        # Of a message between two ranks: `to 2 of [0, 1, 2, 3]`, a number within the group, then the group's ranks.
        "peer": "str",
    },
    "python_calls": {"name": "str", **_THREAD, **_TIMES, "python_id": "i8", "parent_id": "i8", "module_id": "i8"},
    # Host ranges named by the user or framework: record_function, ProfilerStep, NVTX.
    "annotations": {"name": "str", **_THREAD, **_TIMES},
    "gpu_annotations": {"name": "str", "device": "i4", "stream": "i8", **_TIMES},
    "syncs": {
        "kind": "str",
        "device": "i4",
        "stream": "i8",
        **_TIMES,
        "correlation": "i8",
        "waits_on_stream": "i8",
        "waits_on_correlation": "i8",
    },
    # Allocator events: signed bytes (negative frees) and the totals after it.
    "memory": {
        **_THREAD,
        "start_us": "f8",
        "address": "i8",
        "bytes": "i8",
        "allocated_bytes": "i8",
        "reserved_bytes": "i8",
        "device_type": "i4",
        "device": "i4",
    },
    # The profiler's own work and one-time driver work (lazy loading), as the producer names it.
    "overheads": {"name": "str", **_THREAD, **_TIMES},
    # What the operating system ran for host threads: waits for locks, files, other threads.
    "os_calls": {"name": "str", **_THREAD, **_TIMES},
    # Samples of hardware counters; percentages of peak unless the name says otherwise.
    "gpu_metrics": {"device": "i4", "name": "str", "start_us": "f8", "value": "f8"},
    "threads": {**_THREAD, "name": "str"},
}


class Device(msgspec.Struct, frozen=True):
    """One GPU as the trace describes it; zero or "" if it does not."""

    id: int
    name: str = ""
    sm_count: int = 0
    compute_capability: tuple[int, int] = (0, 0)
    memory_bytes: int = 0
    warp_size: int = 0


class ReadIssue(msgspec.Struct, frozen=True):
    """Something wrong in the file itself, found while reading it."""

    check: str
    detail: str
    status: str = "degraded"
    events: int = 0
    """How many events it concerns, 0 if that is not counted."""
    of: int = 0
    """The total, if checks grade the corrected share; 0 if the data is lost."""
    cut: bool = False
    """Whether events are missing that nobody can count, as where a file ends early: host ops may be there without their kernels."""


class LeftOut(msgspec.Struct, frozen=True):
    """Spans of a file outside all tables: kind, count and total duration. of_host: of a process with calls or ops, so hardly of a device."""

    what: str
    events: int
    us: float
    of_host: bool = False

    def __str__(self) -> str:
        return f"{self.events:,} {self.what} ({duration(self.us)})"


class Source(msgspec.Struct, frozen=True):
    """Origin of a timeline, and the options of its profiler."""

    path: str
    format: str
    bytes: int
    """Size of the uncompressed input."""
    events: int
    """Events in the file, of every kind."""
    shapes: bool = False
    stacks: bool = False
    memory: bool = False
    syncs: bool = False
    rank: int | None = None
    world_size: int | None = None
    issues: tuple[ReadIssue, ...] = ()
    unprofiled_step_us: tuple[float, ...] = ()
    """Times of steps of the same run that nobody profiled, as the recorder measured them; empty if it did not."""
    left_out: tuple[LeftOut, ...] = ()
    """What the file holds with a duration and was not read: what may be a device's work is first."""
    device_clock_us: float = 0.0
    """How much later the devices' times are than recorded: launches took less time than any does, so that their clock was behind."""
    borrowed: bool = False
    """Whether shapes, frames and memory come from another trace of the same run: recording them cost this one nothing."""
    frameworks: dict[str, str] = msgspec.field(default_factory=dict)
    """Frameworks that the program had imported, by package, with their versions, as the recorder found them; none if it did not look."""
    loops: tuple[str, ...] = ()
    """The loops of theirs that were alive, as `package.Loop`."""
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    """Versions of the producer, driver and runtime; never paths, hosts or environment."""

    @property
    def takes_shapes(self) -> bool:
        """Whether the profiler that made it records shapes if it is told to."""
        return self.format == "kineto"

    @property
    def cut(self) -> str:
        """How the file was cut before its last event; "" if it was not."""
        return "; ".join(issue.detail for issue in self.issues if issue.cut)


def empty_column(dtype: str, n: int = 0) -> Column:
    """A column of `n` not-recorded values, in the memory of a single value."""
    return constant("" if dtype == "str" else np.array(np.nan if dtype[0] == "f" else -1, dtype), n)


def _categorical(values: Any) -> Categorical:
    """Text as a categorical, lone surrogates as �: nothing writes them."""
    made = values if isinstance(values, Categorical) else Categorical.of_texts(values)
    try:
        "".join(made.categories).encode()
    except UnicodeEncodeError:
        texts = [str(text).encode("utf-8", "replace").decode() for text in made.categories]
        made = Categorical.of_texts(objects([*texts])[made.codes])
    return made


def table(name: str, columns: Mapping[str, Any]) -> Table:
    """Build one table of `TABLES[name]`; columns that are left out hold "not recorded"."""
    spec = TABLES[name]
    unknown = set(columns) - set(spec)
    if unknown:
        raise KeyError(f"table {name} has no column {sorted(unknown)}")
    n = len(next(iter(columns.values()))) if columns else 0

    def column(of: str, dtype: str) -> Column:
        if of not in columns:
            return empty_column(dtype, n)
        if dtype == "str":
            return _categorical(columns[of])
        return of_type(np.asarray(columns[of]), dtype)

    return Table({of: column(of, dtype) for of, dtype in spec.items()})


def stacked(name: str, tables: Sequence[Table]) -> Table:
    """The rows of a table of several recordings in a row."""
    return table(
        name,
        {
            column: Categorical.of_texts(text for one in tables for text in one[column]) if dtype == "str" else np.concatenate([one[column] for one in tables])
            for column, dtype in TABLES[name].items()
        },
    )


@cache
def _empty(name: str) -> Table:
    """The table without rows: most traces lack some."""
    return table(name, {})


class Timeline(msgspec.Struct, frozen=True):
    """A process's trace: activity of hosts and devices on a common clock (see the module's text).

    Raises TraceError if a table lacks a column, has the wrong dtype or a negative duration.
    """

    part_of: ClassVar[Literal["trace"]] = "trace"

    source: Source
    devices: tuple[Device, ...]
    gpu_ops: Table
    api_calls: Table
    cpu_ops: Table
    python_calls: Table
    annotations: Table
    gpu_annotations: Table
    syncs: Table
    memory: Table
    overheads: Table
    os_calls: Table
    gpu_metrics: Table
    threads: Table
    compiled_ops: Table
    programs: Table
    base_ns: int = 0

    def __post_init__(self) -> None:
        for name, spec in TABLES.items():
            table: Table = getattr(self, name)
            if list(table) != list(spec):
                raise TraceError(f"the reader built a table {name} with columns {list(table)}")
            for (of, dtype), column in zip(spec.items(), table.columns.values(), strict=True):
                found = "str" if isinstance(column, Categorical) else column.dtype
                if found != (dtype if dtype == "str" else np.dtype(dtype)):
                    raise TraceError(f"the reader built {name}.{of} as {found}, not {dtype}")
            if "dur_us" in spec and not (table["dur_us"] >= 0).all():
                raise TraceError(f"the reader let a negative or missing duration into {name}")
            if "start_us" in spec and not np.isfinite(table["start_us"]).all():
                raise TraceError(f"the reader let an event without a time into {name}")

    @classmethod
    def build(cls, source: Source, devices: tuple[Device, ...] = (), base_ns: int = 0, **tables: Table) -> Timeline:
        """Make a timeline from the tables at hand; the others are empty. Each is sorted by start, ties kept in order."""
        for name, spec in TABLES.items():
            made = tables[name] = tables[name] if name in tables else _empty(name)
            if "start_us" in spec and (made["start_us"][1:] < made["start_us"][:-1]).any():
                tables[name] = made.sorted_by("start_us")
        return cls(source=source, devices=devices, base_ns=base_ns, **tables)

    def sm_counts(self, device_ids: np.ndarray) -> np.ndarray:
        """Multiprocessors of each device, in an array as that of the ids."""

        def counts(ids: np.ndarray) -> np.ndarray:
            known, which = np.unique(ids, return_inverse=True)
            return np.array([self.device(number).sm_count for number in known.tolist()], np.int64)[which]

        return row_by_row(counts, device_ids)

    def device(self, device_id: int) -> Device:
        """The device of that id. If the trace lists only equal others (ROCm has its own numbers), one of those; else a nameless device."""
        found = next((d for d in self.devices if d.id == device_id), None)
        alike = {replace(d, id=device_id) for d in self.devices} if found is None else set()
        return found or (alike.pop() if len(alike) == 1 else Device(device_id))
