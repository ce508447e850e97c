"""Planes of a profile as the tables of a timeline.

An event's name and a few stats determine its row, so each distinct combination is classified once, for any number of
events."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from advisor.errors import TraceError
from advisor.intervals import Ints
from advisor.knowledge.occupancy import WARP
from advisor.recordings import links
from advisor.recordings.timeline import TABLES, CopyKind, Device, GpuKind, MemoryKind, ReadIssue, Source, Timeline, table
from advisor.recordings.tpu import TpuProfile
from advisor.sources.jax import command_buffers, driver_threads, names
from advisor.sources.jax.planes import Events, Line, Plane, Stat
from advisor.sources.jax.programs import COMMAND_BUFFER, Programs
from advisor.sources.jax.texts import Texts, distinct
from advisor.sources.jax.tpu import Tpu
from advisor.sources.limits import LARGEST, LONGEST_NS
from advisor.sources.time_issues import time_issues

RECORD = "Record a few steps on a GPU: with jax.profiler.trace('log'): … and a jax.profiler.StepTraceAnnotation('train', step_num=i) around each."

GET_GPU = "JAX takes the CPU where it finds no GPU: see jax.devices(), install its plugin for CUDA or ROCm and record a few steps there."

_VERSIONS = ("jax_version", "jaxlib_version", "cuda_version", "cuda_runtime_version", "cuda_driver_version")
_HOST = "/host:CPU"
_OF_HOST = {MemoryKind.PINNED, MemoryKind.PAGEABLE}
_TO_OR_FROM_DEVICE = (CopyKind.HTOD, CopyKind.DTOH, CopyKind.DTOD, CopyKind.PTOP)
_LONGEST_PS = 1000 * LONGEST_NS
_TALK = ("collective", "collective_dtype", "group_size", "in_elements", "out_elements")
_KINDS = tuple(GpuKind)


class _Op(NamedTuple):
    """Class of a device's events, for all with the same name and details. name: as a code."""

    kept: bool
    kind: int
    name: int
    bytes: int = -1
    direction: int = 0
    source: int = 0
    target: int = 0
    grid: int = -1
    block: int = -1
    registers: int = -1
    shared: int = -1
    occupancy: float = float("nan")


