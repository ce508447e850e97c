"""What happens once is found, named and left out of a window without steps; real work is not."""

import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.views.health import TraceHealth
from advisor.views.time.bound import Bound
from advisor.views.time.idle_gaps import Gaps
from advisor.views.trace.startup import StartUp
from advisor.views.trace.steps import Steps
from tests.build import Trace


def work(trace, at, n=20):
    for k in range(n):
        trace.launch(at + 100 * k, at + 100 * k + 5, at + 100 * k + 55, f"kernel{k}")
    return trace


def test_work_from_before_the_recording_is_left_out():
    # Launched at 10, returned at once, and begun half a second later on a device where nothing that was recorded runs.
    trace = work(Trace().launch(10, 500_000, 500_010, "first"), 500_020)
    steps = trace.get(Steps)
    assert steps.start_us == 500_000 and "before the recording" in steps.detail
    assert trace.get(StartUp).earlier_for_us == pytest.approx(499_990)


def test_a_first_launch_that_loads_its_module_is_left_out_and_named():
    trace = work(Trace().launch(0, 600_001, 600_010, "first", dur=600_000), 600_100)
    steps = trace.get(Steps)
    assert steps.start_us == pytest.approx(600_100, abs=10) and "cudaLaunchKernel with 600 ms" in steps.detail


def test_a_launch_that_a_full_queue_holds_up_is_no_start_up():
    trace = Trace().launch(0, 5, 600_000, "long").launch(10, 600_000, 600_100, "next", dur=599_000)
    assert not trace.get(StartUp).calls
    assert work(trace, 600_200).get(Steps).start_us == 0


def test_a_first_launch_that_goes_on_long_after_the_device_had_done_loads():
    # Launched at 100 while a kernel runs until 5,000; the call returns at 12,100, after 7.1 ms in which the device had nothing to do.
    trace = work(Trace().launch(0, 5, 5_000, "long").launch(100, 12_110, 12_120, "new", dur=12_000), 12_200)
    (call,) = trace.get(StartUp).calls
    assert call == ("cudaLaunchKernel", 5_000, 12_100)
    # The same where its kernel had run before: something else held the host up.
    again = work(Trace().launch(-100, -95, -90, "new").launch(0, 5, 5_000, "long").launch(100, 12_110, 12_120, "new", dur=12_000), 12_200)
    assert not again.get(StartUp).calls


def test_start_up_inside_the_window_is_a_weakness_and_says_what():
    trace = Trace()
    for k in range(10):
        at = 100_000.0 * k
        trace.launch(at, at + 30_005, at + 30_055, f"kernel{k}", dur=30_000)
    (row,) = (h for h in trace.get(TraceHealth).results if h.check == "start-up")
    assert row.status == "degraded" and "cudaLaunchKernel with 30.0 ms" in row.detail and "warmup" in row.record_with


def test_a_kernels_first_launch_that_takes_far_longer_than_launches_do_is_start_up():
    trace = work(Trace(), 0).launch(3000, 9_600, 9_610, "new", dur=6_500)
    (call,) = trace.get(StartUp).calls
    assert call[1:] == (3000, 9500)
    again = work(Trace(), 0).launch(2900, 2905, 2910, "new").launch(3000, 9_600, 9_610, "new", dur=6_500)
    assert not again.get(StartUp).calls, "it was loaded already: the host was held up by something else"


def test_a_step_that_mostly_happens_once_says_nothing_of_the_host():
    trace = Trace().step(0, 9_000, 1).step(9_100, 50, 2)
    work(trace, 10, 16).launch(2000, 8_000, 8_010, "new", dur=5_990).launch(9_110, 9_115, 9_120, "new")
    report = run(trace.timeline(), built_in().values())
    assert report.headline.bottleneck == "start-up" and report.headline.judged != "yes"
    assert not [f for f in report.findings if f.severity in ("high", "medium")]


