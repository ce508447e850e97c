"""Graph breaks split compiled code, at lines that the compiler's log names."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import joined, length
from advisor.knowledge.measured_costs import costs
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear
from advisor.report.numbers import counted, duration
from advisor.report.wording.period import PER_STEP, of_each_step
from advisor.rules.fixes.recompiling import without_breaks
from advisor.views.patterns.compiling import LoggedCompiles, together
from advisor.views.replay.edits import Edits, WithoutWaits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.evidence import folded
from advisor.views.trace.table_filters import begins_inside

GAPS = costs("graph-break")
"""What mending gains, in host time between graphs: low, expected, high."""


@rule("graph-breaks", relies_on=("host",), min_saving_share=0.03)
def graph_breaks(timeline: Timeline, logged: LoggedCompiles, work: GpuWork, calls: HostCalls, host_time: HostTime) -> Outcome:
    """Graph breaks split compiled code

    What
    `torch.compile` cannot compile a line: `.item()`, a branch on a tensor's value, a call into C, `print`. It ends
    the graph there, runs the line in Python, and begins another graph behind it.

    Why
    Between two graphs Dynamo looks up the next code, checks its guards, and Python runs. What the two graphs
    could fuse stays apart.

    How to fix
    Mend the line that the finding names:

        scale = x.norm().item()                       # before: the graph ends here
        scale = x.norm()                              # after: a tensor stays in the graph
        y = torch.where(x.sum() > 0, a(x), b(x))      # instead of `if x.sum() > 0:`

    `torch.compile(fullgraph=True)` shows the first break that is left as an error.

    When to ignore
    The GPU is busy meanwhile, or the code after the break runs rarely.

    How it is measured
    `--compile-log` gives the breaks, their lines and reasons; without a log the rule does not run. A break lasts
    from the end of a compiled graph to the start of the next one of the same call. The replay removes that host
    time, as it is without the profiler. Breaks without a graph on both sides are not priced. Savings below
    `min_saving_share` ({min_saving_share}) of the step are not reported.

    | Estimate | Time that disappears |
    |---|---|
    | `low` | the median host time between the graphs |
    | `expected` | twice as much, as the call of each graph behind a break goes too |
    | `high` | 2.7 times as much, and waits for the GPU |

    Mending gained 1.4 to 2.7 times the host time between graphs in six pairs of programs on an H200 (PyTorch 2.11).

    References
    https://docs.pytorch.org/docs/stable/compile/programming_model.graph_breaks_index.html
    https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html
    """
    priced, unpriced = logged.of("graph-break"), logged.unpriced("graph-break")
    left = f" {counted(len(unpriced), 'line')} of breaks not priced, as {unpriced[0].unpriced}." if unpriced else ""
    if not priced:
        return Clear(why=f"the log names no graph break between two graphs of the steps.{left}")
    seen = host_time.seen()
    spans = together(priced)
    recorded = sum(row.us or 0.0 for row, _ in priced)
    spent = sum(row.unprofiled_us or 0.0 for row, _ in priced)
    worst = priced[0][0]
    line = f"{worst.source.file}:{worst.source.line}"
    # Prices rest on the median: a mean, which the replay takes off, would hold each pause of the process.
    share = min(recorded * seen.recorded.steps / max(length(spans), 1e-9), 1.0)
    # Each graph behind a break is also called, allocates and launches for itself.
    around = joined(spans, logged.graphs())
    of_gap = share * length(spans) / max(length(around), 1e-9)
    _, likely, most = (seen.cut_time(around, min(times * of_gap, 1.0)) for times in GAPS)
    waiting = WithoutWaits(np.flatnonzero(begins_inside(timeline.api_calls, spans)[calls.rows] & calls.waits))
    labels = [f"graph break at {row.source.file}:{row.source.line}" for row, (start, _) in priced for _ in start]
    starts, ends = (np.concatenate([spans[edge] for _, spans in priced]) for edge in (0, 1))
    sources = {label: row.source for (row, _), label in zip(priced, dict.fromkeys(labels), strict=True)}
    return Found(
        title=f"{counted(len(priced), 'graph break')} split compiled code",
        summary=f"Graph breaks take {duration(spent)} {of_each_step(work.step_us)} without the profiler ({duration(recorded)} as recorded), most at {line}: "
        f"{worst.reason or 'no reason was logged'}.{left}",
        edits=Edits(seen.cut_time(spans, GAPS[0] * share), likely, combine(most, waiting)),
        removes="host time between compiled graphs",
        quiet=f"graph breaks take {duration(spent)} {PER_STEP}",
        evidence=folded(labels, starts, ends - starts, source=lambda members: sources[labels[members[0]]]),
        fix=without_breaks([row for row, _ in priced]),
    )
