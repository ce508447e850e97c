"""Fixes in the words of the framework that the user runs: one TOML file a framework, of which each row is an `Option`.

A finding stays what it is. If the framework is known, its own switch takes the place of the first step and of the code. Every name that
a row prints is in `names.json` with the versions that have it (`python -m advisor.knowledge.stacks --check`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from advisor.knowledge.data import read
from advisor.knowledge.framework_loops import LOOPS

Reading = Literal["fields", "signature", "methods", "arguments", "taken", "keys", "literals", "functions", "values", "exports", "words"]
"""How names are read out of a file: fields of a class, parameters of a function, methods of a class, arguments of a parser, what a function
takes out of its keyword arguments, keys of a YAML file, texts that a module names, functions of a module, values of an enumeration; and whether a module hands a name on,
or a file holds a word: a variable of the environment, or a flag of a compiled library."""

Form = Literal["wheel", "sdist", "checkout"]
"""In which names are read: what PyPI serves of a package, or its repository."""

Evidence = Literal["frame", "module", "op", "range", "kernel", "file"]
"""What in a trace tells a framework."""


class Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the names of one class, function or parser stand. files: paths in the archive, of which all that are there are
    read: it may are in several, or have moved. of: the class or function there, dotted, of all that are there, or "*" for every class; the owner's own name unless given; of exports and words, those looked for. package: another package that holds the files, of the same version, else its newest."""

    files: tuple[str, ...]
    read: Reading
    of: tuple[str, ...] = ()
    package: str = ""


class Seen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What in a trace tells the framework: a pattern, searched in texts of that kind, and how sure it is, 0 to 1. loop: which loop that shows, "" for the library alone."""

    by: Evidence
    pattern: str
    sure: float
    loop: str = ""


class Trace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a setting leaves in a trace, by which it is named as the cause: ops that are all there, each at least so many times a step; inside: directly inside of what op, and frame: below a Python frame of what pattern, "" for any."""

    ops: tuple[str, ...]
    a_step: float = 1.0
    inside: str = ""
    frame: str = ""


class Asked(NamedTuple):
    """A finding that is to be mended: its rule and cause, the code of its plain fix, before and after, None for any; and of its program the kind, the loops that run,
    the framework's version, "" if that is not known, and the options whose defaults are seen at work."""

    rule: str
    cause: str = ""
    code: str | None = None
    kind: str = ""
    loops: tuple[str, ...] = ()
    version: str = ""
    defaults: frozenset[str] = frozenset()


