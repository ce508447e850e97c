"""Files that are cut off or damaged: what can be read is read, and what is missing is said."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.errors import TraceError
from advisor.sources import kineto
from advisor.sources.kineto.chunks import Text
from advisor.sources.kineto.events import Event, parse
from advisor.sources.stream import DEFAULT_MAX_BYTES, Stream
from tests.paths import examples, slowly
from tests.sources.kineto.layouts import EVENTS, LAYOUTS, Events, x
from tests.sources.kineto.test_layouts import read

CHUNKS = (40, 300, 2000, 1 << 20)


def events_of(data: bytes, chunk_bytes: int) -> tuple[list[Event], Text]:
    text = Text(Stream(io.BytesIO(data)).read, chunk_bytes)
    return [event for piece in text.decoded(parse) for event in piece], text


def numbered(n: int) -> Events:
    """Events named by their number; the shapes hold what looks like a cut."""
    return [{**x("cpu_op", f"op {i}", i), "args": {"Input Dims": [[i], []], "note": "},{", "l": [{"ph": 1}, {"ph": 2}]}} for i in range(n)]


def whole_before(text: str, cut: int, n: int) -> int:
    """How many of the numbered events end before a cut of compact text."""
    decoder, at, count = json.JSONDecoder(), text.index("[", text.index('"traceEvents"')) + 1, 0
    while count < n:
        start = text.index("{", at)
        _, at = decoder.raw_decode(text, start)
        count += at <= cut
        if at > cut:
            break
    return count


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_file_cut_anywhere_gives_the_whole_events_before(data: st.DataObject) -> None:
    layout = data.draw(st.sampled_from(["kineto", "torch213", "indented", "compact", "turned", "bare"]))
    text = LAYOUTS[layout](numbered(30), {"schemaVersion": 1})
    start = text.index("[") + 1
    cut = data.draw(st.integers(start, len(text) - 1))
    marked = text if layout != "bare" else '"traceEvents":' + text
    shift = len(marked) - len(text)
    found, _ = events_of(text[:cut].encode(), data.draw(st.sampled_from(CHUNKS)))
    assert [event.name for event in found] == [f"op {i}" for i in range(whole_before(marked, cut + shift, 30))]


@pytest.mark.parametrize("chunk_bytes", CHUNKS)
def test_a_cut_file_says_where(chunk_bytes: int) -> None:
    text = LAYOUTS["compact"](numbered(40), {"schemaVersion": 7})
    cut = text.index('"op 25"')
    timeline = read(text[:cut], chunk_bytes)
    assert timeline.cpu_ops["name"].tolist() == [f"op {i}" for i in range(25)]
    (issue,) = timeline.source.issues
    end = text.rindex("}", 0, cut - 30) + 1
    assert issue.check == "complete-file" and issue.cut and f"byte {cut:,}" in issue.detail and f"read 25 events, whole up to byte {end:,}" in issue.detail
    assert timeline.source.metadata == {"schemaVersion": 7}


def test_a_cut_after_the_events_says_that_the_metadata_is_incomplete() -> None:
    text = LAYOUTS["kineto"]()
    timeline = read(text[: text.index('"traceName"') + 4])
    assert timeline.source.events == len(EVENTS) and timeline.source.rank == 3
    (issue,) = timeline.source.issues
    assert issue.check == "complete-file" and "metadata" in issue.detail and not issue.cut, "every event is there"


def test_cut_gzip_gives_what_can_be_unpacked() -> None:
    text = LAYOUTS["kineto"](numbered(400), {"schemaVersion": 1})
    packed = gzip.compress(text.encode(), 6)
    for cut in range(len(packed) // 3, len(packed) - 1, max(len(packed) // 40, 1)):
        unpacked = zlib.decompressobj(31).decompress(packed[:cut])
        timeline = read(packed[:cut], 1000)
        n = len(timeline.cpu_ops)
        # isal may hold back the last byte.
        assert whole_before(text, len(unpacked) - 4, 400) <= n <= whole_before(text, len(unpacked), 400)
        assert timeline.cpu_ops["name"].tolist() == [f"op {i}" for i in range(n)]
        assert f"byte {cut:,} of the file" in timeline.source.issues[0].detail


def test_a_damaged_checksum_is_reported() -> None:
    packed = bytearray(gzip.compress(LAYOUTS["kineto"](numbered(4000)).encode()))
    packed[-6] ^= 0xFF
    timeline = read(bytes(packed))
    assert len(timeline.cpu_ops) > 100 and "damaged" in timeline.source.issues[0].detail


def test_several_gzip_members_are_one_file() -> None:
    text = LAYOUTS["compact"](EVENTS).encode()
    packed = gzip.compress(text[:700]) + gzip.compress(text[700:]) + b"\0" * 30
    assert read(packed).source.events == len(EVENTS)


# What the standard library can read and msgspec cannot


@pytest.mark.parametrize("chunk_bytes", CHUNKS)
@pytest.mark.parametrize(
    ("written", "name"),
    [
        (b'"nan", "x": NaN', "nan"),
        (b'"inf", "x": [Infinity, -Infinity]', "inf"),
        (b'"tab\there\n"', "tab\there\n"),
        (b'"nul\x00"', "nul\x00"),
        (b'"latin \xe9"', "latin ?"),
        (b'"half \\ud83d pair"', "half ? pair"),
    ],
)
def test_events_that_only_the_standard_library_reads(written: bytes, name: str, chunk_bytes: int) -> None:
    for layout in ("compact", "indented", "kineto"):
        text = LAYOUTS[layout](numbered(20)).encode()
        broken = text.replace(b'"op 7"', written).replace(b'"op 19"', written)
        found, state = events_of(broken, chunk_bytes)
        assert [event.name for event in found] == [name if i in (7, 19) else f"op {i}" for i in range(20)]
        assert state.bad == 0 and state.closed


def test_a_time_that_is_no_number_costs_the_event() -> None:
    text = LAYOUTS["compact"](EVENTS).replace('"est. achieved occupancy %":62', '"est. achieved occupancy %":NaN')
    timeline = read(text.replace('"ts":4346407437090.002', '"ts":NaN'))
    assert len(timeline.gpu_ops) == 3 and np.isnan(timeline.gpu_ops["occupancy_pct"]).all()
    assert not len(timeline.overheads) and timeline.source.issues[0].check == "timestamps"


@pytest.mark.parametrize("chunk_bytes", CHUNKS)
@pytest.mark.parametrize("value", slowly(["inf", "-nan(ind)", "-inf", "nan", "-nan", "NaN", "Infinity", "-Infinity", "INF"], quick=2))
def test_what_c_writes_for_no_number_costs_the_argument_and_not_the_event(value: str, chunk_bytes: int) -> None:
    quoted = {"cat": "gpu_memcpy", "name": f"copy, {value}, [{value}]"}
    for layout in ("compact", "indented", "kineto"):
        text = LAYOUTS[layout]([{**event, **quoted, "args": {"bytes": 5, "memory bandwidth (GB/s)": 77.25, "stream": 7}} for event in numbered(20)])
        written = text.replace("77.25", value)
        timeline = read(written, chunk_bytes)
        assert len(timeline.gpu_ops) == 20 and not timeline.source.issues
        assert set(timeline.gpu_ops["bytes"]) == {5} and list(timeline.gpu_ops["name"].categories) == [quoted["name"]]
        lost = read(written.replace('"stream": 7', f'"stream": {value}').replace('"stream":7', f'"stream":{value}'), chunk_bytes)
        assert set(lost.gpu_ops["bytes"]) == {5} and set(lost.gpu_ops["stream"]) != {7}


def test_a_duration_that_is_no_number_is_counted() -> None:
    timeline = read(LAYOUTS["compact"](EVENTS).replace('"ts":4346407437090.002,"dur":', '"ts":4346407437090.002,"dur":-nan,"was":'))
    (issue,) = timeline.source.issues
    assert issue.check == "durations" and "1 event" in issue.detail


# What nothing can read


@pytest.mark.parametrize("chunk_bytes", CHUNKS)
@pytest.mark.parametrize("layout", ["kineto", "torch213", "indented", "compact", "bare"])
@pytest.mark.parametrize(
    "damage",
    ['"void f<"x">()"', '"odd " quote"', '"open', "op", '"a", "args": {', '"a"}}', '"]}", "x": ]', '"a\\"'],
    ids=range(8),
)
def test_a_damaged_event_costs_itself_alone(damage: str, layout: str, chunk_bytes: int) -> None:
    text = LAYOUTS[layout](numbered(30))
    broken = text.replace('"op 11"', damage).encode()
    found, state = events_of(broken, chunk_bytes)
    names = [event.name for event in found if event.name.startswith("op ")]
    assert names == [f"op {i}" for i in range(30) if i != 11]
    assert state.whole
    if '"a"' not in damage:
        assert state.bad == 1
        start = text.rindex("{", 0, text.index('"op 11"'))
        assert state.first_bad == start


@pytest.mark.parametrize("chunk_bytes", CHUNKS)
def test_a_hole_in_the_middle_costs_what_it_touches(chunk_bytes: int) -> None:
    text = LAYOUTS["kineto"](numbered(60)).encode()
    for size, fill in ((500, b""), (500, b"\0"), (333, b'"')):
        at = text.index(b'"op 20"') + 3
        broken = text[:at] + fill * size + text[at + size :]
        found, state = events_of(broken, chunk_bytes)
        names = [event.name for event in found]
        assert names[:20] == [f"op {i}" for i in range(20)] and names[-35:] == [f"op {i}" for i in range(25, 60)]
        assert state.bad >= 1 and state.closed


def test_the_report_counts_damaged_events() -> None:
    timeline = read(LAYOUTS["kineto"](numbered(30)).replace('"op 11"', '"a"b"').replace('"op 20"', '"a"b"'))
    (issue,) = timeline.source.issues
    assert issue.check == "complete-file" and "2 events of invalid JSON" in issue.detail


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 5000), st.binary(max_size=30), st.integers(0, 60), st.sampled_from(CHUNKS))
def test_no_damage_raises_anything_but_a_trace_error(at: int, junk: bytes, gone: int, chunk_bytes: int) -> None:
    text = LAYOUTS["kineto"](numbered(20)).encode()
    at %= len(text)
    with contextlib.suppress(TraceError):
        kineto.read(Stream(io.BytesIO(text[:at] + junk + text[at + gone :])), "test", chunk_bytes)


# Limits


def test_more_than_the_limit_is_refused() -> None:
    data: bytes = LAYOUTS["compact"](EVENTS).encode()
    for file in (data, gzip.compress(data)):
        stream = Stream(io.BytesIO(file), max_bytes=len(data) - 1)
        with pytest.raises(TraceError, match="the limit") as error:
            kineto.read(stream, "test")
        assert "max_bytes" in error.value.hint
        assert kineto.read(Stream(io.BytesIO(file), max_bytes=len(data)), "test").source.bytes == len(data)


class _Zeros(io.RawIOBase):
    """A gzip file of nothing but blanks, as long as it is asked for."""

    def __init__(self) -> None:
        self.packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        self.blank = b" " * (8 << 20)

    def read(self, n: int = -1) -> bytes:
        return self.packer.compress(self.blank) + self.packer.flush(zlib.Z_SYNC_FLUSH)


def test_a_gzip_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.sources.stream.BOMB_FLOOR", 4 << 20)
    bomb: Any = _Zeros()
    with pytest.raises(TraceError, match="times its size") as error:
        kineto.read(Stream(bomb), "test")
    assert f"{DEFAULT_MAX_BYTES:,}" in error.value.hint
