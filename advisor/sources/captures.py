"""Directories in which inference servers put the traces of their graph captures, and the traces of a rank."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import Any

import msgspec

from advisor.errors import TraceError
from advisor.recordings.captures import CaptureTrace, CaptureTraces
from advisor.recordings.timeline import Timeline

FOLDERS = ("capture_traces", "graph_capture_profile")
"""vLLM and patched SGLang write the first, SGLang the second, each next to its traces."""

# graph_capture_rank_0.17737.pt.trace.json.gz (vLLM, an encoder's with _encoder), cuda_graph_capture-DecodeCudaGraphRunner-TP-0.json.gz,
# DecodeCudaGraphRunner_bs_32_rank0.json.gz (SGLang); bs_32_rank0.json.gz, bs_32_q_4_rank0.json.gz (its patches for TraceLens).
_NAME = re.compile(
    r"graph_capture_rank_?(?P<vllm>\d{1,6})[_.]|cuda_graph_capture-.{0,80}-TP-(?P<whole>\d{1,6})\.|(?:^|_)bs_(?P<rows>\d{1,9})_.{0,80}?rank(?P<of>\d{1,6})\."
)
_SUFFIXES = (".json", ".json.gz", ".json.zst", ".trace.zst")
_DETAILS = "execution_details.json"


class CaptureFile(msgspec.Struct, frozen=True):
    """rank: of the process that captured, -1 if it is not in the name. rows: as of `CaptureTrace`."""

    path: str
    rank: int
    rows: int


def is_capture(path: str) -> bool:
    """Whether servers give such a name to the trace of a capture."""
    return _NAME.search(PurePath(path).name) is not None


def files_in(directory: str) -> list[CaptureFile]:
    """The traces in a directory, with those in a folder of captures in it; none if it is no directory of this machine."""
    found: list[CaptureFile] = []
    for folder in (directory, *(os.path.join(directory, name) for name in FOLDERS)):
        if os.path.isdir(folder):
            rows = _rows_beside(folder)
            names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file() and entry.name.endswith(_SUFFIXES) and entry.name != _DETAILS)
            found += [_file(folder, name, rows) for name in names]
    return found


def captures_in(directory: str) -> list[CaptureFile]:
    """Those of them that are of captures by the names of their folder and their own."""
    return [file for file in files_in(directory) if is_capture(file.path) or PurePath(file.path).parent.name in FOLDERS]


def of_rank(files: Sequence[CaptureFile], rank: int | None) -> list[CaptureFile]:
    """Those of a rank; of ranks that wrote none those of the first, as vLLM's first alone does: all capture the same ops."""
    ranks = {file.rank for file in files if file.rank >= 0}
    chosen = rank if rank in ranks else min(ranks, default=-1)
    return [file for file in files if file.rank in (chosen, -1)]


def read_captures(files: Sequence[CaptureFile], load: Callable[[str], Timeline]) -> CaptureTraces | None:
    """The readable traces; None if there are none."""
    found = [CaptureTrace(PurePath(file.path).name, timeline, file.rows) for file in files if (timeline := _read(file, load)) is not None]
    return CaptureTraces(tuple(found)) if found else None


def _read(file: CaptureFile, load: Callable[[str], Timeline]) -> Timeline | None:
    try:
        return load(file.path)
    except TraceError:
        return None


def _file(folder: str, name: str, rows: dict[str, int]) -> CaptureFile:
    match = _NAME.search(name)
    said = match.groupdict() if match else {}
    rank = next((int(said[key]) for key in ("vllm", "whole", "of") if said.get(key)), -1)
    return CaptureFile(os.path.join(folder, name), rank, int(said.get("rows") or rows.get(name, -1)))


def _rows_beside(folder: str) -> dict[str, int]:
    """What TraceLens writes next to them: the batch of each file."""
    try:
        said: Any = json.loads(Path(folder, _DETAILS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    rows = said if isinstance(said, list) else []
    return {
        str(row["file"]): row["batch_size"]
        for row in rows
        if isinstance(row, dict) and "file" in row and type(row.get("batch_size")) is int and 0 < row["batch_size"] < 1 << 31
    }
