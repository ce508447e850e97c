"""Numbers that ship with the package, as TOML next to the code."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec


@cache
def load(name: str) -> dict[str, Any]:
    """The tables of `advisor/knowledge/NAME.toml`."""
    return read(Path(__file__).with_name(f"{name}.toml"))


def read(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, none if there is no such file.

    Parsed tables stay next to the bytecode, if Python writes that: parsing thirty files takes a third of the time of numpy's import.
    """
    try:
        state = path.stat()
    except FileNotFoundError:
        return {}
    key, kept = [state.st_mtime_ns, state.st_size], path.parent / "__pycache__" / f"{path.name}.msgpack"
    with suppress(OSError, msgspec.DecodeError, ValueError, TypeError):
        of, tables = msgspec.msgpack.decode(kept.read_bytes())
        if of == key and isinstance(tables, dict):
            return tables
    tables = _parsed(path)
    if not sys.dont_write_bytecode:
        with suppress(OSError, TypeError):
            own = kept.with_name(f"{kept.name}.{os.getpid()}")
            own.write_bytes(msgspec.msgpack.encode([key, tables]))
            own.replace(kept)
    return tables


def _parsed(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    tables: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return tables
