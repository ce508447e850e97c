"""JSON: both sides as they stand."""

from __future__ import annotations

import msgspec

from advisor.compare.across import Across
from advisor.reports._clean import encodable

NAME = "json"
SUFFIX = ".json"


def render(shown: Across) -> str:
    """Schema 1."""
    return msgspec.json.format(msgspec.json.encode(encodable(shown)), indent=1).decode()
