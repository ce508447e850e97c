"""Numbers that ship with the package, as TOML next to the code."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@cache
def load(name: str) -> dict[str, Any]:
    """The tables of `advisor/knowledge/NAME.toml`."""
    return read(Path(__file__).with_name(f"{name}.toml"))


def read(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, none if there is no such file."""
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
