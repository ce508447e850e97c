"""The frameworks that a program has imported, and the framework with the active training loop. The program knows this, a trace seldom does."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from ..knowledge.framework_loops import LOOPS

FRAMEWORKS, LOOPS_RUN = "frameworks", "loops"
"""Keys in a recording: versions by package, and loops as `package.Loop`."""


def in_use() -> dict[str, Any]:
    """The frameworks of this process by package, with versions ("" if unknown), and their loops that have a live object.
    It imports nothing and reads no attribute of an object, because a proxy might create its target."""
    loaded = {package: (module, loops) for package, (name, loops) in LOOPS.items() if (module := sys.modules.get(name)) is not None}
    wanted = {f"{package}.{loop}": path.split(":") for package, (_, loops) in loaded.items() for loop, path in loops.items()}
    alive = {base for kind in {type(one) for one in gc.get_objects()} for base in kind.__mro__} if wanted else set()
    places = {(kind.__module__, kind.__qualname__) for kind in alive}
    return {
        FRAMEWORKS: {package: _version(package, module) for package, (module, _) in loaded.items()},
        LOOPS_RUN: [
            name
            for name, (module, kind) in wanted.items()
            if (_class(module, kind) in alive if kind else any(f"{place}.".startswith(f"{module}.") for place, _ in places))
        ],
    }


def _class(module: str, name: str) -> Any:
    return vars(sys.modules[module]).get(name) if module in sys.modules else None


def _version(package: str, module: Any) -> str:
    """As the module says it, else as it was installed."""
    said = vars(module).get("__version__")
    if isinstance(said, str):
        return said
    with suppress(Exception):  # whatever a damaged installation raises
        return version(package)
    return ""