def test_a_convolution_that_waits_for_three_events_tries_algorithms_once():
    trace = Trace().op("aten::cudnn_convolution", 100, 500)
    for k in range(3):
        trace.call("cudaEventSynchronize", 150 + 100 * k, 50)
    work(trace, 1_000)
    assert trace.get(StartUp).calls == (("aten::cudnn_convolution that tries algorithms", 100.0, 600.0),)
    assert trace.get(Steps).start_us >= 600
    other = work(Trace().op("aten::mm", 100, 500).call("cudaEventSynchronize", 150, 50), 1_000)
    assert not other.get(StartUp).calls


def test_the_capture_of_a_graph_happens_once():
    trace = work(Trace(), 10_000).call("cudaStreamBeginCapture", 100, 5)
    for n in range(50):
        trace.call("cudaLaunchKernel", 200 + 100 * n, 5)
    trace.call("cudaStreamEndCapture", 6_000, 40)
    assert trace.get(StartUp).calls == (("the capture of a graph", 100.0, 6_040.0),)


def test_code_is_loaded_once_however_briefly():
    # Each load is done in 0.3 ms; what comes after the last that leaves enough of the program is how it runs.
    trace = Trace().call("cuModuleLoadData", 0, 300).launch(310, 320, 330, "a").call("cuLibraryLoadData", 400, 300)
    work(trace, 1_000)
    assert [name for name, _, _ in trace.get(StartUp).calls] == ["cuModuleLoadData", "cuLibraryLoadData"]
    assert trace.get(Steps).start_us == pytest.approx(1_000, abs=10)
    asked = work(Trace().call("cuModuleGetLoadingMode", 0, 300), 1_000)
    assert not asked.get(StartUp).calls, "asking how code is loaded loads none"


def test_what_an_op_does_around_a_call_that_loads_happens_once_too():
    # A product makes its library's handle for 0.9 s, 20 ms of it in a call of the driver, and is launched after that; its second half 50 ms later.
    trace = Trace().op("aten::bmm", 0, 950_010).call("cudaFree", 850_000, 20_000).launch(900_000, 900_010, 900_020, "gemm").launch(950_000, 950_005, 950_010)
    calls = work(trace, 950_100).get(StartUp).calls
    assert ("cudaFree", 850_000.0, 870_000.0) in calls and ("cudaFree in aten::bmm", 0.0, 900_000.0) in calls
    mostly = Trace().op("aten::bmm", 100, 30_000).call("cudaMalloc", 5_000, 20_000).launch(30_000, 30_010, 30_020, "gemm")
    assert work(mostly, 30_110).get(StartUp).calls == (("cudaMalloc", 5_000.0, 25_000.0),), "an allocator may be as slow again"
    # An op that is done within 10 ms does what ops do.
    short = work(Trace().op("aten::bmm", 0, 9_000).call("cuModuleLoadData", 1_000, 300).launch(8_000, 8_010, 8_020, "gemm"), 9_100)
    assert short.get(StartUp).calls == (("cuModuleLoadData", 1_000.0, 1_300.0),)


def loading_late(busy_us: float, later_us: float = 300) -> Trace:
    """0.3 ms that load the first library, 20 kernels of that long, one every 500 µs, a later library, and 20 more kernels."""
    trace = Trace().call("cuModuleLoadData", 0, 300)
    for k in range(20):
        trace.launch(310 + 500 * k, 320 + 500 * k, 320 + 500 * k + busy_us, f"early{k}")
    return work(trace.call("cuModuleLoadData", 10_300, later_us), 10_310 + later_us)


def test_a_program_that_was_at_work_before_it_loaded_a_further_library_had_begun():
    # The device works for 200 of each 500 µs between the first load and the second, which takes 3 % of that time.
    assert loading_late(200).get(Steps).start_us == pytest.approx(310)
    # For 50 of 500: what the host did meanwhile may be setting up.
    assert loading_late(50).get(Steps).start_us == pytest.approx(10_610)
    # The second load takes 2 of 12 ms.
    assert loading_late(200, 2_000).get(Steps).start_us == pytest.approx(12_310)


