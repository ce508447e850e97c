"""A compiled loop's turns cost more than their work."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.knowledge.measured_costs import cost
from advisor.report.finding import Clear
from advisor.report.numbers import counted, duration, duration_of
from advisor.report.wording.period import PER_STEP
from advisor.rules.fixes import in_jax
from advisor.views.patterns.compiled_loops import CompiledLoops
from advisor.views.replay.edits import Edits, WithDurations, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.evidence import Witness
from advisor.views.trace.program import Program

EIGHT = 8
"""Turns that become one, as measured: more gained little more, and take as much longer to compile."""

ACROSS_TURNS = cost("turns-in-one")


@rule("loop-overhead", relies_on=("host",), min_saving_share=0.03)
def loop_overhead(work: GpuWork, loops: CompiledLoops, program: Program, witness: Witness, *, min_turns: int = 8) -> Outcome:
    """A compiled loop's iterations cost more than their work

    What
    A loop inside a jitted JAX program (`jax.lax.scan`, `fori_loop`, `while_loop`) has iterations of only a few
    short kernels.

    Why
    XLA's runtime launches each iteration separately, with a counter kernel, a copy of the iteration's slice,
    and a pause. If a value ends the loop, the host also waits for it in each iteration. An iteration of 2 µs of
    GEMMs easily takes 7 µs, or 40.

    How to fix
    Unroll the loop:

        jax.lax.scan(f, init, xs, unroll=8)

    `fori_loop` has `unroll` too. In a `while_loop`, do several iterations in the body, so that its condition is
    tested less often.

    When to ignore
    Compilation must stay short, since each unrolled iteration is compiled. Or the loop exists to save memory:
    unrolled iterations may hold several buffers at the same time.

    How it is measured
    XLA's runtime marks each iteration. Kernels inside belong to it; counters and slice copies are the loop's
    overhead. The rule considers loops of `min_turns` ({min_turns}) iterations per step or more. In the replay, eight
    iterations become a single iteration. Savings below `min_saving_share` ({min_saving_share}) of the step are not reported.

    | Estimate | Assumption |
    |---|---|
    | `low` | copies remain |
    | `expected` | the overhead of seven in eight iterations disappears |
    | `high` | all iterations merge, and half of their other work fuses |

    References
    https://docs.jax.dev/en/latest/_autosummary/jax.lax.scan.html
    https://docs.jax.dev/en/latest/_autosummary/jax.lax.fori_loop.html
    """
    if program.framework != "jax":
        return Clear(why="only JAX compiles loops with separate iterations")
    at = loops.of_op >= 0
    others = np.flatnonzero(at & ~loops.own)
    whole = combine(loops.several_at_once(max(int(loops.number.max(initial=0)) + 1, EIGHT)), WithDurations(others, ACROSS_TURNS * work.dur_us[others]))
    turns = len(loops.turns) / work.schedule.steps
    if turns < min_turns:
        return Clear(
            why=f"{counted(turns, 'iteration')} of compiled loops {'was' if round(turns) == 1 else 'were'} recorded {PER_STEP} (threshold {min_turns})"
        )
    ops_us, own_us = work.us_a_step(at.nonzero()[0]), work.us_a_step(loops.own.nonzero()[0])
    for_itself = "tests and counters" if loops.by_value else "counters and slices"
    return Found(
        summary=f"{counted(turns, 'loop iteration')} {PER_STEP} launch {at.sum() / len(loops.turns):.1f} kernels and copies each, which take {duration_of(ops_us, work.step_us)}. "
        f"The loop itself ({for_itself}) takes {duration(own_us)} of it, and the device idles for {duration(loops.idle_us)} between them, as recorded.",
        edits=Edits(loops.several_at_once(EIGHT, copies=False), loops.several_at_once(EIGHT), whole),
        removes="launches, counting and slicing of each iteration",
        quiet=f"{counted(turns, 'iteration')} of compiled loops are launched {PER_STEP}",
        evidence=witness.of_gpu(
            work.rows[at],
            ["the loop's own" if own else work.kernel_name(k)[:60] for k, own in zip(at.nonzero()[0].tolist(), loops.own[at].tolist(), strict=True)],
        ),
        confidence=0.8,
        fix=in_jax("loop-overhead", "by-value" if loops.by_value else ""),
    )
