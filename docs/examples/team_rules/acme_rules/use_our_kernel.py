"""The step runs a framework op for which this team has a faster kernel."""

from __future__ import annotations

import numpy as np

from advisor import Clear, Code, Edits, Fix, Found, rule
from advisor.views.replay.edits import WithDurations
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.evidence import Witness


@rule("acme/use-our-kernel", relies_on=("kernels",), min_saving_share=0.02)
def use_our_kernel(work: GpuWork, witness: Witness, *, op: str = "aten::_softmax", speedup: float = 3.0) -> Found | Clear:
    """A framework op runs where we have a faster kernel

    What
    The step spends time in `aten::_softmax`, for which `acme_kernels.softmax` exists.

    Why
    The framework's kernel reads its input twice; ours keeps a row in registers.

    How it is measured
    Kernels launched from within `op` take 1/`speedup` of their time, and the step is replayed ({speedup}: the median over the shapes
    of our benchmark; `low` 2.0, `high` 4.0). Reported from `min_saving_share` of the step ({min_saving_share}).

    How to fix
    `from acme_kernels import softmax`, and call it instead.

    When to ignore
    For rows of more than 32,768 elements, which do not fit our kernel.

    References
    https://example.com/acme-kernels
    """
    slow = np.flatnonzero(work.launched_by(lambda name: name == op))
    if not len(slow):
        return Clear(why=f"no kernel was launched by {op} inside the window")
    dur_us = work.dur_us[slow]
    return Found(
        summary=f"{work.a_step(slow):.0f} kernels of {op} take {work.us_a_step(slow):.0f} µs of each step.",
        edits=Edits(*(WithDurations(slow, dur_us / factor) for factor in (speedup * 2 / 3, speedup, speedup * 4 / 3))),
        removes=f"the time of {op} above that of our kernel",
        quiet=f"kernels of {op} take {work.us_a_step(slow):.0f} µs of each step",
        evidence=witness.of_gpu(work.rows[slow], [op] * len(slow)),
        confidence=0.8,
        fix=Fix(
            title="Call our kernel",
            steps=("Replace torch.softmax by acme_kernels.softmax.",),
            code=Code(before="torch.softmax(x, -1)", after="acme_kernels.softmax(x)"),
            url="https://example.com/acme-kernels",
            risk="Rows are summed in another order: the last bits differ.",
        ),
    )
