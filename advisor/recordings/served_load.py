"""Measurements of a server's client or counters, next to the timeline of a worker."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from advisor.report.serving import ServingLoad


class LoadBeside(msgspec.Struct, frozen=True):
    """version: of the server, "" if the file does not say it."""

    part_of: ClassVar[Literal["trace"]] = "trace"

    load: ServingLoad
    version: str = ""
