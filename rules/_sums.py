"""What to do about collectives whose result the next op needs, as sums of tensor parallelism: neither merged nor hidden, they can be made faster."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found
from advisor.intervals import Floats, Ints
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.shares import LITTLE
from advisor.report.finding import Code, Evidence, Fix
from advisor.report.numbers import duration_of
from advisor.rules._collectives import WAITING, transfer_us
from advisor.rules._phrases import a_step
from advisor.rules.fixes import for_framework
from advisor.views.ranks.communication import OneRank
from advisor.views.ranks.edits import JobEdits, Transfers
from advisor.views.ranks.exposure import Exposure
from advisor.views.ranks.job import Job
from advisor.views.replay.edits import Edits, WithDurations

ONE_SHOT_US = cost("one-shot-sum")

HOPS_LEFT = cost("one-shot-hops")

MIN_SHARE = LITTLE
"""Of the step: what such sums take is said from here, as exposed communication is."""

NEEDED_WHY = "the trace does not show whether these GPUs have a faster all-reduce"
NEEDED_DECIDE = "the same step with the other all-reduce, timed without the profiler"

_SERVERS = {
    "vLLM": (
        "Leave vLLM's own all-reduce on (no --disable-custom-all-reduce): it takes over from NCCL for small messages between GPUs that reach each other's memory.",
        "Turn on the pass that fuses the all-reduce with the norm behind it, in pass_config of --compilation-config.",
        "https://docs.vllm.ai/en/latest/serving/parallelism_scaling.html",
    ),
    "SGLang": (
        "Leave SGLang's own all-reduce on (no --disable-custom-all-reduce): it takes over from NCCL for small messages between GPUs that reach each other's memory.",
        "Turn on FlashInfer's fusion of the all-reduce with the following norm, if the server has it.",
        "https://docs.sglang.ai/advanced_features/server_arguments.html",
    ),
    "TensorRT-LLM": (
        "Leave allreduce_strategy at AUTO, which uses one-shot kernels for small messages.",
        "Between GPUs without NVLink prefer fewer ranks a model.",
        "https://nvidia.github.io/TensorRT-LLM/",
    ),
}
_FEWER = "Split the model over fewer GPUs and run more copies of it, or put more requests in a step. The number of sums stays, and each costs at least a hop."


def faster_sums(server: str, framework: str) -> Fix:
    """In the terms of an inference server, "" if it is none, or of what calls the collectives."""
    title = "Make each all-reduce faster"
    if server in _SERVERS:
        own, fused, url = _SERVERS[server]
        return Fix(title=title, steps=(own, fused, _FEWER), url=url, risk="Sums in another order differ in the last bits.")
    by_hand = Fix(
        title=title,
        steps=(
            "Sum small messages with a one-shot all-reduce, from memory that all ranks share: torch.distributed._symmetric_memory, between GPUs linked by NVLink.",
            "Capture the step in a CUDA graph, collectives included, if the host launches them too slowly.",
            _FEWER,
        ),
        code=Code(
            before="torch.mm(x, part_of_weight, out=y)\ndist.all_reduce(y)\nout = norm(y)",
            after="import torch.distributed._symmetric_memory as symm_mem\n\ny = symm_mem.empty(shape, dtype=dtype, device=device)  # once\nsymm_mem.rendezvous(y, group)\n\n"
            'torch.mm(x, part_of_weight, out=y)\nout = norm(torch.ops.symm_mem.one_shot_all_reduce(y, "sum", group.group_name))',
        ),
        url="https://docs.pytorch.org/docs/stable/symmetric_memory.html",
        risk="Sums in another order differ in the last bits. Above some hundred KiB a ring is faster.",
    )
    return for_framework(framework, "needed-sums", by_hand)


def needed(one: OneRank, at: Ints, exposed: Floats) -> Found:
    """Of a single rank: sums that the next op needs, which only faster collectives shorten."""
    work = one.work
    moving = np.where(work.dur_us[at] < ONE_SHOT_US, np.minimum(exposed, transfer_us(work, at, WAITING)), 0.0)
    spent = float(exposed.sum()) / work.schedule.steps
    return Found(
        title="The next op waits for each all-reduce",
        summary=f"{a_step(work.a_step(at), 'collective', 'take', 'takes')} {duration_of(spent, work.step_us)}. The next op needs each result, "
        "so they cannot be overlapped or merged.",
        edits=Edits(*(WithDurations(at, work.dur_us[at] - gone) for gone in (exposed * 0.0, (1 - HOPS_LEFT) * moving, exposed))),
        removes="latency of short all-reduces",
        at_most_us=spent,
        status="possible",
        possible_why=NEEDED_WHY,
        decide_with=NEEDED_DECIDE,
        at_least="low",
        evidence=one.witness.of_gpu(work.rows[at], [str(name)[:100] for name in work.column("name")[at]]),
        confidence=0.8,
        cause="communication",
        fix=faster_sums(one.program.server, one.program.framework),
    )


def needed_of_job(job: Job, exposure: Exposure) -> Found:
    """The same of all ranks: waits are known, and only transfers count."""
    count = len(exposure.needed) / max(job.steps, 1)
    short = tuple(c for c in exposure.needed if job.matched.transfer_us[c] < ONE_SHOT_US)
    return Found(
        title="The next op waits for each all-reduce",
        summary=f"{a_step(count, 'collective', 'move', 'moves')} data for {duration_of(exposure.needed_us, exposure.step_us)}. The next op needs each result, "
        "so they cannot be overlapped or merged.",
        evidence=(Evidence(label="transfers of sums that the next op needs, a step", start_us=0.0, dur_us=exposure.needed_us, count=max(round(count), 1)),),
        fix=faster_sums(job.server, job.framework),
        edits=JobEdits(Transfers((), 1.0), Transfers(short, HOPS_LEFT), Transfers(exposure.needed, 0.0)),
        removes="latency of short all-reduces",
        at_most_us=exposure.needed_us,
        status="possible",
        possible_why=NEEDED_WHY,
        decide_with=NEEDED_DECIDE,
        at_least="low",
        confidence=0.8,
        cause="communication",
        ranks=job.numbers,
    )
