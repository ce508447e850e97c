"""The program's own work on the host holds up the step."""

from __future__ import annotations

from advisor.engine.rule import Found, Outcome, rule
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear
from advisor.rules._batches import made_anew
from advisor.rules._between_launches import between_launches
from advisor.views.patterns.served_work import ServedWork
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.compilation import Compilation
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.launches import Launches
from advisor.views.trace.program import Program
from advisor.views.trace.steps import Steps


@rule("host-bound", relies_on=("host",), min_saving_share=0.05, explains=("sync-stall",))
def host_bound(
    timeline: Timeline,
    steps: Steps,
    work: GpuWork,
    host: HostActivity,
    host_time: HostTime,
    compilation: Compilation,
    launches: Launches,
    program: Program,
    served: ServedWork | None,
    *,
    min_pause_us: float = 500.0,
    min_steps_share: float = 0.5,
) -> Outcome:
    """CPU code outside kernel launches holds up the step

    What
    Between launches, the host neither launches kernels nor waits nor loads data. It runs Python loops, NumPy,
    ops on CPU tensors, logging, garbage collection or `time.sleep`.

    Why
    The thread that launches kernels runs this code. Once the GPU has finished its queue, it idles until the
    thread returns.

    How to fix
    Move the code off the launching thread: into DataLoader workers, another process, or onto the GPU as tensor
    ops.

        # before: each step, on the launching thread
        target = torch.tensor(np.stack([augment(x) for x in batch])).cuda()
        # after: raw bytes to the GPU, then tensor ops there
        target = augment_on_gpu(batch.cuda(non_blocking=True))

    Do it every N steps, or a step later while the next step runs. For garbage collection, call `gc.freeze()`
    after start-up. A background thread helps only for files, the network or NumPy: Python code in it holds the
    GIL.

    When to ignore
    The code only runs in the traced program: checks, plots, the profiler's start.

    How it is measured
    The rule looks for pauses of `min_pause_us` ({min_pause_us} µs) or more between ops of launching threads, and for CPU
    ops that take as long. They must recur in `min_steps_share` ({min_steps_share}) of the steps, and in two at least. The
    replay removes that time. Savings below `min_saving_share` ({min_saving_share}) of the step are not reported.

    | Estimate | Time that disappears |
    |---|---|
    | `low` | half of the pauses; a quarter without stacks |
    | `expected` | all of it; half of it without recorded ops and in compiled code |
    | `high` | all of it |

    References
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    https://docs.python.org/3/library/gc.html#gc.freeze
    """
    if served and served.known:
        return Clear(why="step-gap covers a server's work between steps")
    own = between_launches(timeline, steps, work, host, host_time, compilation, launches, program, min_pause_us, min_steps_share)
    batches = made_anew(timeline, steps, work, host, host_time, min_pause_us)
    if batches is None:
        return own
    return [own, batches] if isinstance(own, Found) else batches
