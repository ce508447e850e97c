"""A redacted report is one that NVIDIA's own reader takes: it refuses results without the fields that their format requires."""

import gzip
import struct

import pytest

from advisor.sources import read
from advisor.sources.protobuf import fields, message
from advisor.sources.redact import redact
from tests.paths import ROOT, slow

SAMPLE = ROOT / "samples" / "kernels" / "pairs.ncu-rep.gz"
REQUIRED = {*range(1, 12), 15}
"""Of a ProfileResult, as its descriptor in the package ncu-report has them."""


@pytest.fixture(scope="module")
def redacted(tmp_path_factory):
    path = tmp_path_factory.mktemp("ncu") / "out.ncu-rep"
    redact(SAMPLE, path)
    return path


def results(data):
    """The results of a report: after the file's header blocks follow, each with sources and results."""
    at = 8 + struct.unpack_from("<I", data, 4)[0]
    while at < len(data):
        size = struct.unpack_from("<I", data, at)[0]
        head = dict(fields(memoryview(data)[at + 4 : at + 4 + size]))
        at += 4 + size
        for number in range(head.get(1, 0) + head.get(2, 0)):
            size = struct.unpack_from("<I", data, at)[0]
            if number >= head.get(1, 0):
                yield list(fields(memoryview(data)[at + 4 : at + 4 + size]))
            at += 4 + size


@slow
def test_every_result_has_the_fields_that_the_format_requires(redacted):
    found = list(results(redacted.read_bytes()))
    assert len(found) == 50
    for result in found:
        assert {number for number, _ in result} >= REQUIRED
        assert all({axis for axis, _ in fields(message(value))} == {1, 2, 3} for number, value in result if number in (9, 10, 11))


@pytest.mark.parametrize("which", ["redacted", "sample"])
def test_nvidias_reader_reads_every_kernel_and_its_counters(which, redacted, tmp_path):
    reader = pytest.importorskip("ncu_report")
    if which == "sample":
        redacted = tmp_path / "sample.ncu-rep"
        redacted.write_bytes(gzip.decompress(SAMPLE.read_bytes()))
    taken = reader.load_report(str(redacted)).range_by_idx(0)
    told = [taken.action_by_idx(i) for i in range(taken.num_actions())]
    assert [action.name() for action in told] == [kernel.name for kernel in read(redacted).parts[0].kernels]
    assert all(len(list(action.metric_names())) > 1000 for action in told)
