"""What the program does on the host between launches, outside the loader."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome
from advisor.errors import Unavailable
from advisor.intervals import joined, overlap_with
from advisor.knowledge.how_to_record import RECORD_BOTH
from advisor.knowledge.shares import MOST
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear
from advisor.report.numbers import counted, duration, threshold
from advisor.report.wording.period import of_each_step, step_of
from advisor.rules import fixes
from advisor.rules._phrases import led_by
from advisor.rules.fixes.host_work import host_work
from advisor.views.groups import distinct
from advisor.views.replay.edits import Edits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.trace import host_code
from advisor.views.trace.compilation import Compilation
from advisor.views.trace.evidence import folded
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.launches import Launches, behind_reads
from advisor.views.trace.program import Program
from advisor.views.trace.repeats import FEWEST_REPEATS
from advisor.views.trace.steps import Steps


def between_launches(
    timeline: Timeline,
    steps: Steps,
    work: GpuWork,
    host: HostActivity,
    host_time: HostTime,
    compilation: Compilation,
    launches: Launches,
    program: Program,
    min_pause_us: float,
    min_steps_share: float,
) -> Outcome:
    """What the program does between launches, outside the loader."""
    seen = len(timeline.cpu_ops) > 0
    if seen and not (host.on_threads(timeline.cpu_ops).any() or host.on_threads(timeline.python_calls).any()):
        raise Unavailable("a runtime's own threads launch the GPU's work, so their pauses say nothing about the program's threads", *RECORD_BOTH)
    if not steps.repeats:
        return Clear(why="the trace has no repeated step, so the CPU work may be start-up")
    host_time = host_time.seen()
    others = joined(host.sync, host.allocator, host.data_loading, host.profiler, compilation.spans)
    spans, works = host_code.own_work(timeline, steps, host, work.ops, program, others, min_pause_us)
    if not len(works):
        if not seen and program.framework != "cuda":
            raise Unavailable("no framework ops were recorded, so other CPU code cannot be identified", *RECORD_BOTH)
        # What a shorter pause without a name is, nobody knows.
        least_us = min_pause_us * (1.0 if host_code.names_pauses(timeline, host) else host_code.UNNAMED_FACTOR)
        return Clear(why=f"the host never pauses or computes on CPU tensors for {least_us:.0f} µs in the window")
    # Whether what one step does comes again, the step that closes the window tells.
    looked_at = steps if steps.steps > 1 else steps.with_closing()
    seen_in = spans if looked_at is steps else host_code.own_work(timeline, looked_at, host, work.ops, program, others, min_pause_us)[0]
    per_step = overlap_with(looked_at.host_edges_us[:-1], looked_at.host_edges_us[1:], seen_in)
    busy = int((per_step >= min_pause_us).sum())
    if busy < max(2.0, min_steps_share * looked_at.steps):
        return Clear(why=f"other CPU code runs in only {busy} of {counted(looked_at.steps, 'step')} (threshold {threshold(min_steps_share)}, and two)")
    known = all(w.kind != "unknown" for w in works)
    # What stands in generated code is told from what is around it alone.
    told = np.array([w.kind != "generated" for w in works])
    named, guessed = ((spans[0][chosen], spans[1][chosen]) for chosen in (told, ~told))
    least, share = 0.5 if known else 0.25, 1.0 if known or seen else 0.5
    whole = host_code.surrounding_pauses(timeline, steps, host, work.ops, distinct(launches.call[launches.call >= 0]), others, named) if seen else named
    spent_us = host_time.spent_us(joined(whole, guessed))
    spent = duration(spent_us)
    start, end = spans
    by_label = {w.label: w.source for w in works}
    labels = [w.label for w in works]
    evidence = folded(labels, start, end - start, source=lambda m: by_label[labels[int(m[0])]])
    main = max(works, key=lambda w: sum(e.dur_us for e in evidence if e.label == w.label))
    of_main = np.array([label == main.label for label in labels])
    read_us = (end - start)[of_main & behind_reads(timeline, launches, start)].sum()
    # Work that comes again and again in a step makes no batch: the environment of an agent, the host's part of a loop.
    once = of_main.sum() < FEWEST_REPEATS * steps.steps
    unnamed = seen and main.kind == "unknown"
    lead = "Something other than launching takes" if unnamed else "CPU code of the program takes" if seen else "The host spends"
    return Found(
        summary=f"{lead} {spent} {of_each_step(work.step_us)}{' outside of runtime calls' * (not seen)}, {led_by(evidence)}. "
        + ("Without Python frames, nothing tells whether the host works or waits there." if unnamed else "It launches nothing in that time."),
        edits=Edits(
            combine(host_time.cut_time(named, least), host_time.cut_time(guessed, 0.25)),
            combine(host_time.cut_time(whole, share), host_time.cut_time(guessed, 0.5)),
            host_time.cut_time(joined(whole, guessed)),
        ),
        removes="CPU code between launches",
        # A replay that falls short of the step is taken to gain in proportion: no more than the work that goes.
        likely_at_most_us=spent_us,
        quiet=f"the host works {spent} of {step_of(work.step_us)} for itself",
        evidence=evidence,
        confidence=0.85 if known and told.any() else 0.5,
        at_most="high" if seen else "medium",
        status="possible" if program.server else "found",
        possible_why=fixes.PLANS_WHY if program.server else "",
        decide_with=fixes.PLANS_DECIDE if program.server else "",
        fix=fixes.planning_of(program)
        or fixes.for_program(
            program,
            "host-bound",
            host_work(main, reads=read_us >= MOST * (end - start)[of_main].sum(), loader=program.loader or (program.training and once)),
        ),
    )
