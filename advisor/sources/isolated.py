"""Interpreters of their own that work for this one, and the messages between them.

Neither fork, which threads of the caller make unsafe, nor multiprocessing's spawn, which runs the caller's script again: a
script without a `__main__` guard, a notebook or a test may analyse as well as the command line.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

_LENGTH = 8

# The directory of this copy of advisor comes after the standard library: nothing that lies beside it stands in for a module.
_START = (
    "import sys; at = next((i for i, p in enumerate(sys.path) if p.endswith('-packages')), len(sys.path)); "
    "sys.path[at:at] = sys.argv[2:3]; sys.path += sys.argv[3:]; "
    "from importlib import import_module; import_module(sys.argv[1]).serve()"
)


def start(module: str, stderr: int | IO[bytes] = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start `module.serve()` in another interpreter, with pipes to its standard input and output. Raises OSError where it cannot.

    Isolated: neither the current directory nor the environment says where its modules come from. Whether it may leave what it
    compiles beside them, which the environment may say too, this process says.
    """
    root = str(Path(__file__).parents[2])
    flags = ["-I", "-B"] if sys.dont_write_bytecode else ["-I"]
    return subprocess.Popen(
        [sys.executable, *flags, "-c", _START, module, root, *_elsewhere(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, bufsize=0
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """End it now; what it was asked is lost, and nothing is left behind."""
    assert process.stdin and process.stdout
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def _elsewhere(root: str) -> list[str]:
    """Where else this process finds packages, the current directory left out: a trace may lie among files of anyone."""
    known = {"", os.getcwd(), root}
    return [path for path in sys.path if path not in known and os.path.isabs(path)]


def send(pipe: object, message: bytes) -> None:
    """Write one message. Raises OSError where nobody reads."""
    view = memoryview(len(message).to_bytes(_LENGTH, "little") + message)
    while view:
        view = view[pipe.write(view) :]  # type: ignore[attr-defined]


def take(pipe: object) -> bytes:
    """One message, b"" where the pipe has ended."""
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
