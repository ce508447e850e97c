"""The command as a user types it, run in this process: what it writes and its exit code, without an interpreter's start for each."""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from advisor.cli import main


@dataclass
class Done:
    """As subprocess has it; bytes."""

    returncode: int
    stdout: bytes
    stderr: bytes


def advisor(*arguments: object, cwd: Path, stdin: bytes = b"", encoding: str = "utf-8", **environment: str) -> Done:
    """Run `advisor ARGUMENTS` in a directory; neither output is a terminal. encoding: what a user's locale makes of text."""
    given, out, err = (io.TextIOWrapper(io.BytesIO(data), encoding=encoding, write_through=True) for data in (stdin, b"", b""))
    here, terminated = Path.cwd(), signal.getsignal(signal.SIGTERM)
    with ExitStack() as undone:
        for name, stream in (("stdin", given), ("stdout", out), ("stderr", err), ("argv", ["advisor", *map(str, arguments)])):
            undone.enter_context(mock.patch.object(sys, name, stream))
        undone.enter_context(mock.patch.dict(os.environ, environment))
        undone.callback(os.chdir, here)
        undone.callback(signal.signal, signal.SIGTERM, terminated)
        os.chdir(cwd)
        code = _exit_code()
    return Done(code, out.buffer.getvalue(), err.buffer.getvalue())  # type: ignore[attr-defined]


def _exit_code() -> int:
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
