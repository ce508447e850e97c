"""The catalogue of fixes. One that is the same whatever was found is in a TOML file by theme; one that depends on it is a function in a module."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from advisor.engine.in_words_of import switched
from advisor.knowledge.data import read
from advisor.knowledge.stacks import Asked, named, packs
from advisor.report.finding import Fix
from advisor.views.trace.program import Program

PLANS_WHY = "a server reads each step's tokens to plan the next step; a trace does not show whether its version and options allow overlap"
PLANS_DECIDE = "the same requests served with and without that option"


@cache
def _theme(name: str) -> dict[str, Fix]:
    return msgspec.convert(read(Path(__file__).with_name(f"{name}.toml")), dict[str, Fix])


def known_fix(theme: str, name: str) -> Fix:
    """The fix of that name in `THEME.toml`."""
    return _theme(theme)[name]


def for_program(program: Program, rule: str, fix: Fix) -> Fix:
    """The fix; in CUDA's terms where nothing of a framework shows in the trace."""
    return for_framework(program.framework, rule, fix)


def for_framework(framework: str, rule: str, fix: Fix) -> Fix:
    """The same by the framework's name alone, as a job's ranks tell it."""
    return _theme("cuda").get(rule, fix) if framework == "cuda" else fix


def in_jax(rule: str, cause: str = "") -> Fix:
    """The fix of a rule that only programs of JAX need."""
    pack = packs()["jax"]
    option = pack.option_for(Asked(rule, cause))
    assert option, "a test holds that it is there"
    return switched(Fix(title=option.title, steps=(option.does,)), pack, "", option)


def of_server(program: Program) -> Fix | None:
    """How an inference server is told to launch less; None if the program is none."""
    return _by_its_pack("servers", program, "graph-candidate")


def planning_of(program: Program) -> Fix | None:
    """How an inference server is told to plan the next step next to the GPU's work; None if the program is none."""
    return _by_its_pack("scheduling", program, "step-gap")


def _by_its_pack(theme: str, program: Program, rule: str) -> Fix | None:
    """The fix for a server with the switch that its pack has for a rule, as the newest version spells it."""
    pack, fix = named(program.server) if program.server else None, _theme(theme).get(program.server)
    option = pack.option_for(Asked(rule, kind=program.kind)) if pack else None
    return switched(fix, pack, "", option) if pack and fix and option else fix
