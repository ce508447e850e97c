"""The details page in the names of the raw page: display names by section, and the numbers in ncu's own remarks."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SOL = {
    "Duration": "gpu__time_duration.sum",
    "Elapsed Cycles": "gpc__cycles_elapsed.max",
    "SM Active Cycles": "sm__cycles_active.avg",
    "SM Frequency": "gpc__cycles_elapsed.avg.per_second",
    "DRAM Frequency": "dram__cycles_elapsed.avg.per_second",
    "Compute (SM) Throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "Memory Throughput": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM Throughput": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "L1/TEX Cache Throughput": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "L2 Cache Throughput": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    # Up to ncu 2020.
    "SOL SM": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "SM [%]": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "SOL Memory": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "Memory [%]": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "SOL DRAM": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "SOL FB": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "SOL L1/TEX Cache": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "SOL TEX": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "SOL L2 Cache": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "SOL L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
}

_SECTIONS: Mapping[str, Mapping[str, str]] = {
    "GPU Speed Of Light Throughput": _SOL,
    "GPU Speed Of Light": _SOL,
    "Compute Workload Analysis": {
        "Executed Ipc Active": "sm__inst_executed.avg.per_cycle_active",
        "Executed Ipc Elapsed": "sm__inst_executed.avg.per_cycle_elapsed",
        "Issue Slots Busy": "sm__inst_issued.avg.pct_of_peak_sustained_elapsed",
        "SM Busy": "sm__instruction_throughput.avg.pct_of_peak_sustained_elapsed",
    },
    "Memory Workload Analysis": {
        "Memory Throughput": "dram__bytes.sum.per_second",
        "Mem Busy": "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
        "Max Bandwidth": "gpu__compute_memory_request_throughput.avg.pct_of_peak_sustained_elapsed",
        "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
        "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
        "Mem Pipes Busy": "sm__memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "Local Memory Spilling Requests": "derived__local_spilling_requests",
        "Local Memory Spilling Request Overhead": "derived__local_spilling_requests_pct",
    },
    "Scheduler Statistics": {
        "Active Warps Per Scheduler": "smsp__warps_active.avg.per_cycle_active",
        "Eligible Warps Per Scheduler": "smsp__warps_eligible.avg.per_cycle_active",
        "No Eligible": "smsp__issue_inst0.avg.pct_of_peak_sustained_active",
        "One or More Eligible": "smsp__issue_active.avg.pct_of_peak_sustained_active",
        "Issued Warp Per Scheduler": "smsp__issue_active.avg.per_cycle_active",
    },
    "Warp State Statistics": {
        "Warp Cycles Per Issued Instruction": "smsp__average_warp_latency_per_inst_issued.ratio",
        "Warp Cycles Per Executed Instruction": "smsp__average_warps_active_per_inst_executed.ratio",
        "Avg. Active Threads Per Warp": "smsp__thread_inst_executed_per_inst_executed.ratio",
        "Avg. Not Predicated Off Threads Per Warp": "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",
    },
    "Instruction Statistics": {
        "Executed Instructions": "smsp__inst_executed.sum",
        "Issued Instructions": "smsp__inst_issued.sum",
    },
    "Launch Statistics": {
        "Grid Size": "launch__grid_size",
        "Block Size": "launch__block_size",
        "Threads": "launch__thread_count",
        "Registers Per Thread": "launch__registers_per_thread",
        "Static Shared Memory Per Block": "launch__shared_mem_per_block_static",
        "Dynamic Shared Memory Per Block": "launch__shared_mem_per_block_dynamic",
        "Driver Shared Memory Per Block": "launch__shared_mem_per_block_driver",
        "Shared Memory Configuration Size": "launch__shared_mem_config_size",
        "Cluster Size": "launch__cluster_size",
        "# SMs": "launch__sm_count",
        "Waves Per SM": "launch__waves_per_multiprocessor",
    },
    "Occupancy": {
        "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
        "Theoretical Active Warps per SM": "sm__maximum_warps_avg_per_active_cycle",
        "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
        "Achieved Active Warps Per SM": "sm__warps_active.avg.per_cycle_active",
        "Block Limit SM": "launch__occupancy_limit_blocks",
        "Block Limit Registers": "launch__occupancy_limit_registers",
        "Block Limit Shared Mem": "launch__occupancy_limit_shared_mem",
        "Block Limit Warps": "launch__occupancy_limit_warps",
    },
    "Source Counters": {
        "Branch Instructions": "smsp__inst_executed_op_branch.sum",
        "Branch Efficiency": "smsp__sass_average_branch_targets_threads_uniform.pct",
        "Avg. Divergent Branches": "smsp__sass_branch_targets_threads_divergent.avg",
    },
}


def raw_name(section: str, name: str) -> str:
    """The raw page's name of a metric. With `--metrics` that is the name already, and unlisted metrics keep their own."""
    return name if "__" in name else _SECTIONS.get(section, {}).get(name, f"{section}: {name}")


