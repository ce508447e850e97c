"""Reading with a second process gives what reading with one does, and leaves no process behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import pytest

from advisor.errors import TraceError
from advisor.sources import kineto
from advisor.sources.kineto import native
from advisor.sources.kineto.helper import Helper
from advisor.sources.stream import Stream
from tests.benchmarks import generate
from tests.paths import slow, slowly
from tests.sources.kineto.in_pieces import CHUNK, assert_same, read


class Watched(Helper):
    """Waits until the other process is there, so that it gets its share of even a small file."""

    made: ClassVar[list[Watched]] = []

    def __init__(self) -> None:
        super().__init__()
        self.given = self.pid = 0
        Watched.made.append(self)

    def start(self) -> None:
        super().start()
        if self._process and not self.pid:
            self.pid = self._process.pid
            select.select([self._process.stdout], [], [])

    def submit(self, piece: bytes) -> bool:
        self.given += 1
        return super().submit(piece)


class Dying(Watched):
    """Dies while it holds pieces."""

    def submit(self, piece: bytes) -> bool:
        if self.given == 3:
            os.kill(self.pid, signal.SIGKILL)
        return super().submit(piece)


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    Watched.made.clear()
    monkeypatch.setattr(kineto, "Helper", Watched)
    monkeypatch.setattr(native, "DECODER", None)  # what it takes needs no help


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("generated") / "trace.json"
    generate.kineto(path, 2_000_000, stacks=True)
    return path.read_bytes()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def assert_helped(pieces: int = 10) -> None:
    (helper,) = [h for h in Watched.made if h.pid]
    assert helper.given >= pieces
    assert gone(helper.pid)


def test_two_processes_give_the_same_timeline(text: bytes) -> None:
    assert_same(read(text, 1), read(text, 2))
    assert_helped()


@pytest.mark.parametrize("layout", slowly(["compact", "indented"]))
def test_in_every_layout(layout: str, tmp_path: Path) -> None:
    generate.kineto(tmp_path / "trace.json", 2_000_000, layout)
    text = (tmp_path / "trace.json").read_bytes()
    assert_same(read(text, 1), read(text, 2))
    assert_helped()


@pytest.mark.parametrize("at", slowly([0.5, 0.2, 0.9]))
def test_invalid_json_in_the_middle(text: bytes, at: float) -> None:
    start = text.index(b'"ts"', int(at * len(text)))
    broken = text[:start] + b'"ts": oops' + text[start:]
    one = read(broken, 1)
    assert any("1 event of invalid JSON" in issue.detail for issue in one.source.issues)
    assert_same(one, read(broken, 2))
    assert_helped(1)


@slow
def test_a_separator_inside_an_event(tmp_path: Path) -> None:
    """A guess that is wrong costs nothing but time."""
    generate.kineto(tmp_path / "trace.json", 2_000_000, "compact")
    text = (tmp_path / "trace.json").read_bytes()
    nested = b'"args":{"x":[' + b",".join([b'{"ph":"X","cat":"a"}'] * 3000) + b"],"
    start = text.index(b'"args":{', len(text) // 2)
    odd = text[:start] + nested + text[start + len(b'"args":{') :]
    one = read(odd, 1)
    assert one.source.issues == ()
    assert_same(one, read(odd, 2))
    assert_helped()


@pytest.mark.parametrize("size", slowly([0.3, 0.7]))
def test_a_file_that_was_cut_off(text: bytes, size: float) -> None:
    cut = text[: int(size * len(text))]
    assert_same(read(cut, 1), read(cut, 2))
    assert_helped(5)


@slow
def test_times_too_large_for_floats(text: bytes) -> None:
    later = text.replace(b'"ts": 4346342', b'"ts": 17908570264346342')
    assert_same(read(later, 1), read(later, 2))
    assert_helped()


def test_the_helper_dies(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "Helper", Dying)
    assert_same(read(text, 1), read(text, 2))
    assert_helped(4)


@pytest.mark.parametrize("python", slowly(["/no/such/python", ""], quick=1))
def test_the_helper_cannot_start(text: bytes, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = read(text, 1)
    monkeypatch.setattr(sys, "executable", python)
    assert_same(one, read(text, 2))


@pytest.mark.parametrize("error", slowly([TraceError, KeyboardInterrupt]))
def test_nothing_is_left_behind(text: bytes, error: type[BaseException]) -> None:
    def stop(done: int, size: int | None) -> None:
        if done > len(text) // 2:
            raise error("stop")

    with pytest.raises(error):
        read(text, 2, stop)
    assert_helped(3)


def test_a_small_file_starts_no_process(text: bytes) -> None:
    kineto.read(Stream(BytesIO(text), len(text)), "trace.json", CHUNK, 2)
    assert not any(helper.pid for helper in Watched.made)


class Refusing:
    """Takes one piece in so many."""

    def __init__(self, one_in: int) -> None:
        self.given, self.one_in = 0, one_in

    def decode(self, text: bytes) -> Any:
        self.given += 1
        return (0, 0, 0, [], []) if self.given % self.one_in == 0 else None


@pytest.mark.parametrize("one_in, helped", slowly([(1, False), (2, False), (3, True)]))
def test_help_comes_where_the_decoder_in_c_gives_most_back(text: bytes, one_in: int, helped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "DECODER", Refusing(one_in))
    try:
        read(text, 2)
    except TraceError:
        assert one_in == 1, "it took all, and gave nothing"
    assert any(helper.pid for helper in Watched.made) == helped


def test_it_ends_when_its_input_does() -> None:
    helper = Helper()
    helper.start()
    process = helper._process
    assert process is not None and process.stdin is not None
    process.stdin.close()
    try:
        assert process.wait(60) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        raise
