"""Threads that decode pieces of a large file while this one reads, decodes and merges others.

The decoder in C runs without the interpreter's lock, so that threads keep as many cores busy. Whatever needs the lock is done by the thread that
takes the results: threads that hand it to and fro take longer than one. What only Python decodes is for `helper`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Generic, TypeVar

import msgspec

from advisor.sources.kineto.chunks import MOST_PENDING, QUEUED
from advisor.sources.kineto.transpose import Piece

T = TypeVar("T")


class _Request(msgspec.Struct, Generic[T]):
    piece: bytes
    answer: SimpleQueue[T | Exception] = msgspec.field(default_factory=SimpleQueue)


class Threads(Generic[T]):
    """`start` them once, then `submit` pieces while they are `free` and take each `result` in order.

    `decode` is called in any thread, and `finish`, with a piece and what it was decoded to, in that of the caller."""

    def __init__(self, decode: Callable[[bytes], T], finish: Callable[[bytes, T], Piece]) -> None:
        self._decode, self._finish = decode, finish
        self._threads: list[Thread] = []
        self._waiting: SimpleQueue[_Request[T] | None] = SimpleQueue()
        self._given: deque[_Request[T]] = deque()
        self.closed = False

    def start(self, count: int) -> None:
        """Start so many, or as many as are of use and the system gives, the first time this is called, unless they are closed."""
        if self._threads or self.closed:
            return
        with suppress(RuntimeError):  # a container may limit its threads
            for _ in range(min(count, MOST_PENDING // QUEUED)):
                thread = Thread(target=self._work, daemon=True)
                thread.start()
                self._threads.append(thread)

    def __enter__(self) -> Threads[T]:
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
        """Whether they take pieces."""
        return bool(self._threads)

    @property
    def ready(self) -> bool:
        """Whether the oldest piece that they hold is decoded."""
        return bool(self._given) and not self._given[0].answer.empty()

    def submit(self, piece: bytes) -> bool:
        """Give them a piece, or decode it here if enough wait."""
        request: _Request[T] = _Request(piece)
        self._given.append(request)
        if self._waiting.qsize() < (QUEUED - 1) * len(self._threads):
            self._waiting.put(request)
        else:
            self._answer(request)
        return True

    def result(self) -> Piece:
        """The columns of the oldest piece that they hold. Raises what its decoding raised."""
        request = self._given.popleft()
        found = request.answer.get()
        if isinstance(found, Exception):
            raise found
        return self._finish(request.piece, found)

    def _work(self) -> None:
        while (request := self._waiting.get()) is not None:
            self._answer(request)

    def _answer(self, request: _Request[T]) -> None:
        try:
            request.answer.put(self._decode(request.piece))
        except Exception as error:  # whoever takes the result meets it
            request.answer.put(error)
