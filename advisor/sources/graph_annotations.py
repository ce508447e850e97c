"""Annotations of CUDA graphs: a pickle of what `torch.cuda` keeps under `mark_kernels`, read without running it.

What writes them: torch/cuda/_graph_annotations.py of github.com/pytorch/pytorch, which its _annotate_cuda_graph_trace.py looks for by this name, in the
directory above a trace.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from advisor.errors import TraceError
from advisor.knowledge.structs import replace
from advisor.recordings.captures import GraphAnnotations, NodeAnnotation
from advisor.sources.limits import LARGEST
from advisor.sources.stream import Stream
from advisor.sources.whole import read_whole

_NAME = re.compile(r"kernel_annotations_rank(\d{1,6})(?:[_.-].{0,200})?\.pkl")
_AGAIN = "Write it in the process that is profiled, while its graphs exist: pickle.dump(dict(torch.cuda.graph_annotations.get_kernel_annotations()), file)."


def is_annotations(path: str) -> bool:
    """Whether a file has the name under which torch looks for annotations."""
    return _NAME.fullmatch(PurePath(path).name) is not None


def annotations_in(directories: Sequence[str], rank: int | None) -> list[str]:
    """The files of a rank in directories of this machine; if the rank is not known, those of the only rank that has any."""
    found: dict[int, list[str]] = {}
    for directory in filter(os.path.isdir, dict.fromkeys(directories)):
        for name in sorted(os.listdir(directory)):
            if match := _NAME.fullmatch(name):
                found.setdefault(int(match[1]), []).append(os.path.join(directory, name))
    return found.get(rank, []) if rank is not None else next(iter(found.values())) if len(found) == 1 else []


def read_annotations(paths: Sequence[str]) -> GraphAnnotations:
    """The annotations of all files. Raises TraceError if a file cannot be opened, is damaged, or would make anything but data."""
    nodes: dict[int, NodeAnnotation] = {}
    for path in paths:
        nodes |= _read(path)
    return GraphAnnotations(nodes)


def _read(path: str) -> dict[int, NodeAnnotation]:
    from advisor.sources.memory.pickles import loads

    try:
        with open(path, "rb") as file:
            value = loads(read_whole(Stream(file), path), path, again=_AGAIN)
    except OSError as error:
        raise TraceError(f"{path} cannot be opened: {error.strerror or error}", "Check its permissions.") from None
    if not isinstance(value, dict) or not value or not all(type(node) is int and isinstance(said, list) for node, said in value.items()):
        raise TraceError(f"{path} holds no annotations of a CUDA graph: those are lists, by the number of a node", _AGAIN)
    return {node: _of_node(said) for node, said in value.items() if 0 < node < LARGEST}


def _of_node(said: Sequence[Any]) -> NodeAnnotation:
    """A node's annotations merged as torch does, the later before the earlier."""
    told: dict[Any, Any] = {}
    for one in said:
        # torch 2.13 keeps a text under "str", later ones under "name".
        told |= one if isinstance(one, dict) else {"name": one}
    scope = _text(told.get("name", told.get("str")))
    made = NodeAnnotation(scope)
    if "In msg nelems" not in told:
        return made
    return replace(
        made,
        collective=_text(told.get("Collective name")) or scope,
        collective_dtype=_text(told.get("dtype")),
        group=_text(told.get("Process Group Name")),
        group_ranks=_text(told.get("Process Group Ranks")),
        group_size=_whole(told.get("Group size")),
        in_elements=_whole(told.get("In msg nelems")),
        out_elements=_whole(told.get("Out msg nelems")),
    )


def _text(value: Any) -> str:
    """Of a group's ranks the list as traces have it."""
    if isinstance(value, list) and all(type(one) is int for one in value):
        return str(value)
    return value if isinstance(value, str) else ""


def _whole(value: Any) -> int:
    return value if type(value) is int and 0 <= value < LARGEST else -1
