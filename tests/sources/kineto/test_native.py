"""The decoder in C gives, column by column, what msgspec and Python give; what is not regular it gives back."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.errors import TraceError
from advisor.recordings.extension import SWITCH
from advisor.recordings.timeline import TABLES, Timeline
from advisor.sources import kineto
from advisor.sources.kineto import native
from advisor.sources.kineto.chunks import Text
from advisor.sources.kineto.events import MalformedError
from advisor.sources.kineto.transpose import Piece, decode_in_c, decode_in_python
from advisor.sources.stream import Stream
from tests.benchmarks import generate
from tests.paths import ROOT, examples, sampled, samples, shared_files, slowly
from tests.sources.kineto.compare import assert_same_piece
from tests.sources.kineto.layouts import EVENTS, LAYOUTS, x

installed = pytest.mark.skipif(native.DECODER is None, reason="trace_advisor_native is not installed")

LARGE_BYTES = 20_000_000
"""Packed. One of the shared traces is larger, and holds nothing that the others do not: half a minute of the same."""


def small(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if path.stat().st_size < LARGE_BYTES]


FILES = [
    *sampled(small(samples("**/*.json.gz"))),
    *slowly(small(shared_files("public/kineto/**/*.json.gz"))),
    *slowly(small(shared_files("corpus/kineto/*.json.gz"))),
    *slowly(small(shared_files("hostile/**/*.json*"))),
]


def python(piece: bytes) -> Piece | None:
    """The piece without the decoder in C; None where nothing can be read."""
    try:
        return decode_in_python(piece)
    except MalformedError:
        return None


def assert_alike(piece: bytes) -> bool:
    """Both decoders give the same of a piece; whether the one in C took it."""
    return _assert_gives(piece, python(piece))


def _assert_gives(piece: bytes, expected: Piece | None) -> bool:
    found = decode_in_c(piece)
    if found is not None:
        assert expected is not None, piece
        assert_same_piece(found, expected)
    return found is not None


def text_of(*events: dict[str, Any]) -> bytes:
    return ",".join(json.dumps(event) for event in events).encode()


# --- what it takes ------------------------------------------------------------------------------------------------------


@installed
def test_a_piece_worked_out_by_hand() -> None:
    decoded = native.decode(
        text_of(
            {**x("kernel", "k", 4346407436942.376, 2.5, 0, 7), "args": {"grid": [4, 2], "correlation": 18446744073709551615}},
            {"ph": "s", "id": 1, "pid": 1, "tid": 2, "ts": 3, "cat": "ac2g", "name": "ac2g"},
            {**x("kernel", 'a "b" \\ \u00e9', 5, -1, 0, 8), "args": {"stream": None, "correlation": 3, "dtype": ""}},
            x("Trace", "P", 1),
        )
    )
    assert decoded is not None
    assert (decoded.events, decoded.bad_durations, decoded.categories) == (4, 1, Counter({"Trace": 1}))
    ((table, times, fields),) = decoded.tables
    assert table == "gpu_ops"
    assert [column.tolist() for column in times.values()] == [[4346407436942376, 5000], [2500, 0]]  # type: ignore[union-attr]
    assert fields.integers("correlation").tolist() == [-1, 3] and fields.integers("registers").tolist() == [-1, -1]
    assert fields.optional("stream").tolist() == [-(1 << 63)] * 2 and fields.integers("tid").tolist() == [7, 8]
    assert np.isnan(fields.floats("occupancy")).all()
    for field, values in {"name": ["k", 'a "b" \\ é'], "grid": ["[4, 2]", ""], "dtype": ["", ""], "cat": ["kernel", "kernel"]}.items():
        assert fields.texts(field).rows() == values


@installed
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_taken(layout: str) -> None:
    text = Text(Stream(io.BytesIO(LAYOUTS[layout](EVENTS * 3).encode())).read, 1 << 20)
    assert all([*text.decoded(assert_alike)])


@installed
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name[:40]}")
def test_every_piece_of_every_trace(path: Path) -> None:
    with path.open("rb") as file:
        stream = Stream(file)
        try:
            text = Text(stream.read, 1 << 19)
            taken = [*text.decoded(_alike_or_malformed)]
        except TraceError:
            return
    if path.is_relative_to(ROOT / "samples"):
        assert all(taken), "recorded traces are regular"


def _alike_or_malformed(piece: bytes) -> bool:
    expected = python(piece)
    taken = _assert_gives(piece, expected)
    if expected is None:
        raise MalformedError
    return taken


# --- what is odd --------------------------------------------------------------------------------------------------------

OP = x("cpu_op", "op", 5, 1.5, **{"External id": 3})
ODD_ARGS = {
    "escapes": ({"Call stack": 'a\\b"c\n\t\b\f\r/', "kernel_file": "\u2603\u00e9\x00"}, True),
    "a surrogate pair": ({"Call stack": "\U0001f600"}, False),
    "beyond int64": ({"External id": (1 << 64) - 1, "Sequence number": 1 << 63}, False),
    "beyond uint64": ({"External id": 1 << 64}, False),
    "the largest": ({"External id": (1 << 63) - 1}, True),
    "wraps": ({"External id": (1 << 64) - 1}, True),
    "the smallest": ({"External id": -(1 << 63)}, False),
    "hundreds of digits": ({"External id": 10**400}, False),
    "a float for an integer": ({"External id": 3.0}, False),
    "text for an integer": ({"External id": "3"}, False),
    "a list for an integer": ({"External id": [3]}, False),
    "true": ({"External id": True}, False),
    "null": ({"External id": None, "Call stack": None, "Input Dims": None, "Src Rank": None}, True),
    "a number for text": ({"Call stack": 3}, False),
    "a number for a label": ({"Src Rank": 3, "Process Group Ranks": "[0, 3]"}, True),
    "a float for a label": ({"Src Rank": 3.5}, False),
    "text for a label": ({"Dst Rank": "3"}, True),
    "odd fields of other tables": ({"stream": "seven", "device": 1.5, "graph id": "x", "copy kind": 3}, True),
    "unknown fields": ({"x": {"a": [{"b": [1, -0.5e-7, True, None, "\u2603"]}]}, "": 1}, True),
    "nested arguments": ({"Input Dims": [[8, 504], [], [[2, 3], [4]]], "Concrete Inputs": ["[1, \"}, {\\\"ph\\\"\"]", ""]}, True),
    "both spellings": ({"Input dims": [[2]], "Input Dims": [[1]], "external id": 9}, True),
    "deep": ({"Input Dims": json.loads("[" * 60 + "]" * 60)}, True),
    "too deep": ({"Input Dims": json.loads("[" * 64 + "]" * 64)}, False),
    "an event's keys": ({"ph": "M", "ts": "x", "name": "n", "args": {}}, True),
}  # fmt: skip


@installed
@pytest.mark.parametrize("odd", ODD_ARGS)
@pytest.mark.parametrize("category", ["cpu_op", "kernel", "other"])
def test_odd_arguments(odd: str, category: str) -> None:
    args, taken = ODD_ARGS[odd]
    found = assert_alike(text_of(OP, {**OP, "cat": category, "args": args}, OP))
    assert found == taken or category != "cpu_op"


X = '{"ph":"X","cat":"cpu_op","name":"n","pid":1,"tid":2,"ts":5,"dur":1'
ODD_TEXTS = {
    "a duplicate key": (X + ',"ts":6}', False),
    "a duplicate of an unknown key": (X + ',"x":6,"x":7}', True),
    "duplicate arguments": (X + ',"args":{},"args":{}}', False),
    "a duplicate argument": (X + ',"args":{"Call stack":"a","Call stack":"b"}}', False),
    "arguments null": (X + ',"args":null}', False),
    "arguments a list": (X + ',"args":[]}', False),
    "arguments empty": (X + ',"args":{ }}', True),
    "an escaped key": (X + ',"args":{"Call\\u0020stack":"a"}}', False),
    "NaN": (X.replace('"dur":1', '"dur":NaN') + "}", False),
    "C's NaN": (X.replace('"dur":1', '"dur":-nan') + "}", False),
    "C's infinity in an argument": (X + ',"args":{"External id":3,"x":inf,"Sequence number":-inf}}', False),
    "Infinity": (X.replace("5", "Infinity") + "}", False),
    "no time": (X.replace('"ts":5,', "") + "}", False),
    "no duration": (X.replace(',"dur":1', "") + "}", True),
    "a duration null": (X.replace('"dur":1', '"dur":null') + "}", False),
    "a duration below zero": (X.replace('"dur":1', '"dur":-0.001') + "}", True),
    "a duration of eight days": (X.replace('"dur":1', '"dur":691200000000.5') + "}", True),
    "a time as text": (X.replace("5", '"5"') + "}", False),
    "a time of 2^43": (X.replace("5", "8796093022208.5") + "}", False),
    "a whole time of 2^43": (X.replace("5", "8796093022208") + "}", True),
    "a time of 9e15": (X.replace("5", "9000000000000000") + "}", False),
    "a time below zero": (X.replace("5", "-4346407436942.3765") + "}", True),
    "an exponent": (X.replace("5", "4.346407436942376e+12") + "}", True),
    "an exponent too large": (X.replace("5", "1e999") + "}", False),
    "an exponent too small": (X.replace("5", "1e-999") + "}", True),
    "thirty decimals": (X.replace("5", "4346407436942.376000000000000000000000000001") + "}", True),
    "half to even": (X.replace("5", "0.0005") + "}", True),
    "minus nothing": (X.replace("5", "-0") + "}", False),
    "minus nothing point nothing": (X.replace("5", "-0.0") + "}", True),
    "a leading zero": (X.replace("5", "05") + "}", False),
    "a leading point": (X.replace("5", ".5") + "}", False),
    "a trailing point": (X.replace("5", "5.") + "}", False),
    "a plus": (X.replace("5", "+5") + "}", False),
    "hexadecimal": (X.replace("5", "0x5") + "}", False),
    "no phase": (X.replace('"ph":"X",', "") + "}", False),
    "a phase of two": (X.replace('"X"', '"XX"') + "}", False),
    "no phase's text": (X.replace('"X"', '""') + "}", False),
    "a phase null": (X.replace('"X"', "null") + "}", False),
    "a begin": (X.replace('"X"', '"B"') + "}", False),
    "a phase that nobody knows": (X.replace('"X"', '"~"') + "}", True),
    "no category": (X.replace('"cat":"cpu_op",', "") + "}", False),
    "a category null": (X.replace('"cpu_op"', "null") + "}", False),
    "a category that nobody knows": (X.replace("cpu_op", "cpu_op ") + "}", False),
    "a queue": (X.replace("cpu_op", "mtia_ccp_events") + "}", False),
    "no name": (X.replace('"name":"n",', "") + "}", True),
    "a name null": (X.replace('"n"', "null") + "}", True),
    "a name that is a number": (X.replace('"n"', "3") + "}", False),
    "a process that is text": (X.replace('"pid":1', '"pid":"1"') + "}", False),
    "a process that is null": (X.replace('"pid":1', '"pid":null') + "}", True),
    "no process": (X.replace('"pid":1,', "") + "}", True),
    "a control character": (X.replace('"n"', '"\n"') + "}", False),
    "an escape that is none": (X.replace('"n"', '"\\x"') + "}", False),
    "half an escape": (X.replace('"n"', '"\\u12"') + "}", False),
    "half a pair": (X.replace('"n"', '"\\ud800"') + "}", False),
    "half a pair that nobody takes": (X + ',"x":"\\ud800"}', False),
    "a true that is none": (X + ',"x":tru}', False),
    "a comma too many": (X + ",}", False),
    "a comma too many in a list": (X + ',"x":[1,]}', False),
    "brackets crossed": (X + ',"x":[{]}}', False),
    "no colon": (X + ',"x" 1}', False),
    "a comment": (X + ",/**/}", False),
    "blanks everywhere": (X.replace(":", " \t\r\n: ").replace(",", " \r\n,\t") + " \n}", True),
    "no end": (X, False),
    "a bracket that closes the list": (X + "}]", False),
    "no events": ("", False),
    "an event that is a number": (X + "},3", False),
    "an empty event": (X + "},{}", False),
    "a trailing comma": (X + "},", False),
    "two without a comma": (X + "}" + X + "}", False),
    "memory": (X.replace('"X"', '"i"').replace('"n"', '"[memory]"') + ',"args":{"Bytes":-5,"Addr":18446744073709551615}}', True),
    "a thread": (X.replace('"X"', '"M"').replace('"n"', '"thread_name"') + ',"args":{"name":"t"}}', True),
    "a thread that is text": (X.replace('"X"', '"M"').replace('"n"', '"thread_name"').replace('"tid":2', '"tid":"2"') + ',"args":{"name":"t"}}', True),
    "a thread's name that is a number": (X.replace('"X"', '"M"').replace('"n"', '"thread_name"') + ',"args":{"name":17}}', True),
}


OCCUPANCY = native._ARGS["occupancy"]


@installed
@pytest.mark.parametrize("odd", ODD_TEXTS)
def test_odd_texts(odd: str) -> None:
    text, taken = ODD_TEXTS[odd]
    for piece in (text, f"{text_of(OP).decode()},{text}", f"{text},{text_of(OP).decode()}"):
        found = assert_alike(piece.encode())
        assert found == taken or piece != text, piece


@installed
@pytest.mark.parametrize("where", ['"n"', '"x":"n"', '"args":{"Call stack":"n"}', '"args":{"Input Dims":["n"]}', '"args":{"x":{"n":["n"]}}', '"n":1'])
@pytest.mark.parametrize("bad", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x98", b"\x80", b"\xe2\x98\x83", b"\xf0\x9f\x98\x80"])
def test_bytes_that_are_not_utf8(where: str, bad: bytes) -> None:
    text = X.replace('"n"', where) + "}" if where == '"n"' else f"{X},{where}}}"
    assert_alike(text.encode().replace(b'n"', bad + b'"', 9))


@installed
@pytest.mark.parametrize("rows", [1, 1023, 1024, 1025, 5000])
def test_columns_that_start_late(rows: int) -> None:
    """What was not recorded is numbered where it is first met, however many rows came before."""
    some = [x("cpu_op", f"op {i % 7}", i) for i in range(rows)]
    late = {**OP, "args": {"Call stack": "s", "Input Dims": [[1]], "Sequence number": 4, "Src Rank": 1}}
    for events in ([*some, late], [late, *some], [*some, late, *some, late]):
        assert assert_alike(text_of(*events))


@installed
def test_more_keys_than_it_remembers_and_more_texts_than_fit() -> None:
    events = [{**OP, "name": f"name {i}", "args": {f"key {i}": i, "External id": i}} for i in range(20_000)]
    assert assert_alike(text_of(*events)) and assert_alike(text_of(OP, *EVENTS))


@installed
def test_names_that_were_made_to_meet_in_one_place_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table of texts would take time in proportion to their number, for each of them: its hash is no secret."""
    numbers = np.arange(3_000_000)
    letters = np.stack([ord("a") + numbers // 26**place % 26 for place in range(8)], axis=1).astype(np.uint8)
    odd, half = 0x9E3779B97F4A7C15, np.uint64(0xFFFFFFFF)
    one, other = (letters.view(np.uint64)[:, 0] ^ np.uint64(mask) for mask in (odd, ~(8 * odd) % 2**64))
    (high, low), (above, below) = ((word >> np.uint64(32), word & half) for word in (one, other))
    middle = high * below + (low * below >> np.uint64(32))
    hashes = one * other ^ (high * above + (middle >> np.uint64(32)) + ((middle & half) + low * above >> np.uint64(32)))  # both halves of 128 bits
    meeting = letters[hashes % np.uint64(4096) == 0][:600]
    names = [bytes(name).decode() for name in meeting]
    assert len(names) == 600
    monkeypatch.setattr(native, "DECODER", native._made())  # whose table has not grown
    assert not assert_alike(text_of(*(x("cpu_op", name, 1) for name in names)))
    assert assert_alike(text_of(*(x("cpu_op", name, 1) for name in names[:500])))


@installed
@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(["", "-"]), st.integers(0, 1 << 44) | st.sampled_from([(1 << 43) - 1, 1 << 43]), st.from_regex(r"(\.[0-9]{1,5})?", fullmatch=True))
def test_times_of_any_length(sign: str, us: int, decimals: str) -> None:
    assert_alike(X.replace('"ts":5', f'"ts":{sign}{us}{decimals}').encode() + b"}")


NUMBERS = [
    st.from_regex(r"-?(0|[1-9][0-9]{0,19})\.[0-9]{1,20}", fullmatch=True),
    st.from_regex(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,18})?[eE][+-]?[0-9]{1,2}", fullmatch=True),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.builds(lambda half, decimals: f"{half}.{'0' * decimals}", st.integers(1 << 52, 1 << 53).map(lambda whole: 2 * whole + 1), st.integers(1, 3)),
]
"""Floats of up to 19 digits and of more, with exponents and without, and those in the middle of two."""


