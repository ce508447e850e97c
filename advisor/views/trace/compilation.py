"""When the host compiles code."""

from __future__ import annotations

import re
from dataclasses import dataclass

from advisor.intervals import Spans
from advisor.timeline import Timeline
from advisor.views.trace.frames import joined, matches, spans_of
from advisor.views.trace.host_activity import HostActivity

# Frames in which Dynamo, Inductor or Triton compile; their run-time wrappers (`run`, `_fn`, `compile_wrapper`) are no such.
_COMPILE_FRAME = re.compile(
    r"torch/_dynamo/convert_frame\.py\(\d+\): "
    r"|torch/_inductor/compile_fx\.py\(\d+\): (_?compile_fx|_?fx_codegen|codegen_and_compile|fw_compiler|bw_compiler|cudagraphify)"
    r"|torch/_inductor/runtime/triton_heuristics\.py\(\d+\): (_?precompile|autotune_to_one_config|benchmark_all_configs)"
    r"|triton/compiler/compiler\.py\(\d+\): compile$|triton/runtime/autotuner\.py\(\d+\): (_bench|benchmark)"
)
# Ranges that PyTorch 2.6 and later opens around its compilation, stacks or not.
_COMPILE_RANGE = re.compile(r"\(dynamo_timed\)$|^(entire_frame_compile|backend_compile|inductor_compile|fx_codegen_and_compile)$")


@dataclass(frozen=True)
class Compilation:
    """spans: time in which the threads that issue GPU work compile, as frames and ranges say; disjoint and sorted."""

    spans: Spans

    @classmethod
    def build(cls, timeline: Timeline, host: HostActivity) -> Compilation:
        tables = (
            (timeline.python_calls, _COMPILE_FRAME),
            (timeline.cpu_ops, _COMPILE_RANGE),
            (timeline.annotations, _COMPILE_RANGE),
        )
        return cls(joined(*(spans_of(f, matches(f, p) & host.on_threads(f)) for f, p in tables if len(f))))
