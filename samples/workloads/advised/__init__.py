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
    _advised(
        "bridge_topology", "SIMP on 480 x 160 elements in FP64, four load cases: conjugate gradients that read each residual, then a bisection that reads each mean.",
        {"unfused-elementwise": {"compiled": True}, "launch-gap": {"graphed": True}, "sync-stall": {"late": True}, "low-arithmetic-intensity": {"batched": True}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _advised(
        "nanopore_basecaller", "Five LSTMs in fp16 call the letters of 96 chunks of current; Viterbi goes forward on the GPU step by step, back in NumPy.",
        {"launch-gap": {"graphed": True}, "host-bound": {"overlapped": True}, "memcpy": {"pinned": True}},
    ),
    _advised(
        "nuclei_outlines", "StarDist's U-Net on timm's ResNet-34 in training, 16 tiles of 256, bf16 autocast, tiles on the GPU, EMA, OneCycleLR; five reads.",
        {"optimizer-foreach/loop": {"ema_foreach": True}, "launch-gap": {"compiled": True}, "unfused-elementwise": {"chains": True}, "host-bound": {"hoisted": True}, "optimizer-foreach": {"fused_adamw": True}},
    ),
    _advised(
        "piano_transcription", "Onsets and Frames in training on 8 x 400 frames, FP32: four stacks of convolutions, three bidirectional LSTMs; six reads.",
        {"sync-stall": {"late": True}, "memory-layout": {"channels_last": True}, "launch-gap": {"launch": True}, "data-loading": {"workers": True}},
    ),
    _advised(
        "chronicle_neighbours", "GPT-2 in bf16 continues 8 prompts by 10 tokens, each mixed with 1,024 neighbours among a million states; reads whether all ended.",
        {"launch-gap": {"static": True}, "unfused-elementwise": {"compiled": True}, "sync-stall": {"late": True}, "low-arithmetic-intensity": {"batched": True}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _advised(
        "clinic_arrivals", "A Temporal Fusion Transformer in training on 256 windows on the GPU, TF32, clipping, average of the weights.",
        {"launch-gap": {"compiled": True}, "unfused-elementwise": {"fused_chains": True}, "optimizer-foreach": {"fused_adam": True}, "host-bound": {"light_host": True}},
    ),
    _advised(
        "dependency_arcs", "A biaffine parser in training on 5,000 words a batch, FP32, packed LSTMs over letters and words, boolean masks, three reads.",
        {"launch-gap": {"compiled": True}, "sync-stall": {"run_ahead": True}},
    ),
    _advised(
        "grocery_slates", "96 requests: a tower, 150,000 products, DCN-v2 in fp16 on 400 candidates each, 24 picked by a determinantal point process.",
        {"host-bound": {"host_aside": True}, "launch-gap": {"graphed": True}, "unfused-elementwise": {"fused": True}, "memcpy": {"few_copies": True}, "dtype-casts": {"half": True}, "sync-stall": {"run_ahead": True}, "low-arithmetic-intensity": {"grouped": True}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _advised(
        "heron_nests", "CenterNet on a ResNet-34 in training, bf16 autocast: a thread of the host draws targets in NumPy, clipping, EMA, peaks read now and then.",
        {"launch-gap": {"compiled": True}, "unfused-elementwise": {"chains": True}, "host-bound": {"host": True}, "optimizer-foreach": {"fused_adamw": True}},
    ),
    _advised(
        "kayak_tracks", "A frame of video at a time: a detector in fp16, NMS, vectors of the crops, a tracker with a Kalman filter in NumPy.",
        {"host-bound": {"batched": True}, "launch-gap": {"graphs": True}},
    ),
    _advised(
        "mangrove_scenes", "A satellite scene in windows by a ResNet-50 FPN in fp16 autocast, each mirrored twice, blended, specks removed, areas read.",
        {"launch-gap": {"graphed": True}, "host-bound": {"on_gpu": True}, "memcpy": {"copied_ahead": True}, "unfused-elementwise": {"fused": True}, "dtype-casts": {"half": True}, "small-grid": {"wide": True}, "low-arithmetic-intensity": {"together": True}},
    ),
    _advised(
        "scaffold_clouds", "Point-MAE in training on point clouds on the GPU, TF32: farthest points one after the other, neighbours, Chamfer distances.",
        {"sync-stall": {"late": True}},  # what compiles, launch and compiled, fails in the Triton of torch 2.11
    ),
    _advised(
        "marine_skirmish", "QMIX in training, FP32: episodes from the host, GRU agents and targets unrolled over time, TD(lambda).",
        {"launch-gap": {"compiled": True}},
    ),
    _advised(
        "pocket_ligands", "An E(n)-equivariant diffusion model in training on ligands in pockets, TF32, collated on the host, adaptive clipping, EMA.",
        {"unfused-elementwise": {"compiled": True}, "sync-stall": {"late": True}, "optimizer-foreach": {"foreach": True}, "precision": {"bf16": True}, "launch-gap": {"launch": True}},
    ),
    _advised(
        "poll_strata", "Hamiltonian Monte Carlo of 64 chains in FP64 on a multilevel regression, with adaptation and R-hat.",
        {"unfused-elementwise": {"fused_chains": True}, "launch-gap": {"compiled": True}},
    ),
)  # fmt: skip
