"""Every sample program: slow and fixed pairs by the rule they are for, and healthy controls. Those of the corpus lie there, a file each."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from . import (
    amp_scaler_sync,
    attention_mask,
    data_loading,
    dense_gradients,
    dtype_casts,
    gemm_alignment,
    grad_zeroing,
    graph_candidate,
    healthy,
    host_bound,
    launch_gap,
    low_arithmetic_intensity,
    memcpy,
    memory_layout,
    optimizer_foreach,
    precision,
    recompilation,
    recomputation,
    repeated_heads,
    request_features,
    small_grid,
    spellings,
    sync_stall,
    traps,
    unfused_attention,
    unfused_elementwise,
    unfused_norm,
    unmerged_adapters,
    weight_norm,
)
from .base import Setup, Workload

MODULES = (
    launch_gap,
    sync_stall,
    memcpy,
    unfused_elementwise,
    low_arithmetic_intensity,
    data_loading,
    host_bound,
    optimizer_foreach,
    recompilation,
    repeated_heads,
    grad_zeroing,
    graph_candidate,
    amp_scaler_sync,
    memory_layout,
    unfused_norm,
    unmerged_adapters,
    weight_norm,
    unfused_attention,
    precision,
    dtype_casts,
    recomputation,
    dense_gradients,
    attention_mask,
    request_features,
    gemm_alignment,
    small_grid,
    traps,
    healthy,
    spellings,
)
REGISTRY: dict[str, Workload] = {workload.name: workload for module in MODULES for workload in module.WORKLOADS}

PROGRAMS = Path(__file__).parents[2] / "corpus" / "programs"


def workload(name: str) -> Workload:
    """A program by its name: a sample's, or the `PROGRAM` of a file of the corpus. Raises KeyError where neither has it."""
    path = PROGRAMS / f"{name}.py"
    if name in REGISTRY or not path.exists():
        return REGISTRY[name]
    spec = spec_from_file_location(name, path)
    assert spec and spec.loader
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there for the module that they are of
    spec.loader.exec_module(module)
    found: Workload = module.PROGRAM
    return found


__all__ = ["PROGRAMS", "REGISTRY", "Setup", "Workload", "workload"]
