"""Sixteen questions asked of all measured kernels together: by their time, never by one row."""

import pytest

from advisor.engine.kernel_checklist import QUESTIONS, kernel_checklist
from advisor.reports import formats
from advisor.views.kernels.checks import QUESTIONS as CHECKS
from tests.kernels import judged, kernel

APART = {"threads": 8.0}
"""Threads that take part in an instruction, of 32."""
TOGETHER = {"threads": 32.0}


def answers(*kernels):
    return {answer.id: answer for answer in judged("divergence", *kernels).checklist}


def test_each_question_rests_on_checks_that_there_are():
    assert len(QUESTIONS) == 16 and len({question.id for question in QUESTIONS}) == 16
    asked = [check for question in QUESTIONS for check in question.checks]
    assert {*asked} <= {*CHECKS} and len(asked) == len({*asked})
    assert [answer.id for answer in judged("divergence", kernel()).checklist] == [question.id for question in QUESTIONS]


@pytest.mark.parametrize(
    ("us", "answer", "good", "begins"),
    [
        (100.0, "no", False, "Not in 1 of 2 kernels, 50% of the measured time. The longest of these, bad: 8.0 of 32 threads"),
        (3.0, "yes", None, "In all but 1 of 2 kernels, which take 2.9% of the measured time"),
        (0.01, "yes", True, "In all but 1 of 2 kernels, which take <0.1%"),
    ],
)
def test_a_kernel_counts_by_its_time(us, answer, good, begins):
    found = answers(kernel("good", **TOGETHER), kernel("bad", us=us, **APART))["divergence"]
    assert (found.answer, found.good) == (answer, good) and found.detail.startswith(begins), found.detail


def test_one_kernel_is_spoken_of_by_itself():
    assert answers(kernel(**APART))["divergence"].detail == "8.0 of 32 threads take part in an instruction."


def test_what_was_collected_of_few_says_nothing_of_the_rest():
    found = answers(kernel("known", **TOGETHER), kernel("unknown", us=300.0))["divergence"]
    assert (found.answer, found.good) == ("not recorded", None) and "WarpStateStats" in found.detail
    assert answers(kernel("bad", **APART), kernel("unknown", us=300.0))["divergence"].answer == "no", "of a quarter it is known"
    assert answers(kernel("known", us=300.0, **TOGETHER), kernel("unknown"))["divergence"].detail.startswith("In 1 of 2 kernels; in the longest, known")


def test_tensor_cores_are_asked_of_products_alone():
    assert answers(kernel("copy", tensor=0.0))["tensor-cores"].answer == "not recorded"
    mixed = answers(kernel("sgemm_128x64_nn", tensor=0.0), kernel("copy", us=900.0, tensor=0.0))["tensor-cores"]
    assert (mixed.answer, mixed.figure) == ("no", 1.0)


def test_nothing_measured_is_no_good_news():
    assert {answer.answer for answer in kernel_checklist(())} == {"not recorded"}


STALLED = {
    "long_scoreboard": 6.0, "barrier": 3.0, "wait": 0.2, "selected": 0.8, "sm__warps_active.avg.pct_of_peak_sustained_active": 37.0,
    "dram": 20, "l2": 20, "l1": 10, "compute": 10,
}  # fmt: skip


@pytest.mark.parametrize("format_", ["text", "markdown", "html"])
def test_text_and_markdown_have_what_the_page_has(format_):
    report = judged("divergence", kernel("waiting", **STALLED, **APART))
    said = " ".join(formats()[format_].render(report).replace("&#95;", "_").split())
    for part in ("60%", "long_scoreboard", "30%", "barrier", "100% theoretical", "limited by threads", "37% achieved"):
        assert part in said, part
    for question in QUESTIONS:
        assert question.question in said, question.id
    assert "8.0 of 32 threads take part in an instruction" in said
    if format_ == "text":
        assert "16 questions asked of every kernel" in said and "wait (" not in said, "2% of a warp's time is not worth a line"


def test_what_was_not_collected_is_said():
    said = formats()["text"].render(judged("divergence", kernel()))
    assert "Warps stall on: not collected" in said
