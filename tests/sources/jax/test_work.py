"""What HLO instructions do, are for, and which kernels of libraries run them, each worked out by hand."""

import json

import numpy as np
import pytest

from advisor.sources.jax.command_buffers import UNJOINED, joined
from advisor.sources.jax.hlo import FIELD
from advisor.sources.jax.programs import Programs
from tests.sources.jax.test_jax import field
from tests.sources.jax.test_programs import BF16, F32, computation, instruction, module, shape


def made(name, *computations):
    programs = Programs()
    programs.add({"jit_step(1)": module(*computations)})
    return programs.found[programs.row("jit_step", 1, name, "", "")]


def fusion_of(result, *body, operands=None):
    operands = operands or ((1, X),)
    taken = [instruction(number, f"x.{number}", "parameter", array, parameter=number - 1) for number, array in operands]
    inner = computation(2, 99, *body)
    outer = computation(1, 50, *taken, instruction(50, "fusion.1", "fusion", result, operands=[n for n, _ in operands], called=(2,)))
    return made("fusion.1", outer, inner)


X, SUMS = shape(F32, 8, 16), shape(F32, 8)


def test_a_product_multiplies_and_adds_along_what_it_contracts():
    body = (
        instruction(1, "a", "parameter", shape(BF16, 8, 16)), instruction(2, "b", "parameter", shape(BF16, 16, 4)),
        instruction(99, "dot", "dot", shape(BF16, 8, 4), operands=(1, 2), more=field(FIELD.dot_dimension_numbers, field(1, bytes([1])) + field(2, bytes([0])))),
    )  # fmt: skip
    found = fusion_of(shape(BF16, 8, 4), *body, operands=((1, shape(BF16, 8, 16)), (2, shape(BF16, 16, 4))))
    assert found.flops == 2 * 8 * 16 * 4 and found.bytes == 2 * (8 * 16 + 16 * 4 + 8 * 4) and found.family == "gemm"


def test_a_library_s_product_says_what_it_contracts_and_brings_a_workspace():
    said = json.dumps({"gemm_backend_config": {"dot_dimension_numbers": {"lhs_contracting_dimensions": ["1"]}}})
    both = field(2, 13) + field(4, shape(BF16, 8, 4)) + field(4, shape(2, 100))
    call = instruction(
        3, "custom-call.1", "custom-call", both, operands=(1, 2), more=field(FIELD.custom_call_target, "__cublas$lt$matmul") + field(FIELD.backend_config, said)
    )
    home = computation(1, 3, instruction(1, "a", "parameter", shape(BF16, 8, 16)), instruction(2, "b", "parameter", shape(BF16, 16, 4)), call)
    found = made("custom-call.1", home)
    assert found.flops == 2 * 8 * 16 * 4 and found.bytes == 2 * (8 * 16 + 16 * 4 + 8 * 4) and found.family == "gemm"


def test_what_is_only_sliced_is_read_in_part_and_what_is_updated_in_place_written_in_part():
    body = (
        instruction(1, "a", "parameter", X), instruction(2, "cut", "slice", shape(F32, 1, 16), operands=(1,)),
        instruction(3, "twice", "add", shape(F32, 1, 16), operands=(2, 2)), instruction(4, "b", "parameter", X),
        instruction(99, "put", "dynamic-update-slice", X, operands=(4, 3)),
    )  # fmt: skip
    found = fusion_of(X, *body, operands=((1, X), (4, X)))
    assert found.bytes == 4 * 16 + 4 * 16 and found.flops == 16


def softmax(spread):
    return (
        instruction(1, "a", "parameter", X), instruction(2, "m", "parameter", spread), instruction(3, "b", "broadcast", X, operands=(2,)),
        instruction(4, "less", "subtract", X, operands=(1, 3)), instruction(99, "exp", "exponential", X, operands=(4,)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "family"),
    [
        (softmax(SUMS), "softmax"),
        (softmax(shape(F32)), ""),  # a constant is taken off
        ((instruction(1, "a", "parameter", X), instruction(99, "t", "transpose", shape(F32, 16, 8), operands=(1,))), "layout"),
        ((instruction(1, "a", "parameter", X), instruction(99, "t", "tanh", X, operands=(1,))), ""),
    ],
)
def test_a_fusion_is_for_what_its_body_does(body, family):
    assert fusion_of(X, *body).family == family


@pytest.mark.parametrize("opcode", ["while", "all-reduce", "copy-start", "parameter"])
def test_what_is_no_kernel_has_no_work(opcode):
    found = made("it", computation(1, 2, instruction(1, "a", "parameter", X), instruction(2, "it", opcode, X, operands=(1,))))
    assert np.isnan(found.flops) and np.isnan(found.bytes)


def test_sizes_beyond_reason_are_no_work():
    huge = field(2, F32) + field(3, b"\xff\xff\xff\xff\xff\xff\xff\x7f" * 4)
    assert np.isnan(made("it", computation(1, 2, instruction(1, "a", "parameter", huge), instruction(2, "it", "tanh", huge, operands=(1,)))).bytes)


def library(number, name, rows):
    said = json.dumps({"gemm_backend_config": {"dot_dimension_numbers": {"lhs_contracting_dimensions": ["1"]}}})
    more = field(FIELD.custom_call_target, "__cublas$gemm") + field(FIELD.backend_config, said)
    return instruction(number, name, "custom-call", shape(BF16, rows, 8), operands=(1, 2), more=more)


