"""Gradients are filled with zeros instead of dropped."""

from __future__ import annotations

import re

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.errors import Unavailable
from advisor.intervals import joined, union
from advisor.knowledge.how_to_record import RECORD_BOTH
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.op_tokens.families import Family
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import counted, duration
from advisor.report.wording.period import PER_STEP
from advisor.views.patterns.gradient_accumulation import accumulations
from advisor.views.patterns.parameter_loops import ParameterLoops
from advisor.views.replay.edits import Edits, FewerLaunches, WithoutOps, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.evidence import Witness
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import matches, spans_of

LEFT_OF_RANGE = cost("left-of-zeroing")

_RANGE = names_of("zero_grad")
_OPTIMIZER = names_of("optimizer_or_its_file")
_FRAME = re.compile(r"torch/(optim/optimizer|nn/modules/module)\.py\(\d+\): zero_grad$")


@rule("grad-zeroing", min_saving_share=0.01)
def grad_zeroing(timeline: Timeline, steps: Steps, work: GpuWork, host: HostActivity, loops: ParameterLoops, host_time: HostTime, witness: Witness) -> Outcome:
    """Gradients are filled with zeros in each step

    What
    `zero_grad(set_to_none=False)`, or a loop of `p.grad.zero_()`, writes zeros to every gradient. The backward
    pass then adds to them.

    Why
    A kernel per parameter (or a few for all) writes all gradients. The backward pass reads and adds instead of
    storing its result. Together these are up to four additional passes over the gradients.

    How to fix
    Use the default of PyTorch 2.0 and later:

        optimizer.zero_grad()        # set_to_none=True; or model.zero_grad()

    When to ignore
    Code reads `.grad` of parameters that got no gradient, or a CUDA graph needs gradients to stay in place.

    How it is measured
    The rule finds fills and memsets launched inside `zero_grad` ranges or frames. It also finds loops of fills
    over tensors of the gradients' shapes, if shapes were recorded. The replay removes the fills (`low`), the
    additions to the zeros, and 70 % of the range's CPU time. Additions stay if there are more of them than
    fills. Savings below `min_saving_share` ({min_saving_share}) of the step are not reported.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
    """
    notes, calls = timeline.annotations, timeline.python_calls
    by_hand = loops.zeroing
    # The profiler that records ops records ranges too: without any, the program has none.
    if not any(len(kind) for kind in (notes, calls, timeline.cpu_ops, by_hand.ops)):
        raise Unavailable("no framework ranges were recorded", *RECORD_BOTH)
    ranges = joined(*(spans_of(f, matches(f, p) & host.on_threads(f)) for f, p in ((notes, _RANGE), (calls, _FRAME)) if len(f)))
    in_range = np.flatnonzero(work.launched_inside(ranges) & work.in_families(Family.FILL, Family.OPTIMIZER))
    zeroing = np.union1d(in_range, by_hand.ops)
    if not len(zeroing):
        return Clear(why="no zero_grad in the window fills gradients with zeros")
    ranges = joined(ranges, by_hand.spans)
    owner = "optimizer" if any(matches(frame, _OPTIMIZER).any() for frame in (notes, calls) if len(frame)) else "model"
    where = "zero_grad" if len(in_range) else "a loop over the gradients"
    adding = accumulations(work)
    fills = WithoutOps(zeroing)
    shorter = host_time.cut_time(ranges, 1 - LEFT_OF_RANGE)
    if len(adding) <= 1.1 * len(zeroing):
        # Autograd still comes to each gradient: of the host's time only the op's own goes.
        started = timeline.cpu_ops["start_us"][work.op[adding]]
        own = union(started, started + timeline.cpu_ops["dur_us"][work.op[adding]])
        shorter = combine(shorter, host_time.cut_time(own), FewerLaunches(adding[:0], adding, np.empty(0)))
    count = f"{counted(work.a_step(zeroing), 'fill')} {PER_STEP}"
    spent = duration(work.us_a_step(zeroing))
    return Found(
        summary=f"{where if len(in_range) else 'A loop over the gradients'} launches {count}, {spent} of GPU time and "
        f"{duration(host_time.spent_us(ranges))} of CPU overhead; the backward pass then adds to the zeros.",
        edits=Edits(fills, combine(shorter, fills), combine(shorter, fills)),
        removes="filling gradients with zeros, and adding to them",
        quiet=f"{where} launches {count}",
        evidence=witness.of_gpu(work.rows[zeroing], [f"{work.ops.name(o) or 'fill'} in {where}" for o in work.op[zeroing].tolist()]),
        # One step alone may hold the first, slow launch of each kernel.
        confidence=0.85 if steps.steps > 1 else 0.6,
        at_most="high" if steps.steps > 1 else "low",
        fix=Fix(
            title="Drop the gradients instead of zeroing them",
            steps=("Call zero_grad(set_to_none=True), the default since PyTorch 2.0.",)
            if len(in_range)
            else (f"Call {owner}.zero_grad() in place of the loop, or drop each gradient, as it does.",),
            code=Code(
                before=f"{owner}.zero_grad(set_to_none=False)" if len(in_range) else "for p in model.parameters():\n    p.grad.zero_()",
                after=f"{owner}.zero_grad(set_to_none=True)",
            ),
            url="https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html",
            holds_for=("training",),
            risk="Parameters that got no gradient have grad None, which optimizers skip: with weight decay or momentum they no longer move.",
            intervention="drop-gradients" if len(in_range) else None,
        ),
    )