_STALLS = (
    ("long_scoreboard", "scoreboard dependency on a L1TEX"),
    ("short_scoreboard", "scoreboard dependency on a MIO"),
    ("short_scoreboard", "scoreboard dependency on an MIO"),
    ("mio_throttle", "MIO (memory input/output) instruction queue"),
    ("lg_throttle", "L1 instruction queue for local and global"),
    ("tex_throttle", "L1 instruction queue for texture"),
    ("math_pipe_throttle", "execution pipe to be available"),
    ("barrier", "sibling warps at a CTA barrier"),
    ("membar", "memory barrier"),
    ("drain", "after EXIT waiting for all outstanding memory"),
    ("wait", "fixed latency execution dependency"),
    ("not_selected", "selected by the scheduler"),
    ("branch_resolving", "branch target to be computed"),
    ("imc_miss", "immediate constant cache"),
    ("no_instruction", "instruction to be fetched"),
    ("dispatch_stall", "dispatch stall"),
    ("sleeping", "sleep"),
)
"""How ncu's remark on a stall (CPIStall) begins to describe it, by the reason in the metrics' names."""

PIPE = "sm__pipe_{}_cycles_active.avg.pct_of_peak_sustained_elapsed"
FP32_PEAK, FP64_PEAK = "remark__fp32_flops.pct_of_peak", "remark__fp64_flops.pct_of_peak"
"""Values from the text of the roofline's remark: no metric of the raw page has them."""
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_EXCESSIVE = re.compile(r"total of (\d+) excessive (?:sectors|wavefronts) \(\d+% of the total (\d+)")
_CONFLICTS = re.compile(r"across all (\d+) shared (load|store) requests.*?results in (\d+) bank conflicts.*?overall (\d+) wavefronts", re.DOTALL)
_PEAKS = re.compile(r"achieved\s+(?:close to )?(\d+)% of this device's (?:FP32|fp32) peak performance and\s+(?:close to )?(\d+)% of its (?:FP64|fp64)")
_BUSIEST = re.compile(r"^(\w{1,40})[^.]{0,200}? is the highest-utilized pipeline \((\d+(?:\.\d+)?)%\)")
_PIPES = {"FMA": "fma", "FP64": "fp64", "Tensor": "tensor"}
_BYTES = re.compile(r"global (load|store)s.*?only (\d+(?:\.\d+)?) of the (\d+) bytes transmitted per sector")
_STALLED = re.compile(r"spends (\d+(?:\.\d+)?) cycles being stalled (.*)", re.DOTALL)


def from_remark(rule: str, said: str) -> dict[str, float]:
    """The metrics that a remark of ncu's states and its page does not list otherwise, by their names on the raw page."""
    if rule in ("UncoalescedGlobalAccess", "UncoalescedSharedAccess") and (found := _EXCESSIVE.search(said)):
        excessive, total = float(found[1]), float(found[2])
        if rule == "UncoalescedSharedAccess":
            return {"derived__memory_l1_wavefronts_shared_excessive": excessive, "memory_l1_wavefronts_shared": total}
        return {
            "derived__memory_l2_theoretical_sectors_global_excessive": excessive,
            "memory_l2_theoretical_sectors_global": total,
        }
    if rule == "SharedMemoryConflicts" and (found := _CONFLICTS.search(said)):
        op = "ld" if found[2] == "load" else "st"
        return {
            f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum": float(found[3]),
            f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum": float(found[4]),
        }
    if rule == "MemoryCacheAccessPattern" and (found := _BYTES.search(said)):
        op = "ld" if found[1] == "load" else "st"
        return {f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{op}.ratio": float(found[2])}
    if rule == "HighPipeUtilization" and (found := _BUSIEST.match(said)):
        pipe = "fp64" if "dominated by its FP64" in said else _PIPES.get(found[1])
        return {PIPE.format(pipe): float(found[2])} if pipe else {}
    if rule == "SOLFPRoofline" and (found := _PEAKS.search(said)):
        return {FP32_PEAK: float(found[1]), FP64_PEAK: float(found[2])}
    if rule == "CPIStall" and (found := _STALLED.search(said)):
        reason = next((name for name, words in _STALLS if words in found[2]), None)
        return {_STALL.format(reason): float(found[1])} if reason else {}
    return {}
