"""rocprofv3's JSON: records by kind, names in tables next to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from advisor.errors import TraceError
from advisor.intervals import Ints
from advisor.recordings.timeline import Device, LeftOut, Timeline
from advisor.sources.json_pieces import pieces
from advisor.sources.limits import LARGEST, MOST_DEVICES
from advisor.sources.nsys.tables import categorical
from advisor.sources.opened import Opened
from advisor.sources.rocprof.parts import RECORD, blocks, copies, kernels, markers, timeline
from advisor.sources.rocprof.rocpd import described


class _Handle(msgspec.Struct):
    handle: int = -1


class _Correlation(msgspec.Struct):
    internal: int = -1


class _Size(msgspec.Struct):
    x: int = 0
    y: int = 0
    z: int = 0


class _Dispatch(msgspec.Struct):
    agent_id: _Handle = msgspec.field(default_factory=_Handle)
    queue_id: _Handle = msgspec.field(default_factory=_Handle)
    kernel_id: int = -1
    group_segment_size: int = 0
    workgroup_size: _Size = msgspec.field(default_factory=_Size)
    grid_size: _Size = msgspec.field(default_factory=_Size)


class _Record(msgspec.Struct):
    """Of any kind: a kind lacks the others' members."""

    kind: int = -1
    operation: int = -1
    thread_id: int = -1
    correlation_id: _Correlation = msgspec.field(default_factory=_Correlation)
    start_timestamp: int = 0
    end_timestamp: int = 0
    dispatch_info: _Dispatch | None = None
    stream_id: _Handle = msgspec.field(default_factory=_Handle)
    src_agent_id: _Handle = msgspec.field(default_factory=_Handle)
    dst_agent_id: _Handle = msgspec.field(default_factory=_Handle)
    bytes: int = -1


class _Symbol(msgspec.Struct):
    kernel_id: int = -1
    formatted_kernel_name: str = ""
    kernel_name: str = ""


class _Kind(msgspec.Struct):
    kind: str = ""
    operations: list[str] = []


class _Message(msgspec.Struct):
    key: int = -1
    value: str = ""


class _Strings(msgspec.Struct):
    buffer_records: list[_Kind] = []
    marker_api: list[_Message] = []


class _Agent(msgspec.Struct):
    id: _Handle = msgspec.field(default_factory=_Handle)
    type: int = 0
    name: str = ""
    product_name: str = ""
    cu_count: int = 0
    wave_front_size: int = 0
    logical_node_type_id: int = -1


class _Metadata(msgspec.Struct):
    pid: int = -1


