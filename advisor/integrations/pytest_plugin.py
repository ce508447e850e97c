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
    from advisor.report.model import Report


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--advisor-budgets` and `--advisor-baseline`."""
    group = parser.getgroup("advisor", "GPU traces held against budgets")
    group.addoption("--advisor-budgets", metavar="TRACE", action="append", default=[], help="hold a trace against [tool.advisor.budgets]")
    group.addoption("--advisor-allow-unjudged", action="store_true", help="let a trace keep budgets that could not be judged, or only in part")
    group.addoption("--advisor-baseline", metavar="TRACE", help="what regression_percent is measured against")


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Adds a test for each budget of each trace, in every worker of pytest-xdist: it refuses workers that collect different tests."""
    traces = config.getoption("--advisor-budgets")
    if not traces:
        return
    from advisor.errors import AdvisorError

    baseline, allowed = config.getoption("--advisor-baseline"), config.getoption("--advisor-allow-unjudged")
    for trace in traces:
        try:
            held = _Held(Path(trace), Path(baseline) if baseline else None, config.rootpath, allowed)
        except AdvisorError as error:
            raise pytest.UsageError(str(error)) from None
        for name in held.limits:
            named = f"{Path(trace).name}::{name}"
            items.append(_Budget.from_parent(session, name=named, nodeid=named, held=held, budget=name))


class _Held:
    """A trace against the budgets, as by `advisor check`; analysed when the first of its tests runs."""

    def __init__(self, trace: Path, baseline: Path | None, root: Path, allow_unjudged: bool = False) -> None:
        from advisor.compare import budgets
        from advisor.engine import settings
        from advisor.engine.rule import catalog

        self._trace, self._baseline, self._allowed = trace, baseline, allow_unjudged
        self._settings = settings.load(start=root)
        self._known = catalog(self._settings.rules)
        self.limits = budgets.parse(self._settings.budgets, self._known.keys(), self._settings.path)

    @cached_property
    def verdicts(self) -> list[Verdict]:
        from advisor.compare import budgets, compare
        from advisor.engine.run import analyze
        from advisor.errors import UsageError
        from advisor.report import saved
        from advisor.sources import is_one_capture

        own, chosen = self._settings, [rule for rule in self._known.values() if rule.id not in self._settings.disable]

        def reports(path: Path) -> list[Report]:
            return saved.reports(
                [path], lambda one: analyze(str(one), rules=chosen, options=own.options, allow=own.allow, devices=own.devices).report, is_one_capture
            )

        found = reports(self._trace)
        against = compare(reports(self._baseline), found) if self._baseline else None
        for difference in against.differences if against else ():
            if difference.serious:
                raise UsageError(
                    f"the baseline is not comparable: {difference.what} is {difference.before} before and {difference.after} after", difference.advice
                )
        verdicts = budgets.check_all(self.limits, dict(zip(saved.names(self._trace, is_one_capture), found, strict=True)), against)
        if self._allowed or not (unjudged := sorted((r.headline for r in found if r.headline.judged != "yes"), key=lambda headline: headline.judged != "no")):
            return verdicts
        # What could not be judged keeps no budget.
        why = f"the trace could {'only be judged in part' if unjudged[0].judged == 'partly' else 'not be judged'}: {unjudged[0].judged_why}"
        return [budgets.Verdict(one.budget, "unknown", f"{one.detail}; {why}; --advisor-allow-unjudged passes it") if one.passes else one for one in verdicts]


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
        if mine and all(v.status == "not checked" for v in mine):
            pytest.skip(mine[0].detail)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        if isinstance(excinfo.value, _Crossed):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo, style))

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"budget {self.name}"
