"""Switches a part of the analysis off while a block runs, or watches if it has an effect, and leaves everything else as it is."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property, wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import msgspec
import numpy as np

from advisor.engine.rule import Rule, built_in
from advisor.recordings.columns import Categorical, Table


@dataclass(frozen=True)
class Number:
    """A constant or pattern of a module.

    off: the neutral value. within: the function or `Class.method` of the module with the affected result; "" for the rule itself."""

    module: ModuleType | str
    name: str
    off: Any
    within: str = ""


@dataclass(frozen=True)
class Result:
    """The result of a function or of a view's `build`.

    off: gets the result and the arguments, and returns the result for a step without the pattern."""

    module: ModuleType | str
    name: str
    off: Callable[..., Any]


Switch = Number | Result
"""`module` is named, so that a script that moves modules finds it. A rule is given by its id, because nothing here imports a rule by name."""


class Switched(Protocol):
    """An object with a name and switches."""

    @property
    def name(self) -> str: ...
    @property
    def switches(self) -> tuple[Switch, ...]: ...


def home(switch: Switch) -> ModuleType:
    """The module that a switch is in."""
    if isinstance(switch.module, ModuleType):
        return switch.module
    rule = built_in().get(switch.module)
    return import_module(rule.function.__module__ if rule else switch.module)


def holder(switch: Switch) -> tuple[Any, str]:
    """The module or class with the attribute to disable, and the attribute's name."""
    return _held(switch, switch.name)


def user(switch: Switch) -> tuple[Any, str]:
    """The module, class or rule with the function to change, and the function's name."""
    if isinstance(switch, Result):
        return holder(switch)
    return _held(switch, switch.within) if switch.within else (built_in()[str(switch.module)], "function")


def _held(switch: Switch, name: str) -> tuple[Any, str]:
    found: Any = home(switch)
    *classes, attribute = name.split(".")
    for one in classes:
        found = getattr(found, one)
    return found, attribute


@contextmanager
def switched_off(switched: Switched) -> Iterator[None]:
    """Runs a block without it."""
    with ExitStack() as stack:
        for switch in switched.switches:
            stack.enter_context(_switched_off(switch))
        yield


@contextmanager
def watched(several: Iterable[Switched]) -> Iterator[set[str]]:
    """Runs a block as usual. The names of those that changed the result of a function in it are collected."""
    seen: set[str] = set()
    busy: list[str] = []  # what is computed to compare is not watched itself
    with ExitStack() as stack:
        for one in several:
            for switch in one.switches:
                stack.enter_context(_watching(one.name, switch, seen, busy))
        yield seen


def _switched_off(switch: Switch) -> Any:
    owner, name = holder(switch)
    if isinstance(switch, Number):
        return _replaced(owner, name, switch.off)
    instead = switch.off
    return _wrapped(owner, name, lambda function, *args, **options: instead(function(*args, **options), *args, **options))


def _watching(name: str, switch: Switch, seen: set[str], busy: list[str]) -> Any:
    def called(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        made = function(*args, **options)
        if name not in seen and not busy:
            busy.append(name)
            try:
                if isinstance(switch, Result):
                    other = switch.off(made, *args, **options)
                else:
                    with _switched_off(switch):
                        other = function(*args, **options)
            finally:
                busy.pop()
            if not same_values(made, other):
                seen.add(name)
        return made

    return _wrapped(*user(switch), called)


def attribute(owner: Any, name: str) -> Any:
    """An owner's attribute: of a module or a class the object itself, before a descriptor binds it. Raises KeyError or AttributeError."""
    return vars(owner)[name] if isinstance(owner, (ModuleType, type)) else getattr(owner, name)


def replace_attribute(owner: Any, name: str, value: Any) -> None:
    """Put a value in an attribute's place; a rule is frozen otherwise."""
    (msgspec.structs.force_setattr if isinstance(owner, Rule) else setattr)(owner, name, value)


@contextmanager
def _wrapped(owner: Any, name: str, called: Callable[..., Any]) -> Iterator[None]:
    """Calls `called(function, *args, **options)` in place of a function, a method or a property. Arguments of a method are those after the object or class."""
    kept = attribute(owner, name)
    inner = kept.__func__ if isinstance(kept, (classmethod, staticmethod)) else kept.func if isinstance(kept, cached_property) else kept
    bound = isinstance(owner, type) and not isinstance(kept, staticmethod)

    @wraps(inner)
    def instead(*args: Any, **options: Any) -> Any:
        if not bound:
            return called(inner, *args, **options)
        first, *rest = args
        return called(lambda *others, **named: inner(first, *others, **named), *rest, **options)

    made: Any = type(kept)(instead) if isinstance(kept, (classmethod, staticmethod, cached_property)) else instead
    if isinstance(kept, cached_property):
        made.__set_name__(owner, name)
    with _replaced(owner, name, made):
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replaces the value of an attribute, also in other modules that imported it."""
    kept = attribute(owner, name)
    places = [(owner, name), *(_importers(owner, name, kept) if isinstance(owner, ModuleType) else ())]
    for place, held in places:
        replace_attribute(place, held, value)
    try:
        yield
    finally:
        for place, held in places:
            replace_attribute(place, held, kept)


def _importers(owner: ModuleType, name: str, kept: Any) -> list[tuple[ModuleType, str]]:
    """The modules that hold the same object under the same name without defining it."""
    return [
        (module, name)
        for module in list(sys.modules.values())
        if module is not owner and module.__name__.startswith("advisor.") and vars(module).get(name) is kept and not defines(module, name)
    ]


@cache
def defines(module: ModuleType, name: str) -> bool:
    """Whether a module assigns or defines a name itself."""
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    return re.search(rf"^(?=\S)(def {name}\b|class {name}\b|[\w, ]*\b{name}\b[\w, ]*(:[^=\n]+)?= )", text, re.MULTILINE) is not None


def same_values(one: Any, other: Any) -> bool:
    """Whether two results hold the same values."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.shape == other.shape and (one.dtype == other.dtype) and bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))
    if isinstance(one, Table):
        return same_values(one.columns, other.columns)
    if isinstance(one, Categorical):
        return same_values(one.codes, other.codes) and same_values(one.categories, other.categories)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same_values(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_values, one, other))
    if isinstance(one, msgspec.Struct):
        return all(same_values(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__)
    if is_dataclass(one):
        return all(same_values(getattr(one, field.name), getattr(other, field.name)) for field in fields(one) if field.compare)
    return bool(one == other)
