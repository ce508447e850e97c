"""A rank of a sample job as PyTorch writes it. The samples keep its columns."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

from advisor.sources import columns, load
from advisor.sources.kineto.write import write

OF_THE_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")


@cache
def as_json(rank: Path) -> bytes:
    """The packed JSON of a trace in columns: what the host did first, then the device's work."""
    trace = json.loads(write(load(rank)))
    trace["traceEvents"].sort(key=lambda event: event.get("cat") in OF_THE_DEVICE)
    return gzip.compress(json.dumps(trace).encode(), 6, mtime=0)


def write_as_json(job: Path, folder: Path) -> None:
    """Every rank of a job as JSON, under its own name."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in sorted(job.glob(f"rank*{columns.SUFFIX}")):
        (folder / f"{rank.name.removesuffix(columns.SUFFIX)}.json.gz").write_bytes(as_json(rank))
