"""Each step leaves memory behind."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.errors import Unavailable
from advisor.recordings.snapshot import Ints
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import counted, size
from advisor.rules._memory import LEAST_BYTES, places, saved, with_history, with_stacks
from advisor.views.memory.attribution import Attribution
from advisor.views.memory.health import STACKS
from advisor.views.memory.history import Allocations
from advisor.views.memory.patterns import Leaks
from advisor.views.memory.replay import MemoryReplay
from advisor.views.trace.repeats import FEWEST_REPEATS


@rule("memory-leak", relies_on=("memory",))
def memory_leak(attribution: Attribution, replay: MemoryReplay, leaks: Leaks, *, min_share: float = 0.05, least_bytes: int = LEAST_BYTES) -> Outcome:
    """Each step leaves memory behind

    What
    Some tensors of every step are never freed. Typical causes are a list of losses with their graphs and
    activations, outputs collected on the GPU, and hooks or globals that keep tensors.

    Why
    Memory grows until the program fails, perhaps after hours. Until then, the batch is smaller than it could
    be.

    How to fix
    Keep numbers, not tensors:

        losses.append(loss.detach())        # or loss.item(); was: losses.append(loss)

    Evaluate under `torch.inference_mode()`. Move outputs that you need to the host with `.cpu()`.

    When to ignore
    The program fills a buffer of known size, and the window covers that.

    How it is measured
    Steps are the optimizer's marks, backward passes, or another repetition. A place leaks if it leaves
    allocations behind in three steps or more, up to the last two, and never frees any late. In the replay, each
    is freed at the end of its own step (`low`: a step later). The rule reports `min_share` ({min_share}) of the peak
    and `least_bytes` ({least_bytes}) or more.

    References
    https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory
    """
    device, steps = with_history(attribution), leaks.steps
    if len(steps) < FEWEST_REPEATS:
        with_stacks(attribution)
        raise Unavailable(
            f"the history shows {counted(len(steps), 'step')}, and growth needs {FEWEST_REPEATS}",
            "torch.cuda.memory._record_memory_history(max_entries=1_000_000), then several steps before _dump_snapshot",
        )
    lives, peak = replay.recorded, device.peak_allocated
    evaluates = not attribution.backwards
    end = _evaluated(device.allocations) if evaluates else np.minimum(device.allocations.freed, steps.end[leaks.step])
    expected = peak - replay.allocated(lives.freed_at(leaks.rows, end))
    least = max(min_share * peak, least_bytes, 1)
    if not leaks.rows.any() or expected < least:
        if int(device.allocations.size[leaks.unplaced].sum()) >= least:
            each = size(leaks.growth(device.allocations.size, leaks.unplaced))
            raise Unavailable(f"each step keeps {each} without a recorded stack, so its origin is unknown", STACKS)
        with_stacks(attribution)
        return Clear(why=f"over {len(steps)} steps no place leaves behind {size(least)} or more")
    later = np.minimum(device.allocations.freed, np.r_[steps.end[1:], steps.end[-1:]][leaks.step])
    low = peak - replay.allocated(lives.freed_at(leaks.rows, later))
    high = peak - replay.allocated(lives.without_rows(leaks.rows))
    saving = saved(peak, low, expected, high, "what earlier steps left behind")
    low = min(low, peak - replay.allocated(lives.freed_at(leaks.rows, np.minimum(device.allocations.freed, steps.end[leaks.step]))))
    growth, first = leaks.growth(device.allocations.size), int(leaks.step[leaks.rows].min())
    graph = bool((leaks.rows & ~_in_no_graph(attribution)).any())
    return Found(
        summary=f"From step {first + 1} of {len(steps)} on, each adds {size(growth)} that is never freed: "
        f"{size(int(device.allocations.size[leaks.rows].sum()))} by the end{'; whole graphs are kept' if graph else ''}.",
        confidence=0.85 if steps.basis != "repeats" else 0.75,
        saving=saving,
        evidence=places(attribution, leaks.rows),
        fix=Fix(
            title="Keep numbers, not tensors",
            steps=(
                "Look at the source lines of the evidence. Something there outlives its step, often a list or a running sum.",
                "Append loss.item() or loss.detach(), which hold no graph; accumulate metrics under torch.no_grad().",
                "Evaluate under torch.inference_mode(); move outputs that must be kept to the host with .cpu().",
            ),
            code=Code(before="losses.append(loss)", after="losses.append(loss.detach())"),
            url="https://docs.pytorch.org/docs/stable/notes/faq.html",
            holds_for=("torch",),
            risk="loss.item() waits for the GPU: call it every few steps, or detach.",
        ),
    )


def _evaluated(a: Allocations) -> Ints:
    """When an evaluation without a graph gives each back: an activation is used by the op after it."""
    births = np.sort(a.born[a.born >= 0])
    after = np.r_[births, np.repeat(births[-1:] + 1, 3)][np.searchsorted(births, np.maximum(a.born, 0)) + 3]
    return np.minimum(a.freed, after)


def _in_no_graph(attribution: Attribution) -> np.ndarray:
    """Allocations outside of any module's forward: a kept graph holds those inside."""
    return np.array([not origin.module for origin in attribution.origins.of])[attribution.device.allocations.stack]
