"""A report or a CSV page that can be given away: the same kernels, nothing of whose machine or program they were."""

import gzip

import pytest

from advisor.errors import TraceError
from advisor.sources import read
from advisor.sources.redact import redact
from tests.kernels import NAMES_HELD, block, field, plain_report, report, result
from tests.sources.ncu.test_tables import OLD, RAW


def test_a_report_keeps_its_kernels_and_counters_alone(tmp_path):
    source, target = tmp_path / "k.ncu-rep", tmp_path / "out.ncu-rep.gz"
    source.write_bytes(plain_report())
    redact(source, target)
    before, after = (read(path).parts[0].kernels for path in (source, target))
    assert [(k.name, k.grid, k.block, k.metrics) for k in before] == [(k.name, k.grid, k.block, k.metrics) for k in after]
    left = gzip.decompress(target.read_bytes())
    assert not [word for word in (b"hunter2", b"secret", b"source text", b"somebody") if word in left]


@pytest.mark.parametrize("page", [RAW, OLD])
def test_a_page_loses_who_recorded_it(tmp_path, page):
    source, target = tmp_path / "k.csv", tmp_path / "out.csv"
    source.write_text(page)
    redact(source, target)
    assert read(source).parts[0].kernels[0].metrics == read(target).parts[0].kernels[0].metrics
    left = target.read_text()
    assert "python" not in left and "127.0.0.1" not in left and "==PROF==" not in left and "2020-Apr" not in left


def test_a_damaged_report_is_not_redacted_in_part(tmp_path):
    source, target = tmp_path / "k.ncu-rep", tmp_path / "out.ncu-rep"
    source.write_bytes(report(block([result("f", {0: field(3, 1.0)})], NAMES_HELD))[:-5])
    with pytest.raises(TraceError):
        redact(source, target)
    assert not target.exists()
