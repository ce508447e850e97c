"""Phrases that several rules use."""

from __future__ import annotations

from advisor.report.numbers import counted


def a_step(count: float, noun: str, verb: str, singular: str = "") -> str:
    """`3 calls a step block`, `1 call a step blocks`; `singular` is the verb's form where an s is not enough."""
    one = round(count) == 1
    return f"{counted(count, noun)} a step {(singular or f'{verb}s') if one else verb}"
