"""A memory snapshot of as many events as wanted, as torch pickles one: a training whose steps allocate and free the same blocks.

python -m tests.benchmarks.memory_snapshot OUT.pickle --events 1000000
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]

LAYERS = 120
"""Activations of a step: each is allocated going forward, then given back with a temporary beside it."""
BLOCK = 4 << 20
BASE = 0x7F0000000000
STACKS = [[{"name": f"forward_{i}", "filename": "model.py", "line": 10 + i}, {"name": "step", "filename": "train.py", "line": 5}] for i in range(2 * LAYERS)]


def _events(count: int) -> Iterator[Event]:
    made, at_us = 0, 1_700_000_000_000_000

    def event(action: str, slot: int, stack: int) -> Event:
        nonlocal made, at_us
        made, at_us = made + 1, at_us + 7
        place = {"action": action, "addr": BASE + slot * BLOCK, "size": BLOCK - 512 * (slot % 3), "stream": 0, "time_us": at_us}
        return {**place, "compile_context": "".join(("N", "/A")), "frames": STACKS[stack]}  # torch makes that text anew each time

    yield event("segment_alloc", 0, 0) | {"size": (LAYERS + 1) * BLOCK}
    while made < count:
        for i in range(LAYERS):
            yield event("alloc", i, i)
        for i in reversed(range(LAYERS)):
            yield event("alloc", LAYERS, LAYERS + i)
            for slot in (LAYERS, i):
                yield event("free_requested", slot, LAYERS + i)
                yield event("free_completed", slot, LAYERS + i)


def write(path: Path, count: int) -> None:
    """Write the snapshot; it ends with a step, so that it has at least `count` events."""
    events = list(_events(count))
    size = (LAYERS + 1) * BLOCK
    block = {"address": BASE, "size": size, "requested_size": 0, "state": "inactive", "frames": []}
    segment = {
        "device": 0,
        "address": BASE,
        "total_size": size,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": [block],
    }
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [events]}, 4))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000)
    chosen = parser.parse_args()
    write(chosen.path, chosen.events)
