"""Costs of ops: worked by hand, and against torch's own flop counter on recorded dims."""

from __future__ import annotations

import gzip
import inspect
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advisor.knowledge.devices import find
from advisor.knowledge.op_costs import DTYPE_BYTES, OPS, op_cost
from advisor.knowledge.op_costs.fused_attention import UNALIGNED, Scores, attention_us, is_fused, of_causal
from advisor.knowledge.op_costs.products import Attention, AttentionBackward, Convolution
from advisor.knowledge.op_tokens.families import Family, op_family, precision
from tests.paths import needs_shared, shared_files

BF16 = "c10::BFloat16"
MI = 1 << 20


def cost(name: str, dims: list[Any], types: list[str], concrete: list[str] | None = None, **more: Any) -> tuple[float, float] | None:
    found = op_cost(name, dims, types, concrete, **more)
    return None if found is None else (found.flops, found.bytes)


# ------------------------------------------------------------------------------------------------- worked by hand


def test_mm_reads_each_operand_once() -> None:
    """PyTorch's profile_analysis counts these bytes twice."""
    assert cost("aten::mm", [[4, 8], [8, 2]], ["float", "float"]) == (2 * 4 * 8 * 2, 4 * (32 + 16 + 8))


def test_addmm_bias_adds_bytes_only() -> None:
    types = [BF16, BF16, BF16, "Scalar", "Scalar"]
    assert cost("aten::addmm", [[2], [4, 8], [8, 2], [], []], types) == (128, 2 * (2 + 32 + 16 + 8))


def test_scaled_mm_writes_its_own_type() -> None:
    f8 = "c10::Float8_e4m3fn"
    dims: list[Any] = [[4, 8], [8, 2], [], [], [], [], [], []]
    types = [f8, f8, "float", "float", "", "", "Scalar", "Scalar"]
    concrete = ["", "", "", "", "", "", "15", "True"]
    assert cost("aten::_scaled_mm", dims, types, concrete) == (128, 32 + 16 + 8 + 2 * 8)


def test_matmul_broadcasts_batches() -> None:
    assert cost("aten::matmul", [[3, 1, 4, 8], [5, 8, 2]], ["float", "float"]) == (15 * 128, 4 * (3 * 32 + 5 * 16 + 15 * 8))
    assert cost("aten::matmul", [[8], [8]], ["float", "float"]) == (16, 4 * 17)


CONV = ["float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"]


def conv(stride: str, padding: str, dilation: str, transposed: str = "False", groups: str = "1") -> list[str]:
    return ["", "", "", stride, padding, dilation, transposed, "[0, 0]", groups]


def test_convolution_respects_padding_stride_and_dilation() -> None:
    """PyTorch's profile_analysis ignores padding and dilation."""
    dims: list[Any] = [[1, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], [], [], []]
    for concrete, side in ((conv("[1, 1]", "[0, 0]", "[1, 1]"), 6), (conv("[1, 1]", "[1, 1]", "[1, 1]"), 8),
                           (conv("[2]", "[1]", "[1]"), 4), (conv("[1, 1]", "[0, 0]", "[2, 2]"), 4)):  # fmt: skip
        out = 4 * side * side
        assert cost("aten::convolution", dims, CONV, concrete) == (2 * 27 * out, 4 * (192 + 108 + out))


def test_convolution_without_recorded_arguments_has_no_cost() -> None:
    dims: list[Any] = [[1, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], [], [], []]
    assert cost("aten::convolution", dims, CONV) is None


def test_transposed_convolution() -> None:
    dims: list[Any] = [[1, 4, 5, 5], [4, 3, 3, 3], [], [], [], [], [], [], []]
    out = 6 * 9 * 9  # (5 - 1) * 2 - 2 + 2 + 1 = 9, groups of 2: 3 * 2 channels
    found = cost("aten::convolution", dims, CONV, conv("[2, 2]", "[1, 1]", "[1, 1]", "True", "2"))
    assert found == (2 * 27 * 100, 4 * (100 + 108 + out))


