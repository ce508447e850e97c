"""rocmProfileData's database (.rpd): calls (`rocpd_api`), work of the device (`rocpd_op`), and the call of each op."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from advisor.intervals import Ints
from advisor.knowledge import cuda_api
from advisor.recordings.timeline import LeftOut, Timeline
from advisor.sources.limits import MOST_DEVICES
from advisor.sources.nsys.tables import ABSENT, Database, categorical
from advisor.sources.rocprof.parts import blocks, copies, kernels, markers, timeline

_MARKER = "UserMarker"
_KERNELS, _COPY, _FILL = ("KernelExecution", "Task"), "Copy", "Fill"
"""Types of ops; a task is a kernel of a graph."""


def read(db: Database, path: str) -> Timeline:
    """The timeline. Raises TraceError if it is damaged or holds no GPU work."""
    texts = db.texts("rocpd_string", "id", "string")
    said = texts | db.texts("rocpd_ustring", "id", "string") if "rocpd_ustring" in db.tables else texts
    calls = db.integers("rocpd_api", ("id", "pid", "tid", "start", "end", "apiName_id", "args_id"), needs=("id", "start", "end"))
    ops, left = _ops(db, texts, calls)
    marker = np.isin(calls["apiName_id"], [code for code, text in texts.items() if text == _MARKER])
    place = {"start_ns": calls["start"], "end_ns": calls["end"], "pid": calls["pid"], "tid": calls["tid"]}
    of_hip = ~marker
    parts = {
        "gpu_ops": ops,
        "api_calls": [{
            **{key: value[of_hip] for key, value in place.items()}, "name": categorical(calls["apiName_id"][of_hip], texts),
            "correlation": calls["id"][of_hip], "error": np.zeros(int(of_hip.sum()), np.int64),
        }],
        **markers([said.get(code, "") for code in calls["args_id"][marker].tolist()], {key: value[marker] for key, value in place.items()}),
    }  # fmt: skip
    return timeline(path, os.path.getsize(path), parts, (), (), left)


def _ops(db: Database, texts: dict[int, str], calls: dict[str, Ints]) -> tuple[list[dict[str, Any]], list[LeftOut]]:
    c = db.integers("rocpd_op", ("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id"), needs=("id", "start", "end"))
    joined = db.integers("rocpd_api_ops", ("api_id", "op_id"))
    of_call = _look_up(joined["op_id"], joined["api_id"], c["id"])
    types = {code: texts.get(code, "") for code in np.unique(c["opType_id"]).tolist()}
    named = np.isin(c["description_id"], [code for code, text in texts.items() if text])
    kernel = np.isin(c["opType_id"], [code for code, text in types.items() if text in _KERNELS]) & named
    copy = np.isin(c["opType_id"], [code for code, text in types.items() if text.startswith(_COPY)])
    fill = np.isin(c["opType_id"], [code for code, text in types.items() if text.startswith(_FILL)])
    stream = _streams(db, of_call, c["queueId"])
    place = {
        "start_ns": c["start"],
        "end_ns": c["end"],
        "device": np.where((c["gpuId"] >= 0) & (c["gpuId"] < MOST_DEVICES), c["gpuId"], 0),
        "stream": stream,
        "correlation": of_call,
    }

    def chosen_rows(chosen: np.ndarray) -> dict[str, Any]:
        return {key: value[chosen] for key, value in place.items()}

    shape = _shapes(db, texts, calls, of_call[kernel])
    size = db.integers("rocpd_copyapi", ("api_ptr_id", "size"), """typeof("size") = 'integer'""", needs=("api_ptr_id",))
    moved = {**chosen_rows(copy), "bytes": _look_up(size["api_ptr_id"], size["size"], of_call[copy])}
    made = [kernels({**chosen_rows(kernel), **shape}, texts, c["description_id"][kernel]), copies(moved, types, c["opType_id"][copy])]
    filled = {**chosen_rows(fill), "kind": categorical(np.zeros(int(fill.sum()), np.int64), {0: "memset"}), "name": categorical(c["opType_id"][fill], types)}
    other = ~(kernel | copy | fill)
    us = float((c["end"] - c["start"])[other].clip(0, None).sum()) / 1000
    return [*made, filled], [LeftOut("ops without a kernel's name", int(other.sum()), us)] if other.any() else []


def _look_up(keys: Ints, values: Ints, wanted: Ints) -> Ints:
    """The value of each wanted key, -1 if there is none; of several the first."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    return np.where((keys[order][at] == wanted) & (wanted != ABSENT), values[order][at], -1)


def _streams(db: Database, of_call: Ints, queue: Ints) -> Ints:
    """HIP's streams as calls name them; the hardware's queue if no call does, as for a graph's kernels."""
    calls, numbers = [], []
    for table in ("rocpd_kernelapi", "rocpd_copyapi"):
        for call, stream in db.iterate(table, ("api_ptr_id", "stream")) if table in db.tables else ():
            if isinstance(call, int) and isinstance(stream, str) and stream.startswith("0x") and 2 < len(stream) <= 17:
                try:
                    numbers.append(int(stream, 16))
                except ValueError:
                    continue
                calls.append(call)
    found = _look_up(np.array(calls, np.int64), np.array(numbers, np.int64), of_call)
    return np.where(found >= 0, found, queue)


def _shapes(db: Database, texts: dict[int, str], calls: dict[str, Ints], of_call: Ints) -> dict[str, Any]:
    """Grids and blocks. What launches through `hipExt…` counts a grid in threads, all else in blocks."""
    axes = [f"{what}{axis}" for what in ("grid", "workgroup") for axis in "XYZ"]
    c = db.integers("rocpd_kernelapi", ("api_ptr_id", *axes, "groupSegmentSize"), needs=("api_ptr_id",))
    grid, block = ([_look_up(c["api_ptr_id"], c[f"{what}{axis}"], of_call) for axis in "XYZ"] for what in ("grid", "workgroup"))
    name = _look_up(calls["id"], calls["apiName_id"], of_call)
    in_threads = np.isin(name, [code for code, text in texts.items() if cuda_api.plain(text).startswith("hipExt")])
    of_grid, of_block = blocks(grid, [np.where(in_threads, size, 1) for size in block])
    _, threads = blocks(block, block)
    shared = _look_up(c["api_ptr_id"], c["groupSegmentSize"], of_call)
    del of_block
    return {"grid_blocks": of_grid, "block_threads": threads, "shared_bytes": shared}
