"""The optimizer updates each parameter separately."""

from __future__ import annotations

from advisor.engine.rule import Found, Outcome, rule
from advisor.errors import Unavailable
from advisor.knowledge.how_to_record import RECORD_SHAPES
from advisor.report.finding import Advice, Clear, Code, Conditional, Fix
from advisor.report.numbers import counted, duration
from advisor.report.wording.period import PER_STEP
from advisor.rules.fixes.optimizers import update_together
from advisor.views.patterns.optimizer import HAVE_FUSED, OptimizerStep, fused_optimizer
from advisor.views.patterns.parameter_loops import ParameterLoop, ParameterLoops
from advisor.views.replay.edits import Edits, WithoutWaits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.evidence import Witness
from advisor.views.trace.repeats import ONE_BY_ONE


@rule("optimizer-foreach", min_saving_share=0.03, part_of=("launch-gap",))
def optimizer_foreach(
    work: GpuWork,
    update: OptimizerStep,
    loops: ParameterLoops,
    host_time: HostTime,
    witness: Witness,
    *,
    min_parameters: int = 2,
) -> Outcome:
    """The optimizer updates each parameter separately

    What
    The optimizer step is a Python loop. Each parameter takes half a dozen elementwise kernels (`mul_`, `lerp_`,
    `addcmul_`, `sqrt`, `addcdiv_`) instead of a share of a multi-tensor kernel.

    Why
    A model has hundreds of parameters, most of them small. A step launches thousands of tiny kernels, each
    slower to launch than to run. For large parameters, every kernel reads and writes the whole tensor.

    How to fix
    Use the fused form:

        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)

    If there is none, use `foreach=True`, the default on GPUs. For a custom optimizer, use `torch._foreach_*`
    ops or compile its step.

    When to ignore
    Memory is full: `foreach` needs temporaries as large as the parameters, `fused` does not. Or hooks need each
    parameter's update separately.

    How it is measured
    The rule takes kernels in `Optimizer.step` ranges, without `_foreach_`, `_fused_` or compiled kernels, for
    `min_parameters` ({min_parameters}) parameters or more. Loops outside the optimizer count too, if shapes were recorded.
    Savings below `min_saving_share` ({min_saving_share}) of the step are not reported.

    | What remains | `low` / `expected` / `high` |
    |---|---|
    | launches | 1 per 30 parameters |
    | memory traffic, fused | 0.6 / 0.4 / 0.3 |
    | CPU time in the range | 45 / 25 / 10 % |

    References
    https://docs.pytorch.org/docs/stable/optim.html#algorithms
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """
    several = loops.updating.tensors >= max(min_parameters, ONE_BY_ONE)
    by_hand = _by_hand(work, loops.updating, host_time, witness) if len(loops.updating.ops) and several else None
    its_own = _optimizer(work, update, host_time, witness, min_parameters)
    if by_hand is None:
        if len(loops.untold) and not (isinstance(its_own, Found) and update.kind == "loop"):
            told = f"{counted(work.a_step(loops.untold), 'elementwise kernel')} {PER_STEP} follow the backward pass; only shapes show whether they loop over parameters"
            raise Unavailable(told, *RECORD_SHAPES)
        return its_own
    return [its_own, by_hand] if isinstance(its_own, Found) else by_hand


