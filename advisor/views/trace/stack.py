"""The framework of the user's program, from `advisor record` or from the trace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec
import numpy as np

from advisor.intervals import Mask
from advisor.knowledge.framework_loops import MODEL
from advisor.knowledge.shares import MOST, NEARLY_ALL
from advisor.knowledge.stacks import Evidence, Pack, packs
from advisor.recordings.timeline import Timeline
from advisor.views.trace.ops import Ops
from advisor.views.trace.program import Program
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import begins_inside, matches, spans_of

LIKELY = NEARLY_ALL
"""The minimum certainty to use a framework's terms: nobody can follow advice for an absent framework."""


class GivenFramework(msgspec.Struct, frozen=True):
    """The framework that the user names, and its version, "" if none: it overrules the detected framework."""

    package: str
    version: str = ""


class Framework(msgspec.Struct, frozen=True):
    """package: on PyPI. version: "" if unknown. sure: 0 to 1. loops: its loops, or models, in the trace. defaults: options with defaults that show in the trace."""

    package: str
    version: str = ""
    sure: float = 1.0
    loops: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()

    @property
    def drives(self) -> bool:
        """Whether a loop of its own runs the program, and not its models alone."""
        return any(loop != MODEL for loop in self.loops)


class Stack(msgspec.Struct, frozen=True):
    """frameworks: the user's own first, then those of its models, JAX last; none if the program is plain PyTorch."""

    frameworks: tuple[Framework, ...] = ()

    @property
    def likely(self) -> tuple[Framework, ...]:
        """Those that are sure enough to speak in their words."""
        return tuple(one for one in self.frameworks if one.sure >= LIKELY)

    @classmethod
    def build(cls, timeline: Timeline, ops: Ops, steps: Steps, program: Program, given: GivenFramework | None) -> Stack:
        known = [pack for pack in packs().values() if pack.of == program.framework and not pack.base]
        texts = {kind: "\n".join(_texts(kind, timeline, ops)) for kind in dict.fromkeys(one.by for pack in known for one in pack.seen)}
        found = [one for pack in known if (one := _recorded(pack, timeline) or _seen(pack, timeline, texts, program))]
        base = [
            Framework(pack.package, timeline.source.frameworks.get(pack.package, "")) for pack in packs().values() if pack.of == program.framework and pack.base
        ]
        ordered = as_given(given, [*found, *base]) if given else [*outermost(found), *base]
        return cls(tuple(msgspec.structs.replace(one, defaults=tuple(_defaults(one, timeline, ops, steps))) for one in ordered))


def _recorded(pack: Pack, timeline: Timeline) -> Framework | None:
    """As `advisor record` found it: hardly likely if the program only imported it, as another framework's library does."""
    if pack.package not in timeline.source.frameworks:
        return None
    loops = tuple(name.partition(".")[2] for name in timeline.source.loops if name.partition(".")[0] == pack.package)
    return Framework(pack.package, timeline.source.frameworks[pack.package], 1.0 if loops else MOST, loops)


def _seen(pack: Pack, timeline: Timeline, texts: Mapping[Evidence, str], program: Program) -> Framework | None:
    """By frames, ranges, ops and modules of a trace, a text per line; a server by its marks too."""
    if timeline.source.frameworks:
        return None  # the recorder looked, and it was not there
    root = pack.module.partition(".")[0]  # a trace may hold millions of characters of frames, most of them without it
    told = [one for one in pack.seen if (one.by != "frame" or root in texts[one.by]) and re.search(one.pattern, texts[one.by], re.MULTILINE)]
    loops = tuple(dict.fromkeys(one.loop for one in told if one.loop))
    if pack.kind == "server" and program.server == pack.name:
        return Framework(pack.package, sure=max([LIKELY, *(one.sure for one in told)]), loops=loops or tuple(pack.loops)[:1])
    return Framework(pack.package, sure=max(one.sure for one in told), loops=loops) if told else None


def _texts(kind: Evidence, timeline: Timeline, ops: Ops) -> Iterable[str]:
    if kind == "op":
        return ops.categories
    if kind == "range":
        return map(str, timeline.annotations["name"].categories)
    if kind == "kernel":
        return map(str, timeline.gpu_ops["name"].categories)
    frames = map(str, timeline.python_calls["name"].categories)
    if kind == "module":
        return (text.removeprefix(_MODULE) for text in frames if text.startswith(_MODULE))
    return (*frames, *map(str, timeline.cpu_ops["call_stack"].categories))


_MODULE = "nn.Module: "


def outermost(found: Iterable[Framework]) -> list[Framework]:
    """The framework of the outermost loop first, then those of its models: the user does not control loops inside another framework's."""
    found = sorted(found, key=lambda one: -one.sure)
    drivers = [one for one in found if one.drives]
    outer = [one for one in drivers if not any(other.package in packs()[one.package].within for other in drivers)]
    servers = [one for one in outer if packs()[one.package].kind == "server"]
    return servers[:1] or [*outer[:1], *(one for one in found if not one.drives)]


def as_given(given: GivenFramework, found: Iterable[Framework]) -> list[Framework]:
    """The named framework, with its detected loops, else with all of its loops; and the frameworks that it builds on."""
    found = tuple(found)
    same = next((one for one in found if one.package == given.package), None)
    loops = same.loops if same and same.loops else tuple(packs()[given.package].loops)
    named = Framework(given.package, given.version or (same.version if same else ""), loops=loops)
    return [named, *(one for one in found if one is not same and packs()[one.package].base)]


def _defaults(framework: Framework, timeline: Timeline, ops: Ops, steps: Steps) -> Iterator[str]:
    """Options with defaults that show in the trace: all of their ops, each at least so many times a step."""
    begins = steps.of_host_time(timeline.cpu_ops["start_us"]) >= 0
    for option in packs()[framework.package].options:
        if option.seen is None or (option.loop and option.loop not in framework.loops):
            continue
        counted = begins & _nested_in(ops, option.seen.inside) & _called_from(timeline, option.seen.frame)
        times = [np.count_nonzero(ops.named(re.compile(f"^{re.escape(op)}$")) & counted) for op in option.seen.ops]
        if min(times) >= option.seen.a_step * steps.steps:
            yield option.option


def _nested_in(ops: Ops, outer: str) -> Mask:
    """(n,) whether each op runs directly inside an op of that name; all of them for ""."""
    return ops.named(re.compile(f"^{re.escape(outer)}$"))[ops.parent] & (ops.parent >= 0) if outer else np.ones(len(ops.parent), bool)


def _called_from(timeline: Timeline, pattern: str) -> Mask:
    """(n,) whether each op is called below a matching frame, by its own stack or by the frames of its thread; all of them for ""."""
    cpu, calls = timeline.cpu_ops, timeline.python_calls
    if not pattern:
        return np.ones(len(cpu), bool)
    stacks, expected = cpu["call_stack"], re.compile(pattern)
    found: Mask = np.array([*(expected.search(text) is not None for text in map(str, stacks.categories)), False], bool)[stacks.codes]
    around = matches(calls, expected)
    for thread in np.unique(calls["tid"][around]):
        found |= (cpu["tid"] == thread) & begins_inside(cpu, spans_of(calls, around & (calls["tid"] == thread)))
    return found
