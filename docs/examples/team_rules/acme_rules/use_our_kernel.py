"""The step runs a framework op for which this team has a faster kernel."""

from __future__ import annotations

import numpy as np

from advisor import Clear, Code, Edits, Evidence, Finding, Fix, Found, Skipped, Timeline, rule, severity_of
from advisor.views.replay.build import Replay
from advisor.views.replay.edits import WithDurations
from advisor.views.trace.ops import Ops
from advisor.views.trace.steps import Steps


@rule("acme/use-our-kernel", relies_on=("kernels",))
def use_our_kernel(
    timeline: Timeline,
    steps: Steps,
    ops: Ops,
    replay: Replay,
    *,
    op: str = "aten::_softmax",
    speedup: float = 3.0,
    min_saving_share: float = 0.02,
) -> list[Found] | Clear | Skipped:
    """A framework op runs where we have a faster kernel

    What it is
    The step spends time in `aten::_softmax`, for which `acme_kernels.softmax` exists.

    Why it costs time
    The framework's kernel reads its input twice; ours keeps a row in registers.

    How it is measured
    Kernels launched from within `op` take 1/`speedup` of their time, and the step is replayed (3.0: the median over the shapes
    of our benchmark; `low` 2.0, `high` 4.0). Reported from `min_saving_share` of the step (0.02).

    How to fix it
    `from acme_kernels import softmax`, and call it instead.

    When to ignore it
    For rows of more than 32,768 elements, which do not fit our kernel.

    References
    https://example.com/acme-kernels
    """
    if not len(timeline.cpu_ops):
        return Skipped(why="no framework ops were recorded", record_with="profile(activities=[CPU, CUDA])")
    schedule = replay.recorded
    launched_by = ops.of_gpu[schedule.op_row]
    wanted = np.array([name == op for name in ops.categories], bool)
    slow = np.flatnonzero((launched_by >= 0) & wanted[ops.names[launched_by]])
    if not len(slow):
        return Clear(why=f"no kernel was launched by {op} inside the window")

    dur_us = schedule.dur_us[slow]
    edits = Edits(*(WithDurations(slow, dur_us / factor) for factor in (speedup * 2 / 3, speedup, speedup * 4 / 3)))
    saving = replay.saving(edits, f"the time of {op} above that of our kernel")
    share = saving.expected_us / steps.step_us
    if share < min_saving_share:
        return Clear(why=f"our kernel would save {share:.1%} of the step; reported from {min_saving_share:.0%}")

    rows = schedule.op_row[slow]
    start_us = timeline.gpu_ops["start_us"].to_numpy()[rows]
    finding = Finding(
        title=f"{op} runs where we have a faster kernel",
        summary=f"{len(slow) / schedule.steps:.0f} kernels of {op} take {dur_us.sum() / schedule.steps:.0f} µs of each step.",
        severity=severity_of(saving, steps.step_us),
        confidence=0.8 if steps.repeats else 0.5,
        saving=saving,
        evidence=(Evidence(label=op, start_us=float(start_us.min()), dur_us=float(dur_us.sum()), count=len(slow)),),
        fix=Fix(
            title="Call our kernel",
            steps=("Replace torch.softmax by acme_kernels.softmax.",),
            code=Code(before="torch.softmax(x, -1)", after="acme_kernels.softmax(x)"),
            url="https://example.com/acme-kernels",
            risk="Rows are summed in another order: the last bits differ.",
        ),
    )
    return [Found(finding, edits)]
