"""Which advisor this is."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from advisor.knowledge.installed import version

DISTRIBUTION = "trace-advisor"


@cache
def release() -> str:
    """The installed version; in a checkout that is not installed, that of its pyproject.toml."""
    if installed := version(DISTRIBUTION):
        return installed
    project = Path(__file__).parents[2] / "pyproject.toml"
    found = re.search(r'^version = "([\w.+-]{1,40})"$', project.read_text(encoding="utf-8"), re.M) if project.is_file() else None
    return found[1] if found else "0.0.0"
