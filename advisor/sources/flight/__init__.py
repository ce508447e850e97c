"""Dumps of PyTorch's flight recorder (`torch.distributed`): a pickle, read without running it, or JSON.

What writes them: torch/csrc/distributed/c10d/FlightRecorder.hpp of github.com/pytorch/pytorch.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from math import nan, prod
from typing import Any

import msgspec

from advisor.errors import TraceError
from advisor.knowledge.collectives import element_bytes
from advisor.knowledge.structs import replace
from advisor.recordings.flight import Call, FlightRank, FlightRecords, State
from advisor.recordings.recording import Recording
from advisor.sources.limits import LARGEST
from advisor.sources.memory.pickles import loads
from advisor.sources.opened import Opened
from advisor.sources.sniff import is_json
from advisor.sources.whole import read_whole

RECORD = "Set TORCH_FR_BUFFER_SIZE=20000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1, and give the directory of all ranks' dumps."
SMALLER = "Keep fewer collectives: TORCH_FR_BUFFER_SIZE=2000. The last ones show which of them hangs."
_OF_TORCH = re.compile(r"(?:^|/)torch/|/site-packages/|^<")
"""Files of frames that are not the program's own."""
_NUMBER = re.compile(r"\d+")
_LARGEST_RANK = 1 << 24  # no job has as many ranks


def record(opened: Opened) -> Recording:
    """The recording of a rank's dump. Raises TraceError if it is damaged or no dump."""
    stream, path = opened.stream, opened.path
    data = read_whole(stream, path, SMALLER)
    if stream.truncated:
        raise TraceError(f"{path} cannot be unpacked: {stream.truncated}", "Copy the file again.")
    try:
        value = msgspec.json.decode(data) if is_json(opened.head) else loads(data, path)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path} is a damaged dump of a flight recorder: {error}", "Copy the file again.") from None
    if not isinstance(value, dict) or not isinstance(value.get("entries"), list):
        raise TraceError(f"{path} is no dump of a flight recorder: it has no entries", RECORD)
    name = os.path.basename(path)
    rank = FlightRank(_rank_of(name), name, _calls(value["entries"]), *_groups(value.get("pg_config")))
    return Recording("collectives", path, (FlightRecords(path, len(data), (rank,)),))


def _rank_of(name: str) -> int:
    """The last number in a file's name, as in `nccl_trace_rank_3`; 0 if it has none that can be a rank."""
    numbers = _NUMBER.findall(name)
    number = numbers[-1] if numbers else ""
    return int(number) if 0 < len(number) < 9 and int(number) < _LARGEST_RANK else 0


def of_ranks(recordings: Sequence[Recording], path: str) -> Recording:
    """The dumps of several ranks as a single recording. Ranks are numbered by their files' names if these differ in a number, else by order."""
    dumps = [part for one in recordings for part in one.parts if isinstance(part, FlightRecords)]
    ranks = [rank for dump in dumps for rank in dump.ranks]
    told = len({rank.rank for rank in ranks}) == len(ranks)
    notes = () if told else ("the files' names say no rank: ranks are numbered by their order",)
    made = tuple(sorted((rank if told else replace(rank, rank=i) for i, rank in enumerate(ranks)), key=lambda rank: rank.rank))
    return Recording("collectives", path, (FlightRecords(path, sum(dump.bytes for dump in dumps), made, notes),))


def _calls(entries: Sequence[Any]) -> tuple[Call, ...]:
    found = [_call(entry) for entry in entries if isinstance(entry, Mapping)]
    return tuple(call for call in found if call is not None)


def _call(entry: Mapping[str, Any]) -> Call | None:
    """None of an entry without a group or a number."""
    group, to_one = _texts(entry.get("process_group")), entry.get("is_p2p") is True
    sequence = _whole(entry.get("p2p_seq_id" if to_one else "collective_seq_id", entry.get("seq_id")))
    if not group or sequence < 0:
        return None
    elements, size = _size(entry.get("input_sizes"), entry.get("input_dtypes"))
    state: State = "started" if entry.get("state") == "started" else "scheduled"
    # Gloo marks no state, and retires what is done.
    if entry.get("state") == "completed" or entry.get("retired") is True:
        state = "completed"
    ms = entry.get("duration_ms")
    took = float(ms) * 1000 if isinstance(ms, (int, float)) and not isinstance(ms, bool) and 0 <= ms < 1e9 else nan
    name = entry.get("profiling_name")
    return Call(group[0], sequence, name if isinstance(name, str) else "", elements, size, state, took, _line(entry.get("frames")), to_one)


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, (list, tuple)) else []


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST else -1


def _size(sizes: Any, dtypes: Any) -> tuple[int, int]:
    """Elements and bytes of the inputs; 0 if a size or a type is unknown."""
    lists = [one for one in sizes if isinstance(one, (list, tuple))] if isinstance(sizes, (list, tuple)) else []
    counts = [prod(d if isinstance(d, int) and 0 <= d < 1 << 40 else 0 for d in dims) for dims in lists]
    counts = [count if count < LARGEST else 0 for count in counts]
    types = _texts(dtypes)
    widths = [element_bytes(types[min(i, len(types) - 1)]) if types else 0 for i in range(len(counts))]
    moved = sum(count * width for count, width in zip(counts, widths, strict=True)) if all(widths) else 0
    return min(sum(counts), LARGEST), min(moved, LARGEST)


def _line(frames: Any) -> str:
    """The innermost line of the program's own."""
    for frame in frames if isinstance(frames, list) else ():
        if isinstance(frame, Mapping) and isinstance(file := frame.get("filename"), str) and not _OF_TORCH.search(file):
            return f"{file.rpartition('/')[2]}:{_whole(frame.get('line'))}"
    return ""


def _groups(config: Any) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    members: dict[str, tuple[int, ...]] = {}
    said: dict[str, str] = {}
    for key, group in config.items() if isinstance(config, Mapping) else ():
        if not isinstance(group, Mapping):
            continue
        name = str(group.get("name") or key or "0")
        ranks = group.get("ranks")
        try:
            listed = json.loads(ranks) if isinstance(ranks, str) else ranks
        except (ValueError, RecursionError):
            listed = None
        if isinstance(listed, list) and listed:
            members[name] = tuple(rank for rank in map(_whole, listed) if 0 <= rank < _LARGEST_RANK)
        if isinstance(group.get("desc"), str) and group["desc"]:
            said[name] = group["desc"]
    return members, said
