"""Structured logs of torch.compile: `TORCH_TRACE=DIR` writes a log per process and a record per line, with its payload on the next lines."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from advisor.errors import TraceError
from advisor.knowledge.structs import replace
from advisor.recordings.compile_log import CompileId, CompileLog, LoggedBreak, LoggedCompilation
from advisor.sources.jax.chrome import MOST_EVENTS as MOST_RECORDS
from advisor.sources.kineto.chunks import MAX_EVENT_BYTES as LONGEST
from advisor.sources.paths import open_binary
from advisor.sources.stream import DEFAULT_MAX_BYTES, Stream

_HINT = "Give the directory that TORCH_TRACE named, or the log in it: TORCH_TRACE=DIR python PROGRAM"
_RECORD = re.compile(r"[VDIWEC]\d{4} [\d:.]{1,30} \d{1,12} [^\n]{1,400}?:\d{1,9}\] (?=\{)")
_BROKEN_AT = re.compile(r"Graph break in user code at ([^\n]{1,1000}):(\d{1,9})")
_RANK = re.compile(r"rank_?(\d{1,6})[_.]")
_KEY = re.compile(r'"key": "([0-9a-z]{10,100})"')
_GIVEN_UP = "Skipping the function and falling back to eager"


def read_compile_logs(path: str, rank: int | None) -> list[CompileLog]:
    """The log at a path; in a directory all, or the rank's. Raises TraceError if none can be read."""
    paths = _logs_in(path, rank) if os.path.isdir(path) else [path]
    found = [log for one in paths if (log := _read(one)).compilations or log.breaks]
    if not found:
        raise TraceError(f"{path} holds no log of torch.compile", _HINT)
    return found


def _logs_in(directory: str, rank: int | None) -> list[str]:
    names = sorted(entry.name for entry in os.scandir(directory) if entry.is_file() and ".log" in entry.name)
    of_rank = [name for name in names if (m := _RANK.search(name)) and int(m[1]) == rank]
    chosen = of_rank or names
    return [os.path.join(directory, name) for name in chosen]


class _Collected(msgspec.Struct):
    """The records of a log so far."""

    texts: dict[int, str] = msgspec.field(default_factory=dict)
    """Names of files, which records refer to by number."""
    compilations: dict[CompileId, LoggedCompilation] = msgspec.field(default_factory=dict)
    breaks: dict[CompileId, LoggedBreak] = msgspec.field(default_factory=dict)
    graphs: dict[str, tuple[CompileId, ...]] = msgspec.field(default_factory=dict)

    def take(self, record: dict[str, Any], payload: str) -> None:
        if isinstance(said := record.get("str"), list) and len(said) == 2 and isinstance(said[1], int):
            self.texts[said[1]] = str(said[0])
        at = record.get("frame_id"), record.get("frame_compile_id")
        if not all(isinstance(number, int) and 0 <= number < 1 << 31 for number in at):
            return
        compile_id: CompileId = at  # type: ignore[assignment]
        artifact = record.get("artifact")
        name = artifact.get("name") if isinstance(artifact, dict) else None
        if isinstance(start := record.get("dynamo_start"), dict):
            self._started(compile_id, start.get("stack"))
        elif isinstance(metrics := record.get("compilation_metrics"), dict):
            self._took(compile_id, metrics)
        elif name == "dynamo_graph_break_reason":
            self._broke(compile_id, payload)
        elif name == "recompile_reasons":
            self._change(compile_id, reason=_first_reason(payload))
        elif isinstance(name, str) and name.startswith("fx_graph_cache_") and (key := _KEY.search(payload)):
            self.graphs[key[1]] = tuple(dict.fromkeys((*self.graphs.get(key[1], ()), compile_id)))[:2]

    def _started(self, compile_id: CompileId, stack: object) -> None:
        frame = stack[-1] if isinstance(stack, list) and stack and isinstance(stack[-1], dict) else {}
        number, line = frame.get("filename"), frame.get("line")
        file = self.texts.get(number, "") if isinstance(number, int) else ""
        self._change(compile_id, function=str(frame.get("name", "")), file=file, line=line if isinstance(line, int) else 0)

    def _took(self, compile_id: CompileId, metrics: dict[str, Any]) -> None:
        seconds, name = metrics.get("entire_frame_compile_time_s"), metrics.get("co_name")
        self._change(
            compile_id,
            **({"seconds": float(seconds)} if isinstance(seconds, (int, float)) and 0 <= seconds < 1e9 else {}),
            **({"function": name} if isinstance(name, str) else {}),
        )

    def _broke(self, compile_id: CompileId, payload: str) -> None:
        at = _BROKEN_AT.search(payload)
        if at:
            self.breaks[compile_id] = LoggedBreak(compile_id, at[1], int(at[2]), _reason(payload), _GIVEN_UP in payload)

    def _change(self, compile_id: CompileId, **changed: Any) -> None:
        known = self.compilations.get(compile_id) or LoggedCompilation(compile_id, "", "", 0, "", 0.0)
        self.compilations[compile_id] = replace(known, **changed)


