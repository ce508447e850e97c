"""Formats: each module here turns a `Report` into text. A new format is one new file; nothing lists them."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Protocol, cast

from advisor.report import Report


class Format(Protocol):
    """What a format's module holds."""

    NAME: str
    """What a user types to get it."""
    SUFFIX: str
    """Of the file it is written to, with the dot."""

    def render(self, report: Report, /) -> str:
        """The report in this format."""


def formats() -> dict[str, Format]:
    """Every format by its name: the modules of this package that do not start with an underscore."""
    modules = [
        importlib.import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
        if not found.ispkg and not found.name.startswith("_")
    ]
    found = [cast(Format, module) for module in modules]
    return {form.NAME: form for form in sorted(found, key=lambda form: form.NAME)}
