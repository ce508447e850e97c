"""A Kineto trace with only the data that the reader uses: an argument that is not named here is dropped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any

import msgspec
from msgspec import Raw

from advisor.errors import TraceError
from advisor.sources.kineto import _metadata
from advisor.sources.kineto.chunks import Text
from advisor.sources.kineto.columns import integer
from advisor.sources.kineto.events import MalformedError
from advisor.sources.kineto.fields import TABLE_OF, WINDOW
from advisor.sources.kineto.numerals import without_no_numbers
from advisor.sources.kineto.transpose import OF_A_RANK
from advisor.sources.measured import as_recorded, frameworks_of, step_times
from advisor.sources.redact.names import CACHED, Names, device, known_text, version, words
from advisor.sources.stream import Stream

_NUMBER = re.compile(rb"-?\d{1,40}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,4})?")
_QUOTED_NUMBER = re.compile(rb'"-?\d{1,40}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,4})?"')
_NUMBERS_IN_LISTS = re.compile(r"[\d\s,.\-\[\]]*")
_EINSUM = re.compile(r"[a-zA-Z]{0,12}(?:,\s?[a-zA-Z]{0,12}){0,5}->[a-zA-Z]{0,12}")
_FLOWS = frozenset({"ac2g", "async_cpu_to_gpu", "fwdbwd", "async_gpu", "correlation"})
_INSTANTS = frozenset({"[memory]", "Record Window End", "[OutOfMemory]"})

_DTYPES = frozenset(
    [
        "float",
        "double",
        "half",
        "bfloat16",
        "int",
        "long",
        "short",
        "char",
        "byte",
        "bool",
        "signed",
        "unsigned",
        "complex",
        "c10",
        "at",
        "qint8",
        "quint8",
        "qint32",
        "float8",
        "e4m3fn",
        "e5m2",
        "e4m3fnuz",
        "e5m2fnuz",
        "e8m0fnu",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "scalar",
        "scalarlist",
        "tensorlist",
        "genericlist",
        "optionaltensorlist",
        "tensor",
        "list",
        "nonetype",
        "none",
        "bits8",
        "bits16",
        "undefined",
        "complexhalf",
        "complexfloat",
        "complexdouble",
    ]
)
_COPIES = frozenset(
    [
        "htod",
        "dtoh",
        "dtod",
        "ptop",
        "htoh",
        "htoa",
        "atoh",
        "atoa",
        "atod",
        "dtoa",
        "p2p",
        "peertopeer",
        "hosttodevice",
        "devicetohost",
        "devicetodevice",
        "hosttohost",
        "copyhosttodevice",
        "copydevicetohost",
        "copydevicetodevice",
        "copypeertopeer",
        "peertopeer",
        "pageable",
        "pinned",
        "device",
        "array",
        "managed",
        "static",
        "host",
        "unknown",
        "dispatch",
        "memory",
    ]
)
_COLLECTIVES = frozenset(
    [
        "allreduce",
        "all",
        "reduce",
        "gather",
        "allgather",
        "alltoall",
        "to",
        "reducescatter",
        "scatter",
        "broadcast",
        "barrier",
        "send",
        "recv",
        "wait",
        "base",
        "single",
        "coalesced",
        "into",
        "tensor",
        "sparse",
        "v",
        "dist",
        "init",
        "group",
        "nccl",
        "oop",
        "split",
        "scattertensor",
        "gathertensor",
        "allgatherbase",
        "reducescatterbase",
        "allreducecoalesced",
        "allgathercoalesced",
        "alltoallbase",
        "monitoredbarrier",
    ]
)
_SYNCS = frozenset(["event", "stream", "wait", "context", "sync", "synchronize", "device"])
_BACKENDS = frozenset(["nccl", "gloo", "mpi", "ucc", "xccl", "hccl", "rccl", "cpu", "cuda"])

_COUNTS = (
    "External id", "external id", "correlation", "device", "stream", "original_stream", "bytes", "registers per thread", "shared memory",
    "est. achieved occupancy %", "graph id", "graph node id", "Group size", "In msg nelems", "Out msg nelems", "Seq", "Src Rank", "Dst Rank", "Sequence number", "Fwd thread id", "Python id",
    "Python parent id", "Python module id", "wait_on_stream", "wait_on_cuda_event_record_corr_id", "Addr", "Bytes", "Total Allocated", "Total Reserved",
    "Device Type", "Device Id", "context", "queued", "cbid", "priority", "warps per SM", "blocks per SM",
)  # fmt: skip
_TOP_NUMBERS = ("schemaVersion", "record_shapes", "with_stack", "profile_memory", "with_modules", "with_flops", "baseTimeNanoseconds")
_TOP_VERSIONS = (
    "cuda_runtime_version", "cuda_driver_version", "cupti_version", "hip_runtime_version", "hip_driver_version", "roctracer_version", "rocprofiler-sdk_version",
)  # fmt: skip
_DEVICE_NUMBERS = (
    "id", "totalGlobalMem", "computeMajor", "computeMinor", "major", "minor", "maxThreadsPerBlock", "maxThreadsPerMultiprocessor", "regsPerBlock", "warpSize",
    "sharedMemPerBlock", "numSms", "multiProcessorCount", "regsPerMultiprocessor", "sharedMemPerBlockOptin", "sharedMemPerMultiprocessor",
)  # fmt: skip

_EACH = msgspec.json.Decoder(list[Raw])
_OBJECT = msgspec.json.Decoder(dict[str, Raw])


def redacted(stream: Stream, path: str, names: Names) -> Iterator[bytes]:
    """The text of a trace to give away, piece by piece. Raises TraceError if it is damaged: what cannot be read cannot be judged."""
    text = Text(stream.read)
    if not text.found:
        raise TraceError(f"{path} has no list of events", "Give a trace of torch.profiler.")
    events = _Events(names)
    # What stands before the events is known only with what stands after them: both are written at the end.
    yield b"[" if text.bare else b'{"traceEvents": ['
    between = b"\n"
    try:
        for piece in text.decoded(events.rewritten):
            for event in piece:
                yield between + event
                between = b",\n"
    except MalformedError as error:  # what the reader takes for an event is not always JSON: bytes that are no text
        raise _damaged(path, f"it holds events that are no JSON: {error}") from None
    metadata, complete = _metadata(text)
    if stream.truncated or not text.whole or text.bad or not complete:
        why = stream.truncated or ("it holds events that are no JSON" if text.bad else "it ends before its events or its metadata do")
        raise _damaged(path, why)
    yield b"\n]" if text.bare else b"\n]" + _top(metadata) + b"}\n"


def _damaged(path: str, why: str) -> TraceError:
    return TraceError(f"{path} is damaged: {why}", "Copy or record it again: unreadable data may contain secrets.")


def _top(metadata: Mapping[str, Any]) -> bytes:
    """The members next to the events, each with a comma before it."""
    kept: dict[str, Any] = {key: metadata[key] for key in _TOP_NUMBERS if isinstance(metadata.get(key), (int, float))}
    kept |= {key: found for key in _TOP_VERSIONS if (found := version(metadata.get(key))) is not None}
    kept |= {key: metadata[key] for key in ("displayTimeUnit",) if metadata.get(key) in ("ms", "ns")}
    for key in ("deviceProperties", "computeProperties"):
        if isinstance(metadata.get(key), list):
            kept[key] = [_device(item) for item in metadata[key] if isinstance(item, dict)]
    if isinstance(world := metadata.get("distributedInfo"), dict):
        kept["distributedInfo"] = {key: world[key] for key in ("rank", "world_size", "pg_count") if isinstance(world.get(key), int)}
        kept["distributedInfo"] |= {"backend": words(str(world.get("backend", "")), _BACKENDS)} if "backend" in world else {}
        kept["distributedInfo"] |= {"nccl_version": found} if (found := version(world.get("nccl_version"))) is not None else {}
    if isinstance(recording := metadata.get("advisor_recording"), dict):
        kept["advisor_recording"] = as_recorded(step_times(recording.get("unprofiled_step_us")), *frameworks_of(recording))
    return b"".join(b",\n%b: %b" % (json.dumps(key).encode(), json.dumps(value).encode()) for key, value in kept.items())


def _device(item: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: integer(item[key], 0) for key in _DEVICE_NUMBERS if key in item}
    return {**kept, "name": device(str(item.get("name", "")))}


class _Events:
    """Writes events anew: of each its kind, times and place, and what of its name and arguments is known."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._texts: dict[str, Callable[[str], str]] = {
            "kind": lambda t: words(t, _COPIES), "copy kind": lambda t: words(t, _COPIES), "src kind": lambda t: words(t, _COPIES),
            "dst kind": lambda t: words(t, _COPIES), "dtype": lambda t: words(t, _DTYPES), "Collective name": lambda t: words(t, _COLLECTIVES),
            "cuda_sync_kind": lambda t: words(t, _SYNCS), "Process Group Name": names.group, "Comms Id": names.group, "Process Group Ranks": _numbers,
            "In split size": _numbers, "Out split size": _numbers, "kernel_file": names.path, "Call stack": names.frames,
            "Module Hierarchy": lambda t: ".".join(map(names.op, names.plain(t).split("."))) if t else "",
        }  # fmt: skip
        self._lists: dict[str, Callable[[Any], Any]] = {
            "Input Dims": _nested_numbers, "Input dims": _nested_numbers, "Input Strides": _nested_numbers, "grid": _nested_numbers, "block": _nested_numbers,
            "Input type": lambda v: _redact_texts(v, lambda t: words(t, _DTYPES)), "Concrete Inputs": lambda v: _redact_texts(v, _concrete),
        }  # fmt: skip
        self._shown, self._described = lru_cache(maxsize=CACHED)(self._argument), lru_cache(maxsize=CACHED)(self._description)
        # Processes and threads are few, times and ids are not.
        process, thread = lru_cache(maxsize=CACHED)(self._process), lru_cache(maxsize=CACHED)(_place)
        written: dict[str, Callable[[bytes], bytes]] = {"pid": process, "tid": thread, "ts": _time, "dur": _time, "id": _place}
        self._written = [(key, _key(key), write) for key, write in written.items()]
        self._of_place = {"thread_name": names.thread, "process_name": names.process}
        by_table = {"gpu_ops": names.kernel, "api_calls": names.call, "cpu_ops": names.op, "python_calls": names.frame}
        self._names = {category: by_table.get(table, names.range) for category, table in TABLE_OF.items()}

    def rewritten(self, piece: bytes) -> list[bytes]:
        """The events of `{…}, {…}`. Raises MalformedError."""
        try:
            return [self._event(found) for raw in _EACH.decode(b"[" + piece + b"]") if (found := _object(raw)) is not None]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if (mended := without_no_numbers(piece)) != piece:
                return self.rewritten(mended)
            raise MalformedError(str(error)) from None

    def _event(self, event: Mapping[str, Raw]) -> bytes:
        phase, shared = self._described(*[bytes(event[key]) if key in event else None for key in ("ph", "cat", "name")])
        made = [*shared, *[start + write(bytes(event[key])) for key, start, write in self._written if key in event]]
        if "bp" in event and _text(event["bp"]) == "e":
            made.append(b'"bp": "e"')
        arguments = _object(event["args"]) if "args" in event else None
        if arguments and phase not in "sft":
            made.append(b'"args": ' + self._arguments(arguments, self._of_place.get(_text(event.get("name"))) if phase == "M" else None))
        return b"{" + b", ".join(made) + b"}"

    def _description(self, raw_phase: bytes | None, raw_category: bytes | None, name: bytes | None) -> tuple[str, list[bytes]]:
        """The phase of an event, and its members that events of a kind share."""
        phase, category, made = _text(raw_phase), _text(raw_category), []
        if len(phase) == 1 and phase.isalpha():
            made.append(_key("ph") + _quoted(phase))
        if category in self._names or category in _FLOWS or category == WINDOW:
            made.append(_key("cat") + _quoted(category))
        elif raw_category is not None:
            made.append(b'"cat": "other"')
        if shown := self._name(phase, category, _text(name)):
            made.append(_key("name") + _quoted(shown))
        return phase, made

    def _name(self, phase: str, category: str, name: str) -> str:
        if phase in ("X", "B", "E") and category in self._names:
            return self._names[category](name)
        if phase == "M":
            return known_text(lambda t: t in ("thread_name", "process_name", "thread_sort_index", "process_sort_index", "process_labels"), name)
        return known_text(lambda t: t in _INSTANTS or t in _FLOWS, name)

    def _process(self, raw: bytes) -> bytes:
        """A process, with the rank that a merge of several puts before it."""
        if not (of := OF_A_RANK.fullmatch(_text(raw))):
            return _place(raw)
        number = re.search(r"\d+", of["pid"])
        return json.dumps(f"{self.names.rank(of['rank'])} {number[0] if number else 'other'}").encode()

    def _arguments(self, arguments: Mapping[str, Raw], named: Callable[[str], str] | None) -> bytes:
        """named: what of the name of a thread or a process stays, None for what names neither."""
        made: list[bytes] = []
        for key, raw in arguments.items():
            if key in _COUNTS:
                if (number := _count(raw)) is not None:
                    made.append(_key(key) + number)
            elif key in self._texts or key in self._lists:
                if (shown := self._shown(key, bytes(raw))) is not None:
                    made.append(_key(key) + shown)
            elif key == "name" and named:
                made.append(_key(key) + json.dumps(named(_text(raw))).encode())
        return b"{" + b", ".join(made) + b"}"

    def _argument(self, key: str, raw: bytes) -> bytes | None:
        """The redacted value of an argument that is a text or a list; kernels of a kind have the same."""
        if key in self._lists:
            return json.dumps(self._lists[key](_value(raw))).encode()
        if _NUMBER.fullmatch(raw):
            return raw
        return json.dumps(self._texts[key](_text(raw))).encode() if raw.startswith(b'"') else None


