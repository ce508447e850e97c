"""amp-scaler-sync: found where the scaler's flag is read and the host waits, quiet for other reads and fused optimizers."""

import pytest

from advisor.recordings.timeline import Device
from tests.rules.test_rules import clear, found, repeat, skipped

UNSCALE = "aten::_amp_foreach_non_finite_check_and_unscale_"


def train(unscale=UNSCALE, read=True, size=4, between=0):
    """A backward pass of 100 µs, the scaler's read of its flag, and an optimizer that is launched after it."""

    def body(trace, at):
        trace.op("aten::mm", at, 20).launch(at + 5, at + 12, at + 112, "gemm")
        trace.op(unscale, at + 22, 10).launch(at + 25, at + 112, at + 114, "multi_tensor_apply_kernel")
        for k in range(between):
            trace.call("cudaMemsetAsync", at + 33 + 0.1 * k, 0.1)
            trace.correlation += 1
            trace.rows["api_calls"][-1]["correlation"] = trace.correlation
            trace.gpu(at + 114.1 + 0.01 * k, at + 114.105 + 0.01 * k, "Memset", trace.correlation, kind="memset")
        if read:
            trace.op("aten::item", at + 44, 80).op("aten::_local_scalar_dense", at + 45, 78)
            trace.copy(at + 48, 8, at + 115, at + 117, size=size, kind="DtoH").call("cudaStreamSynchronize", at + 57, 63)
        t = at + (126 if read else 46)
        trace.op("aten::_foreach_add_", t, 20).launch(t + 10, max(t + 16, at + 118), max(t + 16, at + 118) + 60, "multi_tensor_apply_kernel")

    return body


PERIOD = 210


def test_the_scalers_read_is_found():
    trace = repeat(PERIOD, train())
    finding = found("amp-scaler-sync", trace)
    assert "once per step" in finding.summary and "bfloat16" in finding.fix.code.after
    assert 10 < finding.saving.expected_us <= 50


def test_bf16_is_advised_only_where_the_device_has_it():
    trace = repeat(PERIOD, train())
    trace.devices = (Device(0, "Tesla V100-SXM2-32GB", 80, (7, 0), 34_000_000_000, 32),)
    finding = found("amp-scaler-sync", trace)
    assert "fused=True" in finding.fix.code.after and "BF16" not in "".join(finding.fix.steps)


def test_the_saving_threshold_has_two_sides():
    trace = repeat(PERIOD, train())
    assert found("amp-scaler-sync", trace, min_saving_share=0.05)
    assert clear("amp-scaler-sync", trace, min_saving_share=0.5)


@pytest.mark.parametrize(
    "body",
    [train(unscale="aten::_foreach_mul_"), train(read=False), train(size=4096), train(between=70)],
    ids=["no scaler", "flag stays on the GPU", "not a flag", "a read long after"],
)
def test_look_alikes_are_quiet(body):
    clear("amp-scaler-sync", repeat(PERIOD, body))


def test_without_framework_ops_it_is_skipped():
    skipped("amp-scaler-sync", repeat(PERIOD, lambda t, at: t.launch(at, at + 6, at + 200)))
