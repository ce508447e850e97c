"""A comparison in every format: what it shows sums to the change, and nothing in a name is more than a name."""

import msgspec
import pytest
from markdown_it import MarkdownIt

from advisor.compare import compare
from advisor.compare.model import Row, Table
from advisor.report.step import Part
from advisor.reports.comparison import _phrases as words
from advisor.reports.comparison import formats, text
from tests.compare.test_compare import sample
from tests.reports.examples import NASTY


@pytest.fixture(scope="module")
def pair():
    return sample("launch-gap/slow.json.gz"), sample("launch-gap/fixed.json.gz")


def hostile(report, count=600):
    parts = tuple(
        Part("compute", f"{text}{n}", f"{text} family {n % 7}", f"{text} op {n}", f"{text} module", "", 1.0, 10.0 + n)
        for n, text in zip(range(count), NASTY * count, strict=False)
    )
    source = msgspec.structs.replace(report.source, path=NASTY[0])
    return msgspec.structs.replace(report, breakdown=parts, source=source)


def test_rows_that_are_cut_are_one_row_so_that_the_sum_stays():
    rows = tuple(Row(f"r{n}", n, 2.0 * n, float(n)) for n in range(9, 0, -1))
    shown = words.rows(Table("kernel", rows), 3)
    assert [r.name for r in shown] == ["r9", "r8", "r7", "(6 more)"]
    assert sum(r.change_us for r in shown) == sum(r.change_us for r in rows)
    assert len(words.rows(Table("kernel", rows), 8)) == 9, "one row is not worth a rest"


@pytest.mark.parametrize("name", list(formats()))
def test_every_format_names_the_change_and_the_class(pair, name):
    shown = formats()[name].render(compare([pair[0]], [pair[1]]))
    assert "waiting for launches" in shown and "faster" in shown.lower()


@pytest.mark.parametrize("name", list(formats()))
def test_names_stay_names(pair, name):
    shown = formats()[name].render(compare([hostile(pair[0])], [hostile(pair[1], 3)]))
    if name == "markdown":
        assert len(shown) < 65_536
        shown = MarkdownIt("gfm-like", {"linkify": False}).render(shown)
    if name in ("html", "markdown"):
        assert not [bad for bad in ("<script>alert", "<img src=x", "onerror=alert(1)>") if bad in shown]
    if name != "json":
        assert "\x1b" not in shown and "\u202e" not in shown


def test_the_html_forbids_scripts_and_network(pair):
    shown = formats()["html"].render(compare([pair[0]], [pair[1]]))
    assert "default-src 'none'" in shown and "<script" not in shown and len(shown) < 200_000


@pytest.mark.parametrize("width", [50, 60, 80])
def test_text_keeps_to_the_terminal_that_it_goes_to(pair, width):
    made = compare([pair[0]], [pair[1]])
    assert max(map(len, text.render(made, width=width).splitlines())) <= width
    assert text.render(made, width=400) == text.render(made), "a wide one changes nothing"
