"""What a workload is, and the few things its two sides share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

Step = Callable[[], object]


@dataclass(frozen=True)
class Setup:
    """Where a workload runs. `tiny` swaps every size for a toy one and leaves functions uncompiled, so that CI can run it."""

    device: torch.device
    tiny: bool = False

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def size(self, full: int, tiny: int) -> int:
        return tiny if self.tiny else full

    def compile(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        return function if self.tiny else torch.compile(function, **options)

    def pin(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory() if self.cuda else tensor

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()


Make = Callable[[Setup], Step]


@dataclass(frozen=True)
class Workload:
    """One program, slow and fixed; a control has only the fixed side.

    `rule` is the planted bottleneck and the sample's folder. With `trap` the fix of `rule` is obvious and gains nothing.
    `severity` is what its rule must say at the least, medium unless a rule only notes.
    `requests` is how much more work a fixed step does than a slow one: its time is divided by it.
    `alone` has several fixes, each by itself, by the rule that it is for ("rule/variant" where a rule has more than one): they
    are timed, and only the slow side is recorded, as with `slow_only`. `shared` is their `requests`, where not 1.
    The other fields are those of the manifest (see `entry`).
    """

    name: str
    rule: str | None
    what: str
    fix: str
    make_fixed: Make | None = None
    make_slow: Make | None = None
    alone: Mapping[str, Make] = field(default_factory=dict)
    main: bool = False
    in_columns: bool = False  # the main pair too, where its JSON is large
    trap: bool = False
    severity: str = ""
    requests: float = 1.0
    shared: Mapping[str, float] = field(default_factory=dict)
    folder: str = ""
    slow_only: bool = False
    top: tuple[str, ...] = ()
    gpu_bound: bool = False
    fixed_quiet: bool = True
    with_stack: bool = False

    def sides(self) -> dict[str, Make]:
        sides = {"slow": self.make_slow, "fixed": self.make_fixed}
        return {side: make for side, make in sides.items() if make}

    def recorded(self) -> tuple[str, ...]:
        return tuple(self.sides())[: 1 if self.slow_only else None]

    def path(self, side: str) -> str:
        if self.folder:
            return f"{self.folder}/{self.name}.{side}.trace.zst"
        if self.rule is None:
            return f"healthy/{self.name}.json.gz"
        return f"{self.rule}/{side}{'.trace.zst' if self.in_columns else '.json.gz'}" if self.main else f"{self.rule}/{self.name}.{side}.trace.zst"

    def entry(self, times_ms: dict[str, float]) -> dict[str, Any]:
        """This workload's case in manifest.json, in the shape of the shared corpus. times_ms: by side, and by fix alone."""
        alone = {fix: times_ms[fix] / self.shared.get(fix, 1.0) for fix in self.alone if fix in times_ms}
        times_ms = {side: ms for side, ms in times_ms.items() if side in ("slow", "fixed")}
        case: dict[str, Any] = {"rule": None if self.trap else self.rule}
        if self.trap:
            case["trap"] = self.rule
        elif self.rule:
            case["top"] = list(self.top or (self.rule,))
        if self.severity:
            case["severity"] = self.severity
        case |= {"what": self.what, "fix": self.fix}
        case |= {f"{side}_ms": ms / (self.requests if side == "fixed" else 1.0) for side, ms in times_ms.items()}
        case |= {"fixed_quiet": self.fixed_quiet, "saving": self.rule is not None or bool(alone), "step": self.gpu_bound}
        if alone:
            case["alone"] = alone
        case["kineto"] = {side: self.path(side) for side in times_ms if side in self.recorded()}
        return case


def written(name: str, what: str, fix: str, make: Callable[..., Step], alone: Mapping[str, Mapping[str, Any]], **more: Any) -> Workload:
    """A program written by hand. Each fix of `alone` is given by what it changes, and is timed by itself against the slow side."""
    fixes = {fix: partial(make, **changed) for fix, changed in alone.items()}
    return Workload(name=name, rule=None, folder="written", what=what, fix=fix, make_slow=make, alone=fixes, fixed_quiet=False, **more)


def written_pair(name: str, rule: str | None, what: str, fix: str, make: Callable[..., Step], change: Mapping[str, Any], **more: Any) -> Workload:
    """Likewise, with a fixed side that `change` makes, where it changes anything; fixes of `alone` are given by changes too."""
    alone = {fix: partial(make, **changed) for fix, changed in more.pop("alone", {}).items()}
    fixed = partial(make, **change) if change else None
    return Workload(name=name, rule=rule, folder="written", what=what, fix=fix, make_slow=make, make_fixed=fixed, alone=alone, fixed_quiet=False, **more)


def advised(name: str, what: str, make: Callable[..., Step], alone: Mapping[str, Mapping[str, Any]], **more: Any) -> Workload:
    """A program whose author thought of no fix. Those of `alone` are what its report advised, written in by readers who saw no figure of what they gain."""
    return replace(written(name, what, "each alone", make, alone, **more), folder="advised")


class Prefetcher:
    """Copies the next pinned batch on a stream of its own while the current one is being used."""

    def __init__(self, batches: list[tuple[Tensor, ...]], setup: Setup) -> None:
        self.batches, self.setup, self.turn = batches, setup, 0
        self.stream = torch.cuda.Stream() if setup.cuda else None
        self.ahead = self._copy()

    def _copy(self) -> tuple[Tensor, ...]:
        host = self.batches[self.turn % len(self.batches)]
        self.turn += 1
        with torch.cuda.stream(self.stream):
            return tuple(tensor.to(self.setup.device, non_blocking=True) for tensor in host)

    def next(self) -> tuple[Tensor, ...]:
        batch = self.ahead
        if self.stream is not None:
            current = torch.cuda.current_stream()
            current.wait_stream(self.stream)
            for tensor in batch:
                tensor.record_stream(current)
        self.ahead = self._copy()
        return batch


def capture(step: Step, setup: Setup) -> Step:
    """The whole step as one CUDA graph; the step must read and write tensors that stay where they are."""
    if not setup.cuda:
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay() -> Step:
        graph.replay()
        return step  # keeps alive what the graph reads and writes

    return replay
