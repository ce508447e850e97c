"""Low-rank adapters that inference computes beside their layers."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.errors import Unavailable
from advisor.intervals import union
from advisor.knowledge.how_to_record import RECORD_BOTH, RECORD_SHAPES
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import counted, duration
from advisor.rules._phrases import a_step
from advisor.views.patterns.lora import Adapters
from advisor.views.replay.edits import Edits, WithoutOps, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.evidence import Witness
from advisor.views.trace.program import Program


@rule("unmerged-adapters", min_saving_share=0.02, explains=("unfused-elementwise",))
def unmerged_adapters(timeline: Timeline, work: GpuWork, adapters: Adapters, host_time: HostTime, program: Program, witness: Witness) -> Outcome:
    """Adapters are computed beside their layers

    What it is
    After fine-tuning with LoRA or DoRA each adapted layer computes `layer(x) + scale * up(down(x))`: two products of low rank, a scale and an
    addition beside its own product; DoRA norms the adapted weight as well. In inference nothing of that changes: the adapter can be added to the layer's weight, once.

    Why it costs time
    Four kernels and more for each layer where one would do, in all layers, for each word that is generated, and each reads and writes
    what the layer makes.

    How it is measured
    In a program that computes no gradients: two products in a row, of [rows, in] by [in, rank] and by [rank, out], with a rank of a quarter of `in` and `out`
    at most and nothing but casts between them, right after a product of [rows, in] by [in, out] or right before it, and an addition of two tensors of [rows, out] that ends both, with nothing
    before it but scales; where a norm of the adapted weight is taken, with what is linear between the products too. The step is replayed with the layer's
    product alone (`low`: what the host does between the launches stays). Reported from `min_saving_share` of the step ({min_saving_share}).

    How to fix it
    `model = model.merge_and_unload()` (peft), `pipe.fuse_lora()` (diffusers); by hand, under `torch.no_grad()`, `layer.weight += scale * up.weight @ down.weight`, before the program is timed, compiled or captured.

    When to ignore it
    When one batch serves several adapters, adapters are exchanged between requests, or the layers' weights are quantised: merged into four bits an adapter loses precision.

    References
    https://huggingface.co/docs/peft/developer_guides/lora#merge-lora-weights-into-the-base-model
    Hu et al.: LoRA, 2021, https://arxiv.org/abs/2106.09685
    """
    if not len(timeline.cpu_ops):
        raise Unavailable("no framework ops were recorded", RECORD_BOTH)
    if not timeline.source.shapes:
        raise Unavailable("input shapes were not recorded", RECORD_SHAPES)
    found = adapters.found
    if not found:
        return Clear(why="no products of low rank stand beside a layer's")
    if program.training:
        return Clear(why="adapters are computed beside their layers, but something is trained: they may change from step to step")
    members = np.unique(np.concatenate([one.members for one in found]))
    frame = timeline.cpu_ops
    started = frame["start_us"].to_numpy()
    ended = started + frame["dur_us"].to_numpy()
    begin, end = np.array([stretch for one in found for stretch in one.ops]).T
    gone = WithoutOps(members)
    all_gone = combine(gone, host_time.without(union(started[begin], ended[end])))
    rank = " or ".join(map(str, sorted({one.rank for one in found})))
    return Found(
        summary=f"{a_step(work.a_step(found), 'adapter', 'are', 'is')} computed beside a layer's own product, of rank {rank} and in "
        f"{counted(work.a_step(members), 'kernel')}: {duration(work.us_a_step(members))} of GPU time, though nothing is trained.",
        edits=Edits(gone, all_gone, all_gone),
        removes="computing adapters beside their layers",
        quiet=f"adapters take {duration(work.us_a_step(members))} a step",
        evidence=witness.of_gpu(work.rows[members], ["part of an adapter"] * len(members)),
        confidence=0.85,
        fix=Fix(
            title="Merge the adapters into their layers",
            steps=(
                "Once the checkpoint is loaded, add each adapter to its layer's weight and leave it out: merge_and_unload() of peft, fuse_lora() of diffusers.",
                "By hand, under torch.no_grad(): layer.weight += scale * up.weight @ down.weight; with DoRA each row of the sum is then scaled by its magnitude over its norm.",
                "Keep the adapter's own checkpoint: the merged weights are for inference.",
            ),
            code=Code(
                before='model = PeftModel.from_pretrained(base, "adapter")\nmodel.eval()',
                after='model = PeftModel.from_pretrained(base, "adapter").merge_and_unload()\nmodel.eval()',
            ),
            url="https://huggingface.co/docs/peft/developer_guides/lora#merge-lora-weights-into-the-base-model",
            risk="Sums are rounded to the weights' type once, so the last bits differ. Other adapters can no longer be put in their place.",
        ),
    )
