"""What a directory is, its content says."""

from __future__ import annotations

from pathlib import Path

from advisor.errors import TraceError


def only_trace(directory: Path) -> Path:
    """The one trace in a directory, by the names that torch.profiler.tensorboard_trace_handler gives."""
    names = sorted(entry.name for entry in directory.iterdir() if entry.is_file())
    traces = [name for name in names if name.endswith((".pt.trace.json", ".pt.trace.json.gz"))]
    traces = traces or [name for name in names if name.endswith((".json", ".json.gz"))]
    if not traces:
        raise TraceError(
            f"the directory {directory} holds no trace (*.pt.trace.json, *.json, either with .gz)",
            "Give the path of the trace itself.",
        )
    if len(traces) > 1:
        shown = ", ".join(traces[:8]) + (f" and {len(traces) - 8} more" if len(traces) > 8 else "")
        raise TraceError(
            f"the directory {directory} holds {len(traces)} traces: {shown}", "Give one of them: one rank at a time."
        )
    return directory / traces[0]