class _Process(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    agents: list[_Agent] = []
    strings: _Strings = msgspec.field(default_factory=_Strings)
    kernel_symbols: list[_Symbol] = []


class _File(msgspec.Struct):
    processes: list[_Process] = msgspec.field(name="rocprofiler-sdk-tool", default_factory=list)


_GPU = 2  # rocprofiler_agent_type_t


_Columns = dict[str, Ints]


def read(opened: Opened) -> Timeline:
    """The timeline of the process that the file is of. Raises TraceError if it is damaged, holds no GPU work, or is of several processes.

    Records are decoded in pieces, and only their columns are kept: a file may be of any size.
    """
    path, stream = opened.path, opened.stream
    columns: dict[str, list[_Columns]] = {name: [of([])] for name, of in _COLUMNS.items()}
    hsa, rest = 0, b""
    try:
        # The file's bracket, all processes', the process', all records', the list's.
        for at, piece in pieces(stream, path, 5, lambda keys: keys[3] == b'"buffer_records"'):
            kind = at[-1].strip(b'"').decode("utf-8", "replace") if at else ""
            if not at:
                rest = piece
            elif kind in _COLUMNS:
                columns[kind].append(_COLUMNS[kind](_RECORDS.decode(b"[" + piece + b"]")))
            elif kind == "hsa_api":
                hsa += len(_ANYTHING.decode(b"[" + piece + b"]"))
        if stream.truncated:
            raise TraceError(f"{path} is cut off: {stream.truncated}", "Copy the file again, or record it again.")
        processes = msgspec.json.decode(rest, type=_File).processes
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        told = f"is cut off: {stream.truncated}" if stream.truncated else f"is damaged: {error}"
        raise TraceError(f"{path} {told}", "Copy the file again, or record it again.") from None
    if len(processes) != 1:
        told = f"{path} holds {len(processes)} processes" if processes else f"{path} holds no process"
        raise TraceError(told, f"Give a file of a single process. {RECORD}")
    whole = {name: {key: np.concatenate([part[key] for part in parts]) for key in parts[0]} for name, parts in columns.items()}
    return _timeline(processes[0], whole, hsa, path, stream.total)


def _timeline(process: _Process, records: dict[str, _Columns], hsa: int, path: str, size: int) -> Timeline:
    strings = process.strings
    agents = {agent.id.handle: agent for agent in process.agents if agent.type == _GPU}
    order = {handle: agent.logical_node_type_id if 0 <= agent.logical_node_type_id < MOST_DEVICES else at for at, (handle, agent) in enumerate(agents.items())}
    names = {one.kernel_id: one.formatted_kernel_name or one.kernel_name for one in process.kernel_symbols}
    messages = {one.key: one.value for one in strings.marker_api}
    marker, rccl, hip = records["marker_api"], records["rccl_api"], records["hip_api"]
    called = [messages.get(key, "") or name for key, name in zip(marker["correlation"].tolist(), _operations(marker, strings), strict=True)]
    marked = [*called, *_operations(rccl, strings)]
    hosts = _hosts({key: np.concatenate([marker[key], rccl[key]]) for key in marker}, process.metadata.pid)
    calls = _operations(hip, strings)
    code = {text: number for number, text in enumerate(dict.fromkeys(calls))}
    of_call = np.array([code[text] for text in calls], np.int64)
    parts = {
        "gpu_ops": [_kernels(records["kernel_dispatch"], names, order), _copies(records["memory_copy"], strings, order)],
        "api_calls": [{
            **_hosts(hip, process.metadata.pid), "name": categorical(of_call, {number: text for text, number in code.items()}),
            "correlation": hip["correlation"], "error": np.zeros(len(of_call), np.int64),
        }],
        **markers(marked, hosts),
    }  # fmt: skip
    devices = [_device(order[handle], agent) for handle, agent in agents.items()]
    left = [LeftOut("calls of HSA", hsa, 0.0, of_host=True)] if hsa else []
    return timeline(path, size, parts, devices, (), left)


def _device(number: int, agent: _Agent) -> Device:
    return described(number, agent.product_name or agent.name, {"cu_count": agent.cu_count, "wave_front_size": agent.wave_front_size})


def _operations(columns: _Columns, strings: _Strings) -> list[str]:
    """Each call's name, by its kind and number."""
    kinds = [one.operations for one in strings.buffer_records]

    def name(kind: int, operation: int) -> str:
        operations = kinds[kind] if 0 <= kind < len(kinds) else []
        return operations[operation] if 0 <= operation < len(operations) else ""

    return [name(kind, operation) for kind, operation in zip(columns["kind"].tolist(), columns["operation"].tolist(), strict=True)]


def _integers(values: Sequence[int]) -> Ints:
    """As int64; values beyond that as -1."""
    return np.array([value if -LARGEST < value < LARGEST else -1 for value in values], np.int64)


def _called(records: Sequence[_Record]) -> _Columns:
    largest = 2 * LARGEST - 1
    starts, ends = ([min(max(t, -largest), largest) for t in times] for times in ([r.start_timestamp for r in records], [r.end_timestamp for r in records]))
    return {
        "start_ns": np.array(starts, np.int64), "end_ns": np.array(ends, np.int64), "kind": _integers([one.kind for one in records]),
        "operation": _integers([one.operation for one in records]), "correlation": _integers([one.correlation_id.internal for one in records]),
        "tid": _integers([one.thread_id for one in records]), "stream": _integers([one.stream_id.handle for one in records]),
    }  # fmt: skip


def _dispatched(records: Sequence[_Record]) -> _Columns:
    dispatches = [one.dispatch_info or _Dispatch() for one in records]
    sizes = {f"{what} {axis}": _integers([getattr(getattr(d, what), axis) for d in dispatches]) for what in ("grid_size", "workgroup_size") for axis in "xyz"}
    return {
        **_called(records), **sizes, "agent": _integers([d.agent_id.handle for d in dispatches]), "queue": _integers([d.queue_id.handle for d in dispatches]),
        "kernel": _integers([d.kernel_id for d in dispatches]), "shared_bytes": _integers([d.group_segment_size for d in dispatches]),
    }  # fmt: skip


def _copied(records: Sequence[_Record]) -> _Columns:
    return {
        **_called(records), "source": _integers([one.src_agent_id.handle for one in records]), "target": _integers([one.dst_agent_id.handle for one in records]),
        "bytes": _integers([one.bytes for one in records]),
    }  # fmt: skip


_COLUMNS: dict[str, Callable[[Sequence[_Record]], _Columns]] = {
    "kernel_dispatch": _dispatched, "memory_copy": _copied, "hip_api": _called, "marker_api": _called, "rccl_api": _called,
}  # fmt: skip
_RECORDS, _ANYTHING = msgspec.json.Decoder(list[_Record]), msgspec.json.Decoder(list[msgspec.Raw])


def _times(columns: _Columns) -> dict[str, Any]:
    return {key: columns[key] for key in ("start_ns", "end_ns")}


def _hosts(columns: _Columns, pid: int) -> dict[str, Any]:
    return {**_times(columns), "pid": _integers([pid]).repeat(len(columns["tid"])), "tid": columns["tid"]}


def _place(columns: _Columns, agents: Sequence[int], order: dict[int, int]) -> dict[str, Any]:
    device = _integers([order.get(agent, 0) for agent in agents])
    return {**_times(columns), "device": device, "stream": columns["stream"], "correlation": columns["correlation"]}


def _kernels(columns: _Columns, names: dict[int, str], order: dict[int, int]) -> dict[str, Any]:
    of_grid, of_block = blocks(*([columns[f"{what} {axis}"] for axis in "xyz"] for what in ("grid_size", "workgroup_size")))
    place, queue = _place(columns, columns["agent"].tolist(), order), columns["queue"]
    if len(queue) and place["stream"].max() <= 0 < queue.max():
        place["stream"] = queue
    return kernels({**place, "grid_blocks": of_grid, "block_threads": of_block, "shared_bytes": columns["shared_bytes"]}, names, columns["kernel"])


def _copies(columns: _Columns, strings: _Strings, order: dict[int, int]) -> dict[str, Any]:
    agents = [target if target in order else source for source, target in zip(columns["source"].tolist(), columns["target"].tolist(), strict=True)]
    kind = columns["operation"]
    named = dict(zip(kind.tolist(), _operations(columns, strings), strict=True))
    known = {number: named.get(number, "") for number in np.unique(kind).tolist()}
    return copies({**_place(columns, agents, order), "bytes": columns["bytes"]}, known, kind)
