"""Code of ours inside a program that knows nothing of us, without a change of its script or of what it sees."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from advisor.lab.in_program import ASKED

_AT_START = Path(__file__).with_name("at_start")


def environment(entry: str, text: str, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a command in which every Python calls `advisor.<entry>.install(text)` once it has imported torch.

    The module is loaded as part of a private package, so it and what it imports of ours name each other relatively (`from .clock import …`),
    and import nothing else that torch does not. So do Pythons that the command starts. Nothing is written anywhere: the folder that
    PYTHONPATH names first is part of this package.
    """
    path = base.get("PYTHONPATH")
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_AT_START), path))),
        ASKED: f"{int(path is not None)} {entry} {text}",
    }
