"""What ROCm's formats have in common: columns in nanoseconds become a timeline, markers become ops or ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from advisor.errors import TraceError
from advisor.intervals import Ints
from advisor.knowledge.op_tokens import split_overload
from advisor.recordings.timeline import Device, GpuKind, LeftOut, ReadIssue, Source, Timeline
from advisor.sources.copies import copy_name, describe_copy
from advisor.sources.frames import Timed, frame
from advisor.sources.nsys.ranges import Numbers, parse
from advisor.sources.nsys.tables import categorical, constant
from advisor.sources.time_issues import time_issues

RECORD = "Record with: rocprofv3 --hip-trace --kernel-trace --memory-copy-trace --marker-trace --output-format rocpd -- PROGRAM, and give the .db"

Part = dict[str, Any]
"""Columns of a table, starts and ends in ns."""


def timeline(path: str, size: int, parts: dict[str, list[Part]], devices: Sequence[Device], issues: Iterable[ReadIssue], left: Sequence[LeftOut]) -> Timeline:
    """The timeline of these parts. Raises TraceError if no GPU work with a valid time is left."""
    timed = Timed()
    kept = {name: [timed.valid(part) for part in of_table if len(part["start_ns"])] for name, of_table in parts.items()}
    if not any(len(part["start_ns"]) for part in kept["gpu_ops"]):
        calls = sum(len(part["start_ns"]) for part in kept["api_calls"])
        raise TraceError(f"{path} holds no GPU work" + (f", and {calls:,} calls of HIP" if calls else ""), RECORD)
    base = min(int(part["start_ns"].min()) for of_table in kept.values() for part in of_table if len(part["start_ns"]))
    tables = {name: made for name in list(kept) if len(made := frame(name, kept.pop(name), base))}
    used = set(tables["gpu_ops"]["device"].tolist())
    ops = tables.get("cpu_ops")
    source = Source(
        path=path, format="rocprof", bytes=size, events=sum(map(len, tables.values())), issues=(*time_issues(timed.bad_times, timed.bad_durations), *issues),
        shapes=ops is not None and any(ops["dims"].categories), left_out=tuple(left),
    )  # fmt: skip
    return Timeline.build(source, tuple(d for d in devices if d.id in used), base, **tables)


def kernels(columns: Part, names: dict[int, str], name: Ints) -> Part:
    """Part of `gpu_ops` from its place and times."""
    return {**columns, "kind": constant(GpuKind.KERNEL.value, len(name)), "name": categorical(name, names)}


def copies(columns: Part, kinds: dict[int, str], kind: Ints) -> Part:
    """Part of `gpu_ops`: copies named by their direction, whatever ROCm calls them (`MEMORY_COPY_HOST_TO_DEVICE`, `CopyHostToDevice`)."""
    said = {code: describe_copy(text) for code, text in kinds.items()}
    return {
        **columns,
        "kind": constant(GpuKind.MEMCPY.value, len(kind)),
        "name": categorical(kind, {code: copy_name(direction, "", "") for code, (direction, _, _) in said.items()}),
        "copy_kind": categorical(kind, {code: direction for code, (direction, _, _) in said.items()}),
    }


def blocks(grid: Sequence[Ints], block: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Blocks of a grid that is counted in threads, and threads of a block; -1 if either was not recorded."""
    known = np.logical_and.reduce([(size > 0) for size in (*grid, *block)])
    of_grid, of_block = (np.ones(len(known), np.int64) for _ in range(2))
    for whole, part in zip(grid, block, strict=True):
        of_grid = of_grid * np.where(known, -(-whole // np.maximum(part, 1)), 1)
        of_block = of_block * np.where(known, part, 1)
    return np.where(known, of_grid, -1), np.where(known & (of_block < 1 << 20), of_block, -1)


def markers(texts: Sequence[str], columns: Part) -> dict[str, list[Part]]:
    """Ranges that the program pushed: ops if PyTorch opened them (`emit_nvtx`, which is roctx there), else annotations."""
    numbers = Numbers()
    said = [parse(text) for text in texts]
    rows = np.array([(numbers[one.name], one.sequence, numbers[one.dims], one.is_op) for one in said], np.int64).reshape(-1, 4)
    name, sequence, dims, is_op = rows.T
    ops, names = is_op > 0, numbers.names()
    named = {number: split_overload(text) for number, text in names.items()}

    def chosen_rows(chosen: np.ndarray, more: Part) -> Part:
        return {**{key: value[chosen] for key, value in columns.items()}, **more}

    torch = {
        "name": categorical(name[ops], {number: op for number, (op, _) in named.items()}),
        "overload": categorical(name[ops], {number: overload for number, (_, overload) in named.items()}),
        "sequence": sequence[ops], "dims": categorical(dims[ops], names),
    }  # fmt: skip
    return {"cpu_ops": [chosen_rows(ops, torch)], "annotations": [chosen_rows(~ops, {"name": categorical(name[~ops], names)})]}
