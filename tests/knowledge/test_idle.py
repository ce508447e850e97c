"""Each cause of idle time is named everywhere that speaks of it."""

from advisor.knowledge.idle import CAUSES
from advisor.report.recording import Idle
from advisor.reports.report import text
from advisor.views.ranks.lane import _PART_OF_CAUSE
from advisor.views.time.idle_gaps import STRETCHED


def test_the_model_the_text_and_the_ranks_know_all_causes():
    assert Idle.__struct_fields__ == CAUSES
    assert {*CAUSES} <= {*text._SLICES}
    assert {*_PART_OF_CAUSE} == {*CAUSES}
    assert {cause for causes in STRETCHED for cause in causes} < {*CAUSES}
