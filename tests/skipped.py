"""What one run of the tests skips, for a run in an environment that lacks nothing: with `-p tests.skipped` the one has
`--skipped-into FILE`, the other `--skipped-in FILE`, which runs those tests, and of properties more examples than the one drew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("skipped")
    group.addoption("--skipped-into", type=Path, help="write which tests were skipped")
    group.addoption("--skipped-in", type=Path, help="run only the tests that another run has written there, and properties")


class _Notes:
    """The tests that were skipped, and the files that skip as a whole."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._skipped: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skipped[report.nodeid] = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._skipped[report.nodeid] = None

    def pytest_sessionfinish(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text("".join(f"{test}\n" for test in self._skipped), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    os.environ.pop("PYTEST_ADDOPTS", None)  # read by now, and not meant for those that tests start
    # Of several processes the first hears of all tests.
    if (file := config.getoption("--skipped-into")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Notes(file))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (file := config.getoption("--skipped-in")) is None:
        return
    skipped = {*file.read_text(encoding="utf-8").splitlines()}
    chosen = [item for item in items if item.nodeid in skipped or item.nodeid.partition("::")[0] in skipped or item.get_closest_marker("hypothesis")]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen
