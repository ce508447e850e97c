"""Nsight Compute: reports (.ncu-rep, .ncu-repz) and what `ncu --csv` prints, each perhaps packed with gzip.

Reads no software of NVIDIA's. A report also holds the environment and the command line of whoever recorded it: both are skipped.
"""

from __future__ import annotations

from advisor.recording import Recording
from advisor.sources.ncu import report, tables
from advisor.sources.opened import Opened


def recognises(opened: Opened) -> bool:
    """A report by its first bytes, a CSV page by its header or by what ncu says before it."""
    return report.is_report(opened.head) or tables.is_page(opened.head)


def record(opened: Opened) -> Recording:
    """The kernels of a report or of a CSV page. Raises TraceError where it holds none."""
    reader = report.read if report.is_report(opened.head) else tables.read
    return Recording("kernels", opened.path, (reader(opened.stream, opened.path),))
