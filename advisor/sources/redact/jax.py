"""Profiles of JAX of what the reader reads: streams of devices and threads of the host, names as everywhere, a few numbers of each event."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

from advisor.errors import TraceError
from advisor.sources.jax import chrome, xplane
from advisor.sources.jax import names as jax
from advisor.sources.jax.planes import Stat
from advisor.sources.jax.tables import _VERSIONS
from advisor.sources.protobuf import Value, fields, message, text, whole, written
from advisor.sources.redact.names import Names, device, version
from advisor.sources.sniff import is_json
from advisor.sources.stream import DEFAULT_MAX_BYTES, Stream

_DEVICE = re.compile(r"/device:[A-Z]{2,4}:\d{1,6}")
_NUMBERS = frozenset({
    "correlation_id", "cuda_graph_id", "cuda_graph_node_id", "step_num", "core_count", "compute_cap_major", "compute_cap_minor", "memory_size", "profile_start_time",
})  # fmt: skip
_DETAILS = frozenset({"kernel_details", "memcpy_details", "memset_details", "Memset_details"})
_IN_DETAILS = re.compile(
    r"(?:regs|static_shared|dynamic_shared|grid|block|occ_pct|size|dest|async|num_bytes|kind_src|kind_dst|kind):(?:[\d.,]{1,40}|pageable|pinned|device|array|unified|managed|unknown|static)"
)
_CALL = re.compile(r"(?:cu|hip)[A-Z]\w+|PjitFunction\([\w.<>]{1,80}\)")


def redacted(stream: Stream, head: bytes, path: str, names: Names) -> Iterator[bytes]:
    """A profile to give away. Raises TraceError where it is damaged."""
    data = stream.read(DEFAULT_MAX_BYTES + 1)
    if stream.truncated:
        raise TraceError(f"{path} is cut off: {stream.truncated}", "Copy the file again, or record it again.")
    if is_json(head):
        return _chrome(data, names)
    try:
        return iter([b"".join(_plane(message(value), names) for number, value in fields(memoryview(data)) if number == xplane._PLANES)])
    except ValueError as error:
        raise TraceError(f"{path} is a damaged XPlane: {error}", "Copy the file again, or record it again.") from None


def _host(names: Names, name: str) -> str:
    """An event of a thread of the host: a frame, a call, what the runtime opens, or a range."""
    if match := jax._FRAME.fullmatch(name):
        return f"${names.path(match['file'])}:{match['line']} {names.function(match['function'])}"
    if match := jax._BUILTIN.fullmatch(name):
        return f"${names.function(match['module'])} {names.function(match['function'])}"
    if name.lower().startswith(("memcpy", "memset")):
        return names.kernel(name)
    return names.plain(name) if _CALL.fullmatch(name) else names.range(name)


def _stat(key: str, value: Stat) -> Stat | None:
    """What of an event's or a plane's own words is kept."""
    if key in _NUMBERS:
        return value if isinstance(value, (int, float)) or (value.isascii() and value.isdigit() and len(value) < 20) else None
    if key in _DETAILS:
        return " ".join(word for word in str(value).split() if _IN_DETAILS.fullmatch(word))
    if key == "gpu_device_name":
        return device(str(value))
    return version(value) if key in _VERSIONS else None  # type: ignore[return-value]


class _Numbered(dict[str, int]):
    """A number from 1 on for each name."""

    def __missing__(self, name: str) -> int:
        self[name] = number = len(self) + 1
        return number

    def entries(self, field: int) -> bytes:
        """As a map of metadata."""
        return b"".join(written(field, written(1, n) + written(2, written(1, n) + written(2, name))) for name, n in self.items())


def _plane(data: memoryview, names: Names) -> bytes:
    parts = list(fields(data))
    name = next((text(v) for n, v in parts if n == xplane._NAME), "")
    events, stats = (dict(xplane._entry(v) for n, v in parts if n == field) for field in (xplane._EVENT_METADATA, xplane._STAT_METADATA))
    keys = {key: _name_of(entry) for key, entry in stats.items()}
    titles, known = _Numbered(), _Numbered()
    lines: list[bytes] = []
    is_device, is_host = bool(_DEVICE.fullmatch(name)), name.startswith("/host:CPU")
    rule: Callable[[str], str] = names.kernel if is_device else lambda one: _host(names, one)
    shown = {key: rule(_name_of(entry)) for key, entry in events.items()} if is_device or is_host else {}
    for number, value in parts:
        if number == xplane._LINES and (is_device or is_host):
            lines.append(_line(message(value), is_device, shown, keys, titles, known))
    own = b"".join(written(xplane._PLANE_STATS, made) for n, v in parts if n == xplane._PLANE_STATS and (made := _written_stat(v, keys, known)))
    called = name if is_device or name in ("Task Environment",) else "/host:CPU" if is_host else "/host:metadata"
    body = written(1, 1) + written(xplane._NAME, called) + b"".join(lines) + titles.entries(xplane._EVENT_METADATA) + known.entries(xplane._STAT_METADATA) + own
    return written(xplane._PLANES, body)


def _name_of(entry: memoryview) -> str:
    return next((text(v) for n, v in fields(entry) if n == 2), "")


def _line(data: memoryview, is_device: bool, shown: dict[int, str], keys: dict[int, str], titles: _Numbered, known: _Numbered) -> bytes:
    """One line with its events; of a device only its streams."""
    parts = list(fields(data))
    name = next((text(v) for n, v in parts if n == xplane._LINE_NAME), "") or next((text(v) for n, v in parts if n == xplane._DISPLAY_NAME), "")
    stream = jax.STREAM.match(name)
    if is_device and not stream:
        return b""
    body = written(xplane._LINE_NAME, f"Stream #{stream[1][:18]}" if is_device and stream else "thread")
    for number, value in parts:
        if number in (xplane._LINE_ID, xplane._LINE_TIME_NS):
            body += written(number, whole(value))
        elif number == xplane._EVENTS:
            body += written(number, b"".join(_event(message(value), shown, keys, titles, known)))
    return written(xplane._LINES, body)


def _event(data: memoryview, shown: dict[int, str], keys: dict[int, str], titles: _Numbered, known: _Numbered) -> Iterator[bytes]:
    for number, value in fields(data):
        if number == xplane._METADATA_ID:
            yield written(number, titles[shown.get(whole(value), "")])
        elif number in (xplane._OFFSET_PS, xplane._DURATION_PS):
            yield written(number, whole(value))
        elif number == xplane._STATS and (made := _written_stat(value, keys, known)):
            yield written(number, made)


def _written_stat(value: Value, keys: dict[int, str], known: _Numbered) -> bytes:
    key, held = xplane._stat(value, keys)
    kept = _stat(key, held)
    if kept is None:
        return b""
    kind = xplane._STRING if isinstance(kept, str) else xplane._DOUBLE if isinstance(kept, float) else xplane._INT64
    return written(xplane._STAT_ID, known[key]) + written(kind, kept)


def _chrome(data: bytes, names: Names) -> Iterator[bytes]:
    """The Chrome trace: every span with its times, named where it lies on a device's stream or a thread of the host."""
    events = chrome.decoded(data)
    processes = {e.pid: str(e.args.get("name", "")) for e in events if e.ph == "M" and e.name == "process_name"}
    threads = {(e.pid, e.tid): str(e.args.get("name", "")) for e in events if e.ph == "M" and e.name == "thread_name"}
    yield b'{"displayTimeUnit": "ns", "traceEvents": ['
    between = b"\n"
    for e in events:
        where = processes.get(e.pid, "")
        stream = jax.STREAM.match(threads.get((e.pid, e.tid), ""))
        made: dict[str, object] = {"ph": e.ph if len(e.ph) == 1 and e.ph.isalpha() else "", "pid": e.pid, "tid": e.tid, "ts": e.ts, "dur": e.dur}
        if e.ph == "M" and e.name == "process_name":
            shown = where if _DEVICE.fullmatch(where) else "/host:CPU" if where.startswith("/host:CPU") else "/host:metadata"
            made |= {"name": e.name, "args": {"name": shown}}
        elif e.ph == "M" and e.name == "thread_name":
            made |= {"name": e.name, "args": {"name": f"Stream #{stream[1][:18]}" if stream else "thread"}}
        elif e.ph == "X" and (where.startswith("/host:CPU") or (stream and _DEVICE.fullmatch(where))):
            name = str(e.args.get("long_name", e.name))
            kept = {key: found for key, value in e.args.items() if (found := _stat(key, chrome.typed(value))) is not None}
            made |= {"name": _host(names, name) if where.startswith("/host") else names.kernel(name), "args": kept}
        yield between + json.dumps(made).encode()
        between = b",\n"
    yield b"\n]}\n"
