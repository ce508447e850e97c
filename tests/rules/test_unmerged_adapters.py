"""unmerged-adapters: found where inference computes low-rank products beside a layer's, quiet for products that only look like them."""

import pytest

from tests.rules.test_rules import clear, found, queued, skipped

ROWS, IN, OUT, RANK = 8, 1024, 2048, 16
GPU = 1000  # µs of a step


class Layer:
    """Ops one after the other, 5 µs each on the host, 10 on the GPU."""

    def __init__(self, trace, host, gpu):
        self.trace, self.host, self.gpu = trace, host, gpu

    def op(self, name, dims, us=10, kernel="elementwise_kernel"):
        self.trace.op(name, self.host, 4, dims).launch(self.host + 1, self.gpu, self.gpu + us, kernel)
        self.host, self.gpu = self.host + 5, self.gpu + us

    def product(self, rows, inner, columns, us=10):
        self.op("aten::mm", [[rows, inner], [inner, columns]], us, "gemm")

    def own(self):
        self.product(ROWS, IN, OUT, 400)

    def low(self, rank=RANK, between=()):
        self.product(ROWS, IN, rank)
        for name in between:
            self.op(name, [[ROWS, rank], []])
        self.product(ROWS, rank, OUT)

    def sum(self):
        self.op("aten::mul", [[ROWS, OUT], []])
        self.op("aten::add", [[ROWS, OUT], [ROWS, OUT], []])


def lora(layer):
    layer.own()
    layer.low()
    layer.sum()


def model(*parts):
    """A step of layers, then a norm; the GPU is the bound."""

    def body(trace, host, gpu):
        layer = Layer(trace, host, gpu)
        for part in parts:
            part(layer)
        layer.op("aten::layer_norm", [[ROWS, OUT]], GPU - 10 - (layer.gpu - gpu), "layer_norm_kernel")

    return queued(body, host=100, gpu=GPU)


def test_an_adapter_beside_its_layer_is_found():
    finding = found("unmerged-adapters", model(lora, lora))
    assert finding.summary.startswith("2 layers a step compute an adapter of rank 16 beside their own product, in 4 kernels each: 80.0 µs of GPU time")
    assert finding.saving.expected_us == pytest.approx(80, rel=0.15), "8 kernels of 10 µs, and their launches"
    assert "merge_and_unload" in finding.fix.code.after


def test_the_layers_product_may_come_after_its_adapters():
    def first(layer):
        layer.low()
        layer.own()
        layer.sum()

    assert "2 layers a step" in (summary := found("unmerged-adapters", model(first, first)).summary) and "in 4 kernels each: 80.0 µs" in summary


def test_norms_of_the_adapted_weight_are_part_of_the_adapter():
    """DoRA: between the layer and its adapter stand the weight of the adapter, its sum with the layer's and a norm."""

    def decomposed(layer):
        layer.own()
        layer.product(IN, RANK, OUT)
        layer.op("aten::add", [[IN, OUT], [IN, OUT], []])
        layer.op("aten::linalg_vector_norm", [[IN, OUT]], kernel="reduce_kernel")
        layer.low(between=("aten::copy_",))
        layer.sum()

    assert "in 8 kernels each: 80.0 µs" in found("unmerged-adapters", model(decomposed)).summary


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([lambda layer: (layer.own(), layer.low(between=("aten::silu",)), layer.sum())], "a bottleneck is no linear map"),
        ([lambda layer: (layer.own(), layer.low(rank=IN // 2), layer.sum())], "a rank of half a side is not low"),
        ([lambda layer: (layer.low(), layer.sum())], "a factorised layer has no other product"),
        ([lambda layer: (layer.product(ROWS, IN, OUT // 2), layer.low(), layer.sum())], "the product beside makes something else"),
        ([lambda layer: (layer.own(), layer.low())], "nothing is added"),
        (
            [lambda layer: (layer.own(), layer.low(), layer.op("aten::_softmax", [[ROWS, OUT // 2]], kernel="softmax"), layer.sum())],
            "something else comes before the sum",
        ),
    ],
)
def test_look_alikes_are_quiet(parts, why):
    assert "no products of low rank" in clear("unmerged-adapters", model(*parts)), why


def test_what_is_trained_is_quiet():
    def backward(layer):
        layer.trace.op("autograd::engine::evaluate_function: MmBackward0", layer.host, 10)
        layer.product(OUT, ROWS, IN)

    assert "something is trained" in clear("unmerged-adapters", model(lora, backward))


def test_the_saving_threshold_has_two_sides():
    assert found("unmerged-adapters", model(lora), min_saving_share=0.03)
    assert "reported from 90%" in clear("unmerged-adapters", model(lora), min_saving_share=0.9)


def test_without_shapes_or_ops_it_is_skipped():
    trace = model(lora)
    for row in trace.rows["cpu_ops"]:
        row["dims"] = row["types"] = ""
    skipped("unmerged-adapters", trace)
    del trace.rows["cpu_ops"]
    skipped("unmerged-adapters", trace)
