"""What a report was made of: views and rules in the order in which they were asked for."""

from __future__ import annotations

import msgspec


class Made(msgspec.Struct, frozen=True):
    """One line of a plan: a view or a rule, the views and parts that it takes, and the wall time it took without these, in ms.

    depth: 0 if it was asked for by itself, else one more than that of what needed it first. missing: why it could not be made.
    """

    name: str
    needs: tuple[str, ...]
    depth: int
    own_ms: float
    missing: str = ""
