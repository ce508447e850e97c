"""Collectives of ranks that others recorded, matched where nothing but kernels says which is which."""

import numpy as np
import pytest

from advisor.engine.fleet import reduced
from advisor.engine.reduce import Judging
from advisor.sources import read
from advisor.views.ranks.matching import match
from tests.paths import SHARED, needs_shared


@needs_shared
def test_eight_ranks_of_a_job_recorded_by_others_match_without_metadata():
    ranks = reduced(read(SHARED / "public" / "kineto" / "dlrm_8rank"), Judging(rules=()), executor="serial").parts[0].ranks
    matched = match(ranks, min(one.facts.base_ns for one in ranks))
    skew = np.array([np.ptp(matched.end_us[matched.collective == number]) for number in range(matched.count)])
    assert matched.proved and matched.count == 8 and np.median(skew) == pytest.approx(2.5, abs=1.0) and skew.max() < 10
