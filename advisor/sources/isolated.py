"""Separate interpreters that work for this process, and their messages.

Fork is unsafe with threads of the caller. Multiprocessing's spawn runs the caller's script again, but a
script without a `__main__` guard, a notebook or a test may also run an analysis."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

_LENGTH = 8  # bytes of a message's length

# The directory of this copy of advisor comes after the standard library: nothing that lies beside it stands in for a module.
_FIND = (
    "import sys; _, count, *given = sys.argv; given, paths = given[:int(count)], given[int(count):]; "
    "at = next((i for i, p in enumerate(sys.path) if p.endswith('-packages')), len(sys.path)); "
    "sys.path[at:at] = paths[:1]; sys.path += paths[1:]; "
)
_SERVE = "from importlib import import_module; import_module(given[0]).serve()"


def interpreter(code: str, *given: str) -> list[str]:
    """The command that runs `code` in another interpreter, with `given` as the list of these texts.

    Isolated: neither the current directory nor the environment affects its search for modules. Whether it may write compiled modules
    next to their sources, which the environment may also decide, is taken from this process."""
    root = str(Path(__file__).parents[2])
    flags = ["-I", "-B"] if sys.dont_write_bytecode else ["-I"]
    return [sys.executable, *flags, "-c", _FIND + code, str(len(given)), *given, root, *_elsewhere(root)]


def start(module: str, stderr: int | IO[bytes] = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start `module.serve()` in an isolated interpreter, with pipes to its standard input and output. Raises OSError if it cannot."""
    return subprocess.Popen(interpreter(_SERVE, module), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, bufsize=0)


def end(process: subprocess.Popen[bytes]) -> None:
    """End it now; its request is lost, and nothing is left."""
    assert process.stdin and process.stdout
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


class Ended(Exception):
    """The process ended instead of answering. code: its exit code. said: its last line. late: whether it took too long, and was ended."""

    def __init__(self, code: int, said: str, late: bool) -> None:
        self.code, self.said, self.late = code, said or "it said nothing", late
        super().__init__(f"the process ended with {code}: {self.said}")


class Worker:
    """`module.serve()` in another interpreter, which answers requests in turn. It is started again after a request that ended it."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  as long as this

    def ask(self, request: bytes, limit_s: float | None = None) -> bytes:
        """The answer to a request. Raises Ended if the process ended on it, or had not answered in time and was ended."""
        if self._process is None:
            self._process = start(self._module, self._errors)
        process = self._process
        late = threading.Event()

        def time_out() -> None:
            late.set()
            process.kill()

        clock = threading.Timer(limit_s or 0, time_out)
        clock.daemon = True
        if limit_s is not None:
            clock.start()
        with suppress(OSError):
            send(process.stdin, request)
        answer = take(process.stdout)
        clock.cancel()
        if answer:
            return answer
        code = process.wait()
        self.close()
        raise Ended(code, self._last_words(), late.is_set())

    def close(self) -> None:
        """End it now; its request is lost."""
        process, self._process = self._process, None
        if process is not None:
            end(process)

    def _last_words(self) -> str:
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        self._errors.truncate(0)
        return said[-1] if said else ""


def _elsewhere(root: str) -> list[str]:
    """Other directories in which this process finds packages, without the current directory: a trace may be among anyone's files."""
    known = {"", os.getcwd(), root}
    return [path for path in sys.path if path not in known and os.path.isabs(path)]


def send(pipe: object, message: bytes) -> None:
    """Write a message. Raises OSError if nobody reads."""
    view = memoryview(len(message).to_bytes(_LENGTH, "little") + message)
    while view:
        view = view[pipe.write(view) :]  # type: ignore[attr-defined]


def take(pipe: object) -> bytes:
    """A message, b"" if the pipe has ended."""
    length = _exactly(pipe, _LENGTH)
    return _exactly(pipe, int.from_bytes(length, "little")) if length else b""


def _exactly(pipe: object, n: int) -> bytes:
    data = bytearray(n)
    view = memoryview(data)
    while view:
        got = pipe.readinto(view)  # type: ignore[attr-defined]
        if not got:
            return b""
        view = view[got:]
    return bytes(data)
