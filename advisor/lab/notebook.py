"""`%load_ext advisor`, then `%%advise` above a cell: it runs under the profiler, and its report is shown below it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from advisor.engine.analysis import Analysis
from advisor.errors import require


def profiled(run: Callable[[], object], stacks: bool = False) -> Analysis:
    """The report of a single call, recorded by torch's profiler with shapes. The whole recording counts as a step."""
    require("torch", extra="lab")
    import torch
    from torch.profiler import ProfilerActivity, profile

    from advisor.engine.run import analyze

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cell.json"
        with profile(activities=activities, record_shapes=True, with_stack=stacks) as recorded:
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        recorded.export_chrome_trace(str(path))
        return analyze(str(path))


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext advisor`: makes the cell magic known."""

    def advise(line: str, cell: str) -> Analysis:
        """%%advise [--stacks]: profile this cell and show what makes it slow."""

        def run() -> None:
            # An error in the cell is the cell's: it is shown as without the magic.
            shell.run_cell(cell).raise_error()

        return profiled(run, "--stacks" in line.split())

    shell.register_magic_function(advise, magic_kind="cell", magic_name="advise")
