"""Formats are found, not listed: a new one is one new file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
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


def formats_in(package: str, path: Iterable[str]) -> dict[str, Format[Any]]:
    """The modules of a package that do not start with an underscore, by the name of their format."""
    modules = [importlib.import_module(f"{package}.{found.name}") for found in pkgutil.iter_modules(path) if not found.ispkg and not found.name.startswith("_")]
    found = [cast("Format[Any]", module) for module in modules]
    return {form.NAME: form for form in sorted(found, key=lambda form: form.NAME)}
