"""Which Python frame called which: as the profiler recorded it, by time if it did not."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import nest
from advisor.recordings.links import Forest, forest
from advisor.recordings.timeline import Timeline
from advisor.views.trace.ops import thread_ids


class PythonFrames(msgspec.Struct, frozen=True):
    """callers: (n_python,) the row of `python_calls` around each, and how many recorded ones led in a ring or too far."""

    callers: Forest

    @classmethod
    def build(cls, timeline: Timeline) -> PythonFrames:
        frame = timeline.python_calls
        parent_id, python_id = frame["parent_id"], frame["python_id"]
        if not (parent_id >= 0).any():
            return cls(forest(nest(thread_ids(frame), *frame.bounds())))
        order = np.argsort(python_id, kind="stable")
        at = np.minimum(np.searchsorted(python_id[order], parent_id), len(order) - 1)
        found = order[at]
        return cls(forest(np.where((parent_id >= 0) & (python_id[found] == parent_id), found, -1)))
