"""rocprofv3's JSON: records by kind, names in tables next to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from advisor.errors import TraceError
from advisor.intervals import Ints
from advisor.recordings.timeline import Device, LeftOut, Timeline
from advisor.sources.limits import LARGEST
from advisor.sources.nsys.tables import categorical
from advisor.sources.opened import Opened
from advisor.sources.rocprof.parts import RECORD, blocks, copies, kernels, markers, timeline
from advisor.sources.rocprof.rocpd import described
from advisor.sources.whole import read_whole


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


class _Records(msgspec.Struct):
    kernel_dispatch: list[_Record] = []
    hip_api: list[_Record] = []
    marker_api: list[_Record] = []
    rccl_api: list[_Record] = []
    memory_copy: list[_Record] = []
    hsa_api: list[Any] = []


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
    buffer_records: _Records = msgspec.field(default_factory=_Records)


class _File(msgspec.Struct):
    processes: list[_Process] = msgspec.field(name="rocprofiler-sdk-tool", default_factory=list)


_GPU = 2  # rocprofiler_agent_type_t
_MOST_GPUS = 1 << 16  # no node has as many


def read(opened: Opened) -> Timeline:
    """The timeline of the process that the file is of. Raises TraceError if it is damaged, holds no GPU work, or is of several processes."""
    path = opened.path
    data = read_whole(opened.stream, path)
    if opened.stream.truncated:
        raise TraceError(f"{path} is cut off: {opened.stream.truncated}", "Copy the file again, or record it again.")
    try:
        processes = msgspec.json.decode(data, type=_File).processes
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path} is damaged: {error}", "Copy the file again, or record it again.") from None
    if len(processes) != 1:
        told = f"{path} holds {len(processes)} processes" if processes else f"{path} holds no process"
        raise TraceError(told, f"Give a file of a single process. {RECORD}")
    return _timeline(processes[0], path, len(data))


def _timeline(process: _Process, path: str, size: int) -> Timeline:
    records, strings = process.buffer_records, process.strings
    agents = {agent.id.handle: agent for agent in process.agents if agent.type == _GPU}
    order = {handle: agent.logical_node_type_id if 0 <= agent.logical_node_type_id < _MOST_GPUS else at for at, (handle, agent) in enumerate(agents.items())}
    names = {one.kernel_id: one.formatted_kernel_name or one.kernel_name for one in process.kernel_symbols}
    messages = {one.key: one.value for one in strings.marker_api}
    marked = [messages.get(one.correlation_id.internal) or _operation(one, strings) for one in records.marker_api]
    marked += [_operation(one, strings) for one in records.rccl_api]
    hosts = _hosts([*records.marker_api, *records.rccl_api], process.metadata.pid)
    code = {text: number for number, text in enumerate(dict.fromkeys(_operation(one, strings) for one in records.hip_api))}
    calls = np.array([code[_operation(one, strings)] for one in records.hip_api], np.int64)
    parts = {
        "gpu_ops": [_kernels(records.kernel_dispatch, names, order), _copies(records.memory_copy, strings, order)],
        "api_calls": [{
            **_hosts(records.hip_api, process.metadata.pid), "name": categorical(calls, {number: text for text, number in code.items()}),
            "correlation": _integers([one.correlation_id.internal for one in records.hip_api]), "error": np.zeros(len(calls), np.int64),
        }],
        **markers(marked, hosts),
    }  # fmt: skip
    devices = [_device(order[handle], agent) for handle, agent in agents.items()]
    left = [LeftOut("calls of HSA", len(records.hsa_api), 0.0, of_host=True)] if records.hsa_api else []
    return timeline(path, size, parts, devices, (), left)


def _device(number: int, agent: _Agent) -> Device:
    return described(number, agent.product_name or agent.name, {"cu_count": agent.cu_count, "wave_front_size": agent.wave_front_size})


def _operation(record: _Record, strings: _Strings) -> str:
    """The call's name, by its kind and number."""
    kinds = strings.buffer_records
    operations = kinds[record.kind].operations if 0 <= record.kind < len(kinds) else []
    return operations[record.operation] if 0 <= record.operation < len(operations) else ""


def _integers(values: Sequence[int]) -> Ints:
    """As int64; what no column holds as -1."""
    return np.array([value if -LARGEST < value < LARGEST else -1 for value in values], np.int64)


def _times(records: Sequence[_Record]) -> dict[str, Any]:
    largest = 2 * LARGEST - 1
    starts, ends = ([min(max(t, -largest), largest) for t in times] for times in ([r.start_timestamp for r in records], [r.end_timestamp for r in records]))
    return {"start_ns": np.array(starts, np.int64), "end_ns": np.array(ends, np.int64)}


def _hosts(records: Sequence[_Record], pid: int) -> dict[str, Any]:
    return {**_times(records), "pid": _integers([pid] * len(records)), "tid": _integers([one.thread_id for one in records])}


def _place(records: Sequence[_Record], agents: Sequence[int], order: dict[int, int]) -> dict[str, Any]:
    return {
        **_times(records), "device": _integers([order.get(agent, 0) for agent in agents]), "stream": _integers([one.stream_id.handle for one in records]),
        "correlation": _integers([one.correlation_id.internal for one in records]),
    }  # fmt: skip


def _kernels(records: Sequence[_Record], names: dict[int, str], order: dict[int, int]) -> dict[str, Any]:
    dispatches = [one.dispatch_info or _Dispatch() for one in records]
    grid, block = ([_integers([getattr(getattr(d, what), axis) for d in dispatches]) for axis in "xyz"] for what in ("grid_size", "workgroup_size"))
    of_grid, of_block = blocks(grid, block)
    place = _place(records, [d.agent_id.handle for d in dispatches], order)
    queue = _integers([d.queue_id.handle for d in dispatches])
    if len(queue) and place["stream"].max() <= 0 < queue.max():
        place["stream"] = queue
    shared = _integers([d.group_segment_size for d in dispatches])
    return kernels({**place, "grid_blocks": of_grid, "block_threads": of_block, "shared_bytes": shared}, names, _integers([d.kernel_id for d in dispatches]))


def _copies(records: Sequence[_Record], strings: _Strings, order: dict[int, int]) -> dict[str, Any]:
    agents = [one.dst_agent_id.handle if one.dst_agent_id.handle in order else one.src_agent_id.handle for one in records]
    kinds = {one.operation: _operation(one, strings) for one in records}
    kind = _integers([one.operation for one in records])
    known = {number: kinds.get(number, "") for number in np.unique(kind).tolist()}
    return copies({**_place(records, agents, order), "bytes": _integers([one.bytes for one in records])}, known, kind)