def backward(mask: str) -> tuple[float, float] | None:
    dims: list[Any] = [[1, 4, 6, 6], [1, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], [], [], [], []]
    types = ["float"] * 3 + ["ScalarList"] * 4 + ["Scalar", "ScalarList", "Scalar", "ScalarList"]
    concrete = ["", "", "", "[4]", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1", mask]
    return cost("aten::convolution_backward", dims, types, concrete)


def test_convolution_backward_follows_the_output_mask() -> None:
    forward, operands = 2 * 27 * 144, 4 * (144 + 192 + 108)
    assert backward("[True, True, False]") == (2 * forward, 2 * operands)
    assert backward("[False, True, True]") == (forward, operands + 4 * 144)
    assert backward("[False, False, False]") == (0, 0)


SDPA = [BF16, BF16, BF16, "", "Scalar", "Scalar", "", "Scalar"]


@pytest.mark.parametrize(
    ("q", "kv", "causal", "flops"),
    [
        ([8, 16, 2048, 128], [8, 16, 2048, 128], "False", 4 * 8 * 16 * 2048 * 2048 * 128),
        ([8, 16, 2048, 128], [8, 16, 2048, 128], "True", 2 * 8 * 16 * 2048 * 2048 * 128),
        ([8, 16, 1, 128], [8, 16, 2048, 128], "True", 4 * 8 * 16 * 2048 * 128),
        ([8, 16, 2048, 128], [8, 4, 2048, 128], "False", 4 * 8 * 16 * 2048 * 2048 * 128),
    ],
)
def test_attention(q: list[int], kv: list[int], causal: str, flops: int) -> None:
    """Causal halves where lengths are equal; grouped queries count all heads of Q, and K and V at their own size."""
    concrete = ["", "", "", "", "0.", causal, "", "False"]
    found = cost("aten::scaled_dot_product_attention", [q, kv, kv, [], [], [], [], []], SDPA, concrete)
    assert found == (flops, 2 * (2 * math.prod(q) + 2 * math.prod(kv)))


def test_attention_backward_as_recorded() -> None:
    """Five products of the same size, halved: from the shared corpus, healthy_gpt_compiled."""
    qkv = [8, 16, 2048, 128]
    dims: list[Any] = [qkv] * 5 + [[8, 16, 2048, 1]] + [[]] * 10
    types = [BF16] * 5 + ["float", "long int", "long int", "", "", "", "Scalar", "Scalar", "Scalar", "Scalar", ""]
    concrete = [""] * 11 + ["2048", "2048", "0.", "True", ""]
    found = cost("aten::_scaled_dot_product_cudnn_attention_backward", dims, types, concrete)
    assert found == (5 * 8 * 16 * 2048 * 2048 * 128, 8 * math.prod(qkv) * 2)


def test_packed_attention_has_no_cost() -> None:
    """Its work depends on the sequences' lengths, which are values on the device."""
    dims: list[Any] = [[512, 12, 64]] * 3 + [[5], [5]] + [[]] * 6
    types = [BF16] * 3 + ["int", "int", "Scalar", "Scalar", "Scalar", "Scalar", "Scalar", ""]
    concrete = [""] * 5 + ["197", "197", "0.", "False", "False", ""]
    assert cost("aten::_flash_attention_forward", dims, types, concrete) is None


@pytest.mark.parametrize(
    ("name", "dims", "types", "expected"),
    [
        ("aten::add", [[8192, 8192], [8192], []], ["float", "float", "Scalar"], (64 * MI, 4 * (128 * MI + 8192))),
        ("aten::mul", [[8192, 8192], []], ["float", "double"], (64 * MI, 4 * 128 * MI + 8)),
        ("aten::add_", [[4, 4], [4, 4], []], [BF16, "float", "Scalar"], (16, 16 * (2 + 4 + 2))),
        ("aten::add", [[4, 4], [4, 4], []], [BF16, "float", "Scalar"], (16, 16 * (2 + 4 + 4))),
        ("aten::add", [[4, 1], [1, 4], []], ["float", "float", "Scalar"], (16, 4 * (4 + 4 + 16))),
        ("aten::add", [[4], [4], []], ["c10::Half", BF16, "Scalar"], (4, 4 * (2 + 2 + 4))),
        ("aten::mul", [[4], []], [BF16, "float"], (4, 4 * (2 + 2) + 4)),  # 0 dimensions: same category, no promotion
        ("aten::mul", [[4], []], ["int", "double"], (4, 4 * (4 + 4) + 8)),  # a Python number: the default type
        ("aten::mul", [[4], [4], [4]], ["float", "float", "float"], (4, 48)),  # out=
        ("aten::eq", [[4], []], ["long int", "Scalar"], (4, 4 * (8 + 1))),
        ("aten::div", [[4], [4]], ["int", "int"], (4, 4 * 12)),
        ("aten::relu", [[4, 4]], [BF16], (16, 64)),
        ("aten::gelu_backward", [[4], [4], []], ["float", "float", ""], (4, 48)),
        ("aten::addcmul_", [[4], [4], [4], []], ["float", "float", "float", "Scalar"], (4, 64)),
        ("aten::masked_fill", [[4, 4], [4], []], [BF16, "bool", "Scalar"], (16, 32 + 4 + 32)),
        ("aten::where", [[4], [4], []], ["bool", BF16, "float"], (4, 4 + 8 + 4 + 8)),
        ("aten::clamp", [[4], [], []], ["float", "Scalar", "Scalar"], (4, 32)),
        ("aten::native_dropout", [[4], [], []], ["float", "Scalar", "Scalar"], (8, 16 + 16 + 4)),
        ("aten::copy_", [[4, 4], [4], []], [BF16, "float", "Scalar"], (0, 32 + 16)),
        ("aten::clone", [[4], []], ["unsigned char", ""], (0, 8)),
        ("aten::fill_", [[4], []], ["double", "Scalar"], (0, 32)),
        ("aten::zero_", [[4]], ["float"], (0, 16)),
        ("aten::normal_", [[4], [], [], []], ["float", "Scalar", "Scalar", ""], (0, 16)),
        ("aten::native_layer_norm", [[6, 8], [], [8], [8], []], ["float", "ScalarList", "float", "float", "Scalar"],
         (8 * 48, 4 * (48 + 16 + 48))),
        ("aten::embedding", [[100, 8], [3, 2], [], [], []], [BF16, "long int", "Scalar", "Scalar", "Scalar"],
         (0, 6 * 8 + 2 * 6 * 16)),
        ("aten::gather", [[9, 9], [], [4, 4], []], [BF16, "Scalar", "long int", "Scalar"], (0, 16 * 8 + 2 * 16 * 2)),
        ("aten::scatter_add_", [[33], [], [32], [32]], ["float", "Scalar", "long int", "float"], (32, 32 * 8 + 3 * 32 * 4)),
        ("aten::index_add_", [[755], [], [10], [10], []], ["float", "Scalar", "int", "float", "Scalar"], (10, 40 + 3 * 40)),
        ("aten::cumsum", [[32], [], []], ["int", "Scalar", ""], (32, 32 * 12)),
        ("aten::max", [[32]], ["int"], (32, 33 * 4)),
    ],
)  # fmt: skip
def test_streams(name: str, dims: list[Any], types: list[str], expected: tuple[float, float]) -> None:
    assert cost(name, dims, types, [""] * len(types)) == expected


@pytest.mark.parametrize(
    ("name", "dims", "types", "concrete", "expected"),
    [
        ("aten::sum", [[64, 10], [], [], []], [BF16, "ScalarList", "Scalar", ""], ["", "[0]", "True", ""], (640, 2 * 650)),
        ("aten::sum", [[64, 10], [], [], []], [BF16, "ScalarList", "Scalar", "Scalar"], ["", "[-1]", "False", "6"],
         (640, 1280 + 256)),
        ("aten::sum", [[4], []], ["int", ""], ["", ""], (4, 16 + 8)),
        ("aten::sum", [[4], []], ["float", "Scalar"], ["", "7"], (4, 16 + 8)),
        ("aten::mean", [[4, 5], [], [], []], ["float", "ScalarList", "Scalar", ""], ["", "[]", "False", ""], (20, 84)),
        ("aten::argmax", [[32, 50], [], []], ["float", "Scalar", "Scalar"], ["", "-1", "False"], (1600, 6400 + 256)),
        ("aten::max", [[4, 5], [], []], ["float", "Scalar", "Scalar"], ["", "1", "False"], (20, 80 + 4 * 12)),
        ("aten::linalg_vector_norm", [[4, 5], [], [], [], []], ["float", "Scalar", "", "Scalar", ""],
         ["", "2", "", "False", ""], (40, 84)),
        ("aten::var_mean", [[8, 16], [], [], []], ["float", "ScalarList", "Scalar", "Scalar"], ["", "[1]", "False", "True"],
         (512, 512 + 64)),
        ("aten::_softmax", [[4, 5], [], []], [BF16, "Scalar", "Scalar"], ["", "-1", "True"], (60, 20 * 6)),
        ("aten::_softmax", [[4, 5], [], []], [BF16, "Scalar", "Scalar"], ["", "-1", "False"], (60, 20 * 4)),
        ("aten::log_softmax", [[4, 5], [], []], ["float", "Scalar", "Scalar"], ["", "1", "15"], (60, 20 * 6)),
        ("aten::_to_copy", [[4], [], [], [], [], [], []], ["float", "Scalar", "", "", "", "Scalar", ""],
         ["", "15", "", "", "", "False", ""], (0, 16 + 8)),
        ("aten::index_select", [[10, 8], [], [3]], [BF16, "Scalar", "long int"], ["", "0", ""], (0, 24 + 2 * 24 * 2)),
        ("aten::embedding_dense_backward", [[6, 8], [6], [], [], []], ["float", "long int", "Scalar", "Scalar", "Scalar"],
         ["", "", "100", "-1", "False"], (48, 192 + 48 + 3200)),
    ],
)  # fmt: skip
def test_streams_with_arguments(name: str, dims: list[Any], types: list[str], concrete: list[str], expected: tuple[float, float]) -> None:
    assert cost(name, dims, types, concrete) == expected


def test_expanded_inputs_count_what_exists() -> None:
    dims, types = [[64, 512, 28, 28], []], [BF16, "Scalar"]
    numel = 64 * 512 * 28 * 28
    assert cost("aten::div", dims, types) == (numel, 4 * numel)
    expanded = [[512, 1, 0, 0], []]
    assert cost("aten::div", dims, types, strides=expanded) == (numel, 2 * numel + 2 * 64 * 512)


@pytest.mark.parametrize(
    ("name", "lists", "flops", "words"),
    [("aten::cat", 1, 0, 2), ("aten::_foreach_add_", 2, 1, 3), ("aten::_foreach_mul_", 1, 1, 2),
     ("aten::_foreach_copy_", 2, 0, 2),
     ("aten::_foreach_norm", 1, 2, 1), ("aten::_foreach_zero_", 1, 0, 1), ("aten::_fused_adamw_", 4, 12, 7)],
)  # fmt: skip
def test_tensor_lists_need_their_element_size(name: str, lists: int, flops: int, words: int) -> None:
    shapes = [[3, 4], [8]]
    dims, types = [*[shapes] * lists, []], [*["TensorList"] * lists, "Scalar"]
    assert cost(name, dims, types, [""] * len(types)) is None
    assert cost(name, dims, types, [""] * len(types), list_item_bytes=2) == (flops * 20, words * 20 * 2)


def test_list_too_long_for_kineto_has_no_cost() -> None:
    assert cost("aten::_foreach_mul_", [[], []], ["TensorList", "Scalar"], ["", "2"], list_item_bytes=4) is None


@pytest.mark.parametrize(
    ("name", "dims", "types"),
    [
        ("aten::view", [[4]], ["float"]),
        ("fbgemm::mm", [[4, 8], [8, 2]], ["float", "float"]),
        ("aten::mm", [], []),
        ("aten::mm", [[4, 8]], ["float"]),
        ("aten::mm", [[4, 8], [9, 2]], ["float", "float"]),
        ("aten::mm", [[4, 8, 1], [8, 2]], ["float", "float"]),
        ("aten::mm", [[4, 8], [8, 2]], ["float", "torch::Unheard"]),
        ("aten::matmul", [[], []], ["float", "float"]),
        ("aten::copy", [[4], [4]], ["float", "float"]),
        ("aten::sum", [[4, 5], [], [], []], ["float", "ScalarList", "Scalar", ""]),
        ("aten::std", [[4, 5], []], ["float", "Scalar"]),
        ("aten::index_select", [[], [], [3]], ["float", "Scalar", "long int"]),
    ],
)
def test_what_the_record_does_not_hold_is_not_guessed(name: str, dims: list[Any], types: list[str]) -> None:
    assert cost(name, dims, types) is None
    assert cost(name, dims, types, ["", *["True"] * (len(types) - 1)]) is None


def test_kind_agrees_with_the_family_of_the_op() -> None:
    for op, (kind, _) in OPS.items():
        assert op_family(f"aten::{op}") in (kind, None), op
        if kind not in (Family.ELEMENTWISE, Family.OPTIMIZER):
            assert op_family(f"aten::{op}") is kind, op


@needs_shared
def test_types_and_ops_of_the_shared_corpus_are_known() -> None:
    """Nothing raises on a real record, and the ops that a GPU spends its time in have a cost."""
    seen: set[str] = set()
    priced: set[str] = set()
    for path in shared_files("corpus/kineto/*.json.gz"):
        if path.name.startswith("recompiles.slow"):
            continue
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
            if event.get("cat") == "cpu_op" and "Input Dims" in event["args"]:
                args = event["args"]
                strides = args.get("Input Strides")
                found = op_cost(event["name"], args["Input Dims"], args["Input type"], args.get("Concrete Inputs"), strides)
                seen.add(event["name"])
                if found is not None:
                    priced.add(event["name"])
                    assert found.flops >= 0 and found.bytes > 0
                for kind, shape in zip(args["Input type"], args["Input Dims"], strict=True):
                    assert not shape or kind in DTYPE_BYTES or kind == "TensorList", kind
    wanted = {"aten::mm", "aten::addmm", "aten::bmm", "aten::convolution_backward", "aten::cudnn_convolution", "aten::_softmax",
              "aten::_scaled_dot_product_cudnn_attention", "aten::_cudnn_attention_backward", "aten::native_layer_norm",
              "aten::add", "aten::native_batch_norm_backward", "aten::gelu", "aten::copy_", "aten::fill_", "aten::sum",
              "aten::addcdiv_",
              "aten::gather", "aten::index_select"}  # fmt: skip
    assert wanted <= priced
    in_table = {name for name in seen if name.removeprefix("aten::").removesuffix("_") in OPS}
    assert {name for name in in_table - priced if "foreach" not in name and "fused" not in name} <= {"aten::cat", "aten::stack"}


@needs_shared
def test_no_op_of_the_shared_corpus_beats_the_chip() -> None:
    """What a formula counts too much shows as a rate above the H200's peak (a cost counted for each kernel, a sparse peak)."""
    h200 = find("NVIDIA H200")
    assert h200 is not None and h200.bytes_per_s is not None and h200.l2_mbytes is not None
    checked = 0
    for path in shared_files("corpus/kineto/*.json.gz"):
        if path.name.startswith("recompiles.slow"):
            continue
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        ops = {event["args"].get("External id"): event for event in events if event.get("cat") == "cpu_op"}
        spent: Counter[int] = Counter()
        for event in events:
            if event.get("cat") == "kernel" and event["args"].get("External id") in ops:
                spent[event["args"]["External id"]] += event["dur"]
        for op, dur_us in spent.items():
            args = ops[op]["args"]
            if "Input Dims" in args:
                call = args["Input Dims"], args["Input type"], args.get("Concrete Inputs"), args.get("Input Strides")
                if (found := op_cost(ops[op]["name"], *call)) is not None:
                    kind = precision("gemm", json.dumps(args["Input type"])) or "tf32"
                    peak = h200.flops_per_s(kind)
                    assert peak is not None
                    assert found.flops / dur_us * 1e6 < peak, (path.name, ops[op])
                    if found.bytes > 2 * h200.l2_mbytes * MI:
                        assert found.bytes / dur_us * 1e6 < h200.bytes_per_s, (path.name, ops[op])
                    checked += 1
    assert checked > 10_000


# ------------------------------------------------------------------------------------------------ against torch


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="compares with torch's flop counter")