def _read(path: str) -> CompileLog:
    try:
        file, size = open_binary(path)
    except OSError as error:
        raise TraceError(f"{path} cannot be opened: {error.strerror or error}", "Check the path and its permissions.") from None
    found = _Collected()
    with file:
        for record, payload in _records(Stream(file, size or None, DEFAULT_MAX_BYTES)):
            found.take(record, payload)
            if len(found.compilations) > MOST_RECORDS or len(found.texts) > MOST_RECORDS or len(found.graphs) > MOST_RECORDS:
                raise TraceError(f"{path} holds more than {MOST_RECORDS:,} compilations", "Give the log of a shorter run.")
    return CompileLog(path, tuple(found.compilations.values()), tuple(found.breaks.values()), found.graphs)


def _records(stream: Stream) -> Iterator[tuple[dict[str, Any], str]]:
    """Each record that is JSON, with the beginning of its payload."""
    head: dict[str, Any] | None = None
    payload: list[str] = []
    held = 0
    for line in _lines(stream):
        if line.startswith("\t"):
            if held < LONGEST:
                payload.append(line[1:])
                held += len(line)
            continue
        if head is not None:
            yield head, "\n".join(payload)
        head, payload, held = _parsed(line), [], 0
    if head is not None:
        yield head, "\n".join(payload)


def _parsed(line: str) -> dict[str, Any] | None:
    begun = _RECORD.match(line)
    if not begun:
        return None
    with suppress(ValueError, RecursionError):
        found = json.loads(line[begun.end() :])
        return found if isinstance(found, dict) else None
    return None


def _lines(stream: Stream) -> Iterator[str]:
    """The lines of a text, each cut at `LONGEST`."""
    rest = b""
    cut = False
    while chunk := stream.read(1 << 20):
        first, *more = chunk.split(b"\n")
        for number, part in enumerate([first, *more]):
            if number:
                yield rest.decode("utf-8", "replace")
                rest, cut = b"", False
            if not cut:
                rest += part
                rest, cut = rest[:LONGEST], len(rest) > LONGEST
    if rest:
        yield rest.decode("utf-8", "replace")


def _reason(payload: str) -> str:
    """Dynamo's own reason and explanation."""
    lines = [line.strip() for line in payload.partition("Graph Break Reason: ")[2].split("\n") if line.strip()]
    general = len(lines) > 1 and lines[0].endswith((":", "y."))
    explained = next((line.removeprefix("Explanation: ") for line in lines if line.startswith("Explanation: ")), "")
    return ": ".join(filter(None, (*lines[general : general + 1], explained)))[:300]


def _first_reason(payload: str) -> str:
    """The guard that failed: the newest compilation's, without its number."""
    with suppress(ValueError, RecursionError):
        said = json.loads(payload)
        first = said[0] if isinstance(said, list) and said else said
        if isinstance(first, str):
            return re.sub(r"^\d{1,9}/\d{1,9}: ", "", first.split("\n")[0])[:300]
    return ""
