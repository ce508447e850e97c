"""Reports that were saved as JSON, and files that may be either a report or a trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from advisor.errors import TraceError
from advisor.files import HEAD_BYTES
from advisor.knowledge.secrets import masked_each, shown
from advisor.report.model import SCHEMA, Report
from advisor.report.priorities import why_excluded

_NEEDED = {"trace": ("window", "time"), "tpu": ("window", "time"), "memory": ("memory",)}
"""What a report of a kind never lacks."""
_RECORDING = "recording.json"
_CAPTURES = (".json", ".json.gz", ".json.zst", ".sqlite")
_SNAPSHOTS = (".pickle", ".pickle.gz", ".pickle.zst")
"""Where a directory holds no others."""


def read_report(path: Path, told: tuple[str, ...] = ()) -> Report:
    """A report saved with `--format json`. told: its fields, if the others are not needed: they are empty. Raises TraceError if the file is no report, or of
    another schema."""
    try:
        data = path.read_bytes()
        loaded = _with_fields(data, told) if told else Report.from_json(data)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}", "Give the path of a report saved with --format json.") from None
    except (msgspec.DecodeError, ValueError) as error:
        if is_report(path) and b'"brief":' in data[:HEAD_BYTES]:
            raise TraceError(
                f"{path} is a report in short", "Save a whole report: advisor analyze TRACE --format json -o report.json, without --brief"
            ) from None
        raise TraceError(f"{path} is no saved report: {error}", "Save a report with: advisor analyze TRACE --format json -o report.json") from None
    if not 1 <= loaded.schema <= SCHEMA:
        raise TraceError(f"{path} has schema {loaded.schema}, this advisor reads schemas 1 to {SCHEMA}", "Use the advisor that wrote it.")
    missing = [name for name in _NEEDED.get(loaded.kind, ()) if getattr(loaded, name) is None]
    missing += ["a kernel's counters"] if loaded.kind == "kernels" and any(row.counted is None for row in loaded.kernels) else []
    if missing:
        raise TraceError(
            f"{path} is a report of kind {loaded.kind} without {' and '.join(missing)}", "Save it again: advisor analyze TRACE --format json -o report.json"
        )
    loaded = _with_exclusions(loaded)
    return loaded if shown() else _without_secrets(loaded)


@cache
def _part(told: tuple[str, ...]) -> tuple[type[msgspec.Struct], dict[str, Any]]:
    """A report of these fields alone, and the others that every report has."""
    fields = msgspec.structs.fields(Report)
    kept = ((f.name, f.type) if f.required else (f.name, f.type, msgspec.field(default=f.default)) for f in fields if f.name in told)
    return msgspec.defstruct("Part", kept, kw_only=True), {f.name: () for f in fields if f.required and f.name not in told}


def _with_fields(data: bytes, told: tuple[str, ...]) -> Report:
    kind, others = _part(told)
    try:
        part = msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:  # as of an earlier advisor
        return Report.from_json(data)
    return Report(**others, **msgspec.structs.asdict(part))


def _with_exclusions(report: Report) -> Report:
    """The report with a typed reason for each finding outside the combined estimate: earlier versions have only words."""
    findings = tuple(msgspec.structs.replace(f, excluded=why_excluded(f, counted=False)) if f.left_out and not f.excluded else f for f in report.findings)
    return msgspec.structs.replace(report, findings=findings)


_HARMLESS: set[str] = set()
"""Texts of which nothing was masked: reports of a program repeat most of theirs."""


def _without_secrets(report: Report) -> Report:
    """As a recording is read: a report may have been saved with what names held."""
    whole = msgspec.to_builtins(report)
    waiting, found = [whole], dict[str, None]()
    for value in waiting:
        if isinstance(value, str):
            found[value] = None
        elif isinstance(value, (list, tuple, dict)):
            waiting.extend(value.values() if isinstance(value, dict) else value)
    texts = [text for text in found if text not in _HARMLESS]
    if (made := masked_each(texts)) == texts:
        _HARMLESS.update(texts)
        return report
    as_shown = dict(zip(texts, made, strict=True))

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return as_shown.get(value, value)
        if isinstance(value, (list, tuple)):
            return [walk(item) for item in value]
        return {key: walk(item) for key, item in value.items()} if isinstance(value, dict) else value

    return msgspec.convert(walk(whole), Report)


def is_report(path: Path) -> bool:
    """Whether a file begins as our JSON does: its schema, then the version that wrote it."""
    try:
        with path.open("rb") as file:
            head = b"".join(file.read(HEAD_BYTES).split())
    except OSError:
        return False
    return head.startswith(b'{"schema":') and b'"advisor":' in head


def captures(path: Path, whole: Callable[[Path], bool] = lambda _: False) -> list[Path]:
    """The captures of a side: the file itself, a recording that is a directory, or every file and recording in a directory.

    whole: whether a directory is a single capture, such as a job's ranks.
    """
    if not path.is_dir() or (path / _RECORDING).is_file() or whole(path):
        return [path]
    there = [*path.iterdir()]
    for suffixes in (_CAPTURES, _SNAPSHOTS):
        found = sorted(p for p in there if (p.is_file() and p.name.endswith(suffixes)) or (p / _RECORDING).is_file())
        # A file and what packed it are one.
        found = [p for p in found if p.suffix not in (".gz", ".zst") or p.with_suffix("") not in found]
        if found:
            break
    if not found:
        raise TraceError(f"{path} holds no captures", "Give a directory of traces or saved reports of the same program.")
    return found


def names(path: Path, whole: Callable[[Path], bool] = lambda _: False) -> list[str]:
    """Names of the captures of a side, in the order of `reports`."""
    return [one.name for one in captures(path, whole)]


def reports(paths: list[Path], analyze: Callable[[Path], Report], whole: Callable[[Path], bool] = lambda _: False) -> list[Report]:
    """A report of each capture: read if it was saved, made if it is a trace; `whole` as of `captures`."""
    return [read_report(p) if is_report(p) else analyze(p) for path in paths for p in captures(path, whole)]