@pytest.fixture
def two_products():
    programs = Programs()
    taken = instruction(1, "a", "parameter", shape(BF16, 8, 8)), instruction(2, "b", "parameter", shape(BF16, 8, 8))
    programs.add({"jit_step(1)": module(computation(1, 5, *taken, library(3, "call.1", 4), library(4, "call.2", 16), library(5, "call.3", 4)))})
    return programs


def rows_of(programs, names, devices=None):
    n = len(names)
    found = joined(
        np.full(n, UNJOINED), names, np.array(devices or [0] * n), np.arange(n, dtype=float), [("jit_step", 1)], programs
    )  # fmt: skip
    return [programs.found[row].name if row >= 0 else "" for row in found.tolist()]


def test_products_inside_command_buffers_are_joined_in_order(two_products):
    once = ["nvjet_a", "memcpy128", "nvjet_b", "splitKreduce_kernel", "nvjet_a"]
    assert rows_of(two_products, once * 2) == ["call.1", "", "call.2", "call.2", "call.3"] * 2


def test_other_counts_and_equal_products_with_other_kernels_are_not_joined(two_products):
    assert rows_of(two_products, ["nvjet_a", "nvjet_b"]) == [""] * 2
    assert rows_of(two_products, ["nvjet_a", "nvjet_b", "nvjet_c"]) == [""] * 3


def test_in_another_order_how_often_a_kernel_runs_tells_what_it_multiplies(two_products):
    found = joined(np.full(6, UNJOINED), ["nvjet_b", "nvjet_a", "nvjet_a"] * 2, np.zeros(6), np.arange(6.0), [("jit_step", 1)], two_products)
    kernels = [two_products.found[row] for row in found.tolist()]
    assert [k.results[0].sizes for k in kernels[:3]] == [(16, 8), (4, 8), (4, 8)] and {(k.name, k.file, k.line) for k in kernels} == {("", "", 0)}


def test_devices_are_joined_apart(two_products):
    names = [name for name in ("nvjet_a", "nvjet_b", "nvjet_a") for _ in range(2)]
    assert rows_of(two_products, names, [0, 1] * 3) == ["call.1", "call.1", "call.2", "call.2", "call.3", "call.3"]


CUDNN = {"cudnn_fmha_backend_config": {"intermediate_tensor_shape": {"dimensions": ["2", "4", "64", "64"]}, "mask_type": "NO_MASK"}}
WHOLE = 2 * 4 * 64 * 64 * 32
"""Batch, heads, queries, keys and the size of a head, each once."""


def attended(target, settings, results):
    array = shape(BF16, 2, 64, 4, 32)
    more = field(FIELD.custom_call_target, target) + field(FIELD.backend_config, settings)
    call = instruction(4, "custom-call.1", "custom-call", results, operands=(1, 2, 3), more=more)
    return made("custom-call.1", computation(1, 4, *(instruction(n, f"p{n}", "parameter", array) for n in (1, 2, 3)), call))


def cudnn(**changed):
    return json.dumps({"cudnn_fmha_backend_config": CUDNN["cudnn_fmha_backend_config"] | changed})


@pytest.mark.parametrize(
    ("target", "settings", "products"),
    [
        ("__cudnn$fmhaSoftmax", cudnn(), 2),
        ("__cudnn$fmhaSoftmaxBackward", cudnn(), 5),
        ("__cudnn$fmhaSoftmax", cudnn(mask_type="CAUSAL"), 1),
        ("__cudnn$fmhaSoftmax", cudnn(mask_type="CAUSAL", sliding_window_length=8), 2 * 8 / 64),
        ("__cudnn$fmhaSoftmax", cudnn(mask_type="PADDING"), None),
        ("__cudnn$fmhaSoftmax", cudnn(intermediate_tensor_shape={"dimensions": ["2", "4", "64"]}), None),
        ("__cudnn$fmhaSoftmax", "[]", None),
    ],
)
def test_attention_in_one_call_multiplies_what_its_settings_say(target, settings, products):
    found = attended(target, settings, field(2, 13) + field(4, shape(BF16, 2, 4, 64, 32)) + field(4, shape(6, 100)))
    assert found.family == "attention" and found.precision == "bf16"
    if products is None:
        assert np.isnan(found.flops) and np.isnan(found.bytes)
    else:
        # Three arrays in, one out; the last result is the workspace.
        assert found.flops == 2 * WHOLE * products and found.bytes == 4 * 2 * (2 * 64 * 4 * 32)


@pytest.mark.parametrize(("mask", "products"), [(0, 2), (2, 1), (4, 1), (1, None), (3, None), (9, None)])
def test_attention_of_transformer_engine_says_its_sizes(mask, products):
    settings = "{attn_heads = 4 : i64, dropout_probability = 1.0e-01 : f64, input_batch = 2 : i64, kv_max_seqlen = 64 : i64, mask_type = %d : i64, "
    settings += "q_max_seqlen = 64 : i64, qk_head_dim = 32 : i64, v_head_dim = 32 : i64, window_size_left = -1 : i64}"
    found = attended("te_fused_attn_forward_ffi", settings % mask, shape(BF16, 2, 64, 4, 32))
    assert np.isnan(found.flops) if products is None else found.flops == 2 * WHOLE * products
