"""The headline of a trace: what bounds its step, in one to three sentences. `views.time.bound` decides, these word it.

All shares are of the step, 0 to 1, unless said otherwise; span: "step", or "traced time" where nothing repeats.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.knowledge.shares import LITTLE
from advisor.report.finding import LOW_SHARE
from advisor.report.host_time import HostTime
from advisor.report.numbers import counted, cut, duration, percent, threshold
from advisor.report.wording.checks import check_name

GEMMS = "GEMMs, convolutions and attention"
"""What Tensor Cores can do."""


def no_gpu_work(was_asked_for: str) -> str:
    """Of a trace without GPU work; was_asked_for: what was launched and left no trace, "" if nothing was."""
    return f"The trace records no GPU work{f' that was read: {was_asked_for}' if was_asked_for else ''}."


WORTH_SAYING = LOW_SHARE
"""Parts of a step without GPU work that are smaller are left out."""

PHASES: dict[str, str] = {
    "data-loading": "data loading",
    "forward": "forward ops",
    "backward": "backward ops",
    "optimizer": "the optimizer",
    "communication": "waiting for collectives",
    "other": "other CPU code",
}
"""What the phases of `HostTime` are called."""


def cpu_phases(host: HostTime) -> str:
    """After `no_gpu_work`: where the step goes on the CPU, its largest parts first, and the function that takes most of it."""
    parts = [f"{PHASES[part.phase]} {percent(part.share)}" for part in host.parts[:3] if part.share >= WORTH_SAYING]
    said = f" On the CPU the step goes to {', '.join(parts)}." if parts else ""
    first = next((line for line in host.lines if line.function), None)
    if first is None or first.share < LITTLE:
        return said
    return f"{said} Of the program's functions, {first.function} ({first.file}:{first.line}) takes most: {percent(first.share)}."


def logged_compiles(kind: str, lines: int, share: float, where: str) -> str:
    """After `cpu_phases`: the part of the step in graph breaks or recompilations, and the most expensive line."""
    said = f"{counted(lines, kind)} take" if lines > 1 else f"1 {kind} takes"
    return f" {said} {percent(share)} of the step as recorded, {'most ' if lines > 1 else ''}at {where}."


def one_time_work(share: float, span: str, longest: str) -> str:
    """Of a window that is mostly start-up."""
    return f"{percent(share)} of the {span} is start-up work: loading kernels, creating contexts, autotuning, graph capture. The longest call is {longest}."


def first_pass(once_us: float, left_us: float, compute: float) -> str:
    """Of a recording that holds nothing but a first pass."""
    return (
        f"{duration(once_us)} is start-up work. The remaining {duration(left_us)} is a first pass, which still loads new kernels; "
        f"kernels run for {percent(compute)} of it, as recorded."
    )


def loading(idle: float, span: str, once: float, longest: str) -> str:
    """Of a GPU that idles mostly while kernels are loaded."""
    return f"The GPU is idle for {percent(idle)} of the {span}, {percent(once)} in start-up work such as loading kernels. The longest call is {longest}."


def idle(share: float, span: str, causes: Sequence[tuple[float, str]], where: str) -> str:
    """Of a step in which the GPU idles for longer than it does anything else. causes: share of the step and reason of the largest cause, and of another that
    is about as large; where: the end of the first reason."""
    whole = len(causes) == 1 and percent(causes[0][0]) == percent(share)
    parts = [f"{'' if whole else percent(part) + ' '}{why}" for part, why in causes]
    return f"The GPU is idle for {percent(share)} of the {span}, {' and '.join((parts[0] + where, *parts[1:]))}."


def host_paced(host: float) -> str:
    """After `idle`, where kernels run for longer than that, but the host holds the critical path."""
    return f" Kernels run for longer than that, but the CPU holds {percent(host)} of the critical path."


def exposed_copies(share: float, span: str, mostly: str) -> str:
    """Of a step that copies bound. mostly: which way most of them go."""
    return f"Exposed copies take {percent(share)} of the {span}{mostly}."


def exposed_communication(share: float, span: str) -> str:
    """Of a step that communication bounds."""
    return f"Exposed communication takes {percent(share)} of the {span}."


def next_resource(what: str, share: float) -> str:
    """What else holds much of the step, as a second sentence. what: compute, communication, copy or idle."""
    return {
        "communication": f" Exposed communication takes another {percent(share)}.",
        "copy": f" Exposed copies take another {percent(share)}.",
        "compute": f" Kernels run for {percent(share)}.",
        "idle": f" The GPU is idle for {percent(share)}.",
    }[what]


def copies_apart(us: float, share: float, of_a_layer: bool) -> str:
    """Of copies outside of the pattern that repeats. share: of the GPU's work; of_a_layer: whether what repeats may be a layer and no step."""
    layer = " (perhaps a layer of a pass)" if of_a_layer else ""
    return f" Copies outside the repeating pattern{layer} take {duration(us)}, {percent(share)} of the GPU's work."


