"""A directory of `advisor.record`: times from the light trace, the origin of ops from the deep trace."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from advisor.errors import TraceError
from advisor.knowledge.structs import replace
from advisor.recordings.recording import Recording
from advisor.recordings.timeline import Timeline
from advisor.sources.measured import as_recorded, frameworks_of, step_times

FILE = "recording.json"
MANIFEST = "manifest.json"
_TRACES = ("light", "deep", "nsys")
_FOLDER = re.compile(r"(?:rank|process)\d{1,9}")
_IS_MANIFEST = re.compile(rb'\{\s*"version":\s*1,\s*"recorded":\s*"(?:job|processes)"')
_RECORD_AGAIN = "Record again: advisor record -- python train.py"


def recognises(directory: Path) -> bool:
    """Whether the directory holds a recording."""
    return (directory / FILE).is_file()


def processes(directory: Path) -> tuple[str, list[str]]:
    """Content of a directory that `advisor record` wrote for several processes. "job" or "processes", and the paths of the traced processes, with a
    recording each. ("", []) for any other directory."""
    try:
        text = (directory / MANIFEST).read_bytes()
    except OSError:
        return "", []
    if not _IS_MANIFEST.match(text):
        return "", []
    said = _said(directory / MANIFEST)
    rows = said.get("processes")
    named = (
        [str(row["folder"]) for row in rows if isinstance(row, dict) and row.keys() & {"folder"} and row.keys() & {*_TRACES}] if isinstance(rows, list) else []
    )
    return str(said["recorded"]), [str(directory / name) for name in named if _FOLDER.fullmatch(name) and recognises(directory / name)]


def record(directory: Path, load: Callable[[Path], Timeline]) -> Recording:
    """The recording in a directory; `load` reads any of its traces. Raises TraceError if it has no readable trace."""
    traces, measured, (frameworks, loops) = held(directory)
    loaded = {name: load(path) for name, path in traces.items()}
    timeline = next(iter(loaded.values()))
    if "light" in loaded and "deep" in loaded:
        from advisor.sources.attribute import attributed

        timeline = attributed(loaded["light"], loaded["deep"])
    source = replace(timeline.source, path=str(directory), unprofiled_step_us=measured or timeline.source.unprofiled_step_us)
    if frameworks:
        source = replace(source, frameworks=frameworks, loops=loops)
    return Recording("trace", str(directory), (replace(timeline, source=source),))


def held(directory: Path) -> tuple[dict[str, Path], tuple[float, ...], tuple[dict[str, str], tuple[str, ...]]]:
    """The traces in a directory by their purpose, the step times, and the frameworks with their loops. Raises TraceError if it holds no trace."""
    said = _said(directory / FILE)
    traces = {name: path for name in _TRACES if (path := _file_inside(directory, said.get(name)))}
    if not traces:
        raise TraceError(f"the recording {directory} holds no trace: the program ended before a trace was recorded", _RECORD_AGAIN)
    return traces, step_times(said.get("unprofiled_step_us")), frameworks_of(said)


def told(traces: Mapping[str, str], step_us: tuple[float, ...], frameworks: Mapping[str, str], loops: tuple[str, ...]) -> bytes:
    """The data that `held` reads, as in its file: names of files in the directory, by their purpose."""
    return json.dumps({"version": 1, **as_recorded(step_us, frameworks, loops), **traces}, indent=1).encode()


def told_of_processes(kind: str, held: Mapping[str, Mapping[str, str]]) -> bytes:
    """What `processes` reads: the traces of each process by its directory."""
    return json.dumps({"version": 1, "recorded": kind, "processes": [{"folder": name, **traces} for name, traces in held.items()]}, indent=1).encode()


def _said(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(f"{path} cannot be read: {error}", _RECORD_AGAIN) from None
    if not isinstance(said, dict) or said.get("version") != 1:
        raise TraceError(f"{path} is no recording that this advisor reads", "Use the advisor that recorded it.")
    return said


def _file_inside(directory: Path, name: Any) -> Path | None:
    """The file of that name in the directory; None if it does not exist or is elsewhere."""
    if not isinstance(name, str) or not name or Path(name).name != name:
        return None
    path = directory / name
    return path if path.is_file() else None
