"""An analysis: a report and a picture, each a value of its own."""

from __future__ import annotations

import copy
import pickle

import pytest

import advisor
from advisor import Analysis
from advisor.reports import formats
from tests.reports.examples import healthy, hostile_trace, launch_bound


def test_it_answers_for_its_report() -> None:
    made = Analysis(launch_bound())
    assert made.findings is made.report.findings and made.headline is made.report.headline and made.to_json() == made.report.to_json()
    assert repr(made) == repr(made.report)
    with pytest.raises(AttributeError, match="nothing_of_a_report"):
        made.nothing_of_a_report  # noqa: B018


def test_a_copy_asks_for_nothing_before_it_has_a_report() -> None:
    for made in (copy.copy(Analysis(healthy())), pickle.loads(pickle.dumps(Analysis(healthy())))):
        assert made.report == healthy() and made.picture is None


def test_the_picture_is_cut_once_and_only_for_what_draws() -> None:
    cuts: list[int] = []
    whole = hostile_trace()

    def draw():
        cuts.append(1)
        return whole.picture

    made = Analysis(whole.report, draw)
    for name, form in formats().items():
        if name not in ("html", "perfetto"):
            form.render(made)
    assert not cuts
    pages = {name: formats()[name].render(made) for name in ("html", "perfetto")}
    assert cuts == [1]
    for name, page in pages.items():
        assert page != formats()[name].render(made.report), f"a report alone holds no step for {name}"


def test_every_format_takes_an_analysis_or_a_report() -> None:
    for form in formats().values():
        assert form.render(Analysis(healthy())) == form.render(healthy())


def test_a_comparison_takes_either() -> None:
    made = hostile_trace()
    assert advisor.compare(made, [made.report]) == advisor.compare(made.report, made.report)
