"""Answers to an agent, made in a process of their own: one that never comes ends with that process, and the server answers on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from advisor.engine.settings import OWN_RULES
from advisor.errors import AdvisorError, TraceError, UsageError
from advisor.integrations.mcp_tools import tools_of
from advisor.knowledge.patience import HEARD_S
from advisor.sources import isolated

ANSWER_S = 120.0
"""A trace of a million events takes some ten seconds, and clients wait for a minute or a few."""


class _Request(msgspec.Struct):
    root: bytes
    tool: str
    arguments: dict[str, str | int]
    limit_s: float


class _Answer(msgspec.Struct):
    text: str = ""
    message: str = ""
    """The error of a request, and in `hint` its remedy."""
    hint: str = ""


class Answers:
    """The tools' answers about the files below `root`, one at a time."""

    def __init__(self, root: Path, limit_s: float = ANSWER_S) -> None:
        if not 0 < limit_s <= threading.TIMEOUT_MAX:
            raise UsageError(f"{limit_s:g} seconds are no limit", "Give a number above 0.")
        self._root = root
        self._limit_s = limit_s
        self._turn = threading.Lock()
        self._worker = isolated.Worker(__name__)

    def answer(self, tool: str, arguments: Mapping[str, str | int]) -> str:
        """A tool's answer. Raises UsageError or TraceError if it has none, TraceError where it took too long."""
        request = msgspec.json.encode(_Request(os.fsencode(self._root), tool, dict(arguments), self._limit_s))
        try:
            with self._turn:
                reply = self._worker.ask(request, self._limit_s)
        except isolated.Ended as ended:
            if ended.late:
                hint = "Ask about a smaller trace, or raise --limit-s of the server."
                raise TraceError(f"{tool} had no answer after {self._limit_s:g} seconds, and was ended", hint) from None
            if ended.code == -signal.SIGKILL:
                raise TraceError(f"{tool} was killed: the memory may not suffice", "Ask about a smaller trace.") from None
            raise
        answer = msgspec.json.decode(reply, type=_Answer)
        if answer.message:
            raise TraceError(answer.message, answer.hint)
        return answer.text

    def close(self) -> None:
        """End the process."""
        self._worker.close()


def serve() -> None:
    """Answer requests on standard input until that ends."""
    os.environ[OWN_RULES] = "no"  # a folder of traces may hold settings that name code
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both, and the server ends this one
    tools = cache(lambda root: {tool.__name__: tool for tool in tools_of(Path(os.fsdecode(root)))})
    with open(0, "rb", buffering=0, closefd=False) as source, open(os.dup(1), "wb", buffering=0) as sink:
        os.dup2(2, 1)
        while request := isolated.take(source):
            asked = msgspec.json.decode(request, type=_Request)
            signal.setitimer(signal.ITIMER_REAL, asked.limit_s + HEARD_S)  # the server may have been killed before it ended this process
            try:
                answer = _Answer(tools(asked.root)[asked.tool](**asked.arguments))
            except AdvisorError as error:
                answer = _Answer(message=error.message, hint=error.hint)
            signal.setitimer(signal.ITIMER_REAL, 0)
            isolated.send(sink, msgspec.json.encode(answer))
