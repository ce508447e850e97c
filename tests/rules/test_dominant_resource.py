"""dominant-resource: what holds most of the step is named, with how near its limit it is, and what would decide."""

import pytest

from advisor.recordings.timeline import Device
from advisor.report.wording import aside
from tests.rules.test_rules import clear, found, queued, widened

GB = 1 << 30


def kernels(dominant, rest=400.0):
    def body(trace, host, gpu):
        trace.launch(host + 1, gpu, gpu + dominant, "my_stencil(float const*, float*)")
        trace.launch(host + 2, gpu + dominant, gpu + dominant + rest, "other_kernel")

    return queued(body, gpu=dominant + rest)


def copies(dur, size):
    def body(trace, host, gpu):
        trace.copy(host + 1, 2, gpu, gpu + dur, "Pinned", size)
        trace.launch(host + 4, gpu + dur, gpu + dur + 30, "kernel")

    return queued(body, gpu=dur + 30)


def test_one_kernel_of_nobodys_library_is_named_and_ncu_decides():
    finding = found("dominant-resource", kernels(900.0))
    assert "my_stencil" in finding.summary and "69%" in finding.summary and "an unknown share" in finding.summary
    assert finding.status == "possible" and "regex:my_stencil" in finding.decide_with
    assert (finding.saving.low, finding.saving.expected) == (0, 0) and finding.saving.high == widened("dominant-resource", 0, 900, 1300)[1]


def test_slow_copies_say_what_they_reach_of_the_link():
    # 5.5 GB/s of the 55 that the link of an H200 carries.
    finding = found("dominant-resource", copies(1000.0, 5_500_000))
    assert "Host-to-device copies" in finding.summary and "10%" in finding.summary
    assert finding.saving.high == widened("dominant-resource", 0, 900, 1030)[1]


def test_copies_at_the_rate_of_the_link_use_it_well():
    assert "of the hardware limit" in clear("dominant-resource", copies(1000.0, 50_000_000))


def test_both_sides_of_its_threshold():
    assert found("dominant-resource", kernels(500.0, 400.0), min_share=0.55)
    assert "The largest is my_stencil" in clear("dominant-resource", kernels(500.0, 400.0), min_share=0.56)


@pytest.mark.parametrize(("moves", "prefetch"), [(12, True), (2, False)])
def test_a_kernel_that_waits_for_pages_of_managed_memory_is_told_to_fetch_them_before(moves, prefetch):
    def body(trace, host, gpu):
        trace.launch(host + 1, gpu, gpu + 900, "my_stencil(float const*, float*)")
        for i in range(moves):
            trace.gpu(gpu + 10 + 50 * i, gpu + 30 + 50 * i, "Memcpy", stream=-1, kind="memcpy", copy_kind="migration HtoD", bytes=65536)

    finding = found("dominant-resource", queued(body, gpu=900))
    assert ("cudaMemPrefetchAsync" in finding.fix.steps[0]) == prefetch and ("managed-memory pages" in finding.summary) == prefetch


@pytest.mark.parametrize(("device", "command"), [("NVIDIA H200", "ncu --set full"), ("AMD Instinct MI300X", "rocprof-compute profile")])
def test_what_decides_is_a_tool_of_the_devices_maker(device, command):
    trace = kernels(900.0)
    trace.devices = (Device(0, device, 132, (9, 0), 0, 32),)
    finding = found("dominant-resource", trace)
    assert finding.decide_with.startswith(command) and (("Nsight" in finding.fix.steps[0]) == ("ncu" in command))
    assert "recording may have made" not in aside(finding) and "does not show how much" in aside(finding)
