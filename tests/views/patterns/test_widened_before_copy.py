"""What the host makes wider before it sends it."""

import numpy as np
import pytest

from advisor.views.patterns.transfers import Widened
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
    assert set(sending("short int").get(Widened).share) == {0.5} and set(sending("bool", "double", size=2 * BYTES).get(Widened).share) == {0.125}
    # Each conversion is one copy's: what is converted besides does not come to be sent.
    assert len(sending(again=1).get(Widened).copies) == len(widened.copies)


@pytest.mark.parametrize(
    "other",
    [
        {"narrow": "float"}, {"narrow": "c10::BFloat16"}, {"narrow": "long int"}, {"source": [64, 1]}, {"size": BYTES // 2}, {"tid": 2}, {"behind": True},
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
    assert narrow.fix.steps[0].startswith("Send uint8 as it is, 25% of the bytes") and "524 kB of what is sent a step" in narrow.fix.steps[0]
    assert "uint8" not in " ".join(plain.fix.steps)
    assert "Send uint8 as it is, 25% of the bytes" in " ".join(found("memcpy", sending()).fix.steps)


def test_an_op_that_converts_and_sends_is_its_copy_s_alone():
    # As of x.to("cuda", torch.float32): within the op that sends, another converts on the CPU. A plain copy of as many bytes follows.
    def body(trace, at):
        pictures = [SHAPE, SHAPE, []]
        trace.op("aten::copy_", at, 900, pictures, ["float", "unsigned char", ""])
        trace.op("aten::copy_", at + 10, 500, pictures, ["float", "unsigned char", ""])
        trace.op("aten::copy_", at + 520, 370, pictures, ["float", "float", ""]).copy(at + 530, 300, at + 540, at + 820, size=BYTES)
        trace.op("aten::copy_", at + 1000, 370, pictures, ["float", "float", ""]).copy(at + 1010, 300, at + 1020, at + 1300, size=BYTES)
        trace.op("aten::mm", at + 1400, 20).launch(at + 1410, at + 1415, at + 1460)

    trace = repeat(1500, body)
    found_in = trace.get(Widened)
    assert len(np.unique(found_in.converted_us)) == len(found_in.copies) == len(np.flatnonzero(found_in.work.column("copy_kind") == "HtoD")) / 2


def test_what_is_counted_is_what_the_steps_say():
    def body(sleeps, narrow="unsigned char"):
        def step(trace, at):
            if sleeps:
                trace.python("<built-in function sleep>", at, 3000)
            trace.op("aten::copy_", at + 3000, 1500, [SHAPE, SHAPE, []], ["float", narrow, ""])
            trace.op("aten::_to_copy", at + 4500, 230).copy(at + 4505, 215, at + 4510, at + 4710, size=BYTES)
            trace.op("aten::mm", at + 4800, 20).launch(at + 4810, at + 4815, at + 4860)

        return repeat(4900, step)

    asleep, other = (found("host-bound", body(True, narrow)) for narrow in ("unsigned char", "float"))
    assert asleep.saving.expected_us == pytest.approx(other.saving.expected_us) and "uint8" not in " ".join(asleep.fix.steps)
    assert "uint8" in found("host-bound", body(False)).fix.steps[0]


def test_of_what_was_made_in_some_spans_the_rest_is_left_alone():
    widened = sending().get(Widened)
    first = widened.converted_us[0]
    some = widened.inside((np.array([first - 1]), np.array([first + 1])))
    assert some.copies.tolist() == widened.copies[:1].tolist() and len(some.narrow) == 1 and some.largest == 0
    assert widened.inside((np.array([]), np.array([]))).largest == -1
