"""The sample kernels: each fault found by name, its twin quiet, and what was measured inside what was predicted."""

import json

import pytest

from advisor.report.model import Report
from tests.analysed import analysed
from tests.paths import ROOT

KERNELS = ROOT / "samples" / "kernels"
PAIRS = json.loads((KERNELS / "manifest.json").read_text())["kernels"]
PAGES = ("pairs.ncu-rep.gz", "pairs_raw.csv.gz", "pairs_details.csv.gz")


def report(page: str) -> Report:
    return analysed(KERNELS / page)


def found(page: str, kernel: str) -> dict[str, tuple[float, ...]]:
    """Loud findings about a kernel, by rule, with their savings to three digits."""
    return {
        f.rule: tuple(round(v, 3) for v in (f.saving.low, f.saving.expected, f.saving.high))
        for f in report(page).findings
        if f.evidence[0].label == kernel and f.severity in ("high", "medium")
    }


@pytest.mark.parametrize("name", [name for name, pair in PAIRS.items() if pair["fault"]])
def test_each_fault_is_found_and_its_twin_is_quiet(name):
    pair = PAIRS[name]
    for page in PAGES[:2]:
        assert pair["fault"] in found(page, pair["slow"])
        assert pair["fault"] not in found(page, pair["fixed"])


def test_four_in_five_measured_gains_are_inside_the_interval():
    inside = []
    for pair in PAIRS.values():
        if pair["fault"]:
            low, _, high = found(PAGES[0], pair["slow"])[pair["fault"]]
            inside.append(low - 0.02 <= 1 - pair["fixed_us"] / pair["slow_us"] <= high + 0.02)
    assert sum(inside) >= 0.8 * len(inside)


def test_the_report_and_its_raw_page_say_the_same():
    for pair in PAIRS.values():
        for kernel in (pair["slow"], pair["fixed"]):
            a, b = (found(page, kernel) for page in PAGES[:2])
            assert a.keys() == b.keys()
            for rule in a:
                assert a[rule] == pytest.approx(b[rule], abs=0.01)


def test_the_details_page_finds_no_fault_that_the_report_does_not():
    for pair in PAIRS.values():
        assert not found(PAGES[2], pair["fixed"]).keys() - found(PAGES[0], pair["fixed"]).keys()


def test_nothing_of_the_machine_is_left_in_the_samples():
    import gzip

    for page in PAGES:
        data = gzip.decompress((KERNELS / page).read_bytes())
        assert not [word for word in (b"/tmp/", b"/home/", b"/root", b"python", b"LD_LIBRARY") if word in data], page
