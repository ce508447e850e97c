"""What torch.compile wrote down while it compiled a program (`TORCH_TRACE`), next to the timeline of its run."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

CompileId = tuple[int, int]
"""A compiled function, and which compilation of it: 0/0, 0/1 …, as `Torch-Compiled Region: 0/1` names it in a trace."""


class LoggedBreak(msgspec.Struct, frozen=True):
    """A graph break: the compilation and the line at which Dynamo stopped, and the reason."""

    compile_id: CompileId
    file: str
    line: int
    reason: str
    eager: bool
    """Whether Dynamo gave the function up, so that all of it runs eagerly."""


class LoggedCompilation(msgspec.Struct, frozen=True):
    """A compilation. function, file, line: of the code. reason: of a recompilation, the guard that failed. seconds: that it took, 0 if not logged."""

    compile_id: CompileId
    function: str
    file: str
    line: int
    reason: str
    seconds: float


class CompileLog(msgspec.Struct, frozen=True):
    """graphs: the compilations of each graph, by its key in the trace (`## Call CompiledFxGraph KEY ##`); equal graphs share a key."""

    path: str
    compilations: tuple[LoggedCompilation, ...]
    breaks: tuple[LoggedBreak, ...]
    graphs: dict[str, tuple[CompileId, ...]]


class CompileLogs(msgspec.Struct, frozen=True):
    """All logs that were given, each of a process."""

    part_of: ClassVar[Literal["trace"]] = "trace"

    logs: tuple[CompileLog, ...]
