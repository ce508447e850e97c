"""What holds for every test: none fails for being slow on a busy machine, and those that share analyses run in one process."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.paths import examples

settings.register_profile("advisor", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples(100))
settings.load_profile("advisor")

LONG = (
    "tests/reports/test_pages.py", "tests/test_action.py", "tests/test_packaging.py", "tests/reports/report/test_browser.py",
    "tests/lab/test_unharmed.py", "tests/lab/test_record.py", "tests/lab/test_verify.py", "tests/rules/test_jobs.py", "tests/rules/test_team_rules.py",
)  # fmt: skip
"""Files of few tests that take long. They begin first: at the end one of them would keep one process busy and leave the others idle."""


def _shares(file: Path) -> bool:
    """Whether a file asks for `analysed` samples."""
    return "from tests.analysed import analysed" in file.read_text(encoding="utf-8")


def pytest_collection_finish() -> None:
    """What is imported and collected by now lives to the end: the collector of cycles need not look at it again and again."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that share analyses first, then those of LONG in that order, then all others as they were."""
    places = {path: (0 if _shares(path) else 1, _place(path, config)) for path in {item.path for item in items}}
    items.sort(key=lambda item: places[item.path])


def _place(path: Path, config: pytest.Config) -> int:
    name = path.relative_to(config.rootpath).as_posix() if path.is_relative_to(config.rootpath) else ""
    return LONG.index(name) if name in LONG else len(LONG)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of one file run in one process, as `--dist loadfile` has it, and so do all files that share; in the order above."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "samples" if _shares(Path(config.rootpath) / file) else file

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None
