"""The effect of an intervention inside a program: how often it applied, at which lines, or why it did not."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_OURS = str(Path(__file__).resolve().parents[2]) + os.sep
_PYTHON = os.path.dirname(os.__file__) + os.sep
_INSTALLED = f"-packages{os.sep}"

MOST_SITES = 64
"""Places in the program that are kept: a patch names each line once."""


class Applied:
    """The record of an intervention in a process."""

    def __init__(self, name: str, cores: int = 1, check: bool = False) -> None:
        self.name = name
        self.cores = cores
        """Cores that this process may use, of the machine's."""
        self.check = check
        """Whether this run is there to compare numbers and not times: what would only draw other random numbers is left out."""
        self.count = 0
        self.refused: dict[str, int] = {}
        self.sites: list[tuple[str, int, str]] = []
        """File, line and change, in the program's own files."""
        self.made_by: list[str] = []
        """Packages that made the changed objects, if the program's own files did not."""
        self.modules: list[str] = []
        self.reached: list[Any] = []
        """The modules themselves."""
        self.finish: list[Callable[[], None]] = []
        """Called at the end of the steps, to say what only shows there."""

    def note_line(self, what: str, times: int = 1) -> None:
        """It applied, to something of that description, in the line of the program that is running now."""
        self.count += times
        file, line = _caller()
        if _INSTALLED in file:
            package = file.rpartition(_INSTALLED)[2].split(os.sep)[0]
            if package not in self.made_by:
                self.made_by.append(package)
        elif file and (file, line, what) not in self.sites and len(self.sites) < MOST_SITES:
            self.sites.append((file, line, what))

    def refuse(self, why: str) -> None:
        """It could have applied to something, and did not."""
        self.refused[why] = self.refused.get(why, 0) + 1

    def note_module(self, module: Any) -> None:
        """It applied to a module."""
        self.note_line("module")
        self.reached.append(module)
        self.modules.append(type(module).__name__)

    def said(self) -> dict[str, Any]:
        """For JSON. An error of what only shows at the end is a reason too."""
        for then in self.finish:
            then()
        self.finish.clear()
        return {
            "name": self.name, "count": self.count, "refused": self.refused, "sites": self.sites, "made_by": self.made_by,
            "modules": self.modules, "parameters": sum(p.numel() for p in _parameters(self.reached)),
        }  # fmt: skip


def _parameters(modules: list[Any]) -> list[Any]:
    return list({id(p): p for module in modules for p in module.parameters()}.values())


def _caller() -> tuple[str, int]:
    """The innermost frame that is neither ours nor torch's nor Python's own; ("", 0) if there is none."""
    torch = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", "") or "") + os.sep
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        python = file.startswith("<") or (file.startswith(_PYTHON) and _INSTALLED not in file)
        if not (python or file.startswith(torch) or os.path.realpath(file).startswith(_OURS)):
            return os.path.abspath(file), frame.f_lineno
        frame = frame.f_back
    return "", 0
