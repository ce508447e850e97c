"""Progress of a process of the program, for the process that started the program."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FILE = "progress.json"
_PAGE = 4096
"""Bytes that are reserved for it while there is room: it may have to report a full disk."""


class Progress:
    """A file that is written over in place, which takes no room and leaves nothing open."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._facts: dict[str, Any] = {"pid": os.getpid()}
        self._path.write_bytes(self._page())

    def tell(self, **facts: Any) -> None:
        """Add or replace facts."""
        self._facts |= facts
        with self._path.open("r+b", buffering=0) as file:
            file.write(self._page())

    def _page(self) -> bytes:
        text = json.dumps(self._facts).encode()
        return (text if len(text) <= _PAGE else json.dumps({**self._facts, "failed": "", "refused": None}).encode()).ljust(_PAGE)


def told(folder: Path) -> dict[str, Any]:
    """The progress of a process; {} if it wrote none."""
    try:
        found: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
