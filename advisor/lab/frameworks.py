"""Which frameworks a program has imported, and whose loop drives it: as the program itself knows, where a trace seldom tells."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from ..knowledge.framework_loops import LOOPS

FRAMEWORKS, LOOPS_RUN = "frameworks", "loops"
"""Keys of what a recording says: versions by package, and loops as `package.Loop`."""


def in_use() -> dict[str, Any]:
    """The frameworks of this process by package with their versions, "" where one does not say, and the loops of theirs of which an object is alive. It imports nothing, and asks no object
    anything: a proxy might answer by making what it represents."""
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