def recorded(torch: Any, run: Callable[[], Any], path: Path) -> list[tuple[str, tuple[float, float] | None]]:
    """The ops that a run recorded, with their costs."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
    profiler.export_chrome_trace(str(path))
    ops = []
    for event in json.loads(path.read_text())["traceEvents"]:
        args = event.get("args", {})
        if event.get("cat") == "cpu_op" and "Input Dims" in args:
            call = args["Input Dims"], args["Input type"], args.get("Concrete Inputs"), args.get("Input Strides")
            found = op_cost(event["name"], *call)
            ops.append((event["name"], None if found is None else (found.flops, found.bytes)))
    return ops


def counted(torch: Any, run: Callable[[], Any]) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run()
    return float(counter.get_total_flops())


def products(torch: Any) -> dict[str, tuple[str, Callable[[], Any]]]:
    """Each case: the op to look at and what to run."""
    r, f = torch.randn, torch.nn.functional

    def case(op: str, function: Callable[..., Any], *tensors: Any, **more: Any) -> tuple[str, Callable[[], Any]]:
        return f"aten::{op}", lambda: function(*tensors, **more)

    return {
        "mm": case("mm", torch.mm, r(4, 8), r(8, 2)),
        "addmm": case("addmm", torch.addmm, r(2), r(4, 8), r(8, 2)),
        "bmm": case("bmm", torch.bmm, r(3, 4, 8), r(3, 8, 2)),
        "baddbmm": case("baddbmm", torch.baddbmm, r(3, 4, 2), r(3, 4, 8), r(3, 8, 2)),
        "linear": case("linear", f.linear, r(5, 3, 8), r(2, 8), r(2)),
        "linear2": case("addmm", f.linear, r(3, 8), r(2, 8), r(2)),
        "matmul": case("matmul", torch.matmul, r(3, 5, 4, 8), r(5, 8, 2)),
        "conv1d": case("conv1d", f.conv1d, r(2, 3, 20), r(4, 3, 5), stride=2, padding=1),
        "conv2d": case("conv2d", f.conv2d, r(2, 3, 16, 16), r(4, 3, 3, 3), r(4)),
        "conv2d-stride": case("convolution", f.conv2d, r(2, 3, 16, 16), r(4, 3, 3, 3), stride=2, padding=1),
        "conv2d-dilated": case("_convolution", f.conv2d, r(2, 3, 16, 16), r(4, 3, 3, 3), dilation=(2, 3), padding=(1, 2)),
        "conv2d-groups": case("conv2d", f.conv2d, r(2, 6, 16, 16), r(4, 3, 3, 3), groups=2),
        "conv2d-depthwise": case("convolution", f.conv2d, r(2, 6, 16, 16), r(6, 1, 3, 3), groups=6),
        "conv2d-unbatched": case("convolution", f.conv2d, r(3, 16, 16), r(4, 3, 3, 3)),
        "conv3d": case("conv3d", f.conv3d, r(2, 3, 8, 8, 8), r(4, 3, 3, 3, 3), stride=2),
        "transposed": case("conv_transpose2d", f.conv_transpose2d, r(2, 4, 7, 7), r(4, 3, 3, 3), stride=2, padding=1),
        "transposed-groups": case("convolution", f.conv_transpose2d, r(2, 4, 7, 7), r(4, 3, 3, 3), groups=2, output_padding=0),
        "transposed-output-padding": case(
            "conv_transpose2d", f.conv_transpose2d, r(2, 4, 7, 7), r(4, 3, 3, 3), stride=2, output_padding=1, dilation=2
        ),
    }  # fmt: skip


CASES = [
    "mm", "addmm", "bmm", "baddbmm", "linear", "linear2", "matmul", "conv1d", "conv2d", "conv2d-stride", "conv2d-dilated",
    "conv2d-groups", "conv2d-depthwise", "conv2d-unbatched", "conv3d", "transposed", "transposed-groups",
    "transposed-output-padding",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_flops_and_output_bytes_equal_torchs(torch: Any, case: str, tmp_path: Path) -> None:
    op, run = products(torch)[case]
    inner = [result for name, result in recorded(torch, run, tmp_path / "trace.json") if name == op]
    assert len(inner) == 1
    assert inner[0] is not None
    assert inner[0][0] == counted(torch, run)
    closure = inspect.getclosurevars(run).nonlocals
    tensors = [value for value in closure["tensors"] if isinstance(value, torch.Tensor)]
    assert inner[0][1] == 4 * (sum(tensor.numel() for tensor in tensors) + run().numel())


@pytest.mark.parametrize("case", [case for case in CASES if "conv" in case or "transposed" in case])
def test_convolution_backward_flops_equal_torchs(torch: Any, case: str, tmp_path: Path) -> None:
    """Except for groups, where torch counts the weight's gradient as if every channel met every other.

    Each of its weights meets each output of its own group once, as in the forward: so (1 + groups) forwards become two.
    """
    _, run = products(torch)[case]
    for tensor in inspect.getclosurevars(run).nonlocals["tensors"]:
        tensor.requires_grad_()
    out = run()

    def back() -> None:
        out.backward(torch.ones_like(out), retain_graph=True)

    inner = [r for name, r in recorded(torch, back, tmp_path / "trace.json") if name == "aten::convolution_backward"]
    assert len(inner) == 1
    assert inner[0] is not None
    groups = inspect.getclosurevars(run).nonlocals["more"].get("groups", 1)
    assert inner[0][0] == pytest.approx(counted(torch, back) * 2 / (1 + groups))


def test_masked_convolution_backward_equals_torchs(torch: Any, tmp_path: Path) -> None:
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)
    out = torch.nn.functional.conv2d(torch.randn(2, 3, 16, 16), weight)

    def back() -> None:
        out.backward(torch.ones_like(out), retain_graph=True)

    inner = [r for name, r in recorded(torch, back, tmp_path / "trace.json") if name == "aten::convolution_backward"]
    assert inner[0] is not None
    assert inner[0][0] == counted(torch, back)


def sdpa(torch: Any, op: str, causal: bool) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """A forward and, given what it returned, a backward of one of torch's fused attentions, on tensors without storage."""
    a = torch.ops.aten
    q, k = torch.randn(2, 4, 12, 16, device="meta"), torch.randn(2, 4, 12, 16, device="meta")
    v = torch.randn(2, 4, 12, 8, device="meta") if op == "efficient" else k

    def backward(result: Any) -> Any:
        out, lse = result[:2]
        if op == "flash":
            seed = torch.empty(2, device="meta", dtype=torch.int64)
            return a._scaled_dot_product_flash_attention_backward(out, q, k, v, out, lse, None, None, 12, 12, 0.0, causal, seed, seed)
        if op == "efficient":
            mask = [True, True, True, False]
            return a._scaled_dot_product_efficient_attention_backward(out, q, k, v, None, out, lse, *result[2:4], 0.0, mask, causal)
        rest = (*result[6:8], None, None, None, 12, 12, 0.0, causal)
        return a._scaled_dot_product_cudnn_attention_backward(out, q, k, v, out, lse, *rest)

    forwards = {
        "flash": lambda: a._scaled_dot_product_flash_attention(q, k, v, 0.0, causal),
        "efficient": lambda: a._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal),
        "cudnn": lambda: a._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal),
    }
    return forwards[op], backward


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("op", ["flash", "efficient", "cudnn"])
def test_attention_flops_equal_torchs(torch: Any, op: str, causal: bool, tmp_path: Path) -> None:
    """Torch's counter does not halve causal attention; kernels skip what lies above the diagonal."""
    forward, backward = sdpa(torch, op, causal)
    result = forward()
    for run, suffix in ((forward, ""), (lambda: backward(result), "_backward")):
        ops = dict(recorded(torch, run, tmp_path / "trace.json"))
        found = ops[f"aten::_scaled_dot_product_{op}_attention{suffix}"]
        assert found is not None
        assert found[0] == counted(torch, run) / (2 if causal else 1)


def test_positions_are_those_of_torchs_schemas(torch: Any) -> None:
    """Which argument stands where, of every convolution and attention in the table that this torch has."""
    names = {
        "causal": {"is_causal", "custom_mask_type"}, "packed": {"cum_seq_q", "cu_seqlens_q"},
        "bias": {"attn_bias", "attn_mask", "bias"}, "out": {"out"},
        "stride": {"stride"}, "padding": {"padding"}, "dilation": {"dilation"}, "groups": {"groups"},
        "transposed": {"transposed"}, "output_padding": {"output_padding"}, "added": {"z"},
    }  # fmt: skip
    checked = 0
    for op, (_, formula) in OPS.items():
        if not isinstance(formula, Attention | AttentionBackward | Convolution):
            continue
        packet = getattr(torch.ops.aten, op)
        arguments = [argument.name for argument in getattr(packet, packet.overloads()[0])._schema.arguments]
        assert {"query", "key", "value"} <= set(arguments) or "weight" in arguments
        for field, allowed in names.items():
            position = getattr(formula, field, None)
            if position is not None:
                assert arguments[position] in allowed, (op, field)
                checked += 1
    assert checked > 80


def test_fused_attention_takes_as_long_as_it_was_measured_to():
    """Microseconds on an H200 with torch 2.11, of kernels that are not the ones the rates were read from."""
    h200 = find("NVIDIA H200")
    for measured, scores in (
        (154, Scores(64, 2048, 2048, 64, "c10::Half")),
        (222, Scores(64, 2048, 2048, 128, "c10::Half")),
        (301, Scores(64, 2048, 2048, 64, "c10::Half", masked=True)),
        (435, Scores(64, 2048, 2048, 64, "c10::Half", backward=True)),
        (771, Scores(64, 2048, 2048, 64, "c10::Half", backward=True, masked=True)),
        (573, Scores(16, 2048, 2048, 64, "float")),
    ):
        assert attention_us(scores, h200) == pytest.approx(measured, rel=0.2)


