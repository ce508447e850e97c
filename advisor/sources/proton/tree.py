"""Proton's trees of call paths: total time of each kernel, its number of runs, and its work by Triton's metadata.

The tree keeps sums, so a kernel is a single profile: its mean launch, and the number of launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from advisor.errors import TraceError
from advisor.recordings.kernel_profiles import DURATION, KernelProfile, KernelProfiles, counted
from advisor.sources.limits import EXACT
from advisor.sources.proton.trace import number, work_of
from advisor.sources.sniff import is_json

RECORD = 'Record with: proton.start("name", hook="triton"), a few steps, proton.finalize()'

_TIME, _COUNT, _DEVICE = "time (ns)", "count", "device_id"
_FORMER = {"Time (ns)": _TIME, "Count": _COUNT, "DeviceId": _DEVICE}
"""Names used by writers of 2024."""
_DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
BYTES, FLOPS = "proton__bytes", "proton__flops"
"""What metadata says that a launch moves and computes: at least that much, whatever the caches did."""


@dataclass
class _Sum:
    ns: float = 0.0
    launches: float = 0.0
    bytes: float = 0.0
    flops: float = 0.0

    def add(self, ns: float, launches: float, moved: float, flops: float) -> None:
        self.ns, self.launches = self.ns + ns, self.launches + launches
        self.bytes, self.flops = self.bytes + moved, self.flops + flops


def read(data: bytes, path: str) -> KernelProfiles:
    """The kernels, most time first. Raises TraceError if the file is damaged or holds none."""
    try:
        value = msgspec.json.decode(data) if is_json(data[:64]) else msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path} is a damaged tree of Proton: {error}", "Copy the file again, or record it again.") from None
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise TraceError(f"{path} is no tree of Proton", RECORD)
    devices = _devices(value)
    if any("HIP" in one for one in value[1:]):
        told = f"{path} is a tree of Proton of AMD's GPUs: it holds sums by kernel, and rules of kernels ask for NVIDIA's counters"
        raise TraceError(told, 'Record a trace: proton.start("name", data="trace", hook="triton"); for counters: rocprof-compute profile')
    sums: dict[tuple[str, int], _Sum] = {}
    for name, metrics in _nodes(value):
        ns, launches = number(metrics.get(_TIME)), number(metrics.get(_COUNT))
        if ns > 0 and 0 < launches < EXACT:
            flops, moved = work_of(dict(metrics))
            device = str(metrics.get(_DEVICE, "0"))
            key = name, int(device) if device.isdecimal() and len(device) < 6 else 0
            sums.setdefault(key, _Sum()).add(ns, launches, moved, flops)
    if not sums:
        cycles = any("cycles" in metrics for _, metrics in _nodes(value))
        what = "cycles of scopes inside kernels, and no kernel's time" if cycles else "no kernel"
        raise TraceError(f"{path} is a tree of Proton that holds {what}", RECORD)
    kernels = tuple(_profile(name, device, total, devices.get(device, {})) for (name, device), total in sorted(sums.items(), key=lambda item: -item[1].ns))
    return KernelProfiles(path, "proton", len(data), kernels)


def _nodes(value: list[dict[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each node's name and metrics, without recursion: a tree may be as deep as a file is long."""
    todo: list[Any] = [value[0]] if value else []
    while todo:
        node = todo.pop()
        if not isinstance(node, dict):
            continue
        frame, metrics, below = node.get("frame"), node.get("metrics"), node.get("children")
        if isinstance(metrics, dict):
            yield str(frame.get("name", "")) if isinstance(frame, dict) else "", {_FORMER.get(str(key), str(key)): value for key, value in metrics.items()}
        todo += reversed(below) if isinstance(below, list) else ()


def _devices(value: list[dict[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """The tree's last member: properties of each device."""
    found: dict[int, Mapping[str, Any]] = {}
    for kind in value[-1].values() if len(value) > 1 else ():
        for number_of, device in kind.items() if isinstance(kind, dict) else ():
            if isinstance(device, dict) and str(number_of).isdecimal() and len(str(number_of)) < 6:
                found[int(number_of)] = device
    return found


def _profile(name: str, device: int, total: _Sum, about: Mapping[str, Any]) -> KernelProfile:
    per_second = 2 * number(about.get("bus_width")) / 8 * number(about.get("memory_clock_rate")) * 1000
    values = {
        DURATION: total.ns / total.launches,
        BYTES: total.bytes / total.launches,
        FLOPS: total.flops / total.launches,
        "launch__sm_count": number(about.get("num_sms")),
        _DRAM: min(100 * total.bytes / (total.ns / 1e9) / per_second, 100.0) if per_second > 0 else float("nan"),
    }
    metrics = {key: value for key, value in values.items() if not np.isnan(value) and counted(value) is not None}
    arch = str(about.get("arch", ""))
    capability = (int(arch[:-1]), int(arch[-1])) if arch.isdecimal() and 2 <= len(arch) <= 3 else (0, 0)
    return KernelProfile(name, (0, 0, 0), (0, 0, 0), device, capability, metrics=metrics, launches=round(total.launches))
