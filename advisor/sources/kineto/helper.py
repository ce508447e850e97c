"""A second process that decodes pieces of a large file while the first process decodes others.

It is a separate interpreter (`isolated`) that reads pieces from a pipe and answers in the same order. If it cannot be
started, or dies, the pieces are decoded here. It ends with its input, even if this process dies."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from types import TracebackType

from advisor.sources import isolated
from advisor.sources.isolated import send, take
from advisor.sources.kineto.chunks import QUEUED
from advisor.sources.kineto.events import MalformedError
from advisor.sources.kineto.transpose import Piece, decode_piece

# The most that Linux gives without privileges. A piece fits, or its columns, so that nobody waits while writing.
_PIPE_BYTES = 1 << 20
_READY, _MALFORMED, _FAILED = b"ready", b"malformed", b"failed"
_EXACT, _LENIENT = b"\1", b"\0"


class Helper:
    """The other process. `start` it once, then `submit` pieces while it is `free` and take each `result` in order."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.exact = False
        """Whether it reads times as text from the start."""
        self._started = self._greeted = False
        self._queued = 0

    def start(self) -> None:
        """Start it in the background, the first time this is called: it is free once it has its imports."""
        if self._started or os.name != "posix" or not sys.executable:
            return
        self._started = True
        with contextlib.suppress(OSError):
            self._process = isolated.start(__name__)
            assert self._process.stdin and self._process.stdout
            for pipe in (self._process.stdin, self._process.stdout):
                _widen(pipe.fileno())

    def __enter__(self) -> Helper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End it now and leave nothing; its pieces are lost."""
        process, self._process = self._process, None
        if process is not None:
            isolated.end(process)

    @property
    def closed(self) -> bool:
        """Whether it is gone; also before it starts."""
        return self._process is None

    @property
    def free(self) -> bool:
        """Whether it can take a piece now."""
        if self._process is None or self._queued >= QUEUED:
            return False
        if not self._greeted and self.ready:
            self._greeted = self._receive() == _READY
            if not self._greeted:
                self.close()
        return self._greeted

    @property
    def ready(self) -> bool:
        """Whether it has something to say, or never will."""
        import select

        if self._process is None:
            return True
        assert self._process.stdout
        return bool(select.select([self._process.stdout.fileno()], [], [], 0)[0])

    def submit(self, piece: bytes) -> bool:
        """Give it a piece; False if it is gone."""
        if self._process is None:
            return False
        try:
            send(self._process.stdin, (_EXACT if self.exact else _LENIENT) + piece)
        except OSError:
            return False
        self._queued += 1
        return True

    def result(self) -> Piece | None:
        """The columns of the oldest piece that it holds; None if it is gone. Raises MalformedError as decode_piece does."""
        answer = self._receive()
        self._queued -= 1
        if answer == _MALFORMED:
            raise MalformedError("not a sequence of JSON objects")
        if not answer or answer == _FAILED:
            return None
        return pickle.loads(answer)

    def _receive(self) -> bytes:
        return take(self._process.stdout) if self._process else b""


def serve() -> None:
    """Answer every piece on standard input until that ends."""
    import queue
    import signal
    import threading

    # Ctrl-C reaches both: the other process decides, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests: queue.Queue[bytes] = queue.Queue()
    source, sink = open(0, "rb", buffering=0), open(1, "wb", buffering=0)  # noqa: SIM115 - both until the end

    def listen() -> None:
        # Always reading, so that neither process can wait for the other to read.
        while request := take(source):
            requests.put(request)
        requests.put(b"")

    threading.Thread(target=listen, daemon=True).start()
    with contextlib.suppress(OSError):
        send(sink, _READY)
        while request := requests.get():
            send(sink, _answer(request))
    os._exit(0)


def _answer(request: bytes) -> bytes:
    try:
        return pickle.dumps(decode_piece(request[1:], request[:1] == _EXACT), protocol=5)
    except MalformedError:
        return _MALFORMED
    except Exception:  # whatever it is, the other process meets it too, and says so
        return _FAILED


def _widen(pipe: int) -> None:
    import fcntl

    with contextlib.suppress(OSError, AttributeError):  # Linux alone can, and it only saves waiting
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
