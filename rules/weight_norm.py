"""Inference normalises weights that no longer change."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.errors import Unavailable
from advisor.intervals import union
from advisor.knowledge.how_to_record import RECORD_BOTH
from advisor.knowledge.op_tokens import names_of
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import counted, duration
from advisor.report.wording.period import PER_STEP
from advisor.views.replay.edits import Edits, WithoutOps, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.evidence import Witness
from advisor.views.trace.program import Program

_NORM = names_of("weight_norm")


@rule("weight-norm", min_saving_share=0.01)
def weight_norm(timeline: Timeline, work: GpuWork, host_time: HostTime, program: Program, witness: Witness) -> Outcome:
    """Weights are normalised again in every call

    What
    Layers with `torch.nn.utils.weight_norm` (or `parametrizations.weight_norm`) store a direction and a length,
    and compute their weight in every forward pass. In inference, the weight is the same each time.

    Why
    Each such layer adds an op, a Python hook and a kernel to every call. Audio vocoders and codecs (HiFi-GAN,
    VITS, EnCodec, DAC) have a hundred such layers, most of them small, so launches limit them.

    How to fix
    Fold the norm into the weight once, after loading:

        for layer in model.modules():
            if torch.nn.utils.parametrize.is_parametrized(layer, "weight"):
                torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")

    For the older API, use `torch.nn.utils.remove_weight_norm(layer)`. Models of transformers have
    `remove_weight_norm()`.

    When to ignore
    Training continues afterwards, or the weights change between calls.

    How it is measured
    The rule finds `aten::_weight_norm` ops in a program without gradients. The replay removes their kernels and
    CPU time (`low`: only the kernels and their launches). Savings below `min_saving_share` ({min_saving_share}) of the step
    are not reported.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.parametrize.remove_parametrizations.html
    https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.parametrizations.weight_norm.html
    """
    if not len(timeline.cpu_ops):
        raise Unavailable("no framework ops were recorded", *RECORD_BOTH)
    around = work.ops.enclosing(work.op, _NORM)
    norms = np.flatnonzero(around >= 0)
    if not len(norms):
        return Clear(why="no weights are normalised")
    if program.training:
        return Clear(why="weights are normalised, but they are trained: they change from step to step")
    frame, ops = timeline.cpu_ops, np.unique(around[norms])
    started = frame["start_us"][ops]
    spans = union(started, started + frame["dur_us"][ops])
    gone = WithoutOps(norms)
    all_gone = combine(host_time.cut_time(spans), gone)
    weights = counted(work.a_step(ops), "weight")
    return Found(
        summary=f"{weights} {PER_STEP} {'is' if work.a_step(ops) == 1 else 'are'} normalised although nothing is trained: "
        f"{duration(work.us_a_step(norms))} of GPU time and {duration(host_time.spent_us(spans))} of host time.",
        edits=Edits(gone, all_gone, all_gone),
        removes="normalising weights that no longer change",
        quiet=f"{weights} {PER_STEP} {'is' if work.a_step(ops) == 1 else 'are'} normalised",
        evidence=witness.of_gpu(work.rows[norms], ["norm of a weight"] * len(norms)),
        confidence=0.95,
        fix=Fix(
            title="Fold the norms into the weights once",
            steps=(
                "After loading the checkpoint, remove the parametrization of each layer: its weight stays as it is, computed once.",
                "Layers under the older torch.nn.utils.weight_norm: torch.nn.utils.remove_weight_norm(layer).",
                "Models of transformers may have model.remove_weight_norm() for it.",
            ),
            code=Code(
                before="model.load_state_dict(state)\nmodel.eval()",
                after='model.load_state_dict(state)\nfor layer in model.modules():\n    if torch.nn.utils.parametrize.is_parametrized(layer, "weight"):\n'
                '        torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")\nmodel.eval()',
            ),
            url="https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.parametrize.remove_parametrizations.html",
            risk="Training can no longer go on with the normed weights. Checkpoints that are saved afterwards hold plain weights.",
        ),
    )
