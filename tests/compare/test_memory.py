"""Two snapshots: peaks on one axis, tables whose rows sum to the change, in every format."""

import pytest

from advisor.compare.memory import compare_memory
from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.errors import UsageError
from advisor.recordings.recording import Recording
from advisor.reports import memory_comparison
from advisor.reports.memory_comparison._phrases import rows
from tests.memory_build import MIB, trained


def report(**how):
    return run(Recording("memory", "snapshot.pickle", (trained(**how).snapshot(),)), built_in().values())


BEFORE, AFTER = report(layers=8, activation=512), report(layers=8, activation=256)


def test_rows_of_every_table_sum_to_the_change_of_the_peak():
    made = compare_memory([BEFORE], [AFTER])
    # Eight layers of 512 + 64 become eight of 256 + 32, and what is passed back is half.
    assert made.allocated_change == -(8 * (256 + 32) + 32) * MIB
    for table in made.tables:
        assert sum(row.change for row in table.rows) == made.allocated_change
        assert sum(row.before for row in table.rows) == made.before.peak_allocated_bytes
    assert "lower" in made.summary and "activations" in made.summary


@pytest.mark.parametrize("most", [1, 2, 40])
def test_every_column_that_is_shown_sums_to_its_peak(most):
    made = compare_memory([BEFORE], [AFTER])
    for table in made.tables:
        shown = rows(table, most)
        assert sum(row.before for row in shown) == made.before.peak_allocated_bytes
        assert sum(row.after for row in shown) == made.after.peak_allocated_bytes
    assert any(row.name.endswith("unchanged)") for row in rows(made.tables[0], most))


def test_the_same_snapshot_twice_is_no_change():
    made = compare_memory([BEFORE], [BEFORE])
    assert not made.allocated_change and not made.reserved_change and "as they were" in made.summary
    assert {f.status for f in made.findings} <= {"same"}


@pytest.mark.parametrize("name", memory_comparison.formats())
def test_every_format_says_both_peaks(name):
    shown = memory_comparison.formats()[name].render(compare_memory([BEFORE], [AFTER]))
    assert "2.45 GB" in shown or str(-2336 * MIB) in shown


def test_sides_are_one_snapshot_each():
    with pytest.raises(UsageError):
        compare_memory([BEFORE, BEFORE], [AFTER])
