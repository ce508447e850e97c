"""Code inside a program that does not know advisor, without a change of its script or of its view of the world."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from advisor.lab.in_program import ASKED

_AT_START = Path(__file__).with_name("at_start")


def environment(entry: str, text: str, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a command in which every Python calls `advisor.<entry>.install(text)` once it has imported torch.

    The module is loaded as part of a private package. So it and its imports use relative names (`from .clock import …`), and import no other module that torch
    does not import. Pythons that the command starts do the same. Nothing is written: the first folder of PYTHONPATH is part of this package."""
    path = base.get("PYTHONPATH")
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_AT_START), path))),
        ASKED: f"{int(path is not None)} {entry} {text}",
    }
