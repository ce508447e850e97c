"""Of a step's casts: what they are for, which are repeated, and the products that need none."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from advisor.intervals import Floats, Ints
from advisor.knowledge.op_tokens import names_of
from advisor.recordings.timeline import Timeline
from advisor.views.patterns.casts import Cast, Purpose
from advisor.views.patterns.precision import WideProducts
from advisor.views.replay.edits import Edit, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.trace.ops import Ops
from advisor.views.trace.steps import Steps


def in_their_type(work: GpuWork, roofline: Roofline, casts: Sequence[Cast]) -> Edit:
    """The products for which 16 bits were made FP32, in those 16 bits."""
    edits = []
    for source, name in (("c10::Half", "fp16"), ("c10::BFloat16", "bf16")):
        fed = [cast.product for cast in casts if cast.purpose == Purpose.WIDENED and cast.product >= 0 and cast.source == source]
        products = WideProducts.build(work, roofline).of_ops(fed)
        peaks = roofline.peaks.get(work.device_at(products.at[0]).id) if len(products.at) else None
        if peaks:
            edits.append(products.in_precision(name, peaks, reached=True))
    return combine(*edits)


def cast_again(casts: Sequence[Cast], step: Ints, backwards: float) -> list[int]:
    """Casts of weights (positions) that an autocast context around all micro-batches would not repeat: of a step's casts of the same shape, all but the first
    per micro-batch. A step has as many micro-batches as backward passes."""
    found, seen = [], dict[tuple[int, tuple[int, ...]], list[int]]()
    for cast in casts:
        if cast.purpose == Purpose.WEIGHT and not cast.backward:
            seen.setdefault((int(step[cast.position]), cast.shape), []).append(cast.position)
    for positions in seen.values():
        found += positions[ceil(len(positions) / backwards) :]
    return found


def backwards_a_step(ops: Ops, steps: Steps, timeline: Timeline) -> float:
    """How often a step calls `backward()`: each makes the gradient of the loss, a one. At least 1."""
    ones = ops.named(names_of("ones_like")) & (ops.parent < 0)
    start = timeline.cpu_ops["start_us"]
    inside = steps.issued_at(start)
    return max(1.0, float((ones & inside).sum()) / steps.steps)


def us_by_purpose(casts: Sequence[Cast], dur_us: Floats) -> dict[Purpose, float]:
    spent: dict[Purpose, float] = {}
    for cast in casts:
        spent[cast.purpose] = spent.get(cast.purpose, 0.0) + float(dur_us[cast.position])
    return spent


def longest_between(casts: Sequence[Cast], dur_us: Floats) -> tuple[str, ...]:
    """The ops of the stretch whose casts take most time."""
    forward = [c for c in casts if c.purpose == Purpose.ISLAND and c.between and not c.between[0].startswith("the ")]
    return max(forward, key=lambda c: float(dur_us[c.position])).between if forward else ()


def sixteen_bits(casts: Sequence[Cast]) -> str:
    """The type of 16 bits that the program's casts name, "" if they are all between FP64 and FP32."""
    named = [kind for cast in casts for kind in (cast.source, cast.target)]
    half, brain = (named.count(kind) for kind in ("c10::Half", "c10::BFloat16"))
    return "float16" if half > brain else "bfloat16" if brain else ""
