import pytest

pytest.importorskip("torch")

import advisor
from advisor.errors import UsageError
from advisor.knowledge import devices
from advisor.lab.intensity import bound

intensity = advisor.estimate_arithmetic_intensity


def test_a_product_of_1024_cubed_does_170_flops_a_byte():
    # 2·1024³ FLOP over three matrices of 4 MiB.
    assert intensity("matmul", {"A": (1024, 1024), "B": (1024, 1024)}) == pytest.approx(170.7, abs=0.05)
    assert intensity("matmul", {"A": (1024, 1024), "B": (1024, 1024)}, dtype="bfloat16") == pytest.approx(341.3, abs=0.05)


def test_a_layernorm_does_ten_flops_for_eight_bytes():
    assert intensity("layernorm", {"x": (32, 128, 768)}) == 1.25


@pytest.mark.parametrize(
    ("op", "shapes", "arguments", "wanted"),
    [
        ("gelu", {"x": (10, 10)}, {}, 1 / 8),
        ("_softmax", {"x": (8, 128)}, {"dim": -1, "half_to_float": False}, None),
        # 2 products of 2·S·S·D a head over Q, K, V and the result.
        ("scaled_dot_product_attention", {"q": (1, 8, 128, 64), "k": (1, 8, 128, 64), "v": (1, 8, 128, 64)}, {}, 4 * 128 * 128 * 64 / (4 * 4 * 128 * 64)),
        ("conv2d", {"x": (1, 3, 32, 32), "w": (8, 3, 3, 3)}, {}, None),
        ("cat", {"tensors": [(3, 4), (3, 4)]}, {}, 0.0),
        ("copy", {"to": (3, 4), "from": (3, 4)}, {}, 0.0),
    ],
)
def test_every_op_that_a_cost_model_knows(op, shapes, arguments, wanted):
    found = intensity(op, shapes, arguments=arguments)
    assert found == pytest.approx(wanted) if wanted is not None else found > 0


@pytest.mark.parametrize(
    ("op", "shapes", "options", "said"),
    [
        ("matmull", {"A": (2, 2)}, {}, "no cost model"),
        ("matmul", {"A": (2, 3), "B": (2, 3)}, {}, "do not determine"),
        ("gelu", {"x": (2,)}, {"dtype": "float7"}, "no type"),
        ("_softmax", {"x": (8, 128)}, {}, "do not determine"),
    ],
)
def test_what_is_not_known_is_said(op, shapes, options, said):
    with pytest.raises(UsageError, match=said):
        intensity(op, shapes, **options)


def test_the_roofline_says_what_bounds():
    h200 = devices.find("NVIDIA H200")
    # 4.8e12 bytes take a second of the memory; at 100 FLOP a byte BF16 needs half of one.
    found = bound(480e12, 4.8e12, "bfloat16", h200)
    assert (found.limit, found.least_us) == ("memory", pytest.approx(1e6))
    assert bound(4800e12, 4.8e12, "bfloat16", h200).limit == "compute"
    assert bound(1.0, 1.0, "bfloat16", None) is None and bound(1.0, 1.0, "complex64", h200) is None
