"""What the report says of an inference server, of its views."""

from __future__ import annotations

from math import isnan

from advisor.engine.served_load import judged, load_beside
from advisor.knowledge.server_marks import VERIFY
from advisor.knowledge.stacks import packs
from advisor.recordings.served_load import LoadBeside
from advisor.report import serving as told
from advisor.report.numbers import counted, many, percent
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
    beside = workspace.get(LoadBeside) if workspace.can(load_beside) else None
    load = judged(beside.load, serving) if beside else None
    return told.Serving(
        serving.engine,
        _version(workspace, serving.engine) or (beside.version if beside else ""),
        tuple(_row(*one, load.accepted_tokens if load else None) for one in zip(serving.phases, time.shares, time.knees, strict=True)),
        load,
    )


def _version(workspace: Workspace, engine: str) -> str:
    """As the recording holds it, or the user says; "" if neither does."""
    return next((one.version for one in workspace.get(Stack).frameworks if packs()[one.package].name == engine), "")


def _row(phase: ServedPhase, shares: tuple[float, ...] | None, knee: float, accepted: float | None) -> told.ServingPhase:
    rate = phase.tokens_per_s
    if phase.phase == VERIFY and accepted and phase.requests >= 0 and phase.step_us > 0:
        rate = 1e6 * phase.requests * accepted / phase.step_us
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
        parts=None if shares is None else told.ServingParts(**dict(zip(CLASSES, shares, strict=True))),
        knee_rows=None if isnan(knee) else knee,
    )


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
    """What the server does in the steps that are judged, and how fast; "" where none of a server's are."""
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
    rate = "" if isnan(sum(rates)) else f", {many(faster * sum(rates))} tokens/s"
    gpu_us = sum(step.gpu_us for step in whole)
    covered = "" if isnan(gpu_us) or not gpu_us else f", {percent(sum(step.graph_us for step in whole) / gpu_us)} of the GPU's time in CUDA graphs"
    return f"{serving.engine} {_DOES[phase]} {batch} per step{rate}{covered}. "
