"""Every sample program: slow and fixed pairs by the rule they are for, and healthy controls."""

from . import (
    amp_scaler_sync,
    data_loading,
    dtype_casts,
    further_models,
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
    public_models,
    recompilation,
    small_grid,
    spellings,
    sync_stall,
    traps,
    unfused_attention,
    unfused_elementwise,
    unfused_norm,
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
    grad_zeroing,
    graph_candidate,
    amp_scaler_sync,
    memory_layout,
    unfused_norm,
    unfused_attention,
    precision,
    dtype_casts,
    gemm_alignment,
    small_grid,
    traps,
    healthy,
    spellings,
    public_models,
    further_models,
)
REGISTRY: dict[str, Workload] = {workload.name: workload for module in MODULES for workload in module.WORKLOADS}

__all__ = ["REGISTRY", "Setup", "Workload"]
