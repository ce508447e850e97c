"""Rows of evidence: what is folded into one, and where it ran."""

import numpy as np

from advisor.views.trace.evidence import Witness
from tests.build import H200, Trace


def test_a_row_names_the_device_that_all_of_it_ran_on():
    trace = Trace(devices=(H200, H200)).launch(0, 5, 10, "both").launch(1, 5, 10, "both", device=1).launch(2, 20, 24, "second", device=1)
    rows = trace.get(Witness).of_gpu(np.arange(3), ["both", "both", "second"])
    assert [(row.label, row.device, row.count) for row in rows] == [("both", None, 2), ("second", 1, 1)]
