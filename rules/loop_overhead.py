"""A compiled loop's turns cost more than their work."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.knowledge.measured_costs import cost
from advisor.report.finding import Clear
from advisor.report.numbers import counted, duration
from advisor.rules.fixes import known_fix
from advisor.views.patterns.compiled_loops import CompiledLoops
from advisor.views.replay.edits import Edits, WithDurations, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.evidence import Witness
from advisor.views.trace.program import Program

EIGHT = 8
"""Turns that become one, as measured: more gained little more, and take as much longer to compile."""

ACROSS_TURNS = cost("turns-in-one")

_UNROLL = known_fix("jax", "unroll")

_BY_VALUE = known_fix("jax", "test-less-often")


@rule("loop-overhead", relies_on=("host",), min_saving_share=0.03)
def loop_overhead(work: GpuWork, loops: CompiledLoops, program: Program, witness: Witness, *, min_turns: int = 8) -> Outcome:
    """A compiled loop's turns cost more than their work

    What it is
    A loop inside a jitted program of JAX (`jax.lax.scan`, `fori_loop`, `while_loop`) whose turns each hold a few short kernels.

    Why it costs time
    XLA's runtime issues each turn by itself: a launch or more, a kernel that counts, a copy of the slice that the turn works on, and a pause between turns. Where a
    value ends the loop, the host also waits for that value before each turn. A turn of 2 µs of products easily takes 7, or 40.

    How it is measured
    XLA's runtime marks each turn on the host. Kernels launched inside are the turn's; those on one block that read nothing but whole scalars, and copies within the
    device, are the loop's own, and so is what runs before a turn's copy to the host. The step is replayed with eight turns as one: seven are issued with the first, and do nothing for the loop
    (`low`: copies stay; `high`: all turns become one, and half of their other work goes as kernels fuse across turns). Over fourteen loops on an H200 and an H100 the unrolled step took 0.13 to 0.92 of the time. Looked at from
    `min_turns` turns a step ({min_turns}); reported from `min_saving_share` of the step ({min_saving_share}). Loops that run inside a CUDA graph leave no marks, and nothing is said of them.

    How to fix it
    `jax.lax.scan(f, init, xs, unroll=8)`; `unroll` of `fori_loop` likewise; or a Python loop under `jax.jit` where turns are few. Of a `while_loop` that a value ends: several turns in
    its body, so that it is tested less often (0.23 to 0.34 of the time with eight, of three measured). Taking products out of the loop that do not need the turn before is no sure gain: of three recurrences one took 0.7 of the time, two 1.5 and 1.6.

    When to ignore it
    When compilation must stay short: each unrolled turn is compiled. When a turn's memory is why there is a loop: unrolled turns may hold several at once.

    References
    https://docs.jax.dev/en/latest/_autosummary/jax.lax.scan.html
    https://docs.jax.dev/en/latest/_autosummary/jax.lax.fori_loop.html
    """
    if program.framework != "jax":
        return Clear(why="loops of other frameworks than JAX are not compiled with their turns kept apart")
    at = loops.of_op >= 0
    others = np.flatnonzero(at & ~loops.own)
    whole = combine(loops.several_at_once(max(int(loops.number.max(initial=0)) + 1, EIGHT)), WithDurations(others, ACROSS_TURNS * work.dur_us[others]))
    turns = len(loops.turns) / work.schedule.steps
    if turns < min_turns:
        return Clear(why=f"{counted(turns, 'turn')} of compiled loops {'was' if round(turns) == 1 else 'were'} recorded a step; looked at from {min_turns}")
    ops_us, own_us = work.us_a_step(at.nonzero()[0]), work.us_a_step(loops.own.nonzero()[0])
    for_itself = "tests and counts" if loops.by_value else "counts and slices"
    return Found(
        summary=f"{counted(turns, 'turn')} a step launch {at.sum() / len(loops.turns):.1f} kernels and copies each, which take {duration(ops_us)} of {duration(work.step_us)}; "
        f"{duration(own_us)} of it the loop spends on itself, as it {for_itself}, and the device idles for {duration(loops.idle_us)} between them, as recorded.",
        edits=Edits(loops.several_at_once(EIGHT, copies=False), loops.several_at_once(EIGHT), whole),
        removes="launches, counting and slicing of each turn",
        quiet=f"{counted(turns, 'turn')} of compiled loops are launched a step",
        evidence=witness.of_gpu(
            work.rows[at],
            ["the loop's own" if own else work.kernel_name(k)[:60] for k, own in zip(at.nonzero()[0].tolist(), loops.own[at].tolist(), strict=True)],
        ),
        confidence=0.8,
        fix=_BY_VALUE if loops.by_value else _UNROLL,
    )
