"""What an analysis gives: its report, and the picture that charts draw of the recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from advisor.report.model import Report

if TYPE_CHECKING:
    import pandas as pd

    from advisor.report.charts import Picture
    from advisor.report.plan import Made


@dataclass(frozen=True, repr=False, eq=False)
class Analysis:
    """A report with its picture. It answers for its report: `analysis.findings` are `analysis.report.findings`.

    plan: the views and rules that the report was made of, each with what it took; empty of a saved report. draw: cuts the picture out of the recording, which it holds on to; None of a saved report. Most formats ask for none, and it takes a
    third of a small trace's analysis, so it is called once, when the picture is first asked for.
    """

    report: Report
    draw: Callable[[], Picture] | None = None
    plan: tuple[Made, ...] = ()

    @cached_property
    def picture(self) -> Picture | None:
        """What charts draw beyond the JSON; None of a saved report, and of recordings that are no trace."""
        return self.draw() if self.draw else None

    def tables(self) -> dict[str, pd.DataFrame]:
        """The report's lists as DataFrames by name, with `steps` and `copies` of the picture; see `advisor.report.tables`."""
        from advisor.report.tables import of_picture

        return {**self.report.tables(), **(of_picture(self.picture) if self.picture else {})}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "report":  # protocols ask for names that no report answers to
            raise AttributeError(name)
        return getattr(self.report, name)

    def __repr__(self) -> str:
        return repr(self.report)

    def _repr_html_(self) -> str:
        """What a notebook shows: the HTML report in a frame of its own, with no access to the notebook."""
        from html import escape

        from advisor import reports

        page = reports.formats()["html"].render(self)
        style = "width:100%;height:48rem;border:1px solid #8885;border-radius:8px"
        return f'<iframe title="advisor report" sandbox="allow-scripts" style="{style}" srcdoc="{escape(page)}"></iframe>'


def report_in(shown: Report | Analysis) -> Report:
    """The report of an analysis, or a report as it is: most of what takes one of them asks for no picture."""
    return shown.report if isinstance(shown, Analysis) else shown


def picture_in(shown: Report | Analysis) -> Picture | None:
    """What charts draw of an analysis; None of a report, which holds none."""
    return shown.picture if isinstance(shown, Analysis) else None