def _optimizer(work: GpuWork, update: OptimizerStep, host_time: HostTime, witness: Witness, min_parameters: int) -> Found | Clear:
    if update.kind == "none":
        return Clear(why="no optimizer step in the window")
    count = work.a_step(update.ops)
    if update.kind == "fused":
        return Clear(why=f"{update.name or 'the optimizer'} is already fused: {counted(count, 'kernel')} {PER_STEP}")
    if update.kind == "sparse":
        return Clear(why=f"{update.name or 'the optimizer'} takes sparse gradients, and neither foreach nor fused does")
    if update.kind == "other":
        return Clear(why=f"the optimizer launches {counted(count, 'kernel')} {PER_STEP}, in no pattern per parameter")
    looped = update.kind == "loop"
    if looped and update.parameters < min_parameters:
        return Clear(why=f"the optimizer updates {counted(update.parameters, 'parameter')} {PER_STEP} separately (threshold {min_parameters})")
    if not looped and update.name not in HAVE_FUSED:
        return Clear(why=f"{update.name or 'the optimizer'} is already foreach and has no fused form")
    spent = duration(work.us_a_step(update.ops))
    name = update.name or "The optimizer"
    return Found(
        title="The optimizer updates each parameter separately" if looped else "The optimizer could be fused",
        summary=f"{name} launches {counted(count, 'kernel')} {PER_STEP} for {counted(update.parameters, 'parameter')}, {spent} of GPU time and "
        f"{duration(host_time.spent_us(update.spans))} of CPU overhead."
        if looped
        else f"{name} runs {counted(count, 'foreach kernel')} {PER_STEP} ({spent} of GPU time); fused kernels move each tensor once.",
        edits=fused_optimizer(host_time, work, update),
        removes="separate kernels for each parameter's update",
        quiet=f"the optimizer runs {'parameter by parameter' if looped else 'with foreach kernels'} ({counted(count, 'kernel')} {PER_STEP})",
        evidence=witness.of_gpu(work.rows[update.ops], [work.name(k)[:80] for k in update.ops.tolist()]),
        confidence=0.9 if looped else 0.63,
        at_most="high" if looped else "low",
        fix=update_together(update),
    )


def _by_hand(work: GpuWork, loop: ParameterLoop, host_time: HostTime, witness: Witness) -> Found:
    """A loop over the parameters that is not the optimizer's own."""
    update = OptimizerStep("own", "loop", loop.ops, loop.spans, loop.tensors)
    count = work.a_step(loop.ops)
    low, expected, high = fused_optimizer(host_time, work, update)
    waits = WithoutWaits(loop.waits)
    return Found(
        title="A loop handles each parameter separately",
        summary=f"Outside the optimizer's step, {counted(count, 'kernel and copy', 'kernels and copies')} {PER_STEP} loop over {counted(loop.tensors, 'parameter')} or their gradients "
        f"separately: {duration(work.us_a_step(loop.ops))} of GPU time and {duration(host_time.spent_us(loop.spans))} of CPU overhead."
        + (f" The host waits for the GPU {work.a_step(loop.waits):,.0f} times in that loop." if len(loop.waits) else ""),
        edits=Edits(low, combine(waits, expected), combine(waits, high)),
        removes="separate kernels for each parameter",
        quiet=f"a loop handles {counted(loop.tensors, 'parameter')} separately ({counted(count, 'kernel')} {PER_STEP})",
        evidence=witness.of_gpu(work.rows[loop.ops], [work.name(k)[:80] for k in loop.ops.tolist()]),
        confidence=0.85,
        fix=Fix(
            title="Process all tensors in a single call",
            steps=(
                "Collect the tensors in lists and call torch._foreach_* ops on the lists, or compile the function with the loop.",
                Advice(
                    Conditional(
                        "training",
                        "To clip each gradient by its own norm, scale = (limit / (torch.stack(torch._foreach_norm(grads)) + 1e-6)).clamp(max=1) and "
                        "torch._foreach_mul_(grads, list(scale.unbind())). To clip by a common norm: clip_grad_norm_(params, limit, foreach=True).",
                    )
                ),
                "For a running mean of the weights, torch._foreach_lerp_.",
                "An `if` on a tensor waits for the GPU: multiply by a clamped factor instead.",
            ),
            code=Code(
                before="for mean, p in zip(means, params):\n    mean.mul_(0.999).add_(p, alpha=0.001)",
                after="torch._foreach_lerp_(means, params, 0.001)",
            ),
            url="https://docs.pytorch.org/docs/stable/generated/torch.optim.swa_utils.AveragedModel.html",
            risk="foreach keeps temporaries as large as the parameters unless its ops are in place; the last bits may round differently.",
        ),
    )