@installed
@settings(max_examples=examples(1000), deadline=None)
@given(st.lists(st.one_of(NUMBERS), min_size=1, max_size=20))
def test_floats_are_the_nearest(numbers: list[str]) -> None:
    decoded = native._made().decode(",".join(X.replace("cpu_op", "kernel") + f',"args":{{"{OCCUPANCY}":{number}}}}}' for number in numbers).encode())
    assert (decoded is None) == any(np.isinf(float(number)) or len(number) > 63 for number in numbers)
    if decoded is not None:
        ((_, _, columns),) = decoded[3]
        assert columns[native._NUMBER["occupancy"]] == np.array([float(number) for number in numbers]).tobytes()


@installed
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_bytes_changed_anywhere(data: st.DataObject) -> None:
    text = bytearray(LAYOUTS[data.draw(st.sampled_from(["kineto", "compact"]))](EVENTS).encode())
    text = text[text.index(b'"traceEvents"') :]
    text = text[text.index(b"{") : text.rindex(b"]")]
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.sampled_from([b"", b'"', b"\\", b"{", b"}", b"[", b",", b"0", b"e", b".", b"\xff", b" ", b"-"])
        )
    assert_alike(bytes(text).rstrip())


@installed
def test_every_place_to_stop() -> None:
    """Cut anywhere, and with only so many bytes behind it: nothing is read beyond the end."""
    text = text_of(*EVENTS)
    for at in range(len(text)):
        assert native.decode(text[:at]) is None or assert_alike(text[:at])
        native.decode(text[at:])


