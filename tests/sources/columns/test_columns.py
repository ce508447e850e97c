"""A timeline written as columns is the same when it is read again; a file that is damaged or made to harm is refused."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor import analyze
from advisor.errors import TraceError
from advisor.knowledge.structs import replace
from advisor.recordings.timeline import TABLES, Timeline
from advisor.sources import columns, kineto, load
from advisor.sources.columns import layout
from advisor.sources.columns.layout import decode, encode, zstd
from advisor.sources.columns.packing import pack, unpack
from advisor.sources.kineto.write import not_held, write
from advisor.sources.sniff import COLUMNS_MAGIC
from advisor.sources.stream import Stream
from tests.build import Trace
from tests.command import advisor
from tests.paths import ROOT

SLOW = ROOT / "samples" / "launch-gap" / "slow.json.gz"
COMPILED = ROOT / "samples" / "jax" / "convolution_layout.fixed.xplane.pb.gz"
EXPORT = ROOT / "samples" / "nsys" / "encoder_infer.slow.sqlite"


def assert_equal(found: Timeline, expected: Timeline) -> None:
    for name in TABLES:
        pd.testing.assert_frame_equal(*map(texts, (getattr(found, name).to_pandas(), getattr(expected, name).to_pandas())), check_exact=True)
    assert found.devices == expected.devices and found.base_ns == expected.base_ns


def texts(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.astype({column: object for column in frame if isinstance(frame[column].dtype, pd.CategoricalDtype)})


def small() -> Timeline:
    trace = Trace().step(0, 300).op("aten::add", 5, 20, dims=[[8, 16], []]).op("größe λ", 30, 5.001)
    return trace.launch(10, 20, 90.007, "kernel").launch(100, 120, 4e9 + 0.123, "other").timeline()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_whole_numbers_come_back(values):
    packed, data = pack(np.array(values, np.int64))
    assert unpack(packed, data, len(values)).tolist() == values


@given(st.lists(st.floats(allow_nan=True, width=64), min_size=1, max_size=20), st.floats(0, 5))
def test_numbers_with_a_fraction_come_back_to_the_bit(values, later_us):
    column = np.array(values)
    packed, data = pack(column, later_us)
    assert unpack(packed, data, len(values)).view(np.int64).tolist() == column.view(np.int64).tolist()


def test_times_take_as_few_bytes_as_their_steps_need():
    start = np.cumsum(np.full(1000, 12_345)) / 1000.0
    assert (pack(start)[0].width, len(pack(start)[1])) == (2, 2000)
    assert pack(start + 0.4171, 0.4171)[0].ns, "the device's clock was set"


@pytest.mark.parametrize("timeline", [small(), Trace().op("aten::add", 0, 1).timeline()], ids=["small", "of one op"])
def test_a_timeline_comes_back(timeline):
    found = decode(zstd.decompress(encode(timeline)), "x")
    assert_equal(found, timeline)
    assert found.source == replace(timeline.source, path="")


@pytest.mark.parametrize("path", [SLOW, EXPORT, COMPILED], ids=["kineto", "nsys", "jax"])
def test_the_report_of_what_was_converted_is_the_same_but_for_its_source(path, tmp_path):
    assert advisor("convert", path, "out.trace.zst", cwd=tmp_path).returncode == 0
    before, after = analyze(path).report, analyze(tmp_path / "out.trace.zst").report
    assert msgspec.structs.replace(after, source=before.source) == before
    assert after.source.format == before.source.format and after.source.path.endswith("out.trace.zst")


def test_kinetos_json_holds_a_trace_of_its_own(tmp_path):
    expected = load(SLOW)
    assert not not_held(expected)
    assert_equal(kineto.read(Stream(io.BytesIO(write(expected))), "x"), expected)


def test_what_kinetos_json_cannot_hold_is_named(tmp_path):
    done = advisor("convert", COMPILED, "out.json.gz", cwd=tmp_path)
    lost = not_held(load(COMPILED))
    assert done.returncode == 0 and lost and all(one in done.stderr.decode() for one in lost)
    assert len(load(tmp_path / "out.json.gz").gpu_ops) == len(load(COMPILED).gpu_ops)


def test_a_column_that_a_file_lacks_was_not_recorded_and_one_of_no_table_is_left_out(monkeypatch):
    older = {name: {column: dtype for column, dtype in spec.items() if column != "registers"} for name, spec in TABLES.items()}
    older["gpu_ops"]["gone"] = "i8"
    timeline = small()
    msgspec.structs.force_setattr(timeline, "gpu_ops", timeline.gpu_ops.with_columns(gone=np.ones(len(timeline.gpu_ops))))
    monkeypatch.setattr(layout, "TABLES", older)
    written = encode(timeline)
    monkeypatch.undo()
    found = decode(zstd.decompress(written), "x")
    assert set(found.gpu_ops["registers"]) == {-1} and "gone" not in found.gpu_ops


def whole() -> bytes:
    return zstd.decompress(encode(small()))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (whole()[:200], "checksum"),
        (whole()[:-1] + b"?", "checksum"),
        (COLUMNS_MAGIC + b"\1", "ends within"),
        (COLUMNS_MAGIC + b"\2\0" + whole()[len(COLUMNS_MAGIC) + 2 :], "newer advisor"),
    ],
)
def test_what_is_damaged_or_of_a_newer_version_is_refused(data, why):
    with pytest.raises(TraceError) as error:
        decode(data, "x")
    assert why in f"{error.value.message} {error.value.hint}"


def remade(change) -> bytes:
    """The small file with another text before its columns, and the checksum of that."""
    data = whole()
    at = len(COLUMNS_MAGIC) + layout._SIZES.size
    _, size, _ = layout._SIZES.unpack(data[len(COLUMNS_MAGIC) : at])
    held = msgspec.json.decode(data[at : at + size])
    change(held)
    text = msgspec.json.encode(held)
    payload = text + data[at + size :]
    return COLUMNS_MAGIC + layout._SIZES.pack(1, len(text), layout._digest(payload)) + payload


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held["tables"]["gpu_ops"].update(rows=10**12),
        lambda held: held["tables"]["gpu_ops"].update(rows=-1),
        lambda held: held["tables"]["gpu_ops"]["columns"]["start_us"].update(width=3),
        lambda held: held["tables"]["gpu_ops"]["columns"]["name"].update(texts=10**9),
        lambda held: held["tables"]["gpu_ops"]["columns"]["name"].update(first=7),
        lambda held: held["tables"]["gpu_ops"]["columns"]["dur_us"].update(first=-(10**12)),
        lambda held: held["source"].pop("format"),
        lambda held: held.pop("tables"),
    ],
)
def test_one_that_contradicts_itself_is_refused(change):
    with pytest.raises(TraceError):
        decode(remade(change), "x")


def test_a_copy_to_give_away_may_be_made_as_columns_and_of_columns(tmp_path):
    assert advisor("redact", SLOW, "a.trace.zst", cwd=tmp_path).returncode == 0
    assert advisor("convert", SLOW, "own.trace.zst", cwd=tmp_path).returncode == 0
    assert advisor("redact", "own.trace.zst", "b.trace.zst", cwd=tmp_path).returncode == 0
    assert advisor("redact", "own.trace.zst", "b.json", cwd=tmp_path).returncode == 0
    first = load(tmp_path / "a.trace.zst")
    for other in ("b.trace.zst", "b.json"):
        assert_equal(load(tmp_path / other), first)


def test_columns_of_an_export_are_not_given_away_as_kinetos_json(tmp_path):
    advisor("convert", EXPORT, "own.trace.zst", cwd=tmp_path)
    done = advisor("redact", "own.trace.zst", "out.trace.zst", cwd=tmp_path)
    assert done.returncode == 3 and b"Start from the recording" in done.stderr and not (tmp_path / "out.trace.zst").exists()


@pytest.mark.parametrize(("output", "why"), [("out.txt", "says no format"), ("there.trace.zst", "is there already"), ("no/out.json", "no directory")])
def test_where_nothing_can_be_written_it_is_said_before_the_trace_is_read(output, why, tmp_path):
    (tmp_path / "there.trace.zst").write_bytes(b"mine")
    done = advisor("convert", "no such trace", output, cwd=tmp_path)
    assert done.returncode == 2 and why in done.stderr.decode() and (tmp_path / "there.trace.zst").read_bytes() == b"mine"


def test_of_a_directory_columns_are_traces(tmp_path):
    for rank in range(2):
        (tmp_path / f"rank{rank}.trace.zst").write_bytes(encode(load(SLOW)))
    assert columns.named_as_columns(Path("rank0.trace.zst"))
    found = advisor("analyze", ".", "--each", "-f", "json", cwd=tmp_path)
    assert found.returncode in (0, 1) and found.stdout.count(b".trace.zst") >= 2