def graphs(share: float, span: str) -> str:
    """Of a step in CUDA graphs whose nodes were not recorded."""
    return f"Kernels run for {percent(share)} of the {span}, mostly in CUDA graphs recorded as a whole: their kernels are unknown."


def unknown_kernels(share: float, span: str, unknown: float, longest: str) -> str:
    """Of a step of kernels that no family is known of. unknown: of the kernel time; longest: a name, "" where kernels have none."""
    which = f"; the longest is {cut(longest, 60)}" if longest else ": kernels have no names"
    much = "all" if unknown >= 0.995 else percent(unknown)
    return f"Kernels run for {percent(share)} of the {span}; {much} of that time is of unknown kind{which}."


def narrow_kernels(share: float, span: str, narrow: float) -> str:
    """Of a step of long kernels on few SMs. narrow: of the kernel time."""
    return f"Kernels run for {percent(share)} of the {span}; {percent(narrow)} of that time is long kernels with fewer blocks than half of the SMs."


def memory_bound(share: float, span: str, memory: float, starved: float) -> str:
    """Of kernels that wait for memory. memory, starved: of the kernel time; starved: GEMMs limited by memory bandwidth, 0 if they are not worth saying."""
    products = f"; GEMMs limited by memory bandwidth are {percent(starved)}" if starved else ""
    return f"Kernels run for {percent(share)} of the {span}; {percent(memory)} of that time is memory-bound{products}."


def counted_memory(share: float, span: str, memory: float, tensor: float | None) -> str:
    """Of a step whose counters were sampled. memory, tensor: of the peak, while kernels run; tensor is None where it was not sampled."""
    beside = f", of Tensor Cores {percent(tensor)}" if tensor is not None else ""
    return f"Kernels run for {percent(share)} of the {span}. Counters sampled {percent(memory)} of the peak memory bandwidth while they run{beside}."


def counted_tensor(share: float, span: str, tensor: float, memory: float) -> str:
    """Of a step whose counters were sampled, in which arithmetic is the limit. Of the peak, while kernels run."""
    return f"Kernels run for {percent(share)} of the {span}. Counters sampled Tensor Cores at {percent(tensor)} of their peak while they run, and memory bandwidth at {percent(memory)}."


def dense(share: float, span: str, products: float, limit_known: bool) -> str:
    """Of a step of GEMMs. products: of the kernel time; limit_known: whether arithmetic is known to limit them."""
    open_ = "" if limit_known else " The trace does not show whether compute or memory limits them."
    return f"Kernels run for {percent(share)} of the {span}; {percent(products)} of that time is {GEMMS}.{open_}"


def mixed(share: float, span: str, products: float, memory: float, unknown: float) -> str:
    """Of a step in which no kind of kernel holds most of the time. unknown: 0 if it is not worth saying."""
    other = f", {percent(unknown)} is of unknown kind" if unknown else ""
    return f"Kernels run for {percent(share)} of the {span}: {percent(products)} of that time is {GEMMS}, {percent(memory)} is memory-bound{other}."


def rule_is_quiet(rule: str, why: str) -> str:
    """After the headline, where the rule for what bounds the step found nothing."""
    return f" {rule} found nothing to fix: {why}."


def rule_gains_little(rule: str, share: float, least: float) -> str:
    """The same, where its fix would gain too little."""
    return f" {rule} found nothing to fix: its fix would gain {percent(share, least)} (threshold {threshold(least)})."


def check_failed(check: str, detail: str) -> str:
    """Instead of a headline, where a failed check leaves nothing to rely on."""
    return f"The check for {check_name(check)} failed: {detail}."
