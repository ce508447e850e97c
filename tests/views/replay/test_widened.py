"""What the host makes wider before it sends it."""

import numpy as np
import pytest

from advisor.views.replay.widened import Widened
from tests.rules.test_rules import found, repeat

SHAPE = [64, 1024]
BYTES = 64 * 1024 * 4


def sending(narrow="unsigned char", wide="float", source=None, size=BYTES, tid=1, behind=False, launches=False, again=0):
    """Two pictures that the host converts in 1,500 µs each, are sent in 200 each and worked on; `again` more that it converts and keeps."""

    def body(trace, at):
        for k in range(2 + again):
            start = at + 1500 * k + behind * 500
            trace.op("aten::copy_", start, 1500, [SHAPE, source or SHAPE, []], [wide, narrow, ""], tid)
            if launches:
                trace.launch(start + 10, start + 20, start + 30)
        for k in range(2):
            sent = at + (behind * k * 240 if behind else 1500 * (2 + again) + 240 * k)
            trace.op("aten::_to_copy", sent, 230).copy(sent + 5, 215, sent + 10, sent + 210, size=size)
        trace.op("aten::mm", at + 6400, 20).launch(at + 6410, at + 6415, at + 6460)

    return repeat(6500, body)


def test_pictures_that_become_floats_on_the_host_are_four_times_as_many_bytes():
    widened = sending().get(Widened)
    assert len(widened.copies) > 4 and set(widened.narrow) == {"unsigned char"} and set(widened.share) == {0.25}
    assert set(sending("c10::BFloat16").get(Widened).share) == {0.5} and set(sending("bool", "double", size=2 * BYTES).get(Widened).share) == {0.125}
    # Each conversion is one copy's: what is converted besides does not come to be sent.
    assert len(sending(again=1).get(Widened).copies) == len(widened.copies)


@pytest.mark.parametrize(
    "other",
    [
        {"narrow": "float"}, {"narrow": "long int"}, {"narrow": "c10::Quaternion"}, {"source": [64, 1]}, {"size": BYTES // 2}, {"tid": 2}, {"behind": True},
        {"launches": True},
    ],
    ids=lambda other: "-".join(map(str, other)),
)  # fmt: skip
def test_what_is_no_wider_or_elsewhere_is_sent_as_it_is(other):
    assert not len(sending(**other).get(Widened).copies)


def test_small_ones_take_their_latency():
    def body(trace, at):
        trace.op("aten::copy_", at, 100, [[64, 255], [64, 255], []], ["float", "unsigned char", ""])
        trace.op("aten::_to_copy", at + 100, 30).copy(at + 105, 20, at + 110, at + 120, size=64 * 255 * 4)
        trace.op("aten::mm", at + 200, 20).launch(at + 210, at + 215, at + 240)

    assert not len(repeat(300, body).get(Widened).copies)


def test_the_fix_sends_a_quarter_and_says_so():
    narrow, plain = (found("host-bound", sending(of)) for of in ("unsigned char", "float"))
    # Two copies of 200 µs a step take a quarter of that.
    assert narrow.saving.expected_us - plain.saving.expected_us == pytest.approx(2 * 150, rel=0.05)
    assert narrow.fix.steps[0].startswith("Send uint8 as it is, 25% of the bytes") and "524 kB a step" in narrow.fix.steps[0]
    assert "uint8" not in " ".join(plain.fix.steps)
    assert "Send uint8 as it is, 25% of the bytes" in " ".join(found("memcpy", sending()).fix.steps)


def test_of_what_was_made_in_some_spans_the_rest_is_left_alone():
    widened = sending().get(Widened)
    first = widened.converted_us[0]
    some = widened.inside((np.array([first - 1]), np.array([first + 1])))
    assert some.copies.tolist() == widened.copies[:1].tolist() and len(some.narrow) == 1 and some.largest == 0
    assert widened.inside((np.array([]), np.array([]))).largest == -1
