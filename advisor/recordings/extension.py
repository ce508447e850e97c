"""The extension module trace_advisor_native: a decoder of traces, a replay of schedules, an allocator's simulation and protobuf's wire format, all in C.

Whoever uses a part of it has the same in Python. That runs if no compiler was there to build it, if it is of another version, or if
ADVISOR_NATIVE=no in the environment leaves it out, to compare.
"""

from __future__ import annotations

import os
from types import ModuleType

SWITCH = "ADVISOR_NATIVE"
VERSION = 5
"""Of what its functions take and return."""


def _imported() -> ModuleType | None:
    if os.environ.get(SWITCH) == "no":
        return None
    try:
        import trace_advisor_native as extension
    except ImportError:
        return None
    return extension if getattr(extension, "VERSION", None) == VERSION else None


EXTENSION = _imported()