@lru_cache(maxsize=CACHED)
def _quoted(text: str) -> bytes:
    """A text as JSON: kinds, names and keys are few."""
    return json.dumps(text).encode()


@cache
def _key(name: str) -> bytes:
    """The key of a member as JSON: those that are written are known."""
    return _quoted(name) + b": "


def _object(raw: Raw) -> dict[str, Raw] | None:
    """The members of an object, None for anything else."""
    if not bytes(raw).startswith(b"{"):
        return None
    return _OBJECT.decode(raw)


def _value(raw: Raw | bytes | None) -> Any:
    """The value of some JSON, as leniently as the reader takes it."""
    return None if raw is None else _read(bytes(raw))


@lru_cache(maxsize=CACHED)
def _read(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None


def _text(raw: Raw | bytes | None) -> str:
    """A text, or a number as it is written; "" for anything else."""
    return "" if raw is None else _text_of(bytes(raw))


@lru_cache(maxsize=CACHED)
def _text_of(raw: bytes) -> str:
    value = _read(raw)
    return value if isinstance(value, str) else str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else ""


def _time(raw: bytes) -> bytes:
    """A time as it is written, with every digit; null if it is no time."""
    return raw if _NUMBER.fullmatch(raw) or _QUOTED_NUMBER.fullmatch(raw) else b"null"


def _place(raw: bytes) -> bytes:
    """A process, a thread or an id: a number, or the first number in a text. Kineto's own names stay."""
    if _NUMBER.fullmatch(raw):
        return raw
    text = _text(raw)
    if text in ("Spans", "Traces", "PyTorch Profiler", ""):
        return json.dumps(text).encode()
    return b'"%d"' % integer(text) if re.search(r"\d", text) else b'"other"'


def _count(raw: Raw) -> bytes | None:
    """A number as it is written, or the first number in a text."""
    if _NUMBER.fullmatch(raw) or _QUOTED_NUMBER.fullmatch(raw):
        return bytes(raw)
    text = _text(raw)
    return b"%d" % integer(text) if re.search(r"\d", text) else None


def _numbers(text: str) -> str:
    """Numbers in brackets, as text."""
    return text if text.isascii() and _NUMBERS_IN_LISTS.fullmatch(text) else ""


def _nested_numbers(value: Any) -> Any:
    """Numbers in lists, and nothing else in them."""
    if isinstance(value, list):
        return [_nested_numbers(item) for item in value]
    return value if isinstance(value, (int, float)) else None


def _redact_texts(value: Any, known: Callable[[str], str]) -> Any:
    """Texts in lists, those that are not known left empty."""
    if isinstance(value, list):
        return [_redact_texts(item, known) for item in value]
    return known(value) if isinstance(value, str) else value if isinstance(value, (int, float)) else None


def _concrete(text: str) -> str:
    """A scalar argument: a number, numbers in a list, a truth value, or an equation of einsum."""
    known = all(not word or word in ("True", "False", "None") or _NUMBER.fullmatch(word.encode()) for word in re.split(r"[\s,\[\]]+", text))
    return text if known or _EINSUM.fullmatch(text) else ""
