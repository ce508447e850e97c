"""For pytest: `pytest --advisor-budgets trace.json.gz` holds a trace against [tool.advisor.budgets], each budget a test of its own.

Imported by every run of pytest where advisor is installed, so it imports nothing else until it is asked to.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from advisor.compare.budgets import Verdict


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--advisor-budgets` and `--advisor-baseline`."""
    group = parser.getgroup("advisor", "GPU traces held against budgets")
    group.addoption("--advisor-budgets", metavar="TRACE", action="append", default=[], help="hold a trace against [tool.advisor.budgets]")
    group.addoption("--advisor-baseline", metavar="TRACE", help="what regression_percent is measured against")


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Adds a test for each budget of each trace, in every worker of pytest-xdist: it refuses workers that collect different tests."""
    traces = config.getoption("--advisor-budgets")
    if not traces:
        return
    from advisor.errors import AdvisorError

    baseline = config.getoption("--advisor-baseline")
    for trace in traces:
        try:
            held = _Held(Path(trace), Path(baseline) if baseline else None, config.rootpath)
        except AdvisorError as error:
            raise pytest.UsageError(str(error)) from None
        for name in held.limits:
            named = f"{Path(trace).name}::{name}"
            items.append(_Budget.from_parent(session, name=named, nodeid=named, held=held, budget=name))


class _Held:
    """A trace against the budgets; analysed when the first of its tests runs."""

    def __init__(self, trace: Path, baseline: Path | None, root: Path) -> None:
        from advisor.compare import budgets
        from advisor.engine import settings
        from advisor.engine.rule import catalog

        self._trace, self._baseline = trace, baseline
        self._settings = settings.load(start=root)
        self._known = catalog(self._settings.rules)
        self.limits = budgets.parse(self._settings.budgets, self._known.keys(), self._settings.path)

    @cached_property
    def verdicts(self) -> list[Verdict]:
        from advisor.compare import budgets, compare
        from advisor.engine.run import analyze
        from advisor.errors import UsageError
        from advisor.report.saved import is_report, read_report

        chosen = [rule for rule in self._known.values() if rule.id not in self._settings.disable]

        def report(path: Path) -> Any:
            if is_report(path):
                return read_report(path)
            own = self._settings
            return analyze(str(path), rules=chosen, options=own.options, allow=own.allow, devices=own.devices)

        found = report(self._trace)
        against = compare([report(self._baseline)], [found]) if self._baseline else None
        for difference in against.differences if against else ():
            if difference.serious:
                raise UsageError(
                    f"the baseline is not comparable: {difference.what} is {difference.before} before and {difference.after} after", difference.advice
                )
        verdicts = budgets.check(self.limits, found, against)
        if found.headline.judged != "no":
            return verdicts
        # What could not be judged keeps no budget.
        why = f"the trace could not be judged: {found.headline.judged_why}"
        return [budgets.Verdict(one.budget, "unknown", f"{one.detail}; {why}") if one.passes else one for one in verdicts]


class _Crossed(Exception):
    """A budget that does not hold; its text is all that a reader needs."""


class _Budget(pytest.Item):
    def __init__(self, *, held: _Held, budget: str, **more: Any) -> None:
        super().__init__(**more)
        self._held, self._budget = held, budget

    def runtest(self) -> None:
        from advisor.errors import AdvisorError

        try:
            verdicts = self._held.verdicts
        except AdvisorError as error:
            raise _Crossed(str(error)) from None
        mine = [v for v in verdicts if v.budget == self._budget or v.budget.startswith(f"{self._budget}.")]
        broken = [f"{v.budget}: {v.detail}" for v in mine if not v.passes]
        if broken:
            raise _Crossed("\n".join(broken))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        if isinstance(excinfo.value, _Crossed):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo, style))

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"budget {self.name}"
