"""A trace in five lines: what the host called and what the GPU ran, in microseconds."""

from __future__ import annotations

import json
from typing import Any

from advisor.recordings.timeline import TABLES, Device, Source, Timeline, table
from advisor.views.workspace import Workspace

H200 = Device(0, "NVIDIA H200", 132, (9, 0), 150_109_880_320, 32)
PID, MAIN = 1, 1


class Trace:
    """Collects rows; `timeline()` makes the tables. Times are starts and durations unless a pair (start, end) is asked for."""

    def __init__(self, devices: tuple[Device, ...] = (H200,), recorder: str = "test") -> None:
        """recorder: the trace's format; what that of the others costs is known, so that the host's time is corrected."""
        self.recorder = recorder
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.devices = devices
        self.correlation = 0

    def _add(self, into: str, **row: Any) -> Trace:
        self.rows.setdefault(into, []).append(row)
        return self

    def step(self, start: float, dur: float, number: int = 0) -> Trace:
        number = number or len(self.rows.get("annotations", [])) + 1
        return self._add("annotations", name=f"ProfilerStep#{number}", pid=PID, tid=MAIN, start_us=start, dur_us=dur)

    def note(self, name: str, start: float, dur: float, tid: int = MAIN, pid: int = PID) -> Trace:
        return self._add("annotations", name=name, pid=pid, tid=tid, start_us=start, dur_us=dur)

    def op(self, name: str, start: float, dur: float, dims: Any = None, types: Any = None, tid: int = MAIN, sequence: int = -1) -> Trace:
        return self._add(
            "cpu_ops", name=name, pid=PID, tid=tid, start_us=start, dur_us=dur, sequence=sequence,
            dims=json.dumps(dims) if dims else "", types=json.dumps(types or ["float"] * len(dims)) if dims else "",
        )  # fmt: skip

    def call(self, name: str, start: float, dur: float, correlation: int = -1, tid: int = MAIN, pid: int = PID) -> Trace:
        return self._add("api_calls", name=name, pid=pid, tid=tid, start_us=start, dur_us=dur, correlation=correlation)

    def gpu(self, start: float, end: float, name: str = "kernel", correlation: int = -1, stream: int = 7, device: int = 0, **more: Any) -> Trace:
        row = {"kind": "kernel", "name": name, "device": device, "stream": stream, "start_us": start, "dur_us": end - start}
        return self._add("gpu_ops", **{**row, "correlation": correlation, **more})

    def launch(
        self,
        at: float,
        start: float,
        end: float,
        name: str = "kernel",
        dur: float = 1.0,
        api: str = "cudaLaunchKernel",
        tid: int = MAIN,
        pid: int = PID,
        **more: Any,
    ) -> Trace:
        """A call at `at` and the kernel that it launches."""
        self.correlation += 1
        return self.call(api, at, dur, self.correlation, tid, pid).gpu(start, end, name, self.correlation, **more)

    def copy(self, at: float, dur: float, start: float, end: float, memory: str = "Pageable", size: int = 1 << 20, kind: str = "HtoD", **more: Any) -> Trace:
        """A cudaMemcpyAsync that takes `dur`, and its transfer."""
        host = {"src_kind": memory.lower(), "dst_kind": "device"} if kind == "HtoD" else {"src_kind": "device", "dst_kind": memory.lower()}
        return self.launch(
            at, start, end, f"Memcpy {kind} ({memory})", dur, "cudaMemcpyAsync", bytes=size, copy_kind=kind, **host, **{"kind": "memcpy", **more}
        )  # fmt: skip

    def python(self, name: str, start: float, dur: float, tid: int = MAIN) -> Trace:
        return self._add("python_calls", name=name, pid=PID, tid=tid, start_us=start, dur_us=dur)

    def overhead(self, name: str, start: float, dur: float, pid: int = PID, tid: int = MAIN) -> Trace:
        return self._add("overheads", name=name, pid=pid, tid=tid, start_us=start, dur_us=dur)

    def timeline(self) -> Timeline:
        tables = {}
        for name, rows in self.rows.items():
            keys = dict.fromkeys(k for row in rows for k in row)
            missing = {k: "" if TABLES[name][k] == "str" else -1 for k in keys}
            tables[name] = table(name, {k: [row.get(k, missing[k]) for row in rows] for k in keys})
        shapes = any(row["dims"] for row in self.rows.get("cpu_ops", []))
        source = Source("built", self.recorder, 0, 0, shapes=shapes, stacks="python_calls" in self.rows)
        return Timeline.build(source, self.devices, **tables)

    def get(self, view: Any) -> Any:
        """A view of this trace."""
        return Workspace(self.timeline()).get(view)
