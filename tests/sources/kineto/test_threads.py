"""Reading with several threads gives what reading with one does, and leaves none behind."""

from __future__ import annotations

import json
import threading
import time
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import pytest

from advisor.errors import TraceError
from advisor.recordings.timeline import Timeline
from advisor.sources import kineto
from advisor.sources.kineto import native
from advisor.sources.kineto.chunks import MOST_PENDING, QUEUED, Text
from advisor.sources.kineto.events import MalformedError
from advisor.sources.kineto.threads import Threads
from advisor.sources.kineto.transpose import Piece
from advisor.sources.stream import Stream
from tests.benchmarks import generate
from tests.paths import sampled, samples, slow, slowly
from tests.sources.kineto.in_pieces import CHUNK, assert_same, read
from tests.sources.kineto.layouts import x

MANY = [2, 4]

installed = pytest.mark.skipif(native.DECODER is None, reason="trace_advisor_native is not installed")


class Watched(Threads[Any]):
    """Counts what it is given."""

    made: ClassVar[list[Watched]] = []
    given = most = count = 0

    def start(self, count: int) -> None:
        super().start(count)
        self.count = len(self._threads) or self.count
        if self not in Watched.made:
            Watched.made.append(self)

    def submit(self, piece: bytes) -> bool:
        self.given += 1
        self.most = max(self.most, len(self._given) + 1)
        return super().submit(piece)


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Any:
    Watched.made.clear()
    monkeypatch.setattr(kineto, "Threads", Watched)
    before = threading.active_count()
    yield
    assert threading.active_count() == before, "a thread is left"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("generated") / "trace.json"
    generate.kineto(path, 2_000_000, stacks=True)
    return path.read_bytes()


def assert_threaded(pieces: int = 10) -> None:
    assert sum(threads.given for threads in Watched.made) >= pieces
    assert all(threads.most <= MOST_PENDING + 1 for threads in Watched.made)


def assert_alike(text: bytes, pieces: int = 10) -> Timeline:
    one = read(text, 1)
    assert not Watched.made
    for processes in MANY:
        assert_same(one, read(text, processes))
    assert_threaded(pieces)
    return one


@installed
@pytest.mark.parametrize("layout", slowly(["kineto", "compact", "indented"], quick=1))
def test_several_threads_give_the_same_timeline(layout: str, tmp_path: Path) -> None:
    generate.kineto(tmp_path / "trace.json", 2_000_000, layout, stacks=layout == "kineto")
    assert_alike((tmp_path / "trace.json").read_bytes())
    assert [threads.count for threads in Watched.made] == [1, 3]


@installed
@pytest.mark.parametrize("path", sampled(samples("**/*.json.gz")), ids=lambda path: f"{path.parent.name}-{path.name[:40]}")
def test_every_trace(path: Path) -> None:
    def found(processes: int) -> Timeline | str:
        with path.open("rb") as file:
            try:
                return kineto.read(Stream(file, path.stat().st_size), "trace.json", CHUNK, processes, helped_from=0)
            except TraceError as error:
                return str(error)

    one, four = found(1), found(4)
    if isinstance(one, str) or isinstance(four, str):
        assert one == four
    else:
        assert_same(one, four)


@installed
@pytest.mark.parametrize("at", slowly([0.5, 0.2, 0.9], quick=1))
def test_invalid_json_in_the_middle(text: bytes, at: float) -> None:
    start = text.index(b'"ts"', int(at * len(text)))
    one = assert_alike(text[:start] + b'"ts": oops' + text[start:], 5)
    assert any("1 event of invalid JSON" in issue.detail for issue in one.source.issues)


