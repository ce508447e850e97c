"""Nsight Compute: reports (.ncu-rep, .ncu-repz) and what `ncu --csv` prints, each perhaps packed with gzip.

Reads no software of NVIDIA's. A report also holds the environment and the command line of whoever recorded it: both are skipped.
"""

from __future__ import annotations

from advisor.recordings.recording import Recording
from advisor.sources.ncu import report, tables
from advisor.sources.opened import Opened
from advisor.sources.sniff import NCU_MAGIC


def record(opened: Opened) -> Recording:
    """The kernels of a report or of a CSV page. Raises TraceError if it holds none."""
    reader = report.read if opened.head.startswith(NCU_MAGIC) else tables.read
    return Recording("kernels", opened.path, (reader(opened.stream, opened.path),))
