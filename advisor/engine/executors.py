"""Where ranks are reduced: in this process, in others beside it, or on a Dask cluster. The summaries are the same."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from advisor.engine.reduce import Judging, Outcome, tried
from advisor.errors import UsageError, require
from advisor.sources import cores, isolated
from advisor.sources.paths import size_of
from advisor.sources.ranks import RankTrace


def check(executor: str) -> None:
    """Raises UsageError for an executor that does not exist."""
    if executor not in ("", "processes", "serial") and not executor.startswith("dask://"):
        raise UsageError(f"there is no executor {executor}", "Give processes, serial, or dask://HOST:PORT of a scheduler.")


def outcomes(executor: str, workers: int | None, traces: Sequence[RankTrace], judging: Judging) -> Iterable[tuple[int, Outcome]]:
    """Each trace's position with what became of it; in the order in which they are done.

    executor: "processes", `workers` of them, by default as many as there are cores; "serial"; "dask://HOST:PORT"; or "", which is processes
    unless the traces are small together and no `workers` were asked for. Raises UsageError for another one.
    """
    check(executor)
    if executor.startswith("dask://"):
        return _on_dask(executor, traces, judging)
    workers = min(len(traces), workers or (1 if not executor and _small(traces) else cores()))
    if executor == "serial" or workers < 2:
        return ((i, _here(trace, judging)) for i, trace in enumerate(traces))
    return _in_processes(workers, traces, judging)


def _here(trace: RankTrace, judging: Judging) -> Outcome:
    """The outcome of a trace in this process; what another one would have ended of costs no other rank."""
    try:
        return tried(trace, judging)
    except Exception as error:
        return Outcome(why=f"{type(error).__name__}: {error}")


SMALL_BYTES = 1 << 20
"""Traces of so much together are read in less time than other interpreters start."""


def _small(traces: Sequence[RankTrace]) -> bool:
    """Whether traces are known to be small together."""
    sizes = [size_of(trace.path) for trace in traces]
    return all(sizes) and sum(sizes) < SMALL_BYTES


class _Worker:
    """Another interpreter that reduces one trace after the other, started again after one that was its end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  as long as this

    def ask(self, request: bytes) -> Outcome:
        """The outcome of a request; what ended the process where it was its end."""
        if self._process is None:
            self._process = isolated.start(__name__, self._errors)
        process = self._process
        with contextlib.suppress(OSError):
            isolated.send(process.stdin, request)
        answer = isolated.take(process.stdout)
        if answer:
            outcome: Outcome = pickle.loads(answer)
            return outcome
        code = process.wait()
        self.close()
        return Outcome(why=self._last_words(code))

    def close(self) -> None:
        """End it now; what it was asked is lost."""
        process, self._process = self._process, None
        if process is not None:
            isolated.end(process)

    def _last_words(self, code: int) -> str:
        if code == -9:
            return "the process that read it was killed: the memory may not suffice; fewer at once take less (--workers)"
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        self._errors.truncate(0)
        return f"the process that read it ended with {code}: {said[-1] if said else 'it said nothing'}"


def _in_processes(count: int, traces: Sequence[RankTrace], judging: Judging) -> Iterator[tuple[int, Outcome]]:
    workers = [_Worker() for _ in range(count)]
    free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    for worker in workers:
        free.put(worker)

    def outcome(trace: RankTrace) -> Outcome:
        worker = free.get()
        try:
            return worker.ask(pickle.dumps((trace, judging), protocol=5))
        finally:
            free.put(worker)

    threads = ThreadPoolExecutor(count)
    try:
        position = {threads.submit(outcome, trace): i for i, trace in enumerate(traces)}
        for done in as_completed(position):
            yield position.pop(done), done.result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.close()


def serve() -> None:
    """Answer requests on standard input until that ends. What rules print goes to standard error: answers stand alone."""
    import signal

    # Ctrl-C reaches both: the other process decides, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(0, "rb", buffering=0, closefd=False) as source, open(os.dup(1), "wb", buffering=0) as sink:
        os.dup2(2, 1)
        while request := isolated.take(source):
            isolated.send(sink, pickle.dumps(tried(*pickle.loads(request)), protocol=5))


def _on_dask(address: str, traces: Sequence[RankTrace], judging: Judging) -> Iterator[tuple[int, Outcome]]:
    require("distributed", extra="fleet")
    from distributed import Client
    from distributed import as_completed as completed

    try:
        client = Client(address.replace("dask://", "tcp://"))
    except OSError as error:
        raise UsageError(f"no Dask scheduler answers at {address}: {error}", "Give the address that the scheduler prints when it starts.") from None
    with client:
        futures = client.map(tried, list(traces), judging=judging, pure=False)
        position = {future.key: i for i, future in enumerate(futures)}
        for future in completed(futures):
            failure = future.exception()
            yield position[future.key], Outcome(why=f"{type(failure).__name__}: {failure}") if failure else future.result()
            future.release()
