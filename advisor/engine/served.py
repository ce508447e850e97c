"""What the report says of an inference server, of its views."""

from __future__ import annotations

import re
from math import isnan, nan

import msgspec

from advisor.engine.served_load import decoding, judged, load_beside
from advisor.knowledge.server_marks import DECODE, VERIFY
from advisor.knowledge.stacks import packs
from advisor.recordings.served_load import LoadBeside
from advisor.report import serving as told
from advisor.report.numbers import counted, large_count, percent
from advisor.views.ranks.job import Job
from advisor.views.replay.replay import Replay
from advisor.views.time.served_time import CLASSES, ServedTime
from advisor.views.trace.serving import ServedPhase, Serving
from advisor.views.trace.stack import Stack
from advisor.views.trace.steps import Steps
from advisor.views.workspace import Workspace


def served(workspace: Workspace) -> told.Serving | None:
    """The steps of a server by phase and batch; None if none is marked."""
    serving = workspace.get(Serving)
    if not serving.phases:
        return None
    time = workspace.get(ServedTime)
    beside = workspace.get(LoadBeside) if workspace.can_build(load_beside) else None
    traced = decoding(serving)
    found = told.Serving(
        serving.engine,
        _version(workspace, serving.engine),
        tuple(_row(*one) for one in zip(serving.phases, time.shares, time.knees, time.weight_bytes, time.kv_bytes, strict=True)),
        decoding=traced,
    )
    return _measured(found, traced, beside) if beside else found


_REPLICA = re.compile(r"(?<![a-z])dp[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)
"""vLLM: dp0_pp0_tp1_dcp0_ep1_rank1.*.pt.trace.json.gz; SGLang: ID-TP-1-DP-0.trace.json.gz."""


def served_by(job: Job, beside: LoadBeside | None) -> told.Serving | None:
    """The first rank's steps, as ranks of a model's copy share them. Copies, by the traces' names, take separate requests."""
    first: dict[str, tuple[int, told.Serving]] = {}
    for one in job.ranks:
        if one.facts.serving:
            place = _REPLICA.search(one.facts.label)
            first.setdefault(place[1] if place else "", (one.rank, one.facts.serving))
    if not first:
        return None
    rank, serving = next(iter(first.values()))
    serving = msgspec.structs.replace(serving, rank=rank, replicas=len(first))
    several = [one.decoding for _, one in first.values()]
    if beside is None or serving.decoding is None or None in several:
        return _measured(serving, None, beside) if beside else serving
    sums = {name: sum(getattr(one, name) for one in several) for name in ("requests", "first", "last")}
    return _measured(serving, msgspec.structs.replace(serving.decoding, **sums), beside)


def _measured(serving: told.Serving, traced: told.Decoding | None, beside: LoadBeside) -> told.Serving:
    """Adds measurements of the server. traced: the decode steps of all copies."""
    load = judged(beside.load, traced)
    phases = tuple(_verifying(phase, load.accepted_tokens) for phase in serving.phases) if load.accepted_tokens else serving.phases
    return msgspec.structs.replace(serving, version=serving.version or beside.version, phases=phases, load=load)


def _verifying(phase: told.ServingPhase, accepted: float) -> told.ServingPhase:
    """Steps that verify drafts with the rate of the tokens that were accepted."""
    if phase.phase != VERIFY or phase.requests is None or phase.step_us <= 0:
        return phase
    return msgspec.structs.replace(phase, tokens_per_s=1e6 * phase.requests * accepted / phase.step_us)


def _version(workspace: Workspace, engine: str) -> str:
    """As the recording holds it, or the user says; "" if neither does."""
    return next((one.version for one in workspace.get(Stack).frameworks if packs()[one.package].name == engine), "")


def _row(phase: ServedPhase, shares: tuple[float, ...] | None, knee: float, weight_bytes: float, kv_bytes: float) -> told.ServingPhase:
    rate = phase.tokens_per_s
    parts = None if shares is None else told.ServingParts(**dict(zip(CLASSES, shares, strict=True)))
    cached = kv_bytes / phase.kv_tokens if phase.kv_tokens > 0 else nan
    return told.ServingPhase(
        phase=phase.phase,  # type: ignore[arg-type]
        requests=None if phase.requests < 0 else phase.requests,
        steps=len(phase.steps),
        step_us=phase.step_us,
        query_tokens=_known(phase.query_tokens),
        kv_tokens=_known(phase.kv_tokens),
        graph_launches=phase.graph_launches,
        eager_launches=phase.eager_launches,
        graph_coverage=None if isnan(phase.graph_coverage) else phase.graph_coverage,
        padded_to=None if phase.padded_to < 0 else phase.padded_to,
        tokens_per_s=None if isnan(rate) else rate,
        parts=parts,
        knee_rows=None if isnan(knee) else knee,
        weight_bytes_most=weight_bytes if weight_bytes > 0 else None,
        kv_bytes_most=cached if cached > 0 else None,
        bound_by=_bound(phase, parts, knee) if parts else None,
    )


_BOUND: dict[told.Held, told.Bound] = {"products": "compute", "attention": "compute", "communication": "communication", "other": "others", "idle": "launches"}


def _bound(phase: ServedPhase, parts: told.ServingParts, knee: float) -> told.Bound:
    """By the largest part. GEMMs on fewer rows than the knee read weights. Decode attention counts as
    reading the KV cache; latent attention may be near the ridge, and marks do not name the kind of attention."""
    rows = phase.padded_to if phase.padded_to > 0 else phase.query_tokens
    if parts.largest == "products" and 0 < rows < knee:
        return "weights"
    if parts.largest == "attention" and phase.phase == DECODE:
        return "kv-cache"
    return _BOUND[parts.largest]


def _known(value: float) -> float | None:
    return None if value < 0 else value


_DOES = {
    "prefill": "prefills",
    "decode": "decodes",
    "mixed": "decodes and prefills",
    "verify": "verifies drafts of",
    "draft": "drafts for",
}


def sentence(workspace: Workspace) -> str:
    """What the server does in the steps that are judged, and how fast; "" if none of a server's are."""
    serving, steps = workspace.get(Serving), workspace.get(Steps)
    judged = [phase for phase in serving.phases if steps.kind in ("", phase.phase)]
    if not judged or len({phase.phase for phase in judged}) > 1 or not steps.repeats:
        return ""
    made = [phase for phase in judged if phase.requests >= 0]
    whole = [step for phase in made for step in phase.steps]
    if not whole:
        return ""
    phase, sizes = made[0].phase, sorted({phase.requests for phase in made})
    batch = counted(sizes[0], "request") if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,} requests"
    # As it runs when nobody records, as the step of the headline.
    faster = steps.step_us / max(workspace.get(Replay).true_step.expected_us, 1e-9)
    rates = [phase.tokens_per_s * len(phase.steps) / len(whole) for phase in made]
    rate = "" if isnan(sum(rates)) else f", {large_count(faster * sum(rates))} tokens/s"
    gpu_us = sum(step.gpu_us for step in whole)
    covered = "" if isnan(gpu_us) or not gpu_us else f", {percent(sum(step.graph_us for step in whole) / gpu_us)} of the GPU's time in CUDA graphs"
    return f"{serving.engine} {_DOES[phase]} {batch} per step{rate}{covered}. "