def test_fused_attention_of_narrow_heads_takes_less_backward_and_in_fp32():
    """Microseconds on an H200 with torch 2.11; as for heads of 64 they would come out 1.2 to 2 times as long."""
    h200 = find("NVIDIA H200")
    for forward_us, backward_us, heads, words, width, dtype, kind in (
        (1055, 2089, 65536, 48, 16, "c10::BFloat16", {}),
        (199, 601, 4096, 256, 16, "c10::BFloat16", {}),
        (738, 1193, 6704, 200, 8, "c10::BFloat16", {"dropped": True}),
        (273, 660, 256, 1024, 16, "c10::BFloat16", {"masked": True}),
        (429, 1199, 16384, 128, 24, "c10::BFloat16", {"masked": True}),
        (459, 1175, 1024, 256, 16, "float", {}),
        (567, 1172, 4096, 128, 24, "float", {"masked": True}),
    ):
        for backward, measured in ((False, forward_us), (True, backward_us)):
            assert attention_us(Scores(heads, words, words, width, dtype, backward, **kind), h200) == pytest.approx(measured, rel=0.3)


def test_fused_attention_works_in_whole_tiles():
    h200 = find("NVIDIA H200")
    few, tile, more = (attention_us(Scores(1024, n, n, 64, "c10::BFloat16"), h200) for n in (16, 128, 129))
    # One tile and four, and 0.8 of a tile more for each row of them.
    assert few == tile and more / tile == pytest.approx(2 * 2.8 / 1.8)
    assert attention_us(Scores(1024, 16, 16, 64, "c10::Half", backward=True), h200) < attention_us(Scores(1024, 128, 128, 64, "c10::Half", backward=True), h200)
    assert attention_us(Scores(1, 128, 128, 64, "c10::Half"), h200) == attention_us(Scores(128, 128, 128, 64, "c10::Half"), h200), "neither fills the device"
    assert attention_us(Scores(1, 128, 128, 64, "double"), h200) is None


