"""Reads a GPU profile and reports what makes the program slow, what to change, and the gain.

    import advisor
    report = advisor.analyze("trace.json.gz")
    timeline = advisor.load("trace.json.gz")   # tables of numpy columns; timeline.gpu_ops.to_pandas() is a DataFrame

Names are imported on first use, so that `import advisor` and `advisor --help` cost nothing.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# In a checkout, rules and reports stand beside this folder; installed, they are inside it. Python started in a checkout finds
# this folder before any installed one.
_HERE = os.path.dirname(__file__)
if not os.path.isdir(os.path.join(_HERE, "rules")):
    __path__.append(os.path.dirname(_HERE))

if TYPE_CHECKING:
    from advisor.compare import compare
    from advisor.engine.analysis import Analysis
    from advisor.engine.rule import Found, rule
    from advisor.engine.run import analyze, schedule
    from advisor.lab.attention.components import profile_attention_components
    from advisor.lab.attention.levels import optimize_attention
    from advisor.lab.attention.session import attention_session
    from advisor.lab.bench import bench
    from advisor.lab.bench_batches import bench_batches
    from advisor.lab.bench_many import bench_all, bench_sizes
    from advisor.lab.benchmark import benchmark_fn, benchmark_function
    from advisor.lab.bottleneck import identify_bottleneck
    from advisor.lab.intensity import estimate_arithmetic_intensity
    from advisor.lab.memory import measure_memory_usage, profile_memory
    from advisor.lab.profiling_session import full_profiling_session
    from advisor.lab.record import record
    from advisor.lab.trace_handler import trace_handler
    from advisor.lab.verify import verify
    from advisor.recordings.recording import Recording
    from advisor.recordings.timeline import Timeline
    from advisor.report.finding import BytesSaved, Clear, Code, Evidence, Finding, Fix, Saving, ShareSaved, Skipped, severity_of
    from advisor.report.model import Report
    from advisor.sources import load, read
    from advisor.views.replay.edits import Edits

_HOMES = {
    "Analysis": "advisor.engine.analysis",
    "analyze": "advisor.engine.run",
    "load": "advisor.sources",
    "read": "advisor.sources",
    "Recording": "advisor.recordings.recording",
    "BytesSaved": "advisor.report.finding",
    "ShareSaved": "advisor.report.finding",
    "schedule": "advisor.engine.run",
    "rule": "advisor.engine.rule",
    "compare": "advisor.compare",
    "attention_session": "advisor.lab.attention.session",
    "identify_bottleneck": "advisor.lab.bottleneck",
    "optimize_attention": "advisor.lab.attention.levels",
    "profile_attention_components": "advisor.lab.attention.components",
    "bench": "advisor.lab.bench",
    "bench_all": "advisor.lab.bench_many",
    "bench_batches": "advisor.lab.bench_batches",
    "bench_sizes": "advisor.lab.bench_many",
    "benchmark_fn": "advisor.lab.benchmark",
    "benchmark_function": "advisor.lab.benchmark",
    "estimate_arithmetic_intensity": "advisor.lab.intensity",
    "measure_memory_usage": "advisor.lab.memory",
    "profile_memory": "advisor.lab.memory",
    "record": "advisor.lab.record",
    "trace_handler": "advisor.lab.trace_handler",
    "full_profiling_session": "advisor.lab.profiling_session",
    "verify": "advisor.lab.verify",
    "load_ipython_extension": "advisor.lab.notebook",
    "Found": "advisor.engine.rule",
    "Edits": "advisor.views.replay.edits",
    "Clear": "advisor.report.finding",
    "Code": "advisor.report.finding",
    "Skipped": "advisor.report.finding",
    "severity_of": "advisor.report.finding",
    "Timeline": "advisor.recordings.timeline",
    "Finding": "advisor.report.finding",
    "Evidence": "advisor.report.finding",
    "Fix": "advisor.report.finding",
    "Saving": "advisor.report.finding",
    "Report": "advisor.report.model",
}

__all__ = [
    "Analysis", "BytesSaved", "Clear", "Code", "Edits", "Evidence", "Finding", "Fix", "Found", "Recording", "Report", "Saving",
    "ShareSaved", "Skipped", "Timeline", "analyze", "attention_session", "bench", "bench_all", "bench_batches", "bench_sizes",
    "benchmark_fn", "benchmark_function", "compare", "estimate_arithmetic_intensity", "full_profiling_session",
    "identify_bottleneck", "load", "measure_memory_usage", "optimize_attention", "profile_attention_components",
    "profile_memory", "read", "record", "rule", "schedule", "severity_of", "trace_handler", "verify",
]  # fmt: skip


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from advisor.knowledge.release import release

        return release()
    if name not in _HOMES:
        raise AttributeError(f"module 'advisor' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