def test_what_each_step_loads_is_the_programs_way():
    trace = Trace()
    for s in range(6):
        trace.step(3_000 * s, 2_999, s + 1).call("cuModuleLoadData", 3_000 * s + 1, 300)
        work(trace, 3_000 * s + 400)
    assert not trace.get(StartUp).calls


def cold(first_us: float, again_us: float = 5.0) -> Trace:
    """20 kernels of 5 µs, each launched twice, one after the other: by a call of `first_us`, then of `again_us`. The GPU idles during the calls."""
    trace, at = Trace(), 0.0
    for k in range(20):
        for dur in (first_us, again_us):
            trace.launch(at, at + dur, at + dur + 5, f"kernel{k}", dur=dur)
            at += dur + 5
    return trace


def test_kernels_that_are_loaded_as_they_are_first_launched_are_start_up_and_no_launch_gap():
    trace = cold(50)
    assert len(trace.get(StartUp).calls) == 20
    assert trace.get(Steps).start_us == 0, "the program goes on meeting new kernels: its beginning is not cut off there"
    gaps = trace.get(Gaps).causes
    assert gaps["launch"].sum() == pytest.approx(20 * 5, abs=25) and gaps["host"].sum() == pytest.approx(20 * 50, abs=60)
    assert trace.get(Bound).name == "start-up"


def test_first_launches_that_take_little_longer_than_others_load_nothing():
    trace = cold(10)
    assert not trace.get(StartUp).calls
    assert trace.get(Gaps).causes["host"].sum() < 100


def test_where_no_kernel_is_launched_twice_a_launch_that_takes_a_millisecond_loads():
    trace = Trace().launch(0, 1_100, 1_110, "a", dur=1_100).launch(1_120, 1_130, 1_140, "b", dur=10)
    assert [(start, end) for _, start, end in trace.get(StartUp).calls] == [(0, 1_100)]


def scripted(pauses, name="fused_add_mul_{}1568017186", gpu_until=0.0):
    """A pass with an op that pauses before each of what TorchScript's fuser made of it, then other work."""
    trace, at = Trace().launch(0, 5, max(55, gpu_until), "before"), 100.0
    whole = sum(pauses) + 200 * len(pauses)
    trace.op("model", at - 20, whole + 100).op("delta", at, whole)
    for k, pause in enumerate(pauses):
        at += pause
        trace.op("fallback_function", at, 100).op(name.format(k), at + 10, 80).launch(at + 20, at + 30, at + 80, f"fused{k}")
        at += 150
    return work(trace, at + 100)


def test_what_torchscript_compiles_before_it_first_runs_is_start_up():
    # 100 + 20,000 + 150 + 30,000: where the second of the two runs, after which the rest of the program begins.
    trace = scripted((20_000, 30_000))
    assert [(name.split()[0], start, end) for name, start, end in trace.get(StartUp).calls] == [("compiling", 100, 20_100), ("compiling", 20_200, 50_250)]
    assert trace.get(Steps).start_us == pytest.approx(50_250, abs=30) and "30.1 ms" in trace.get(Steps).detail


@pytest.mark.parametrize(
    "trace",
    [
        scripted((2_000, 3_000)),  # no longer than a host may pause
        scripted((20_000, 30_000), name="aten::mul"),  # nothing that a fuser made
        scripted((20_000, 30_000), gpu_until=60_000),  # the device works meanwhile
    ],
)
def test_other_pauses_inside_an_op_are_no_start_up(trace):
    assert not trace.get(StartUp).calls


def test_a_fused_op_that_runs_again_was_compiled_before():
    trace = scripted((0, 30_000), name="fused_add_mul_1568017186")
    assert not trace.get(StartUp).calls
