"""Low-rank adapters that inference computes next to their layers."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import union
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import counted, duration
from advisor.report.wording.period import PER_STEP
from advisor.rules._phrases import a_step
from advisor.views.patterns.lora import Adapters
from advisor.views.replay.edits import Edits, WithoutOps, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.arguments import need_shapes
from advisor.views.trace.evidence import Witness
from advisor.views.trace.program import Program


@rule("unmerged-adapters", min_saving_share=0.02, explains=("unfused-elementwise",))
def unmerged_adapters(timeline: Timeline, work: GpuWork, adapters: Adapters, host_time: HostTime, program: Program, witness: Witness) -> Outcome:
    """Adapters are computed in addition to their layers

    What
    After fine-tuning with LoRA or DoRA, each adapted layer computes `layer(x) + scale * up(down(x))`: two
    low-rank GEMMs, a scale and an addition. DoRA also normalises the weight. In inference the adapter is
    constant, so it can be added to the weight once.

    Why
    Each layer takes four additional kernels or more, for every token. Each reads and writes the layer's output.

    How to fix
    Merge the adapters after loading:

        model = model.merge_and_unload()        # peft
        pipe.fuse_lora()                        # diffusers

    By hand: `layer.weight += scale * up.weight @ down.weight`, under `torch.no_grad()`.

    When to ignore
    A batch uses several adapters, adapters change between requests, or weights are quantised: merging into 4
    bits loses precision.

    How it is measured
    In a program without gradients, the rule finds two GEMMs in a row with a rank of a quarter of the layer's
    width or less. They follow or precede the layer's GEMM on the same rows, and an addition joins both. The
    replay keeps only the layer's GEMM (`low`: CPU time between launches remains). Savings below
    `min_saving_share` ({min_saving_share}) of the step are not reported.

    References
    https://huggingface.co/docs/peft/developer_guides/lora#merge-lora-weights-into-the-base-model
    Hu et al.: LoRA, 2021, https://arxiv.org/abs/2106.09685
    """
    need_shapes(timeline)
    found = adapters.found
    if not found:
        return Clear(why="no low-rank adapter runs next to a layer")
    if program.training:
        return Clear(why="adapters are not merged, but the program trains, so they may change between steps")
    members = np.unique(np.concatenate([one.members for one in found]))
    frame = timeline.cpu_ops
    started, ended = frame.bounds()
    begin, end = np.array([stretch for one in found for stretch in one.ops]).T
    gone = WithoutOps(members)
    all_gone = combine(gone, host_time.cut_time(union(started[begin], ended[end])))
    rank = " or ".join(map(str, sorted({one.rank for one in found})))
    return Found(
        summary=f"{a_step(work.a_step(found), 'adapter', 'are', 'is')} computed next to a layer, with rank {rank}, in "
        f"{counted(work.a_step(members), 'kernel')}: {duration(work.us_a_step(members))} of GPU time, although nothing is trained.",
        edits=Edits(gone, all_gone, all_gone),
        removes="separate adapter kernels",
        quiet=f"adapters take {duration(work.us_a_step(members))} {PER_STEP}",
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
            holds_for=("torch",),
            risk="Sums are rounded to the weights' type once, so the last bits differ. Other adapters can no longer be put in their place.",
        ),
    )
