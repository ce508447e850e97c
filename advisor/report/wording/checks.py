"""The checks of a recording in words, for a reader who does not know their names."""

from __future__ import annotations

from advisor.report.numbers import threshold

_SUBJECTS = {
    "annotations-joined": "annotations of CUDA graphs",
    "call-names": "names of CUDA calls",
    "captures-joined": "capture of CUDA graphs",
    "clock-causality": "order of launches and kernels",
    "collectives-alike": "equal collectives on all ranks",
    "collectives-timed": "times of collectives",
    "complete-file": "completeness of the file",
    "consistency": "consistency of this report",
    "durations": "durations of events",
    "failed-calls": "failed calls",
    "fuller-file": "file with more detail",
    "gpu-events": "presence of GPU work",
    "graph-trace": "kernels inside CUDA graphs",
    "job-replay": "replay of the job",
    "kernel-names": "names of kernels",
    "kernels-joined": "match of kernel profiles and trace",
    "latest-recording": "choice of recording",
    "launch-links": "links from kernels to launches",
    "memory-balance": "balance of allocations",
    "memory-exhausted": "out-of-memory requests",
    "memory-history": "history of allocations",
    "memory-joined": "match of snapshot and trace",
    "memory-replay": "replay of allocations",
    "memory-stacks": "stacks of allocations",
    "one-document": "a single recording per file",
    "one-process": "choice of process",
    "one-rank": "a single rank per file",
    "open-ranges": "ranges without an end",
    "poorer-format": "detail of the format",
    "ranks-matched": "match of collectives between ranks",
    "ranks-read": "presence of all ranks",
    "recorded-links": "links between events",
    "recording-cost": "profiler overhead",
    "replay": "replay of the step",
    "roofline": "kernels within the hardware limit",
    "runtime": "known device runtime",
    "sections": "collected counters",
    "start-up": "start-up work",
    "steps": "repeating steps",
    "stream-order": "order within streams",
    "timestamps": "start times of events",
    "tpu-units": "units of the TPU",
    "tpu-work": "known work of TPU ops",
    "unread-spans": "fully read spans",
    "unseen-work": "unrecorded work",
    "whole-file": "completeness of the file",
}


def check_name(check: str) -> str:
    """Words for a check, its name in code behind them: profiler overhead (`recording-cost`). Used wherever a check is named in a sentence."""
    return f"{_SUBJECTS[check]} (`{check}`)" if check in _SUBJECTS else f"`{check}`"


def check_subject(check: str) -> str:
    """Words for a check, without its name in code. Used in lists of checks."""
    return _SUBJECTS.get(check, check)


def tolerated(share: float) -> str:
    """The limit of a check: `up to 5% is tolerated`. Used in brackets behind the measured share."""
    return f"up to {threshold(share)} is tolerated"
