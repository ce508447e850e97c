"""Phrases that several rules use."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.report.finding import Evidence
from advisor.report.numbers import counted, mostly
from advisor.report.wording.period import PER_STEP

SHARED_HEADS = "Pass keys and values as they are to scaled_dot_product_attention, with enable_gqa=True (torch 2.5 and later)."


def a_step(count: float, noun: str, verb: str, singular: str = "") -> str:
    """`3 calls per step block`, `1 call per step blocks`; `singular` is the verb's form where an s is not enough."""
    one = round(count) == 1
    return f"{counted(count, noun)} {PER_STEP} {(singular or f'{verb}s') if one else verb}"


def led_by(evidence: Sequence[Evidence]) -> str:
    """`mostly aten::item` where the first row takes half of all rows' time, else `most of all aten::item`."""
    return f"{mostly(evidence[0].dur_us, sum(row.dur_us for row in evidence))} {evidence[0].label}"