@installed
def test_a_piece_in_the_middle_that_only_python_takes(text: bytes) -> None:
    start = text.index(b'"ts"', len(text) // 2)
    assert_alike(text[:start] + b'"name": "twice", ' + text[start:])


@installed
def test_many_pieces_that_only_python_takes(text: bytes) -> None:
    """Threads would decode them in turns."""
    start = text.index(b'"ts"', len(text) // 4)
    assert_alike(text[:start] + text[start:].replace(b'"ts"', b'"name": "twice", "ts"'), 2)
    assert all(threads.closed for threads in Watched.made)


@installed
@pytest.mark.parametrize("at", slowly([0.5, 0.2, 0.9], quick=1))
def test_times_too_large_for_floats_from_the_middle_on(text: bytes, at: float) -> None:
    """What was decoded ahead before that was known is decoded anew."""
    start = text.index(b'"ts"', int(at * len(text)))
    odd = text[start:].replace(b'"ts": 4346342', b'"ts": 17908570264346342', 1).replace(b'"dur": 1', b'"dur": 0.0005, "x": 1')
    assert_alike(text[:start] + odd, 5)


@slow
@installed
def test_a_separator_inside_an_event(tmp_path: Path) -> None:
    generate.kineto(tmp_path / "trace.json", 2_000_000, "compact")
    text = (tmp_path / "trace.json").read_bytes()
    nested = b'"args":{"x":[' + b",".join([b'{"ph":"X","cat":"a"}'] * 3000) + b"],"
    start = text.index(b'"args":{', len(text) // 2)
    one = assert_alike(text[:start] + nested + text[start + len(b'"args":{') :])
    assert one.source.issues == ()


@installed
@pytest.mark.parametrize("size", slowly([0.3, 0.7], quick=1))
def test_a_file_that_was_cut_off(text: bytes, size: float) -> None:
    assert_alike(text[: int(size * len(text))], 5)


@installed
@pytest.mark.parametrize("error", slowly([TraceError, KeyboardInterrupt], quick=2))
def test_nothing_is_left_behind(text: bytes, error: type[BaseException]) -> None:
    def stop(done: int, size: int | None) -> None:
        if done > len(text) // 2:
            raise error("stop")

    for processes in MANY:
        with pytest.raises(error):
            read(text, processes, stop)
    assert_threaded(3)


@installed
def test_a_small_file_starts_no_thread(text: bytes) -> None:
    kineto.read(Stream(BytesIO(text), len(text)), "trace.json", CHUNK, 4)
    assert not Watched.made


def test_without_the_decoder_in_c_there_are_none(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "DECODER", None)
    read(text[: len(text) // 4], 1)
    stream = Stream(BytesIO(text), len(text))
    kineto.read(stream, "trace.json", CHUNK, 4)
    assert not Watched.made


# --- alone --------------------------------------------------------------------------------------------------------------

TEXT = b'{"traceEvents": [' + b",\n".join(b'{"a": %d}' % i for i in range(40_000)) + b"]}"


class Numbered:
    """Decodes a piece to the number of its first event, some in more time than others."""

    def __init__(self) -> None:
        self.begun = self.taken = self.most = 0

    def __call__(self, text: bytes) -> int:
        self.begun += 1
        self.most = max(self.most, self.begun - self.taken)
        time.sleep(0.001 * (self.begun % 3))
        return int(text[text.index(b": ") + 2 : text.index(b"}")])

    def finish(self, text: bytes, number: int) -> Piece:
        assert threading.current_thread() is threading.main_thread()
        self.taken += 1
        return Piece(events=number)


def events_in(text: bytes) -> int:
    return text.count(b"{")


def counted(text: bytes, events: int) -> Piece:
    return Piece(events=events)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_pieces_come_in_order_and_few_wait(count: int) -> None:
    decode = Numbered()
    with Threads(decode, decode.finish) as threads:
        threads.start(count)
        assert len(threads._threads) <= MOST_PENDING // QUEUED
        pieces = Text(BytesIO(TEXT).read, 4096).decoded(lambda text: decode.finish(text, decode(text)), threads)
        found = [piece.events for piece in pieces]
    assert len(found) > 100 and found == sorted(set(found))
    assert decode.most <= MOST_PENDING + 1


def test_what_a_thread_raises_is_raised_here() -> None:
    def decode(text: bytes) -> int:
        if b'"a": 15000}' in text:
            raise ZeroDivisionError
        return 1

    taken = 0
    with pytest.raises(ZeroDivisionError), Threads(decode, counted) as threads:
        threads.start(3)
        for _ in Text(BytesIO(TEXT).read, 4096).decoded(lambda text: Piece(events=1), threads):
            taken += 1
    assert taken > 30


@pytest.mark.parametrize("where", ["decode", "finish"])
def test_a_piece_that_a_thread_cannot_read_is_given_back(where: str) -> None:
    def refuse(text: bytes) -> None:
        if b'"a": 15000}' in text:
            raise MalformedError

    def decode(text: bytes) -> int:
        return (where == "decode" and refuse(text)) or events_in(text)

    def finish(text: bytes, events: int) -> Piece:
        return (where == "finish" and refuse(text)) or Piece(events=events)

    with Threads(decode, finish) as threads:
        threads.start(3)
        text = Text(BytesIO(TEXT).read, 4096)
        assert sum(piece.events for piece in text.decoded(lambda text: Piece(events=events_in(text)), threads)) == 40_000
        assert text.whole and not text.bad


def test_closed_threads_give_their_pieces_back() -> None:
    found = 0
    with Threads(events_in, counted) as threads:
        threads.start(3)
        for piece in Text(BytesIO(TEXT).read, 4096).decoded(lambda text: Piece(events=events_in(text)), threads):
            found += piece.events
            if found > 10_000:
                threads.close()
                threads.start(3)
                assert not threads.free and not threads._threads
    assert found == 40_000


def test_others_decode_after_those_that_closed_with_nothing_left() -> None:
    class AtOnce(Threads[int]):
        """A thread that is done with a piece when it was given."""

        @property
        def ready(self) -> bool:
            while self._given and self._given[0].answer.empty():
                time.sleep(0)
            return super().ready

    taken: list[int] = []
    found = 0
    with AtOnce(events_in, counted) as threads, Threads(events_in, lambda text, events: taken.append(events) or Piece(events=events)) as others:
        threads.start(1)
        for piece in Text(BytesIO(TEXT).read, 4096).decoded(lambda text: Piece(events=events_in(text)), threads, others):
            found += piece.events
            if found > 10_000:
                threads.close()
                others.start(1)
    assert found == 40_000
    assert sum(taken) > 20_000


@pytest.mark.parametrize("given", [0, 1])
def test_a_system_that_gives_few_threads(given: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if len(threads._threads) >= given:
            raise RuntimeError("can't start new thread")
        start(thread)

    with Threads(events_in, counted) as threads:
        monkeypatch.setattr(threading.Thread, "start", limited)
        threads.start(3)
        assert len(threads._threads) == given
        assert sum(piece.events for piece in Text(BytesIO(TEXT).read, 4096).decoded(lambda text: Piece(events=events_in(text)), threads)) == 40_000


@installed
def test_a_decoder_that_is_busy_gives_the_piece_back() -> None:
    """The same decoder in several threads: each piece is decoded as it would be alone, or not at all."""
    decoder = native._made()
    events = json.dumps([x("cpu_op", f"op {i}", i) for i in range(5000)])[1:-1].encode()
    expected = decoder.decode(events)
    found: list[Any] = []
    several = [threading.Thread(target=lambda: found.extend(decoder.decode(events) for _ in range(20))) for _ in range(4)]
    for thread in several:
        thread.start()
    for thread in several:
        thread.join()
    assert len(found) == 80 and all(one is None or one == expected for one in found)
