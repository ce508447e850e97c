"""What a report was made of: views and rules in the order in which they were asked for."""

from __future__ import annotations

import msgspec


class Made(msgspec.Struct, frozen=True):
    """A line of a plan: a view or a rule, its inputs, and its wall time in ms without theirs.

    depth: 0 if requested directly, else one more than its first user's. missing: why it could not be made.
    """

    name: str
    needs: tuple[str, ...]
    depth: int
    own_ms: float
    missing: str = ""
