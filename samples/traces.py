"""What is done to a recorded Chrome trace before it becomes a sample: scrub it, measure it, pack it."""

from __future__ import annotations

import gzip
import json
import re
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from advisor.sources import columns, load

Trace = dict[str, Any]

GPU_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCH_CATEGORIES = {"cuda_runtime", "cuda_driver"}
# Settings of the machine or of a job scheduler, which torch copies into the trace's metadata.
PRIVATE_KEY = re.compile(
    r"(PT_PROFILER_\w*|\w*host_?name|\w*user_?name|env(iron\w*)?|cwd|cmd_?line|command_?line|job_?(id|name))", re.I
)
_DIRECTORY = r"/(?:[^\s\"'():;,=/]+/)*"
_PREFIXES = (
    (re.compile(_DIRECTORY + r"(?:site|dist)-packages/"), ""),
    (re.compile(_DIRECTORY + r"torchinductor_[^/]+/"), "torchinductor/"),
    (re.compile(_DIRECTORY + r"lib/python3\.\d+/"), ""),
    # Anything else absolute keeps only its file name. A path starts where no word does: "a/b.py" is relative.
    (re.compile(r"(?<![\w.\-/])" + _DIRECTORY + r"(?=(?:[\w.+\-]+\.(?:py|so|json|cubin|ptx|ttir|cpp)\b|python3?\b))"), ""),
)
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")


def scrub(trace: Trace, root: Path) -> Trace:
    """The trace without private keys, and with each path relative: to `root`, to site-packages, or reduced to its file name."""
    host = socket.gethostname()

    @cache
    def neutral(text: str) -> str:
        text = _ADDRESS.sub("at 0x0", text)
        if len(host) > 3 and host != "localhost":
            text = text.replace(host, "host")
        if "/" not in text:
            return text
        text = text.replace(f"{root}/", "")
        for pattern, replacement in _PREFIXES:
            text = pattern.sub(replacement, text)
        return text

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return neutral(value)
        if isinstance(value, list):
            return [clean(item) for item in value]
        if isinstance(value, dict):
            return {key: clean(item) for key, item in value.items() if not PRIVATE_KEY.fullmatch(key)}
        return value

    return clean(trace)


def gpu_busy_us(trace: Trace) -> float:
    """Time in which the GPU worked on what the recorded steps launched: the union over its streams.

    Work that the warm-up steps launched also stands in the window; it has no launch there, and is left out.
    """
    events = trace["traceEvents"]
    launched = {e.get("args", {}).get("correlation") for e in events if e.get("cat") in LAUNCH_CATEGORIES}
    work = (e for e in events if e.get("cat") in GPU_CATEGORIES and e["args"].get("correlation") in launched)
    total, reached = 0.0, float("-inf")
    for start, end in sorted((e["ts"], e["ts"] + e["dur"]) for e in work):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _lines(trace: Trace) -> Iterator[str]:
    head = {key: value for key, value in trace.items() if key != "traceEvents"}
    events = [json.dumps(event, separators=(",", ":")) for event in trace["traceEvents"]]
    yield json.dumps(head)[:-1] + (', "traceEvents": [' if head else '"traceEvents": [')
    yield ",\n".join(events)
    yield "]}"


def write(trace: Trace, path: Path) -> int:
    """Write the trace, as columns where the path ends so, else an event a line: the same trace gives the same file. Returns its size in bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if columns.named_as_columns(path):
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder, path.name.removesuffix(columns.SUFFIX) + ".json.gz")
            write(trace, written)
            return path.write_bytes(columns.encode(load(written)))
    return path.write_bytes(gzip.compress("\n".join(_lines(trace)).encode(), compresslevel=9, mtime=0))
