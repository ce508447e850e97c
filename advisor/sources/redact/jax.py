"""Profiles of JAX with the data that the reader uses: streams of GPUs, lines of TPUs, threads of the host, compiled programs. Names as everywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from advisor.errors import TraceError
from advisor.sources.jax import chrome, xplane
from advisor.sources.jax import names as jax
from advisor.sources.jax.planes import OF_OPS, Stat
from advisor.sources.jax.tables import _VERSIONS
from advisor.sources.jax.tpu import CORE, LINES
from advisor.sources.protobuf import Value, fields, message, text, whole, written
from advisor.sources.redact import hlo
from advisor.sources.redact.names import Names, device, version
from advisor.sources.sniff import is_json
from advisor.sources.stream import DEFAULT_MAX_BYTES, Stream

_DEVICE = re.compile(r"/device:[A-Z]{2,4}:\d{1,6}")
_NUMBERS = frozenset({
    "correlation_id", "cuda_graph_id", "cuda_graph_node_id", "program_id", "step_num", "core_count", "compute_cap_major", "compute_cap_minor", "memory_size",
    "profile_start_time", "peak_teraflops_per_second", "flops", "model_flops", "bytes_accessed",
})  # fmt: skip
_DETAILS = frozenset({"kernel_details", "memcpy_details", "memset_details", "Memset_details"})
_DEVICE_NAMES = frozenset({"gpu_device_name", "device_vendor", "device_type_string"})
_CATEGORY = re.compile(r"[a-z]{1,20}(?:[ -][a-z]{1,20}){0,5}")
_OF_PROGRAM: dict[str, Callable[[str, Names], str]] = {
    "hlo_op": lambda said, names: names.kernel(said),
    "hlo_module": lambda said, names: names.function(said),
    "name": hlo.path,
    "tf_op": lambda said, names: hlo.path(said.removesuffix(":"), names),
    "source": lambda said, names: ":".join([names.path(said.rpartition(":")[0]), said.rpartition(":")[2] if said.rpartition(":")[2].isdecimal() else "0"]),
    "hlo_category": lambda said, names: said if _CATEGORY.fullmatch(said) else "",
}
"""Fields of an event, or of a TPU's op, about its program."""
_IN_DETAILS = re.compile(
    r"(?:regs|static_shared|dynamic_shared|grid|block|occ_pct|size|dest|async|num_bytes|kind_src|kind_dst|kind):(?:[\d.,]{1,40}|pageable|pinned|device|array|unified|managed|unknown|static)"
)
_CALL = re.compile(r"(?:cu|hip)[A-Z]\w+(?: \(CudaGraph:\d{1,9}\))?|PjitFunction\([\w.<>]{1,80}\)")


def redacted(stream: Stream, head: bytes, path: str, names: Names) -> Iterator[bytes]:
    """A profile to give away. Raises TraceError if it is damaged."""
    data = stream.read(DEFAULT_MAX_BYTES + 1)
    if stream.truncated:
        raise TraceError(f"{path} is cut off: {stream.truncated}", "Copy the file again, or record it again.")
    if is_json(head):
        return _chrome(data, names)
    try:
        planes = (message(value) for number, value in fields(memoryview(data)) if number == xplane.SPACE.planes)
        return iter([b"".join(written(xplane.SPACE.planes, _Plane(plane, names).written()) for plane in planes)])
    except ValueError as error:
        raise TraceError(f"{path} is a damaged XPlane: {error}", "Copy the file again, or record it again.") from None


def _host(names: Names, name: str) -> str:
    """An event of a thread of the host: a frame, a call, a range of the runtime, or another range."""
    if match := jax._FRAME.fullmatch(name):
        return f"${names.path(match['file'])}:{match['line']} {names.function(match['function'])}"
    if match := jax._BUILTIN.fullmatch(name):
        return f"${names.function(match['module'])} {names.function(match['function'])}"
    if name.lower().startswith(("memcpy", "memset")):
        return names.kernel(name)
    return names.plain(name) if _CALL.fullmatch(name) else names.range(name)


