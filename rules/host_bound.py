"""The program's own work on the host holds up the step."""

from __future__ import annotations

from advisor.engine.rule import Found, Outcome, rule
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear
from advisor.rules._batches import made_anew
from advisor.rules._between_launches import between_launches
from advisor.views.patterns.released_memory import ReleasedMemory
from advisor.views.patterns.served_work import ServedWork
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
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
    calls: HostCalls | None,
    host: HostActivity,
    host_time: HostTime,
    compilation: Compilation,
    launches: Launches,
    program: Program,
    released: ReleasedMemory,
    served: ServedWork | None,
    *,
    min_pause_us: float = 500.0,
    min_steps_share: float = 0.5,
) -> Outcome:
    """The program's own work on the host holds up the step

    What it is
    Between launches the host does something that is neither issuing kernels nor waiting nor loading data: Python loops
    over lists, NumPy, tensor ops on CPU tensors, logging, garbage collection, `time.sleep`.

    Why it costs time
    The thread that launches kernels does that work itself. Once the GPU has finished what was queued it idles until the
    thread is back.

    How it is measured
    Pauses of at least `min_pause_us` ({min_pause_us} µs: ten times what Python takes between two ops) between ops and runtime calls
    of the threads that launch, outside the data loader, compilation, waits, allocation, the optimizer's own Python and what giving back the memory of a pageable copy takes (memcpy's);
    and ops as long that launch nothing, which compute on the CPU; shorter ones that do, where between two launches they take as long together and ops that launch nothing take
    half of the time, as where a batch is put together tensor by tensor. With stacks each pause has a name, and what the
    framework itself did in it is left out; without, only pauses of twice that length count. Where such pauses take half of the time between
    two launches, all of that time is the same work, and is expected to go (`low`: half of the pauses, a quarter of those without a name); half (`low`: a quarter) of pauses of that length between two launches of compiled code, and,
    where ops were not recorded, between calls of a program without a framework or inside a range of the program's own, whose name they have (no more than medium). The step is replayed without that time; that saves no more than the work takes (`high`: nor what is copied from pageable memory right behind it, as if it were made on the GPU). Reported where it recurs in
    `min_steps_share` of the steps ({min_steps_share}) and two at least, since what happens once is start-up, and from
    `min_saving_share` of the step ({min_saving_share}: below, a pause of Python is noise). Waits before such work whose removal would gain
    no more are its symptom. In an inference server it is possible only: its scheduler works between steps, beside the GPU where version and options let it. Where the process that trains makes its batches itself,
    that they may be the same in every epoch is said too, as possible: nine tenths of the loader's time (`low`: nothing).

    How to fix it
    Move the work off the thread that launches: into DataLoader workers, another process, or onto the GPU as tensor ops. Pictures of bytes that
    become floats are sent as bytes, a quarter of them, and converted on the GPU. A background
    thread helps where it waits for files or the network or is in NumPy: Python code in it holds the interpreter that launching needs. Do it every N steps. What
    works on results of the GPU can do so a step later, while the next one runs. For garbage collection, `gc.freeze()` after start-up and
    `gc.disable()` with a `gc.collect()` between epochs.

    When to ignore it
    When the work only runs in the traced program: checks, plots, the profiler's own start.

    References
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    https://docs.python.org/3/library/gc.html#gc.freeze
    """
    if served and served.known:
        return Clear(why="step-gap speaks of what a server does between its steps")
    own = between_launches(timeline, steps, work, calls, host, host_time, compilation, launches, program, released, min_pause_us, min_steps_share)
    batches = made_anew(timeline, steps, work, host, host_time, min_pause_us)
    if batches is None:
        return own
    return [own, batches] if isinstance(own, Found) else batches
