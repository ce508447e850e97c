"""Takes texts and paths of the command line without conversion. Typer would convert them by pydantic, which takes as
long to import as numpy. Typer still converts other types, and reports wrong values."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, get_args, get_origin

import typer


class _Simple:
    """Takes the place of typer's converter of a parameter, and asks that converter if the value is not simple."""

    def __init__(self, described: Any) -> None:
        self._described = described

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        annotation = self._described.annotation
        several = get_origin(annotation) is list
        kind = get_args(annotation)[0] if several else annotation
        if value is None:
            return () if several else None
        values = value if several else [value]
        if self._described.parameter_info.parser is None and isinstance(values, (list, tuple)) and all(_fits(kind, one) for one in values):
            made = [kind(one) for one in values]
            return made if several else made[0]
        from typer._coercion import build_runtime_param

        return build_runtime_param(self._described).coerce(value, param=param, ctx=ctx)


def _fits(kind: Any, value: Any) -> bool:
    """Whether a value is of that type, or a text of which a path is made that typer finds nothing wrong with: there is none, or it can be read."""
    if kind is Path and isinstance(value, str):
        return os.access(value, os.R_OK) or not os.path.lexists(value)
    return kind in (str, int, float, bool, Path) and type(value) is kind


def take_simple_values(command: Any) -> None:
    """Make a typer command, and a group's, import pydantic only for values that need it. Does nothing to a typer that keeps this elsewhere."""
    for one in (command, *getattr(command, "commands", {}).values()):
        for parameter in one.get_params(typer.Context(one, **command.context_settings)):  # with --help, which is made once
            if getattr(parameter, "_runtime_param", 0) is None and hasattr(parameter, "type_descriptor"):
                parameter._runtime_param = _Simple(parameter.type_descriptor)