def _stat(key: str, value: Stat, names: Names) -> Stat | None:
    """What of an event's or a plane's own words is kept."""
    if key in _NUMBERS:
        return value if isinstance(value, (int, float)) or (value.isascii() and value.isdigit() and len(value) < 20) else None
    if key in _DETAILS:
        return " ".join(word for word in str(value).split() if _IN_DETAILS.fullmatch(word))
    if key in _OF_PROGRAM:
        return _OF_PROGRAM[key](str(value), names)
    if key in _DEVICE_NAMES:
        return device(str(value))
    return version(value) if key in _VERSIONS else None  # type: ignore[return-value]


class _Numbered(dict[str, int]):
    """A number from 1 on for each name."""

    def __missing__(self, name: str) -> int:
        self[name] = number = len(self) + 1
        return number

    def entries(self, field: int, said: Mapping[str, bytes] = MappingProxyType({})) -> bytes:
        """As a map of metadata. said: further fields of names."""
        return b"".join(written(field, written(1, n) + written(2, written(1, n) + written(2, name) + said.get(name, b""))) for name, n in self.items())


class _Plane:
    """A plane being written: its old names and stats by number, and the new numbers."""

    def __init__(self, data: memoryview, names: Names) -> None:
        self.parts, self.given = list(fields(data)), names
        self.name = next((text(v) for n, v in self.parts if n == xplane.PLANE.name), "")
        self.old, stats = (dict(xplane._entry(v) for n, v in self.parts if n == field) for field in (xplane.PLANE.event_metadata, xplane.PLANE.stat_metadata))
        self.keys = {key: _name_of(entry) for key, entry in stats.items()}
        self.titles, self.known = _Numbered(), _Numbered()
        self.said: dict[str, bytes] = {}
        self.is_tpu, self.is_host = bool(CORE.fullmatch(self.name)), self.name.startswith("/host:CPU")
        self.is_gpu = bool(_DEVICE.fullmatch(self.name)) and not self.is_tpu

    def written(self) -> bytes:
        """The plane anew."""
        shown = self._shown()
        lines = [self._line(message(v), shown) for n, v in self.parts if n == xplane.PLANE.lines and shown]
        own = b"".join(written(xplane.PLANE.stats, made) for n, v in self.parts if n == xplane.PLANE.stats and (made := self._stat(v)))
        programs = b"" if shown else self._programs()
        known = self.name if self.is_gpu or self.is_tpu or self.name == "Task Environment" else "/host:CPU" if self.is_host else "/host:metadata"
        titles = self.titles.entries(xplane.PLANE.event_metadata, self.said) + programs
        return written(1, 1) + written(xplane.PLANE.name, known) + b"".join(lines) + titles + self.known.entries(xplane.PLANE.stat_metadata) + own

    def _shown(self) -> dict[int, str]:
        """New names of events by their old numbers; nothing if no events of the plane are kept."""
        names, found = self.given, {}
        for at, (key, entry) in enumerate(self.old.items() if self.is_gpu or self.is_tpu or self.is_host else ()):
            name = _name_of(entry)
            if self.is_tpu:
                found[key] = _op(name, at, names)
                self.said[found[key]] = self._of_op(entry)
            else:
                found[key] = names.kernel(name) if self.is_gpu else _host(names, name)
        return found

    def _of_op(self, entry: memoryview) -> bytes:
        """A TPU op's own fields."""
        said = (value for number, value in fields(entry) if number == xplane.TITLE.stats and xplane._stat(value, self.keys)[0] in OF_OPS)
        return b"".join(written(xplane.TITLE.stats, made) for value in said if (made := self._stat(value)))

    def _programs(self) -> bytes:
        """What XLA compiled: titles with a program each."""
        out = b""
        for number, entry in enumerate(self.old.values(), 1):
            proto = xplane._program([message(v) for n, v in fields(entry) if n == xplane.TITLE.stats], self.keys)
            if proto is not None:
                stat = written(xplane.STAT.metadata_id, self.known[xplane._PROGRAM]) + written(xplane.STAT.bytes_value, hlo.redacted(proto, self.given))
                title = written(1, number) + written(xplane.TITLE.name, hlo.program(_name_of(entry), self.given)) + written(xplane.TITLE.stats, stat)
                out += written(xplane.PLANE.event_metadata, written(1, number) + written(2, title))
        return out

    def _line(self, data: memoryview, shown: dict[int, str]) -> bytes:
        """A line with its events; of a GPU only its streams, of a TPU the lines that are read."""
        parts = list(fields(data))
        name = next((text(v) for n, v in parts if n == xplane.LINE.name), "") or next((text(v) for n, v in parts if n == xplane.LINE.display_name), "")
        stream = jax.STREAM.match(name)
        if (self.is_gpu and not stream) or (self.is_tpu and name not in LINES):
            return b""
        body = written(xplane.LINE.name, name if self.is_tpu else f"Stream #{stream[1][:18]}" if self.is_gpu and stream else "thread")
        for number, value in parts:
            if number in (xplane.LINE.id, xplane.LINE.timestamp_ns):
                body += written(number, whole(value))
            elif number == xplane.LINE.events:
                body += written(number, b"".join(self._event(message(value), shown)))
        return written(xplane.PLANE.lines, body)

    def _event(self, data: memoryview, shown: dict[int, str]) -> Iterator[bytes]:
        for number, value in fields(data):
            if number == xplane.EVENT.metadata_id:
                yield written(number, self.titles[shown.get(whole(value), "")])
            elif number in (xplane.EVENT.offset_ps, xplane.EVENT.duration_ps):
                yield written(number, whole(value))
            elif number == xplane.EVENT.stats and (made := self._stat(value)):
                yield written(number, made)

    def _stat(self, value: Value) -> bytes:
        key, held = xplane._stat(value, self.keys)
        kept = _stat(key, held, self.given)
        if kept is None:
            return b""
        if key in _OF_PROGRAM:
            return written(xplane.STAT.metadata_id, self.known[key]) + written(xplane.STAT.ref_value, self.known[str(kept)])
        kind = xplane.STAT.str_value if isinstance(kept, str) else xplane.STAT.double_value if isinstance(kept, float) else xplane.STAT.int64_value
        return written(xplane.STAT.metadata_id, self.known[key]) + written(kind, kept)


