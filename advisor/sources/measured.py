"""Step times that were measured without a profiler, as recordings carry them."""

from __future__ import annotations

import sys
from typing import Any


def step_times(times: Any) -> tuple[float, ...]:
    """Measured step times in µs as a file holds them; none where they are no such times."""
    if not isinstance(times, list) or not all(type(us) in (int, float) and 0 < us <= sys.float_info.max for us in times):
        return ()
    return tuple(float(us) for us in times)
