"""unmerged-adapters: found where inference computes low-rank products beside a layer's, quiet for products that only look like them."""

import pytest

from advisor.views.patterns.dataflow import REACH
from tests.rules.test_rules import clear, found, queued, repeat, skipped

ROWS, IN, OUT, RANK = 8, 1024, 2048, 16
GPU = 1000  # µs of a step


class Layer:
    """Ops one after the other, 5 µs each on the host, 10 on the GPU."""

    def __init__(self, trace, host, gpu, host_us=5):
        self.trace, self.host, self.gpu, self.host_us = trace, host, gpu, host_us

    def op(self, name, dims, us=10, kernel="elementwise_kernel"):
        self.gpu = max(self.gpu, self.host + self.host_us)
        self.trace.op(name, self.host, self.host_us - 1, dims).launch(self.host + self.host_us - 4, self.gpu, self.gpu + us, kernel)
        self.host, self.gpu = self.host + self.host_us, self.gpu + us

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

    return queued(body, host=400, gpu=GPU)


def test_an_adapter_beside_its_layer_is_found():
    finding = found("unmerged-adapters", model(lora, lora))
    assert finding.summary.startswith("2 adapters per step are computed next to a layer, with rank 16, in 8 kernels: 80.0 µs of GPU time")
    assert finding.saving.expected_us == pytest.approx(80, rel=0.15), "8 kernels of 10 µs, and their launches"
    assert "merge_and_unload" in finding.fix.code.after


def test_the_layers_product_may_come_after_its_adapters():
    def first(layer):
        layer.low()
        layer.own()
        layer.sum()

    assert "2 adapters per step" in (summary := found("unmerged-adapters", model(first, first)).summary) and "in 8 kernels: 80.0 µs" in summary


def test_norms_of_the_adapted_weight_are_part_of_the_adapter():
    """DoRA: between the layer and its adapter stand the weight of the adapter, its sum with the layer's and a norm."""

    def decomposed(layer):
        layer.own()
        layer.product(IN, RANK, OUT)
        layer.op("aten::add", [[IN, OUT], [IN, OUT], []])
        layer.op("aten::linalg_vector_norm", [[IN, OUT]], kernel="reduce_kernel")
        layer.low(between=("aten::copy_",))
        layer.sum()

    assert "1 adapter per step is computed next to a layer, with rank 16, in 8 kernels: 80.0 µs" in found("unmerged-adapters", model(decomposed)).summary


def then(*names, second=None):
    """Ops on what the layer makes, with a second tensor of those sizes or none, and no sum of two."""
    return lambda layer: [layer.op(name, [[ROWS, OUT], second or [], []], 1) for name in names]


def own(layer):
    layer.own()


def low(layer):
    layer.low()


def added(layer):
    layer.sum()


def softmax(layer):
    layer.op("aten::_softmax", [[ROWS, OUT]], kernel="softmax_kernel")


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([own, lambda layer: layer.low(between=("aten::silu",)), added], "a bottleneck is no linear map"),
        ([own, lambda layer: layer.low(rank=IN // 2), added], "a rank of half a side is not low"),
        ([low, added], "a factorised layer has no other product"),
        ([lambda layer: layer.product(ROWS, IN, OUT // 2), low, added], "the product beside makes something else"),
        ([lambda layer: layer.product(2 * ROWS, IN, OUT), low, added], "the product beside has other rows"),
        ([own, low], "nothing is added"),
        ([own, low, then("aten::add")], "a number is added"),
        ([own, low, then("aten::add", second=[1, OUT])], "a bias is added: a layer whose weight is a product of two"),
        ([own, low, softmax, added], "a softmax is not linear"),
        ([own, low, then("aten::sigmoid"), added], "nor is a gate"),
        ([own, then("aten::native_layer_norm"), low, added], "the next layer of a network whose layers are factorised reads a norm"),
        ([own, added, low, added], "or the sum before it"),
        ([low, own, then("aten::mul", "aten::neg", "aten::cat"), added], "rotary positions come between the layer and the sum"),
        ([own, low, then(*["aten::copy_"] * REACH), added], "too far"),
    ],
)
def test_look_alikes_are_quiet(parts, why):
    assert "no low-rank adapter" in clear("unmerged-adapters", model(*parts)), why


@pytest.mark.parametrize("around", ["", "Torch-Compiled Region: 0/0"])
def test_the_hosts_time_is_that_of_the_adapters_own_ops(around):
    """Of four layers, 30 µs an op: four ops of five are the adapter's, whatever call is around them all."""

    def body(trace, at):
        if around:
            trace.op(around, at, 630)
        layer = Layer(trace, at + 5, at, host_us=30)
        for _ in range(4):
            layer.product(ROWS, IN, OUT)
            layer.low()
            layer.sum()

    assert found("unmerged-adapters", repeat(650, body)).saving.expected_us == pytest.approx(4 * 4 * 30, rel=0.1)


def test_what_is_trained_is_quiet():
    def backward(layer):
        layer.trace.op("autograd::engine::evaluate_function: MmBackward0", layer.host, 10)
        layer.product(OUT, ROWS, IN)

    assert "the program trains" in clear("unmerged-adapters", model(lora, backward))


def test_the_saving_threshold_has_two_sides():
    assert found("unmerged-adapters", model(lora), min_saving_share=0.03)
    assert "threshold 90%" in clear("unmerged-adapters", model(lora), min_saving_share=0.9)


def test_without_shapes_or_ops_it_is_skipped():
    trace = model(lora)
    for row in trace.rows["cpu_ops"]:
        row["dims"] = row["types"] = ""
    skipped("unmerged-adapters", trace)
    del trace.rows["cpu_ops"]
    skipped("unmerged-adapters", trace)
