"""Files of an inference server in a directory: a rank's traces by stage, a merge of all ranks, the front end's trace. Stages of a process are a
single recording."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

import numpy as np

from advisor.knowledge.server_marks import IDLE_STEP, server_mark
from advisor.knowledge.structs import replace
from advisor.recordings.columns import Table
from advisor.recordings.timeline import TABLES, ReadIssue, Timeline, stacked, table

# SGLang: 1758-TP-0-DP-0-PP-0-EP-0.trace.json.gz, with profile_by_stage …-DECODE.trace.json.gz and …-EXTEND.trace.json.gz (…-decode, …-prefill later),
# with merge_profiles merged-1758.trace.json.gz of all of them.
_PROCESS = r"(?P<run>.+?)-TP-\d{1,6}(?:-(?:DP|PP|EP)-\d{1,6}){0,3}"
_OF_STAGE = re.compile(rf"(?P<process>{_PROCESS})-(?P<stage>[A-Za-z_]{{1,32}})\.trace\.json(?:\.gz|\.zst)?")
_OF_RANK = re.compile(rf"{_PROCESS}(?:-[A-Za-z_]{{1,32}})?\.trace\.json(?:\.gz|\.zst)?")
_MERGED = re.compile(r"merged-(?P<run>.+)\.trace\.json(?:\.gz|\.zst)?")
_FRONT_END = re.compile(r"\.async_llm\.\d+\.pt\.trace\.json(?:\.gz|\.zst)?$")


def front_end(path: str) -> bool:
    """Whether a file's name is that which vLLM gives to the trace of its front end, which runs no model."""
    return _FRONT_END.search(path) is not None


def without_wholes(names: Sequence[str]) -> list[str]:
    """Files without a merge of all ranks if theirs are next to it, and without the front end's trace. All files if there is nothing else."""
    runs = {match["run"] for name in names if (match := _OF_RANK.fullmatch(PurePath(name).name))}
    kept = [name for name in names if not front_end(name) and not ((match := _MERGED.fullmatch(PurePath(name).name)) and match["run"] in runs)]
    return kept or list(names)


def byproducts(names: Sequence[str]) -> str:
    """What of a directory is left out as the trace of a front end, or as all ranks once more; "" if nothing is."""
    left = [PurePath(name).name for name in set(names) - {*without_wholes(names)}]
    told = [f"{name} is {'the trace of the front end, which runs no model' if front_end(name) else 'of all ranks once more'}" for name in sorted(left)]
    return f"{'; '.join(told)}: left out" if told else ""


def by_process(paths: Sequence[str]) -> list[tuple[str, ...]]:
    """The traces of each process, in the order of the first of each."""
    found: dict[str, list[str]] = {}
    for path in paths:
        match = _OF_STAGE.fullmatch(PurePath(path).name)
        found.setdefault(str(PurePath(path).with_name(match["process"])) if match else path, []).append(path)
    return [tuple(several) for several in found.values()]


_COORDINATE = re.compile(r"(?<![A-Za-z])(TP|DP|PP|EP)-(\d{1,6})(?!\d)")


def by_coordinates(names: Sequence[str]) -> list[int | None]:
    """Each file's rank by its place in tensor, data, pipeline and expert parallelism, in SGLang's order: ranks of a pipeline stage are consecutive.
    None if a name has no place, or two have the same."""
    places = [{kind: int(number) for kind, number in _COORDINATE.findall(PurePath(name).name)} for name in names]
    keys = [(place.get("PP", 0), place.get("TP", 0)) for place in places]
    if len(set(keys)) < len(keys):
        keys = [tuple(place.get(kind, 0) for kind in ("DP", "PP", "TP", "EP")) for place in places]  # type: ignore[misc]
    if not all(places) or len(set(keys)) < len(keys):
        return [None] * len(names)
    order = sorted(keys)
    return [order.index(key) for key in keys]


def joined(timelines: Sequence[Timeline]) -> Timeline:
    """A process's successive recordings, as a single timeline on a common clock. If their clocks overlap, they are placed in sequence."""
    if len(timelines) == 1:
        return timelines[0]
    timelines = sorted(timelines, key=lambda one: one.base_ns)
    first, frames = timelines[0], {name: [getattr(timelines[0], name)] for name in TABLES}
    last_us, ids = _end_us(first), _ids(first)
    for one in timelines[1:]:
        shift = max((one.base_ns - first.base_ns) / 1e3, last_us + 1.0)
        if any(server_mark(str(name)) for name in first.annotations["name"].categories):
            frames["annotations"].append(_pause_between(frames["annotations"][-1], last_us, shift))
        for name in TABLES:
            frames[name].append(_moved(name, getattr(one, name), shift, ids))
        last_us, ids = shift + _end_us(one), ids + _ids(one)
    source, issue = first.source, ReadIssue("latest-recording", f"{len(timelines)} traces of one process, one a stage, are read as one", "ok")
    source = replace(
        source,
        bytes=sum(one.source.bytes for one in timelines),
        events=sum(one.source.events for one in timelines),
        shapes=any(one.source.shapes for one in timelines),
        stacks=any(one.source.stacks for one in timelines),
        issues=(*dict.fromkeys(issue for one in timelines for issue in one.source.issues), issue),
        left_out=tuple(left for one in timelines for left in one.source.left_out),
    )
    return Timeline.build(source, first.devices, first.base_ns, **{name: stacked(name, several) for name, several in frames.items()})


def _pause_between(notes: Table, start_us: float, end_us: float) -> Table:
    """What nobody recorded between two stages, as a step that does nothing: it is no part of the last step before it."""
    last = notes[-1:]
    return table(
        "annotations",
        {
            "name": [IDLE_STEP] * len(last),
            **{column: last[column] for column in ("pid", "tid")},
            "start_us": [start_us] * len(last),
            "dur_us": [end_us - start_us] * len(last),
        },
    )


_IDS = ("correlation", "external_id", "waits_on_correlation", "python_id", "parent_id")
"""Columns with ids that connect rows of a recording."""


def _moved(name: str, frame: Table, shift_us: float, ids: int) -> Table:
    known = {column: np.where(frame[column] < 0, frame[column], frame[column] + ids) for column in _IDS if column in frame}
    return frame.with_columns(**({"start_us": frame["start_us"] + shift_us} if "start_us" in TABLES[name] else {}), **known)


def _ids(timeline: Timeline) -> int:
    """More than any id of its rows."""
    frames = [getattr(timeline, name) for name in TABLES]
    return 1 + max((int(frame[column].max()) for frame in frames for column in _IDS if column in frame and len(frame)), default=0)


def _end_us(timeline: Timeline) -> float:
    frames = [frame for name, spec in TABLES.items() if "dur_us" in spec and len(frame := getattr(timeline, name))]
    return max((float(frame.ends.max()) for frame in frames), default=0.0)
