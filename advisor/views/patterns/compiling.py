"""When the host compiles, and which dimension it compiles again for."""

from __future__ import annotations

import re

import numpy as np

from advisor.intervals import Floats, Spans, joined, overlap_with
from advisor.knowledge import cuda_api
from advisor.recordings.timeline import Timeline
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.launches import Launches
from advisor.views.trace.table_filters import matches, spans_of

_LOADS = re.compile(r"^cu(Module|Library)LoadData")


def compiling_spans(timeline: Timeline, host: HostActivity, host_time: HostTime, launches: Launches, told: Spans) -> tuple[Spans, bool]:
    """Host time in which code is compiled, and whether the trace says so directly."""
    if len(told[0]):
        return told, True
    calls = timeline.api_calls
    loads = matches(calls, _LOADS) & host.on_threads(calls) & (launches.roles == list(cuda_api.ApiRole).index(cuda_api.ApiRole.OTHER))
    if not loads.any():
        return told, False
    # The new module was compiled in the pause that ends with loading it.
    holding = overlap_with(host_time.spans.start_us, host_time.spans.end_us, spans_of(calls, loads)) > 0
    return joined((host_time.spans.start_us[holding], host_time.spans.end_us[holding])), False


def changing_dimension(varying: tuple[str, str]) -> tuple[int, Floats] | None:
    """The one dimension in which two shapes differ, and its sizes."""
    a, b = (np.array([int(n) for n in text.strip("[]").split(",")], float) for text in varying)
    if len(a) != len(b) or (a != b).sum() != 1:
        return None
    at = int(np.argmax(a != b))
    return at, np.array([a[at], b[at]])
