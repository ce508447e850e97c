"""Phrases that several rules use."""

from __future__ import annotations

from advisor.report.numbers import counted

SHARED_HEADS = "Pass keys and values as they are to scaled_dot_product_attention, with enable_gqa=True (torch 2.5 and later)."


def a_step(count: float, noun: str, verb: str, singular: str = "") -> str:
    """`3 calls a step block`, `1 call a step blocks`; `singular` is the verb's form where an s is not enough."""
    one = round(count) == 1
    return f"{counted(count, noun)} a step {(singular or f'{verb}s') if one else verb}"
