"""What holds for every test: none fails for being slow on a busy machine, and those that share analyses run in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("advisor", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("advisor")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of one file run in one process, as `--dist loadfile` has it, and so do all files that ask for `analysed` samples."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "samples" if "from tests.analysed import" in (Path(config.rootpath) / file).read_text(encoding="utf-8") else file

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None
