"""attention-mask: possible where all heads and sequences share a square mask, quiet for padding, caches and short texts."""

import pytest

from tests.rules.test_rules import clear, found, queued

FLASH = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma"
Q = [2, 8, 1024, 64]


def speak(mask=(1024, 1024), dtype="bool", q=Q, k=None):
    """A call of 100 µs, and 20 to turn its mask into floats."""
    dims = [q, k or q, k or q, *([list(mask)] if mask else [])]

    def body(trace, host, gpu):
        types = ["c10::BFloat16"] * 3 + [dtype] * bool(mask)
        trace.op("aten::scaled_dot_product_attention", host, 20, dims=dims, types=types)
        if dtype == "bool" and mask:
            trace.op("aten::where", host + 1, 5, dims=[list(mask)]).launch(host + 2, gpu, gpu + 20, "where")
        trace.op("aten::_cudnn_attention_forward", host + 8, 8, dims=dims).launch(host + 10, gpu + 20, gpu + 120, FLASH)

    return body


@pytest.mark.parametrize("mask", [(1024, 1024), (1, 1, 1024, 1024)])
def test_a_shared_square_mask_is_possible_with_what_decides_it(mask):
    finding = found("attention-mask", queued(speak(mask)))
    assert finding.status == "possible" and "tril" in finding.decide_with and finding.severity in ("low", "info")
    assert (
        finding.summary
        == "1 attention call per step gets a boolean mask that all heads share. That takes 100 µs of GPU time, and 20.0 µs to turn it into floats."
    )
    assert finding.saving.expected_us == pytest.approx(60 + 20, rel=0.05)
    assert finding.saving.low_us <= 20


def test_a_float_mask_has_nothing_to_turn():
    finding = found("attention-mask", queued(speak(dtype="c10::BFloat16"), gpu=121))
    assert finding.summary == "1 attention call per step gets a mask that all heads share. That takes 100 µs of GPU time."


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("no mask", speak(mask=None)),
        ("padding: a mask for each sequence", speak((2, 1, 1024, 1024))),
        ("a cache: fewer queries than keys", speak((1, 1024), q=[2, 8, 1, 64], k=Q)),
        ("a short text", speak((128, 128), q=[2, 8, 128, 64])),
    ],
)
def test_other_masks_are_quiet(what, body):
    assert clear("attention-mask", queued(body)) == "no attention gets a mask of as many queries as keys that all heads and sequences share", what
