"""Where ranks are reduced: in this process, in others next to it, or on a Dask cluster. The summaries are the same."""

from __future__ import annotations

import os
import pickle
import queue
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from typing import Any

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
    """Each trace's position and outcome, in order of completion.

    executor: "processes" with `workers` (default: the number of cores); "serial"; "dask://HOST:PORT"; or "", which is processes unless the traces
    are small and `workers` is not given. Raises UsageError for other values.
    """
    check(executor)
    if executor.startswith("dask://"):
        return _on_dask(executor, traces, judging)
    workers = min(len(traces), workers or (1 if not executor and _small(traces) else cores()))
    if executor == "serial" or workers < 2:
        return ((i, _run_in_process(trace, judging)) for i, trace in enumerate(traces))
    return _in_processes(workers, traces, judging)


def _run_in_process(trace: RankTrace, judging: Judging) -> Outcome:
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


def _asked(worker: isolated.Worker, request: bytes) -> Outcome:
    """What became of a trace in another process; what ended that one, if it was its end."""
    try:
        outcome: Outcome = pickle.loads(worker.ask(request))
    except isolated.Ended as ended:
        killed = "the process that read it was killed: the memory may not suffice; fewer at once take less (--workers)"
        return Outcome(why=killed if ended.code == -9 else f"the process that read it ended with {ended.code}: {ended.said}")
    return outcome


def _in_processes(count: int, traces: Sequence[RankTrace], judging: Judging) -> Iterator[tuple[int, Outcome]]:
    workers = [isolated.Worker(__name__) for _ in range(count)]
    free: queue.SimpleQueue[isolated.Worker] = queue.SimpleQueue()
    for worker in workers:
        free.put(worker)

    def outcome(trace: RankTrace) -> Outcome:
        worker = free.get()
        try:
            return _asked(worker, pickle.dumps((trace, judging), protocol=5))
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
    """Answer requests on standard input until that ends. What rules print goes to standard error: answers are alone."""
    import signal

    # Ctrl-C reaches both: the other process decides, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(0, "rb", buffering=0, closefd=False) as source, open(os.dup(1), "wb", buffering=0) as sink:
        os.dup2(2, 1)
        while request := isolated.take(source):
            isolated.send(sink, pickle.dumps(tried(*pickle.loads(request)), protocol=5))


def _of_future(future: Any) -> Outcome:
    """The outcome of a trace on a cluster. If the cluster is lost, finished ranks stay."""
    try:
        outcome: Outcome = future.result()
    except CancelledError:
        return Outcome(why="the cluster was lost before it was read")
    except Exception as error:
        return Outcome(why=f"{type(error).__name__}: {error}")
    return outcome


def _on_dask(address: str, traces: Sequence[RankTrace], judging: Judging) -> Iterator[tuple[int, Outcome]]:
    require("distributed", extra="fleet")
    from distributed import Client, KilledWorker
    from distributed import as_completed as completed

    try:
        client = Client(address.replace("dask://", "tcp://"))
    except OSError as error:
        raise UsageError(f"no Dask scheduler answers at {address}: {error}", "Give the address that the scheduler prints when it starts.") from None
    with client:
        futures = client.map(tried, list(traces), judging=judging, pure=False)
        position = {future.key: i for i, future in enumerate(futures)}
        suspects = []
        for future in completed(futures):
            if future.status == "error" and isinstance(future.exception(), KilledWorker):
                suspects.append(position[future.key])
            else:
                yield position[future.key], _of_future(future)
            future.release()
        for i in suspects:  # one at a time: all that waited on the dying worker are under suspicion, and one of them killed it
            yield i, _of_future(client.submit(tried, traces[i], judging=judging, pure=False))
