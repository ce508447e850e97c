"""Threads that decode pieces of a large file while this one reads, decodes and merges others.

The decoder in C runs without the interpreter's lock, as do numpy and the unpackers, so that threads keep as many cores busy. What only
Python decodes they would decode in turns: for that there is `helper`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType

import msgspec

from advisor.sources.kineto.chunks import MOST_PENDING, QUEUED
from advisor.sources.kineto.transpose import Piece


class _Request(msgspec.Struct):
    piece: bytes
    answer: SimpleQueue[Piece | BaseException] = msgspec.field(default_factory=SimpleQueue)


class Threads:
    """`start` them once, then `submit` pieces while they are `free` and take each `result` in order."""

    def __init__(self, decode: Callable[[bytes], Piece]) -> None:
        self._decode = decode
        self._threads: list[Thread] = []
        self._waiting: SimpleQueue[_Request | None] = SimpleQueue()
        self._given: deque[_Request] = deque()
        self.closed = False

    def start(self, count: int) -> None:
        """Start so many, or as many as are of use, the first time this is called, unless they are closed."""
        if not self._threads and not self.closed:
            self._threads = [Thread(target=self._work, daemon=True) for _ in range(min(count, MOST_PENDING // QUEUED))]
            for thread in self._threads:
                thread.start()

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End them, each after the piece that it decodes; other pieces are lost."""
        self.closed = True
        with suppress(Empty):
            while True:
                self._waiting.get_nowait()
        threads, self._threads = self._threads, []
        for _ in threads:
            self._waiting.put(None)
        for thread in threads:
            thread.join()
        self._given.clear()

    @property
    def free(self) -> bool:
        """Whether they can take a piece now."""
        return len(self._given) < QUEUED * len(self._threads)

    @property
    def ready(self) -> bool:
        """Whether the oldest piece that they hold is done."""
        return bool(self._given) and not self._given[0].answer.empty()

    def submit(self, piece: bytes) -> bool:
        """Give them a piece."""
        request = _Request(piece)
        self._given.append(request)
        self._waiting.put(request)
        return True

    def result(self) -> Piece:
        """The columns of the oldest piece that they hold. Raises what its decoding raised."""
        found = self._given.popleft().answer.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def _work(self) -> None:
        while (request := self._waiting.get()) is not None:
            request.answer.put(self._decoded(request.piece))

    def _decoded(self, piece: bytes) -> Piece | BaseException:
        try:
            return self._decode(piece)
        except BaseException as error:  # whoever takes the result meets it
            return error
