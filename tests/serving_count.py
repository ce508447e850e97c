"""A count of an inference server's steps by hand: of a trace's JSON alone, in ways of its own, to hold the view of steps against.

python -m tests.serving_count TRACE.json.gz …
"""

from __future__ import annotations

import bisect
import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

PHASES = {"EXTEND": "prefill", "DECODE": "decode", "MIXED": "mixed", "TARGET_VERIFY": "verify"}
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def _of_vllm(name: str) -> dict[str, Any] | None:
    """`execute_32_context_0(sq0sk0…)_generation_32(sq32sk55086…)`: cut at its words, the figures of each half by letters."""
    if not name.startswith("execute") or "context_" not in name or "_generation_" not in name:
        return None
    halves = name.split("context_")[1].split("_generation_")
    requests = [int(half.split("(")[0]) for half in halves]
    sums = [dict(re.findall(r"([a-z]+)(\d+)", half)) for half in halves]
    plain = [half.partition("(")[2].rstrip(")").split("_")[0] for half in halves]

    def whole(key: str) -> int:
        each = [int(one[key]) if key in one else int(text) if key == "sq" and text.isdigit() else 0 if not of else -1 for one, text, of in zip(sums, plain, requests, strict=True)]  # fmt: skip
        return -1 if min(each) < 0 else sum(each)

    prefills, decodes = requests
    tokens = whole("sq")
    phase = "mixed" if prefills and decodes else "prefill" if prefills else "decode"
    return {"phase": "verify" if phase == "decode" and tokens > decodes else phase, "requests": prefills + decodes, "tokens": tokens, "cached": whole("sk")}


def _of_sglang(name: str) -> dict[str, Any] | None:
    """`step[EXTEND bs=15 toks=15360]`, with `c_sk=` and `g_sk=` in detail."""
    if not (name.startswith("step[") and name.endswith("]")):
        return None
    mode, *rest = name[5:-1].split(" ")
    told = {key: int(value) for key, value in (one.split("=") for one in rest)}
    requests = told.get("raw_bs", told.get("bs", -1))
    cached = [told[key] for key in ("c_sk", "g_sk") if key in told]
    computed = told.get("toks", sum(told[key] for key in ("c_sq", "g_sq") if key in told) or (requests if mode == "DECODE" else -1))
    return {"phase": PHASES.get(mode, mode.lower()), "requests": requests, "tokens": computed, "cached": sum(cached) if cached else -1}


def count(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Of each marked step, in order: phase, requests, tokens, cached (-1 if not in the mark), in_graphs (share of the time, None if unknown)."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    ranges = sorted(
        ((event["ts"], -event["dur"], event["pid"], event["tid"], event["name"]) for event in events if event.get("cat") in ("user_annotation", "nvtx")),
        key=lambda one: one[:2],
    )
    steps: list[dict[str, Any]] = []
    for start, minus, pid, tid, name in ranges:
        told = _of_sglang(name) or _of_vllm(name)
        if told is None:
            continue
        last = steps[-1] if steps else None
        if last and (pid, tid) == (last["pid"], last["tid"]) and start < last["end"]:
            # The same step, marked once more inside of it.
            for key, value in told.items():
                last[key] = value if last[key] == -1 else last[key]
        else:
            steps.append({**told, "pid": pid, "tid": tid, "start": start, "end": start - minus, "us": {True: 0.0, False: 0.0}, "graphs": 0})
    starts = [step["start"] for step in steps]

    def step_of(event: dict[str, Any]) -> dict[str, Any] | None:
        at = bisect.bisect(starts, event["ts"]) - 1
        return steps[at] if at >= 0 and event["ts"] < steps[at]["end"] and event["pid"] == steps[at]["pid"] else None

    launched: dict[Any, tuple[dict[str, Any], bool]] = {}
    for event in events:
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and (step := step_of(event)):
            graph = "GraphLaunch" in event["name"]
            correlation = event.get("args", {}).get("correlation", event.get("args", {}).get("External id"))
            launched[correlation] = (step, graph or launched.get(correlation, (step, False))[1])
            step["graphs"] += graph
    for event in events:
        if event.get("cat") in _ON_DEVICE and event.get("args", {}).get("correlation") in launched:
            step, graph = launched[event["args"]["correlation"]]
            step["us"][graph] += event["dur"]
    for step in steps:
        inside, outside = step["us"][True], step["us"][False]
        step["in_graphs"] = None if not inside + outside or (step["graphs"] and not inside) else inside / (inside + outside)
    return steps


def read(path: Path) -> dict[str, Any]:
    """The JSON of a file, packed or not."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(path)
        for step in count(read(Path(path))):
            print("  ", {key: step[key] for key in ("phase", "requests", "tokens", "cached", "in_graphs")})
