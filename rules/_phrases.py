"""Phrases that several rules use."""

from __future__ import annotations


def milliseconds(us: float) -> str:
    """A duration as people say it."""
    return f"{us / 1000:.2f} ms" if us >= 1000 else f"{us:.0f} µs"


def counted(count: float, noun: str) -> str:
    """`1 chain`, `3 chains`."""
    return f"{count:.0f} {noun}{'' if round(count) == 1 else 's'}"


def a_step(count: float, noun: str, verb: str, singular: str = "") -> str:
    """`3 calls a step block`, `1 call a step blocks`; `singular` is the verb's form where an s is not enough."""
    one = round(count) == 1
    return f"{counted(count, noun)} a step {(singular or f'{verb}s') if one else verb}"