class Option(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A framework's own switch for what a rule finds.

    rule, cause, when: which finding, of which cause ("*" is any) and in which kind of program ("" is any). stands_for: its place: texts of which
    the plain fix's code holds one; any code if there are none. loop: the framework's loop that must run for it to act.
    option: as it is written. does: what to do, a step; then: further steps. names: what it is made of, as `owner.name`, that with the default first. since, until: versions that have it, "" if all that
    were read do. replaced_by: what is in its place from `until` on. default: what holds where nobody sets it. leave: what to leave alone. effects: what
    else it does, as for the whole process, or if it is ignored in silence. alone: whether the plain steps behind the first do not hold next to it. beside: a text of
    lines in the plain fix's code that stay; "" if none do.
    seen: of a default that costs a step, what shows in a trace that it is the cause. intervention: what `advisor try` applies for it.
    """

    rule: str
    option: str
    does: str
    names: tuple[str, ...]
    url: str
    cause: str = ""
    stands_for: tuple[str, ...] = ()
    when: Literal["", "training", "inference"] = ""
    loop: str = ""
    title: str = ""
    before: str = ""
    after: str = ""
    since: str = ""
    until: str = ""
    replaced_by: str = ""
    default: str = ""
    leave: str = ""
    effects: str = ""
    then: tuple[str, ...] = ()
    alone: bool = False
    beside: str = ""
    seen: Trace | None = None
    intervention: str = ""

    def in_version(self, version: str) -> bool:
        """Whether that version has it; "" is the newest."""
        return _in_version(version, self.since, self.until)

    def stands_in(self, code: str) -> bool:
        """Whether a code has it already, with a value of its own."""
        flag = self.option.partition(" ")[0]
        return flag.startswith("--") and re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", code) is not None

    def suits(self, asked: Asked) -> bool:
        """Whether it mends such a finding of such a program."""
        return (
            self.rule == asked.rule
            and self.cause in ("*", asked.cause)
            and self.when in ("", asked.kind)
            and (not self.loop or self.loop in asked.loops)
            and (not self.stands_for or asked.code is None or any(text in asked.code for text in self.stands_for))
            and (self.seen is None or self.option in asked.defaults)
            and self.in_version(asked.version)
        )


class Phrase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A framework's own words for part of a plain step. plain: that part. own: its replacement. Other fields: as of `Option`."""

    rule: str
    plain: str
    own: str
    names: tuple[str, ...] = ()
    when: Literal["", "training", "inference"] = ""
    loop: str = ""
    since: str = ""
    until: str = ""

    def suits(self, asked: Asked) -> bool:
        """Whether it holds for such a program."""
        fits = self.rule == asked.rule and self.when in ("", asked.kind) and (not self.loop or self.loop in asked.loops)
        return fits and _in_version(asked.version, self.since, self.until)


class Pack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a framework. name: as it is printed. package: on PyPI, and as recordings name it. aliases: what else the user may call it. within: packages whose loops drive this one's, so
    that the user writes theirs. base: whether the others are written in it, so that it says what they do not. archive: what is read of it; a checkout where PyPI serves none that can be. options: the first that suits is the one that is shown."""

    name: str
    package: str
    of: Literal["torch", "jax"] = "torch"
    kind: Literal["library", "server"] = "library"
    aliases: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    base: bool = False
    archive: Form = "wheel"
    owners: Mapping[str, Owner] = {}
    seen: tuple[Seen, ...] = ()
    options: tuple[Option, ...] = ()
    phrases: tuple[Phrase, ...] = ()

    @property
    def module(self) -> str:
        """As Python imports it."""
        return LOOPS[self.package][0]

    @property
    def loops(self) -> tuple[str, ...]:
        """Its loops by name."""
        return tuple(LOOPS[self.package][1])

    def spells(self, option: str, version: str) -> bool:
        """Whether a version spells a switch so, as far as the pack knows the switch."""
        flag = option.partition(" ")[0]
        known = [one for one in self.options if one.option.partition(" ")[0] == flag]
        return not known or any(one.in_version(version) for one in known)

    def in_own_words(self, step: str, asked: Asked) -> str:
        """A step for plain PyTorch with the framework's own words in it."""
        for phrase in self.phrases:
            step = step.replace(phrase.plain, phrase.own) if phrase.suits(asked) else step
        return step

    def option_for(self, asked: Asked) -> Option | None:
        """The option for a finding; None if the framework has none. A default that is seen to be the cause comes first, then one for that very cause."""
        return min((option for option in self.options if option.suits(asked)), key=lambda option: (option.seen is None, option.cause == "*"), default=None)


def _in_version(version: str, since: str, until: str) -> bool:
    if not version:
        return not until
    return (not since or number(version) >= number(since)) and (not until or number(version) < number(until))


def number(version: str) -> tuple[int, ...]:
    """A version as a number that compares: its release, with post-releases behind it and what comes before a release left out."""
    release = re.match(r"v?(\d+(?:\.\d+)*)(?:\.?post(\d+))?", version)
    if release is None:
        return ()
    parts = [int(part) for part in release[1].split(".")]
    return (*parts, *[0] * (4 - len(parts)), int(release[2] or 0))


@cache
def packs() -> dict[str, Pack]:
    """Every pack by its package. Raises msgspec.ValidationError where a file has a field that there is not."""
    found = (msgspec.convert(read(path), Pack) for path in sorted(Path(__file__).parent.glob("*.toml")))
    return {pack.package: pack for pack in found}


def named(name: str) -> Pack | None:
    """The pack that a user means by a name, whatever its case."""
    wanted = name.lower().replace("_", "-")
    return next(
        (pack for pack in packs().values() if wanted in {text.lower().replace("_", "-") for text in (pack.package, pack.module, pack.name, *pack.aliases)}),
        None,
    )


class Pinned(msgspec.Struct, frozen=True):
    """The names of one framework as they were read. versions: oldest first. names: by owner, each name with a 1 for every version that has it and a 0 for others."""

    versions: tuple[str, ...]
    names: dict[str, dict[str, str]]

    def has_name(self, name: str, version: str) -> bool:
        """Whether a version that was read has a name, `owner.name`."""
        owner, _, own = name.rpartition(".")
        return self.names.get(owner, {}).get(own, "0" * len(self.versions))[self.versions.index(version)] == "1"


PINNED = Path(__file__).with_name("names.json")
_Stored = dict[str, tuple[tuple[str, ...], dict[str, dict[str, str]]]]
"""In the file, by package: the versions, and of each owner the names that the same versions have, with a space between them."""


@cache
def pinned() -> dict[str, Pinned]:
    """The pinned copy of names, by package."""
    stored = msgspec.json.decode(PINNED.read_bytes(), type=_Stored)
    return {
        package: Pinned(versions, {owner: {name: had for had, text in groups.items() for name in text.split()} for owner, groups in owners.items()})
        for package, (versions, owners) in stored.items()
    }


def as_stored(held: Mapping[str, Pinned]) -> bytes:
    """What `pinned` reads."""
    stored: _Stored = {}
    for package, one in sorted(held.items()):
        stored[package] = (
            one.versions,
            {owner: {had: " ".join(n for n in sorted(names) if names[n] == had) for had in sorted({*names.values()})} for owner, names in one.names.items()},
        )
    return msgspec.json.format(msgspec.json.encode(stored), indent=1) + b"\n"
