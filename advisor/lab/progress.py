"""How far a process of the program is: what it tells the one that started the program."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FILE = "progress.json"
_PAGE = 4096
"""Bytes that are reserved for it while there is room: a full disk is what there may be to tell."""


class Progress:
    """A file that is written over in place, which takes no room and leaves nothing open."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._facts: dict[str, Any] = {"pid": os.getpid()}
        self._path.write_bytes(self._page())

    def tell(self, **facts: Any) -> None:
        """Add to what is known, or correct it."""
        self._facts |= facts
        with self._path.open("r+b", buffering=0) as file:
            file.write(self._page())

    def _page(self) -> bytes:
        text = json.dumps(self._facts).encode()
        return (text if len(text) <= _PAGE else json.dumps({**self._facts, "failed": "", "refused": None}).encode()).ljust(_PAGE)


def told(folder: Path) -> dict[str, Any]:
    """What a process has told; {} where it could not."""
    try:
        found: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
