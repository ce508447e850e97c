"""Which waits belong to a copy."""

from __future__ import annotations

import numpy as np

from advisor.intervals import Ints
from advisor.knowledge import cuda_api
from advisor.views.replay.schedule import Schedule
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops


def waits_of_copies(launches: Launches, ops: Ops, schedule: Schedule, calls: Ints) -> np.ndarray:
    """(n_calls,) the synchronising calls that wait for copies made by `calls` (positions).

    PyTorch makes a blocking copy of an asynchronous one and a stream sync inside one op. Where ops were not recorded,
    the sync that directly follows the copy is its.
    """
    if not len(launches.roles):  # no host in the trace
        return np.zeros(len(schedule.call_row), bool)
    sync = launches.roles[schedule.call_row] == list(cuda_api.ApiRole).index(cuda_api.ApiRole.SYNC)
    around = ops.of_call[schedule.call_row]
    copying = around[calls]
    same_op = np.isin(around, copying[copying >= 0])
    following = np.zeros(len(sync), bool)
    following[np.minimum(calls[copying < 0] + 1, len(sync) - 1)] = True
    found: np.ndarray = sync & (same_op | following)
    return found