def _name_of(entry: memoryview) -> str:
    return next((text(v) for n, v in fields(entry) if n == 2), "")


def _chrome(data: bytes, names: Names) -> Iterator[bytes]:
    """The Chrome trace: every span with its times, named if it is on a device's stream or a thread of the host."""
    events = chrome.decoded(data)
    processes = {e.pid: str(e.args.get("name", "")) for e in events if e.ph == "M" and e.name == "process_name"}
    threads = {(e.pid, e.tid): str(e.args.get("name", "")) for e in events if e.ph == "M" and e.name == "thread_name"}
    ops = _Numbered()
    yield b'{"displayTimeUnit": "ns", "traceEvents": ['
    between = b"\n"
    for e in events:
        where, line = processes.get(e.pid, ""), threads.get((e.pid, e.tid), "")
        is_host, is_tpu, stream = where.startswith("/host:CPU"), bool(CORE.fullmatch(where)), jax.STREAM.match(line)
        made: dict[str, object] = {"ph": e.ph if len(e.ph) == 1 and e.ph.isalpha() else "", "pid": e.pid, "tid": e.tid, "ts": e.ts, "dur": e.dur}
        if e.ph == "M" and e.name == "process_name":
            shown = where if _DEVICE.fullmatch(where) else "/host:CPU" if is_host else "/host:metadata"
            made |= {"name": e.name, "args": {"name": shown}}
        elif e.ph == "M" and e.name == "thread_name":
            made |= {"name": e.name, "args": {"name": line if is_tpu and line in LINES else f"Stream #{stream[1][:18]}" if stream else "thread"}}
        elif e.ph == "X" and (is_host or (is_tpu and line in LINES) or (stream and _DEVICE.fullmatch(where))):
            name = str(e.args.get("long_name", e.name))
            kept = {key: found for key, value in e.args.items() if (found := _stat(key, chrome.typed(value), names)) is not None}
            if is_tpu:
                made |= {"name": _op(name, ops[name], names), "args": kept}
            else:
                made |= {"name": _host(names, name) if is_host else names.kernel(name), "args": kept}
        yield between + json.dumps(made).encode()
        between = b",\n"
    yield b"\n]}\n"


def _op(name: str, number: int, names: Names) -> str:
    """A program, or a TPU's op without its text. The text distinguished ops of the same name; a number does now."""
    return f"{names.kernel(name.removeprefix('%').split(' ', 1)[0])} = {number}" if " = " in name else hlo.program(name, names)