class Tables:
    """Collects pieces of a timeline's tables, column by column."""

    def __init__(self) -> None:
        self.texts = Texts()
        self.pieces: dict[str, list[dict[str, Any]]] = {}
        self.devices: list[Device] = []
        self.versions: dict[str, Any] = {}
        self.accelerators: set[str] = set()
        self.programs = Programs()
        self.unjoined: dict[tuple[str, int], int] = {}
        self.tpu = Tpu()
        self.on_cpu = False
        self.events = self.bad_times = self.bad_durations = 0
        self.began_ns = 0
        self._base_ns: int | None = None
        self._ops: dict[tuple[int, ...], _Op] = {}
        self._kinds = [self.texts.code(kind.value) for kind in _KINDS]

    def add(self, plane: Plane) -> None:
        """Add a plane."""
        self.programs.add(plane.programs)
        if device := names.DEVICE.match(plane.name):
            kind, number = device[1].upper(), int(device[2][:6])
            self.accelerators.add(kind)
            if kind == "GPU":
                self._device(number, plane)
            elif kind.startswith("TPU"):
                self.tpu.add(plane)
        elif plane.name.startswith(_HOST):
            for line in plane.lines:
                self._thread(line)
        elif plane.name == "Task Environment":
            self.began_ns = _whole(plane.stats.get("profile_start_time"), 0)
        self.on_cpu |= "cpu_version" in plane.stats
        self.versions |= {key: plane.stats[key] for key in _VERSIONS if isinstance(plane.stats.get(key), (int, str))}

    def _device(self, number: int, plane: Plane) -> None:
        work = False
        for line in plane.lines:
            # The other lines (XLA Modules, XLA Ops, Framework Ops …) are derived from these.
            if stream := names.STREAM.match(line.name):
                for events, start_ns in self._timed(line):
                    self._gpu_ops(number, int(stream[1][:18]), events, start_ns)
                    work = True
        if work or plane.stats:
            said, name = plane.stats, names.device(plane.stats)
            self.devices.append(
                Device(
                    number, name, _whole(said.get("core_count"), 0),
                    (_whole(said.get("compute_cap_major"), 0), _whole(said.get("compute_cap_minor"), 0)), _whole(said.get("memory_size"), 0),
                    WARP if name.startswith("NVIDIA") else 0,
                )
            )  # fmt: skip

    def _timed(self, line: Line) -> Iterable[tuple[Events, int]]:
        """Events with a valid time, and their zero in ns; an invalid duration becomes 0."""
        for events in line.events:
            self.events += len(events.name)
            if not abs(line.start_ns) < LARGEST:
                self.bad_times += len(events.name)
                continue
            if self._base_ns is None:
                self._base_ns = line.start_ns
            good = np.abs(events.start_ps) < _LONGEST_PS
            if abs(line.start_ns - self._base_ns) > _LONGEST_PS // 1000:
                good[:] = False
            if not good.all():
                self.bad_times += int((~good).sum())
                events = _chosen(events, good)
            none = (events.dur_ps < 0) | (events.dur_ps > _LONGEST_PS)
            if none.any():
                self.bad_durations += int(none.sum())
                events = events._replace(dur_ps=np.where(none, 0, events.dur_ps))
            if len(events.name):
                yield events, line.start_ns - self._base_ns

    def _piece(self, into: str, events: Events, start_ns: int, /, **columns: Any) -> None:
        """Rows of a table; a column that is a single number represents all of them."""
        dtypes = TABLES[into]
        n = len(events.name)
        kept: dict[str, Any] = {"start_us": start_ns / 1000 + events.start_ps / 1e6, "dur_us": events.dur_ps / 1e6}
        for column, value in columns.items():
            dtype = np.int64 if dtypes[column] == "str" else np.dtype(dtypes[column])
            kept[column] = np.asarray(value, dtype) if np.ndim(value) else np.full(n, value, dtype)
        self.pieces.setdefault(into, []).append(kept)

    def _gpu_ops(self, device: int, stream: int, events: Events, start_ns: int) -> None:
        key = [events.name, *(events.stat(stat) for stat in ("memcpy_details", "memset_details", "kernel_details"))]
        first, group = distinct(*key)
        ops = [self._op(*values) for values in zip(*(column[first].tolist() for column in key), strict=True)]
        kept = np.array([op.kept for op in ops], bool)[group]
        columns = dict(zip(_Op._fields, (np.array(values)[group[kept]] for values in zip(*ops, strict=True)), strict=True))
        events = _chosen(events, kept)
        self._piece(
            "gpu_ops", events, start_ns, kind=columns["kind"], name=columns["name"], device=device, stream=stream,
            correlation=events.stat("correlation_id"), bytes=columns["bytes"], copy_kind=columns["direction"],
            src_kind=columns["source"], dst_kind=columns["target"], grid_blocks=columns["grid"], block_threads=columns["block"],
            registers=columns["registers"], shared_bytes=columns["shared"], occupancy_pct=columns["occupancy"],
            graph_id=events.stat("cuda_graph_id"), graph_node_id=events.stat("cuda_graph_node_id"), **self._compiled(events),
        )  # fmt: skip

    def _compiled(self, events: Events) -> dict[str, Ints]:
        """The compiled instructions that device events run (-1 if none is known), and what of them is a collective."""
        key = [events.stat(stat) for stat in ("program_id", "hlo_module", "hlo_op", "name")] + [events.name]
        first, group = distinct(*key)
        found = []
        for program, module, op, path, kernel in zip(*(column[first].tolist() for column in key), strict=True):
            module, op, path, kernel = (self._text(code) for code in (module, op, path, kernel))
            row = self.programs.row(module, program, op, path, kernel) if module else -1
            found.append(self._waiting(module, program) if row < 0 and op.startswith(COMMAND_BUFFER) else row)
        talk = [self._collective(row) for row in found]
        columns = {column: np.array(values, np.int64)[group] for column, values in zip(_TALK, zip(*talk, strict=True), strict=True)}
        return {"compiled": np.array(found, np.int64)[group], **columns}

    def _waiting(self, module: str, program: int) -> int:
        """Values of the column `compiled` until kernels inside command buffers are joined."""
        return command_buffers.UNJOINED - self.unjoined.setdefault((module, program), len(self.unjoined))

    def _collective(self, row: int) -> tuple[int, int, int, int, int]:
        """Values of the columns _TALK: the data of a collective, else nothing."""
        code = self.texts.code
        instruction = self.programs.found[row] if row >= 0 else None
        if instruction is None or not instruction.collective:
            return code(""), code(""), -1, -1, -1
        moved = [array for array in instruction.operands if array.sizes]
        ranks, elements = instruction.ranks, sum(math.prod(array.sizes) for array in moved)
        many = {"all-gather": elements * ranks, "reduce-scatter": elements // max(ranks, 1)}.get(instruction.collective, elements)
        return code(instruction.collective), code(moved[0].element if moved else ""), ranks or -1, min(elements, LARGEST), min(many, LARGEST)

    def _text(self, code: int) -> str:
        return self.texts.all[code] if code >= 0 else ""

    def _op(self, name: int, copy: int, fill: int, kernel: int) -> _Op:
        """What events of a name and details are."""
        key = (name, copy, fill, kernel)
        if key not in self._ops:
            self._ops[key] = self._op_of(*(self._text(code) for code in key))
        return self._ops[key]

    def _op_of(self, name: str, copy: str, fill: str, kernel: str) -> _Op:
        code = self.texts.code
        said = names.details(copy or fill or kernel)
        is_kernel = bool(kernel) or (not name.startswith(("Memcpy", "Memset")) and not copy and not fill)
        kind = GpuKind.KERNEL if is_kernel else GpuKind.MEMSET if fill or name.startswith("Memset") else GpuKind.MEMCPY
        source, target, moved, direction = names.memory_kind(""), names.memory_kind(""), -1, names.copy_kind("")
        if kind is GpuKind.MEMCPY:
            direction = names.copy_kind(name)
            source, target = names.memory_kind(said.get("kind_src", "")), names.memory_kind(said.get("kind_dst", ""))
            if direction not in _TO_OR_FROM_DEVICE and {source, target} <= _OF_HOST:
                return _Op(False, 0, 0)  # what the host copies for itself: no work of the device, though it stands on the stream
            # As Kineto writes it, so that one copy has one name.
            name = f"Memcpy {direction.value or 'unknown'} ({source.value.title() or 'Unknown'} -> {target.value.title() or 'Unknown'})"
            moved = _whole(said.get("size"))
        elif kind is GpuKind.MEMSET:
            name, moved = "Memset (Device)", _whole(said.get("num_bytes"))
        shared = [_whole(said.get(key)) for key in ("static_shared", "dynamic_shared")]
        return _Op(
            True, code(kind.value), code(name), moved, code(direction.value), code(source.value), code(target.value),
            names.volume(said.get("grid", "")), min(names.volume(said.get("block", "")), 1 << 20), min(_whole(said.get("regs")), 1 << 20),
            sum(shared) if min(shared) >= 0 else -1, _real(said.get("occ_pct")),
        )  # fmt: skip

    def _thread(self, line: Line) -> None:
        thread = {"pid": 0, "tid": line.id if abs(line.id) < 2**63 else -1}
        waits: list[tuple[int, int, int, int]] = []
        for events, start_ns in self._timed(line):
            correlation, step = events.stat("correlation_id"), events.stat("step_num")
            key = [events.name, events.stat("memcpy_details"), np.sign(correlation), step]
            first, group = distinct(*key)
            found = [self._host_event(*values) for values in zip(*(column[first].tolist() for column in key), strict=True)]
            for into in {place for place, _ in found}:
                if not into:
                    continue
                chosen = np.array([place == into for place, _ in found], bool)[group]
                if into == "annotations":
                    chosen &= (events.dur_ps > 0) | (step >= 0)
                if not chosen.any():
                    continue
                name = np.array([name for _, name in found], np.int64)[group[chosen]]
                linked = {"correlation": correlation[chosen]} if into == "api_calls" else {}
                self._piece(into, _chosen(events, chosen), start_ns, name=name, **thread, **linked)
            waits += self._waits(events, first, group, start_ns)
        self._add_waits(waits, thread)

    def _host_event(self, name: int, copy: int, linked: int, step: int) -> tuple[str, int]:
        """The table that events of the host belong to, and their name in it."""
        title = self._text(name)
        if frame := names.python_call(title):
            return "python_calls", self.texts.code(frame)
        if call := names.api_call(title, self._text(copy), linked >= 0):
            return "api_calls", self.texts.code(call)
        if names.OVERHEAD.fullmatch(title):
            return "overheads", name
        if step >= 0:
            return "annotations", self.texts.code(f"ProfilerStep#{step}")
        return ("cpu_ops" if title.startswith("PjitFunction(") else "annotations"), name

    def _waits(self, events: Events, first: Ints, group: Ints, start_ns: int) -> list[tuple[int, int, int, int]]:
        """(start, end, order, name) of events in which the host waits for the device, times in ps."""
        said = [names.wait(self._text(code)) for code in events.name[first].tolist()]
        if not any(said):
            return []
        rows = np.flatnonzero(np.array([bool(text) for text in said], bool)[group])
        starts = events.start_ps[rows] + start_ns * 1000
        codes = [self.texts.code(said[i]) for i in group[rows].tolist()]
        return list(zip(starts.tolist(), (starts + events.dur_ps[rows]).tolist(), rows.tolist(), codes, strict=True))

    def _add_waits(self, waits: list[tuple[int, int, int, int]], thread: dict[str, int]) -> None:
        """Frames and ranges of the same wait are nested: the outermost is the call."""
        kept, until = [], -(1 << 62)
        for start, end, _, name in sorted(waits, key=lambda wait: (wait[0], -wait[1], wait[2])):
            if start >= until:
                until = end
                kept.append((name, start, end - start))
        if kept:
            codes, starts, durations = (np.array(column, np.int64) for column in zip(*kept, strict=True))
            self._piece("api_calls", Events(codes, starts, durations, {}), 0, name=codes, correlation=-1, **thread)

    def part(self, path: str, size: int, issues: list[ReadIssue]) -> Timeline | TpuProfile:
        """The recording that was collected: of GPUs if there are any, else of TPUs. Raises TraceError if it holds no work of either."""
        of_tpus = self.tpu.profile(path, size, self.events, self.versions, issues) if "gpu_ops" not in self.pieces else None
        return of_tpus or self.timeline(path, size, issues)

    def timeline(self, path: str, size: int, issues: list[ReadIssue]) -> Timeline:
        """All that was collected. Raises TraceError if it holds no GPU work."""
        if "gpu_ops" not in self.pieces:
            raise self._empty_table(path)
        first = min(float(piece["start_us"].min()) for pieces in self.pieces.values() for piece in pieces)
        columns = {into: self._joined(into, first) for into in list(self.pieces)}
        if "api_calls" in columns and "annotations" in columns:
            other = np.unique(np.concatenate([columns[into]["tid"] for into in ("annotations", "cpu_ops", "python_calls") if into in columns]))
            columns["api_calls"]["tid"] = driver_threads.owners(columns["api_calls"], columns["annotations"], other)
        if self.unjoined:
            ops = columns["gpu_ops"]
            ops["compiled"] = command_buffers.joined(ops["compiled"], ops["name"], ops["device"], ops["start_us"], list(self.unjoined), self.programs)
        frames = {into: table(into, made) for into, made in columns.items()}
        frames |= {"compiled_ops": self.programs.table(), "programs": self.programs.compiled_again()}
        if cut := self.programs.cut:
            issues = [*issues, ReadIssue(links.CHECK, links.told("compiled instructions and frames to what they come from", cut))]
        source = Source(
            path=path,
            format="jax",
            bytes=size,
            events=self.events,
            stacks="python_calls" in frames,
            issues=(*issues, *time_issues(self.bad_times, self.bad_durations)),
            metadata=self.versions,
        )
        base_ns = self.began_ns + (self._base_ns or 0) + round(first * 1000)
        return Timeline.build(source, tuple(self.devices), base_ns, **frames)

    def _joined(self, into: str, first_us: float) -> dict[str, Any]:
        """A table's columns, from its pieces, which are let go."""
        pieces = self.pieces.pop(into)
        columns: dict[str, Any] = {}
        for column in list(pieces[0]):
            values = np.concatenate([piece.pop(column) for piece in pieces])
            columns[column] = self.texts.column(values) if TABLES[into][column] == "str" else values
        columns["start_us"] = np.round(columns["start_us"] - first_us, 6)
        return columns

    def _empty_table(self, path: str) -> TraceError:
        other = sorted(self.accelerators - {"GPU"})
        if other:
            return TraceError(f"{path} is a profile of a {other[0]} that holds no work of it, and none of a GPU", RECORD)
        if self.on_cpu:
            return TraceError(f"{path} is a profile of JAX on the CPU ({self.events:,} events), and advice is for GPUs", GET_GPU)
        return TraceError(f"{path} is a profile of JAX without any GPU's work ({self.events:,} events)", RECORD)


def _chosen(events: Events, chosen: np.ndarray) -> Events:
    """Some of the events."""
    if chosen.all():
        return events
    return Events(events.name[chosen], events.start_ps[chosen], events.dur_ps[chosen], {name: column[chosen] for name, column in events.stats.items()})


def _whole(value: Stat | None, otherwise: int = -1) -> int:
    """A number that fits 64 bits and is not negative."""
    if isinstance(value, str):
        value = int(value) if value.isdecimal() and len(value) < 20 else otherwise
    return int(value) if isinstance(value, (int, float)) and 0 <= value < 2**63 else otherwise


def _real(value: str | None) -> float:
    try:
        return float(value) if value else float("nan")
    except ValueError:
        return float("nan")
