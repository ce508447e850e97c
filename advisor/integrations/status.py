"""Progress of a command for the program that started it: lines of JSON in a file that its environment names.

Standard error also belongs to the measured program, so its lines cannot be attributed.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

STATUS = "ADVISOR_STATUS"
"""Names the file. A program that is run does not find it in its environment."""

_file = ""


def begin() -> None:
    """Take the file's name out of the environment."""
    global _file
    _file = os.environ.pop(STATUS, "")


def tell(**what: object) -> None:
    """Append a line, where a file was named: `doing`, `done` and `total` of what takes long, or `error` and `hint` of what went wrong."""
    if _file:
        with suppress(OSError), open(_file, "a", encoding="utf-8") as file:
            file.write(json.dumps(what) + "\n")
