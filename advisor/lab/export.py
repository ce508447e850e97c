"""Writes a profiler's trace with what was measured without it."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from advisor.errors import UsageError

if TYPE_CHECKING:
    from torch.profiler import profile

METADATA_KEY = "advisor_recording"
"""The top-level member of a trace that holds what was measured without the profiler."""


def export(profiler: profile, path: Path, measured: dict[str, Any]) -> None:
    """Write a trace, compressed, with what was measured as its first member: whole or not at all."""
    with TemporaryDirectory(dir=path.parent, prefix=".advisor-") as folder:
        plain, packed = Path(folder, "trace.json"), Path(folder, path.name)
        profiler.export_chrome_trace(str(plain))
        # The level at which a trace takes a second to pack instead of four, and 10 % more room.
        with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=3) as target:
            while (head := source.read(1)).isspace():
                pass
            if head != b"{":
                raise UsageError("torch.profiler wrote no JSON object", "Record with another version of torch.")
            target.write(b"{" + json.dumps({METADATA_KEY: measured}).encode()[1:-1] + b",")
            shutil.copyfileobj(source, target, 1 << 20)
        packed.replace(path)
