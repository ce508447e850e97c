"""Formats are found, not listed: a new one is one new file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Protocol, TypeVar, cast

Shown = TypeVar("Shown", contravariant=True)


class Format(Protocol[Shown]):
    """What a format's module holds."""

    NAME: str
    """What a user types to get it."""
    SUFFIX: str
    """Of the file it is written to, with the dot."""

    def render(self, shown: Shown, /) -> str:
        """What is shown, in this format."""


class _Found:
    """A format's module, imported once it is asked for more than its name: who writes JSON does without what draws pages."""

    def __init__(self, package: str, name: str, takes: Callable[[ModuleType, Any], Any]) -> None:
        self._name, self.NAME, self._takes = f"{package}.{name}", name, takes

    def render(self, shown: Any, /, **how: Any) -> str:
        module = importlib.import_module(self._name)
        made: str = module.render(self._takes(module, shown), **how)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


def formats_in(package: str, path: Iterable[str], takes: Callable[[ModuleType, Any], Any] = lambda _, shown: shown) -> dict[str, Format[Any]]:
    """The modules of a package that do not start with an underscore, by the name of their format, which is the file's.
    takes: what a module is given of what is shown."""
    names = sorted(found.name for found in pkgutil.iter_modules(path) if not found.ispkg and not found.name.startswith("_"))
    return {name: cast("Format[Any]", _Found(package, name, takes)) for name in names}