# --- where it is not ----------------------------------------------------------------------------------------------------


def timeline(text: bytes) -> Timeline:
    return kineto.read(Stream(io.BytesIO(text)), "test", 1 << 16)


@installed
def test_a_trace_is_the_same_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate.kineto(tmp_path / "trace.json", 2_000_000, stacks=True)
    text = (tmp_path / "trace.json").read_bytes()
    with_it = timeline(text)
    monkeypatch.setattr(native, "DECODER", None)
    without = timeline(text)
    assert with_it.source == without.source
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(with_it, name).to_pandas(), getattr(without, name).to_pandas())


@pytest.mark.parametrize("why", slowly(["switched off", "missing", "of another version"]))
def test_without_it_nothing_is_said(why: str, tmp_path: Path) -> None:
    environment = {**os.environ, SWITCH: "no" if why == "switched off" else "yes", "PYTHONPATH": str(ROOT)}
    if why != "switched off":
        code = "raise ImportError" if why == "missing" else "VERSION, Decoder, replay = 0, None, None"
        (tmp_path / "trace_advisor_native.py").write_text(code)
        environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{ROOT}"
    code = "from advisor.sources.kineto import native; from advisor.views.replay.simulate import EXTENSION; print(native.DECODER, EXTENSION)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("None None\n", "")


@installed
def test_what_is_no_schema_is_refused() -> None:
    decoder = type(native._made())
    for schema in (
        (),
        ([("a", "t")] * 65, [], [], [], [], "", 1.0, 1.0, 1),
        ([], [], [], [("a", 3)], [], "", 1.0, 1.0, 1),
        ([], [3], [], [], [], "", 1.0, 1.0, 1),
    ):
        with pytest.raises((ValueError, TypeError, SystemError)):
            decoder(*schema)
    with pytest.raises(TypeError):
        native.DECODER.decode("text")
