"""NVTX ranges of an nsys export: framework ops if PyTorch opened them, annotations if people or libraries did."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from advisor.knowledge.op_tokens import split_overload
from advisor.recordings.timeline import ReadIssue
from advisor.report.numbers import counted
from advisor.sources.nsys.process import Processes
from advisor.sources.nsys.tables import Database, categorical

PUSH_POP, START_END = 59, 60  # NvtxPushPopRange and NvtxStartEndRange in nsys' ENUM_NSYS_EVENT_TYPE

# What torch.autograd.profiler.emit_nvtx and nsys --pytorch append to a name (torch/csrc/profiler/util.cpp, getNvtxStr).
_SUFFIX = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = ")
_SEQUENCE = re.compile(r", seq = (\d{1,18})(?!\d)")
_SIZES = ", sizes = "
_OP = re.compile(r"autograd::engine::evaluate_function: |[A-Za-z_][\w.]*::[\w.:]+$|\w+Backward\d*$|record_param_comms$")
# A name without a suffix is PyTorch's only where its namespace is: C++ libraries and people write a::b too.
_TORCH = re.compile(
    r"autograd::engine::|\w+Backward\d+$|(?:aten|autograd|c10d|_c10d_functional|prims?|torch|torchvision|inductor|quantized|mkldnn|static_runtime)::[\w.:]+$"
)
_NCCL = re.compile(r"nccl[A-Z]")


class Range(NamedTuple):
    """Content of a range's text. dims: JSON, as Kineto writes it, "" if no sizes were written."""

    name: str
    is_op: bool
    sequence: int = -1
    dims: str = ""


def parse(text: str) -> Range:
    """Take the text of a range apart."""
    suffix = _SUFFIX.search(text)
    name = text[: suffix.start()] if suffix else text
    if not suffix:
        # NCCL's own ranges are named as Kineto names them, so that no call of a library is taken for a step.
        return Range("nccl:" + name if _NCCL.match(name) else name, bool(_TORCH.match(name)))
    rest = text[suffix.start() :]
    sequence = _SEQUENCE.search(rest)
    # Only what autograd counts has a sequence number, whatever its name: a user's own Function among it.
    return Range(name, bool(sequence or _OP.match(name)), int(sequence[1]) if sequence else -1, _dims(rest))


def _dims(rest: str) -> str:
    at = rest.find(_SIZES)
    if at < 0:
        return ""
    try:
        # The ids of the inputs may follow.
        sizes, _ = json.JSONDecoder().raw_decode(rest, at + len(_SIZES))
    except (ValueError, RecursionError):
        return ""
    return json.dumps(sizes) if isinstance(sizes, list) else ""


def read(db: Database, texts: dict[int, str], processes: Processes) -> dict[str, list[dict[str, Any]]]:
    """Columns of `annotations` and `cpu_ops`. Marks and ranges that never ended are left out."""
    if not _recorded(db):
        return {}
    numbers = Numbers()
    try:
        columns = np.fromiter(chain.from_iterable(_rows(db, texts, numbers)), np.int64).reshape(-1, 7).T
    except (ValueError, TypeError, OverflowError):
        raise db.not_numbers("NVTX_EVENTS", _TIMES, _WHERE) from None
    start, end, thread, sequence, name, dims, is_op = columns
    common = {"start_ns": start, "end_ns": end, "pid": processes.pid(thread), "tid": processes.tid(thread)}

    texts, ops = numbers.names(), is_op > 0
    named = {number: split_overload(text) for number, text in texts.items()}
    torch = {
        "name": categorical(name[ops], {number: op for number, (op, _) in named.items()}),
        "overload": categorical(name[ops], {number: overload for number, (_, overload) in named.items()}),
        "sequence": sequence[ops], "dims": categorical(dims[ops], texts),
    }  # fmt: skip
    own = {"name": categorical(name[~ops], texts)}

    def rows(chosen: np.ndarray, columns: dict[str, Any]) -> dict[str, Any]:
        return {**{k: v[chosen] for k, v in common.items()}, **columns}

    return {"annotations": [rows(~ops, own)], "cpu_ops": [rows(ops, torch)]}


def issues(db: Database) -> list[ReadIssue]:
    """A note on ranges without an end: they look like marks, and would cover all later events."""
    left = db.count("NVTX_EVENTS", f"{_RANGES} AND NOT ({_ENDED})") if _recorded(db) else 0
    detail = f"left out {counted(left, 'NVTX range')} without an end, as where the recording stops within one: what ran in there is told without it"
    return [ReadIssue("open-ranges", detail, events=left)] if left else []


def _recorded(db: Database) -> bool:
    return {*_TIMES, "eventType"} <= {*db.columns("NVTX_EVENTS")}


class Numbers(dict[str, int]):
    """A number for each string, in order of first use."""

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self)
        return number

    def names(self) -> dict[int, str]:
        """The string of each number."""
        return {number: text for text, number in self.items()}


_TIMES = ("start", "end", "globalTid")
_RANGES = f"eventType IN ({PUSH_POP}, {START_END}) AND start IS NOT NULL"
_ENDED = "end IS NOT NULL AND (end <> 0 OR start <= 0)"
"""Exporters write NULL or 0 for an end that was not recorded."""
_WHERE = f"{_RANGES} AND {_ENDED}"


def _rows(db: Database, texts: dict[int, str], numbers: Numbers) -> Iterator[tuple[int, ...]]:
    """Each range in numbers. Texts hold running numbers of their own, so only their parts are kept."""
    registered: dict[Any, Range] = {}
    for start, end, thread, text, text_id in db.iterate("NVTX_EVENTS", (*_TIMES, "text", "textId"), _WHERE):
        if isinstance(text, str) and text:
            said = parse(text)
        else:
            said = registered.get(text_id) or registered.setdefault(text_id, parse(texts.get(text_id, "")))
        yield start, end, -1 if thread is None else thread, said.sequence, numbers[said.name], numbers[said.dims], said.is_op
