"""Measurements of a server's client or counters, next to the timeline of a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from advisor.report.serving import ServingLoad


@dataclass(frozen=True)
class LoadBeside:
    """version: of the server, "" if the file does not say it."""

    part_of: ClassVar[Literal["trace"]] = "trace"

    load: ServingLoad
    version: str = ""
