"""Why a recording cannot be judged, or only in part. The engine's headline takes these; formats print them after "Can it be trusted?"."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.report.numbers import counted, duration, percent
from advisor.report.wording.checks import check_name

OVERHEAD_OPEN = "profiler overhead may explain most of the GPU's idle time"
COPIES_ONLY = "the trace holds copies and fills but no kernel: it does not show the program's computation"
ONLY_FIRST_PASS = "the trace holds only a first pass, and later passes may differ; record some after a warm-up"
ALLOCATES_ONCE = "no step is marked or repeats, so the allocations may be those of a first pass only"


def no_gpu_work(launched: str, unread: str) -> str:
    """Of a trace without GPU work. launched: what was launched all the same; unread: what of the file could not be read."""
    return f"the trace holds no GPU work{f', although {launched}' if launched else ''}{f', as far as it could be read: {unread}' if unread else ''}"


def captured(count: int, launches: int) -> str:
    """Of launches that were only captured into graphs."""
    return f"{count:,} of {launches:,} launches were captured into CUDA graphs and not run: record replays of the graphs"


def one_time(share: float) -> str:
    """Of a window that is mostly start-up."""
    return f"{percent(share)} of the window is start-up work: loading kernels, creating contexts, autotuning, graph capture"


def checks_failed(checks: Sequence[str], then: str = "") -> str:
    """Of a trace that fails checks. then: what follows from that."""
    return f"the trace fails the check{'s' if len(checks) > 1 else ''} for {', '.join(map(check_name, checks))}{then}"


RULES_SKIPPED = ", so rules that rely on it were skipped"
"""What follows where checks fail that some rules rely on."""


def cut_off(why: str, idle: bool) -> str:
    """Of a file that ends early. idle: whether what is there is mostly idle time."""
    return f"kernels may be missing{', so the idle time may not be real' if idle else ''}: {why}"


def few_ops(count: int) -> str:
    """Of a window with next to no GPU ops."""
    return f"the window holds {counted(count, 'GPU op')}, too few to show how the program runs"


def hardly_works(busy: float) -> str:
    """Of a recording without steps in which the GPU hardly works."""
    return f"no step is marked or repeats and the GPU is busy for {percent(busy)} of the recording, so which part belongs to a step is unknown"


def brief_pass(once_us: float, left_us: float) -> str:
    """Of a program whose start-up dwarfs the rest."""
    return f"no step is marked or repeats in the {duration(left_us)} after {duration(once_us)} of start-up work: later runs may differ"


def allocates(times: int) -> str:
    """Of a recording in which the allocator still grows."""
    return f"the allocator takes device memory {counted(times, 'time')}, as in a first pass: later passes may differ"


def torn(compute: float, idle: float) -> str:
    """Of a step of which overhead decides whether the GPU computes or idles longer."""
    return f"kernels run for {percent(compute)} of the step and the GPU idles for {percent(idle)}: which is larger depends on the profiler overhead"


def lost_launches(lost: int, launches: int) -> str:
    """Of launches without a kernel in the trace."""
    return f"{lost:,} of {launches:,} launches have no GPU op in the trace: the report covers the others"


def part_of_the_work(share: float, kind: str) -> str:
    """Of a program with a repeating part. kind: of the marked steps, "" for a found pattern."""
    return f"the {f'steps of {kind} hold' if kind else 'repeating pattern holds'} {percent(share)} of the GPU's work: the rest is not judged"


def host_apart(window_us: float, apart_us: float) -> str:
    """Of a pattern around which the host works for longer than the pattern lasts."""
    return f"the repeating pattern lasts {duration(window_us)}, and the host works {duration(apart_us)} before and after it: that is not judged"


def unused_idle(share: float) -> str:
    """Of idle time that no finding speaks of."""
    return f"the GPU is idle for {percent(share)} of the time, and no finding says how to use it"


def rules_broke(rules: Sequence[str]) -> str:
    """Of rules that failed with an error."""
    return f"{counted(len(rules), 'rule')} failed with an error: {', '.join(rules[:3])}"


def contradictions(found: Sequence[str]) -> str:
    """Of a report whose parts do not fit together."""
    return f"parts of this report contradict each other: {'; '.join(found[:2])}"
