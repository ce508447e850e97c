"""Programs whose authors thought of no fix. What is timed is what their reports advised, written in afterwards by readers who saw no figure of what it gains.

Each is a module of its own, which is loaded when the program is made, as some need libraries that the others do without.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

from ..base import Setup, Step, Workload


def _make(program: str, setup: Setup, **changes: Any) -> Step:
    step: Step = getattr(import_module(f".{program}", __name__), program)(setup, **changes)
    return step


def _advised(name: str, what: str, alone: Mapping[str, Mapping[str, Any]], **more: Any) -> Workload:
    fixes = {fix: partial(_make, name, **changes) for fix, changes in alone.items()}
    return Workload(
        name=name, rule=None, folder="advised", what=what, fix="each alone", make_slow=partial(_make, name), alone=fixes, fixed_quiet=False, **more
    )


WORKLOADS = (
    _advised(
        "windscreen_cracks", "Ten time steps of bond-based peridynamics: 400,000 points of glass with 28 neighbours each, FP32; crack tip and energies are read.",
        {"unfused-elementwise": {"fused": True}, "sync-stall": {"late": True}},
    ),
    _advised(
        "senate_commas", "CamemBERT base in fp16 puts marks and capitals into 8 transcripts a call, in overlapping windows of 256; scores added one by one.",
        {"launch-gap": {"graphs": True}, "unfused-elementwise": {"compiled": True}, "host-bound": {"worker": True}, "sync-stall": {"late": True}, "low-arithmetic-intensity": {"together_all": True}},
    ),
    _advised(
        "parcel_delays", "TabNet in training on 8192 parcels from NumPy, FP32: 18 tables, ghost norms in chunks of 1024, sparsemax; three reads a step.",
        {"launch-gap": {"graphed": True}, "unfused-elementwise": {"compiled": True}, "host-bound": {"worker": True}},
    ),
    _advised(
        "valve_pressures", "GATv2Conv of torch_geometric, ten blocks in training on 24 snapshots of 2,400 junctions on the GPU, TF32; no reads.",
        {"unfused-elementwise": {"compiled": True}},
    ),
    _advised(
        "ragtime_rolls", "A compound-word transformer in training on 16 x 1024 piano events, bf16 autocast: NumPy crops and transposes, pinned, SDPA.",
        {"unfused-elementwise": {"fused": True}, "launch-gap": {"fewer_launches": True}, "dtype-casts": {"blocks": True}, "host-bound": {"workers": True}},
    ),
    _advised(
        "viola_timbre", "DDSP in training on 24 excerpts of two seconds, FP32: 100 sines a sample, six STFTs, pageable batches, the loss is read.",
        {"launch-gap": {"graphed": True}, "unfused-elementwise": {"compiled": True}, "sync-stall": {"late": True}, "small-grid": {"enlarged": True}},
    ),
    _advised(
        "monsoon_ensemble", "Six Heun steps of EDM draw twelve hours for 8 members of 96 x 192, a DiT of timm's blocks in fp16; four reads.",
        {"unfused-elementwise": {"fused": True}, "sync-stall": {"late": True}},
    ),
    _advised(
        "tender_alerts", "ModernBERT in bf16 embeds 24 tenders, 250,000 firms are searched in FP16, Python rules pick ten firms for each.",
        {"host-bound": {"rated": True}, "launch-gap": {"graphs": True}, "unfused-elementwise": {"compiled": True}, "sync-stall": {"ahead": True}},
    ),
    _advised(
        "scanner_lens", "A double Gauss lens designed by gradients through 450,000 FP64 rays; Newton asks for convergence at each curved surface.",
        {"unfused-elementwise": {"compiled": True}, "launch-gap": {"resident": True}, "sync-stall": {"late": True}},
    ),
)  # fmt: skip
