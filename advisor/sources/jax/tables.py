"""Planes of a profile as the tables of a timeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from advisor.errors import TraceError
from advisor.sources.jax import names
from advisor.sources.jax.planes import Event, Line, Plane, Stat
from advisor.timeline import CopyKind, Device, GpuKind, MemoryKind, ReadIssue, Source, Timeline, table

RECORD = "Record a few steps on a GPU: with jax.profiler.trace('log'): … and a jax.profiler.StepTraceAnnotation('train', step_num=i) around each."

_VERSIONS = ("jax_version", "jaxlib_version", "cuda_version", "cuda_runtime_version", "cuda_driver_version")
_HOST = "/host:CPU"
_OF_HOST = {MemoryKind.PINNED, MemoryKind.PAGEABLE}
_TO_OR_FROM_DEVICE = (CopyKind.HTOD, CopyKind.DTOH, CopyKind.DTOD, CopyKind.PTOP)
_LONGEST_NS = 7 * 86_400 * 10**9
_LATEST_NS = 2**62


class Tables:
    """Collects rows of a timeline's tables, column by column."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, list[Any]]] = {}
        self.devices: list[Device] = []
        self.versions: dict[str, Any] = {}
        self.accelerators: set[str] = set()
        self.events = self.bad_times = self.bad_durations = 0
        self.began_ns = 0

    def add(self, plane: Plane) -> None:
        """Take in one plane."""
        if device := names.DEVICE.match(plane.name):
            kind, number = device[1].upper(), int(device[2][:6])
            self.accelerators.add(kind)
            if kind == "GPU":
                self._device(number, plane)
        elif plane.name.startswith(_HOST):
            for line in plane.lines:
                self._thread(line)
        elif plane.name == "Task Environment":
            self.began_ns = _whole(plane.stats.get("profile_start_time"), 0)
        self.versions |= {key: plane.stats[key] for key in _VERSIONS if isinstance(plane.stats.get(key), (int, str))}

    def _device(self, number: int, plane: Plane) -> None:
        work = False
        for line in plane.lines:
            # The other lines (XLA Modules, XLA Ops, Framework Ops …) are derived from these.
            if stream := names.STREAM.match(line.name):
                for event in self._timed(line.events):
                    self._gpu_op(number, int(stream[1][:18]), event)
                    work = True
        if work or plane.stats:
            said = plane.stats
            self.devices.append(
                Device(
                    number, str(said.get("gpu_device_name", "")), _whole(said.get("core_count"), 0),
                    (_whole(said.get("compute_cap_major"), 0), _whole(said.get("compute_cap_minor"), 0)), _whole(said.get("memory_size"), 0),
                )
            )  # fmt: skip

    def _timed(self, events: Iterable[Event]) -> Iterable[Event]:
        """Events with a valid time; a duration that is none is 0."""
        for event in events:
            self.events += 1
            if not abs(event.start_ns) < _LATEST_NS:
                self.bad_times += 1
            elif not 0 <= event.dur_ns <= _LONGEST_NS:
                self.bad_durations += 1
                yield event._replace(dur_ns=0.0)
            else:
                yield event

    def _row(self, into: str, event: Event, /, **columns: Any) -> None:
        kept = self.rows.setdefault(into, {"start_us": [], "dur_us": [], **{column: [] for column in columns}})
        kept["start_us"].append(event.start_ns)
        kept["dur_us"].append(event.dur_ns / 1000)
        for column, value in columns.items():
            kept[column].append(value)

    def _gpu_op(self, device: int, stream: int, event: Event) -> None:
        stats = event.stats
        copy, fill = str(stats.get("memcpy_details", "")), str(stats.get("memset_details", stats.get("Memset_details", "")))
        said = names.details(copy or fill or str(stats.get("kernel_details", "")))
        kernel = "kernel_details" in stats or (not event.name.startswith(("Memcpy", "Memset")) and not copy and not fill)
        kind = GpuKind.KERNEL if kernel else GpuKind.MEMSET if fill or event.name.startswith("Memset") else GpuKind.MEMCPY
        name, source, target, moved = event.name, names.memory_kind(""), names.memory_kind(""), -1
        direction = names.copy_kind("")
        if kind is GpuKind.MEMCPY:
            direction = names.copy_kind(event.name)
            source, target = names.memory_kind(said.get("kind_src", "")), names.memory_kind(said.get("kind_dst", ""))
            if direction not in _TO_OR_FROM_DEVICE and {source, target} <= _OF_HOST:
                return  # what the host copies for itself: no work of the device, though it stands on the stream
            # As Kineto writes it, so that one copy has one name.
            name = f"Memcpy {direction.value or 'unknown'} ({source.value.title() or 'Unknown'} -> {target.value.title() or 'Unknown'})"
            moved = _whole(said.get("size"))
        elif kind is GpuKind.MEMSET:
            name, moved = "Memset (Device)", _whole(said.get("num_bytes"))
        shared = [_whole(said.get(key)) for key in ("static_shared", "dynamic_shared")]
        self._row(
            "gpu_ops", event, kind=kind.value, name=name, device=device, stream=stream, correlation=_whole(stats.get("correlation_id")),
            bytes=moved, copy_kind=direction.value, src_kind=source.value, dst_kind=target.value,
            grid_blocks=names.volume(said.get("grid", "")), block_threads=min(names.volume(said.get("block", "")), 1 << 20),
            registers=min(_whole(said.get("regs")), 1 << 20), shared_bytes=sum(shared) if min(shared) >= 0 else -1,
            occupancy_pct=_real(said.get("occ_pct")), graph_id=_whole(stats.get("cuda_graph_id")),
            graph_node_id=_whole(stats.get("cuda_graph_node_id")),
        )  # fmt: skip

    def _thread(self, line: Line) -> None:
        thread = {"pid": 0, "tid": line.id if abs(line.id) < 2**63 else -1}
        waiting_until = -np.inf
        for event in self._timed(line.events):
            name, stats = event.name, event.stats
            correlation = _whole(stats.get("correlation_id"))
            # Frames and ranges of one wait stand in each other.
            if (waits := names.wait(name)) and event.start_ns >= waiting_until:
                waiting_until = event.start_ns + event.dur_ns
                self._row("api_calls", event, name=waits, correlation=-1, **thread)
            if frame := names.python_call(name):
                self._row("python_calls", event, name=frame, **thread)
            elif call := names.api_call(name, str(stats.get("memcpy_details", "")), correlation >= 0):
                self._row("api_calls", event, name=call, correlation=correlation, **thread)
            elif names.OVERHEAD.fullmatch(name):
                self._row("overheads", event, name=name, **thread)
            elif "step_num" in stats:
                self._row("annotations", event, name=f"ProfilerStep#{stats['step_num']}", **thread)
            elif name.startswith("PjitFunction("):
                self._row("cpu_ops", event, name=name, **thread)
            elif event.dur_ns > 0:
                self._row("annotations", event, name=name, **thread)

    def timeline(self, path: str, size: int, issues: list[ReadIssue]) -> Timeline:
        """All that was collected. Raises TraceError where it holds no GPU work."""
        if "gpu_ops" not in self.rows:
            raise self._nothing(path)
        base = min(min(columns["start_us"]) for columns in self.rows.values())
        for columns in self.rows.values():
            columns["start_us"] = (np.asarray(columns["start_us"]) - base) / 1000
        frames = {name: table(name, columns) for name, columns in self.rows.items()}
        if self.bad_durations:
            detail = f"took a negative or impossible duration as 0 in {self.bad_durations:,} events"
            issues.append(ReadIssue("durations", detail, events=self.bad_durations))
        if self.bad_times:
            detail = f"left out {self.bad_times:,} events without a valid start time"
            issues.append(ReadIssue("timestamps", detail, events=self.bad_times))
        source = Source(
            path=path, format="jax", bytes=size, events=self.events, stacks="python_calls" in frames, issues=tuple(issues), metadata=self.versions
        )
        return Timeline.build(source, tuple(self.devices), self.began_ns + int(base), **frames)

    def _nothing(self, path: str) -> TraceError:
        other = sorted(self.accelerators - {"GPU"})
        if other:
            return TraceError(f"{path} is a profile of a {other[0]}, and advice is for GPUs: it has no GPU's work", RECORD)
        return TraceError(f"{path} is a profile of JAX without any GPU's work ({self.events:,} events)", RECORD)


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
