"""A process as it is where a package is not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """Importing these packages, or any module of them that some other test has imported, fails as it does where they are missing."""
    loaded = [name for name in sys.modules if name.split(".")[0] in packages]
    with mock.patch.dict(sys.modules, dict.fromkeys([*packages, *loaded])):
        yield
