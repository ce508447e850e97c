"""A report or a CSV page that can be given away: the same kernels, nothing of whose machine or program they were."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import TraceError
from advisor.sources import read
from advisor.sources.ncu.lines import Line, first_line
from advisor.sources.redact import redact
from advisor.sources.redact.ncu_lines import binary_of
from tests.kernels import NAMES_HELD, block, field, plain_report, report, result
from tests.sources.ncu.test_lines import elf, sources, table
from tests.sources.ncu.test_tables import OLD, RAW


def test_a_report_keeps_its_kernels_and_counters_alone(tmp_path):
    source, target = tmp_path / "k.ncu-rep", tmp_path / "out.ncu-rep.gz"
    source.write_bytes(plain_report())
    redact(source, target)
    before, after = (read(path).parts[0].kernels for path in (source, target))
    assert [(k.name, k.grid, k.block, k.metrics) for k in before] == [(k.name, k.grid, k.block, k.metrics) for k in after]
    left = gzip.decompress(target.read_bytes())
    assert not [word for word in (b"hunter2", b"secret", b"source text", b"somebody") if word in left]


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1), st.integers(1, 1 << 30))
def test_a_binary_that_says_its_line_is_read_back(file, line):
    assert first_line(memoryview(binary_of((file, line)))) == Line(file, line)


def test_a_kernel_s_line_stays_and_its_directory_goes(tmp_path):
    source, target = tmp_path / "k.ncu-rep", tmp_path / "out.ncu-rep"
    kernel = result("k", {0: field(3, 5000.0)}) + field(15, field(1, 4242))
    source.write_bytes(report(sources(elf(text_k=b"hunter2", debug_line=table(bytes([3, 50, 1])))), block([kernel, kernel], ["gpu__time_duration.sum"])))
    redact(source, target)
    one, two = read(target).parts[0].kernels
    assert one.source == two.source and one.source[0].endswith("/k.py") and one.source[1] == 51
    assert b"/home/me" not in target.read_bytes() and b"hunter2" not in target.read_bytes()


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