def test_a_causal_mask_leaves_tiles_out_of_long_rows_alone():
    # Measured in FP32 on an H200: as long over 256 words, 0.56 of the time over 1024.
    assert is_fused("float", 32) and not is_fused("float", 30) and is_fused("c10::Half", 30), "16 bits are padded"
    assert of_causal(256, "float") == 1.0 and of_causal(1024, "float") == pytest.approx(0.56, abs=0.01)
    assert of_causal(384, "c10::Half") == 1.0 and of_causal(1024, "c10::Half") == pytest.approx(0.75)


def test_an_odd_length_costs_fused_attention_time_only_with_a_mask():
    h200 = find("NVIDIA H200")
    for masked, times in ((False, 1.0), (True, UNALIGNED)):
        even, odd = (attention_us(Scores(1024, n, n, 64, "c10::Half", masked=masked), h200) for n in (200, 197))
        assert odd == pytest.approx(times * even)


def test_what_interpolates_reads_one_size_and_writes_another() -> None:
    """32 x 768 maps of 16 x 12 made four times as large in FP16, each element from four; and the way back, from three channels."""
    types = ["c10::Half", "ScalarList", "Scalar", "Scalar", "Scalar"]
    read, written = 32 * 768 * 16 * 12, 32 * 768 * 64 * 48
    there = cost("aten::upsample_bilinear2d", [[32, 768, 16, 12], [], [], [], []], types, ["", "[64, 48]", "False", "4.", "4."])
    assert there == (8 * written, 2 * (read + written))
    by_scale = cost("aten::upsample_bilinear2d", [[32, 768, 16, 12], [], [], []], ["c10::Half", "", "Scalar", "ScalarList"], ["", "", "False", "[4., 4.]"])
    assert by_scale is None, "the op inside has the size"
    back = ["float", "ScalarList", "ScalarList", "Scalar", "Scalar"]
    assert cost("aten::upsample_nearest2d_backward", [[1, 3, 8, 8], [], [], [], []], back, ["", "[8, 8]", "[1, 3, 4, 4]", "", ""]) == (2 * 192, 4 * (192 + 48))
