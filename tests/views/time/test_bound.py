"""What bounds the step, each case by a trace of a few lines with the answer worked out by hand."""

from types import SimpleNamespace

import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.knowledge.structs import replace
from advisor.recordings.timeline import ReadIssue
from advisor.views.replay.true_step import TrueStep
from advisor.views.time.bound import Bound, _open
from advisor.views.time.device_time import Partition
from advisor.views.trace.steps import Steps
from tests.build import Trace
from tests.rules.test_rules import queued, repeat, small_kernels

GEMM = "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_NNN"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ADD = "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<float>>(int)"


def in_turn(*parts):
    """A step of kernels one after the other, queued far ahead: (name, µs) each."""

    def body(trace, host, gpu):
        at = gpu
        for n, (name, dur) in enumerate(parts):
            trace.launch(host + 1 + n, at, at + dur, name)
            at += dur

    return queued(body, gpu=sum(dur for _, dur in parts))


def test_a_larger_communication_beats_an_idle_third():
    def body(trace, host, gpu):
        trace.launch(host + 1, gpu, gpu + 600, REDUCE).launch(host + 2, gpu + 600, gpu + 650, GEMM)

    bound = queued(body, gpu=1000).get(Bound)
    assert bound.name == "communication-bound" and "60%" in bound.summary and "idle for 35%" in bound.summary


def test_the_largest_share_wins_and_the_second_is_said():
    bound = in_turn((GEMM, 300.0), (REDUCE, 700.0)).get(Bound)
    assert bound.name == "communication-bound" and "70%" in bound.summary and "Kernels run for 30%" in bound.summary


def test_only_all_of_the_step_is_said_to_be_all():
    def body(trace, host, gpu):
        trace.launch(host + 1, gpu, gpu + 998, GEMM)  # of 1,000 µs: idle for 0.2 %

    assert "Kernels run for 99.8% of the step; 100% of that time" in queued(body, gpu=1000).get(Bound).summary


def test_kernels_of_no_known_kind_are_named_and_not_said_to_move_memory():
    bound = in_turn(("body_force_fp64(double*, int)", 800.0), (ADD, 200.0)).get(Bound)
    assert bound.name == "gpu-bound" and "body_force_fp64" in bound.summary and "80%" in bound.summary


@pytest.mark.parametrize(("add", "name"), [(510.0, "memory-bound"), (490.0, "gpu-bound")])
def test_memory_bound_needs_known_memory_kernels_for_half(add, name):
    assert in_turn((ADD, add), (GEMM, 1000.0 - add)).get(Bound).name == name


def test_products_of_a_matrix_and_a_vector_move_memory():
    bound = in_turn(("void gemv2T_kernel_val<int, int, float>(P)", 1000.0)).get(Bound)
    assert bound.name == "memory-bound" and bound.made.starved == 1 and "GEMMs limited by memory bandwidth" in bound.summary


@pytest.mark.parametrize(("gpu_us", "name"), [(13.0, "memory-bound"), (15.0, "gpu-bound")])
def test_a_product_on_few_rows_waits_for_memory_only_where_its_bytes_take_much_of_its_time(gpu_us, name):
    # 16 rows by 4096 x 4096 in 16 bits: 33.8 MB, 7.0 µs at 4.8 TB/s. What takes more than twice that waits for something else.
    def body(trace, host, gpu):
        trace.op("aten::mm", host, 9, dims=[[16, 4096], [4096, 4096]], types=["c10::BFloat16", "c10::BFloat16"]).launch(host + 1, gpu, gpu + gpu_us, GEMM)

    bound = queued(body, gpu=gpu_us).get(Bound)
    assert bound.name == name and (bound.made.starved > 0) == (name == "memory-bound")


def test_products_of_unknown_shape_are_not_called_compute_bound():
    bound = in_turn((GEMM, 1000.0)).get(Bound)
    assert bound.name == "gpu-bound" and "does not show whether compute or memory" in bound.summary


def test_a_decode_loop_that_idles_puts_launches_first():
    report = run(repeat(100, small_kernels).timeline(), built_in().values())
    assert report.headline.bottleneck == "launch-bound" and report.findings[0].rule in ("launch-gap", "graph-candidate")


def capture():
    """Two hundred launches into a graph that is never run, beside two kernels."""
    trace = Trace().call("cudaStreamBeginCapture", 100, 1)
    for n in range(200):
        trace.call("cudaLaunchKernel", 110 + 10 * n, 5)
    trace.call("cudaStreamEndCapture", 2200, 1)
    for n in range(10):
        trace.launch(2300 + 10 * n, 2305 + 10 * n, 2306 + 10 * n, f"fill{n}")
    return trace.launch(9e5, 9e5 + 5, 9e5 + 6, "fill")


def judged(trace):
    head = run(trace.timeline(), ()).headline
    return head.judged, head.judged_why


def test_what_could_not_be_judged_says_so():
    assert judged(Trace().op("aten::mm", 0, 10).call("cudaLaunchKernel", 1, 2)) == (
        "no", "the trace holds no GPU work, although the program launched 1 piece of work that left no trace on a device",
    )  # fmt: skip
    cut = Trace().op("aten::mm", 0, 10).timeline()
    cut = replace(cut, source=replace(cut.source, issues=(ReadIssue("complete-file", "the file ends at byte 9"),)))
    head = run(cut, ()).headline
    assert (head.judged, head.judged_why) == ("no", "the trace holds no GPU work, as far as it could be read: the file ends at byte 9")
    state, why = judged(capture())
    assert state == "no" and "200 of 211 launches were captured" in why
    few = Trace()
    for s in range(4):
        few.step(1000.0 * s, 999, s + 1).launch(1000 * s + 5, 1000 * s + 10, 1000 * s + 20)
    assert judged(few)[0] == "partly" and "too few" in judged(few)[1]
    assert judged(repeat(100, small_kernels)) == ("yes", "")


def test_what_repeats_is_not_the_program_where_most_work_lies_outside():
    # 40 kernels of 10 µs, each waited for, then one of 1000 µs that is launched once.
    trace, other = Trace(), Trace()
    for made, last_us in ((trace, 1000.0), (other, 100.0)):
        for k in range(40):
            made.launch(20.0 * k, 20.0 * k + 5, 20.0 * k + 15, dur=2).call("cudaDeviceSynchronize", 20.0 * k + 3, 13)
        made.launch(900, 905, 905 + last_us, "solve", dur=2)
    assert judged(trace)[0] == "partly" and "29% of the GPU's work" in judged(trace)[1]
    assert judged(other) == ("yes", "")
    weights = Trace()
    weights.copy(0, 900, 5, 905)
    for k in range(40):
        weights.launch(1000 + 20.0 * k, 1005 + 20.0 * k, 1015 + 20.0 * k, dur=2).call("cudaDeviceSynchronize", 1003 + 20.0 * k, 13)
    assert judged(weights) == ("yes", ""), "what sets the steps up"


@pytest.mark.parametrize(("sorts_us", "verdict"), [(700.0, "yes"), (900.0, "partly")])
def test_what_repeats_is_not_the_program_where_the_host_mostly_works_beside_it(sorts_us, verdict):
    # 40 kernels of 10 µs, one every 20 µs, each waited for: 38 steps are 760 µs. Behind them the host sorts.
    trace = Trace()
    for k in range(40):
        trace.op("aten::relu", 20.0 * k, 4).launch(20.0 * k, 20.0 * k + 5, 20.0 * k + 15, dur=2).call("cudaDeviceSynchronize", 20.0 * k + 3, 13)
    found, why = judged(trace.op("aten::sort", 800, sorts_us))
    assert found == verdict and ("before and after it" in why) == (verdict == "partly")


def test_launches_outside_of_the_window_that_left_nothing_are_told_in_the_verdict():
    trace = repeat(100, small_kernels)
    for k in range(5000):
        trace.call("cudaLaunchKernel", 1e6 + k, 0.5)
    state, why = judged(trace)
    assert state == "partly" and "5,000 of 5," in why and "have no GPU op" in why


def test_a_fix_that_does_not_shrink_the_step_gains_no_step_time():
    trace = Trace()
    for s in range(5):
        trace.step(50.0 * s, 49, s + 1)
        for n in range(4):
            trace.op("aten::mm", 50.0 * s + 10 * n, 8, [[1, 8192], [8192, 8192]], ["c10::BFloat16"] * 2)
            gpu = 50 + 200.0 * s + 50 * n
            trace.launch(50.0 * s + 10 * n + 2, gpu, gpu + 50, GEMM)
    report = run(trace.timeline(), [built_in()["low-arithmetic-intensity"]])
    (finding,) = report.findings
    assert finding.saving.per == "request" and finding.saving.expected > 0
    assert report.headline.predicted_step_us.expected == report.headline.step_us


def test_a_whole_recording_that_idles_around_a_few_steps_is_judged_in_part():
    trace = Trace()
    for n in range(30):
        trace.op("aten::mm", 1000 * n, 900).launch(1000.0 * n + 10 * (n % 7), 1000 * n + 70, 1000 * n + 75, f"kernel{n}")
    head = run(trace.timeline(), ()).headline
    assert head.judged == "partly" and head.judged_reason == "hardly-works"


def test_one_finding_gains_in_the_headline_what_it_gains_below():
    report = run(repeat(100, small_kernels).timeline(), [built_in()["launch-gap"]])
    (finding,) = report.findings
    head = report.headline
    assert head.step_us - head.predicted_step_us.expected == pytest.approx(finding.saving.expected)


def test_what_an_author_calls_a_kernel_is_no_proof_that_it_moves_memory():
    def bound(*names, recorder="nsys"):
        trace, at = Trace(recorder=recorder), 10.0
        for n in range(40):
            for k, name in enumerate(names):
                trace.launch(2.0 * n + k, at, at + 100, name)
                at += 100
        return trace.get(Bound)

    own = bound("simulate_random_play(int*, int)", "raycast_kernel(float*)")
    assert own.name == "gpu-bound" and "all of that time is of unknown kind" in own.summary
    assert bound("void cub::CUB_200200_800_NS::DeviceReduceKernel<cub::Policy>(int)").name == "memory-bound", "a library keeps to its names"
    assert bound("raycast_kernel(float*)", recorder="kineto").name == "memory-bound", "and so does a framework"


def test_copies_that_hold_the_host_are_not_the_hosts_pace():
    def body(trace, at):
        trace.copy(at, 590, at + 10, at + 590).launch(at + 600, at + 610, at + 650, ADD)

    bound = repeat(1000, body).get(Bound)
    assert bound.name == "copy-bound" and "kernels take longer" not in bound.summary


def silent(**more):
    """A device that works for a tenth of each step, in one kernel; the host does what no rule speaks of."""
    return repeat(1000, lambda t, at: t.launch(at + 10, at + 20, at + 120, ADD).launch(at + 15, at + 125, at + 130, ADD), **more)


def test_silence_about_idle_time_is_said():
    report = run(silent().timeline(), built_in().values())
    assert not [f for f in report.findings if f.shortens]
    assert report.headline.judged == "partly" and report.headline.judged_reason == "unused-idle"
    well_used = run(in_turn((ADD, 1000.0), (GEMM, 900.0)).timeline(), built_in().values())
    assert well_used.headline.judged == "yes"
    assert run(silent().timeline(), [built_in()["precision"]]).headline.judged == "yes", "the rules that would have spoken were not asked"
    assert run(repeat(100, small_kernels).timeline(), built_in().values()).headline.judged == "yes", "a finding speaks"


@pytest.mark.parametrize(
    ("low_us", "high_us", "basis", "is_open"),
    [
        (655.0, 900.0, "estimated", True),  # idle for 1 to 28 %, likely 7
        (655.0, 800.0, "estimated", False),  # never for a quarter
        (700.0, 900.0, "estimated", False),  # the least is as much as the likely
        (655.0, 900.0, "measured", False),
    ],
)
def test_what_bounds_the_step_is_open_where_overhead_may_be_most_of_much_idle_time(low_us, high_us, basis, is_open):
    trace = in_turn((ADD, 650.0))
    steps, main = trace.get(Steps), trace.get(Partition).main
    starts = main.compute[0]
    idle = SimpleNamespace(busy_us=650.0 * steps.steps, idle=(starts, starts + 0.35 * (steps.end_us - steps.start_us) / len(starts)))
    assert _open(idle, steps, TrueStep(low_us, 700.0, high_us, 1000.0, basis)) == is_open


@pytest.mark.parametrize(("copy_us", "said"), [(300, True), (60, False)])
def test_copies_before_a_pass_whose_layers_repeat_are_said(copy_us, said):
    # A batch, then twelve layers of two kernels that take 80 µs each.
    trace = Trace().copy(0, copy_us + 2, 1, 1 + copy_us, size=1_000_000)
    for layer in range(12):
        at = copy_us + 10 + 80 * layer
        trace.launch(at, at + 5, at + 45, GEMM, dur=4).launch(at + 5, at + 45, at + 85, ADD, dur=4)
    bound = trace.get(Bound)
    assert (f"Copies outside the repeating pattern (perhaps a layer of a pass) take {copy_us} µs, {copy_us / (copy_us + 960):.0%}" in bound.summary) == said
    trace.recorder = "nsys"
    for row in trace.rows["gpu_ops"]:
        row["name"] = row["name"].replace("at::native", "mine")
    assert (f"Copies outside the repeating pattern take {copy_us} µs" in trace.get(Bound).summary) == said, "only frameworks have layers"


def test_copies_of_pageable_memory_that_hold_the_host_are_named_where_the_device_waits():
    def body(trace, at):
        trace.copy(at, 80, at + 60, at + 90).launch(at + 85, at + 91, at + 100, ADD)

    bound = repeat(100, body).get(Bound)
    assert bound.name == "sync-bound" and "copies of pageable memory" in bound.summary


def test_what_a_step_copies_before_its_first_kernel_is_no_copy_apart():
    # Twelve rounds of a copy of 300 µs and a kernel of 80: the first copy lies before the window, which begins with a kernel.
    trace = Trace(recorder="nsys")
    for k in range(12):
        at = 400.0 * k
        trace.copy(at, 302, at + 1, at + 301, size=1_000_000 if k else 9_000_000).launch(at + 305, at + 310, at + 390, "mine")
    assert "outside" not in trace.get(Bound).summary


def a_pass(each: float, loader: float = 0.0) -> Trace:
    """A batch that the main process makes for so long, then 20 kernels of 45 µs, each issued once the one before it ends, in so many µs."""
    trace = Trace()
    if loader:
        trace.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, loader)
    for k in range(20):
        at = loader + each * k
        trace.op(f"aten::op{k}", at, each - 45).launch(at + each - 50, at + each - 45, at + each, f"{GEMM}_{k}", dur=4)
    return trace


def test_two_causes_of_idle_time_that_are_as_long_are_both_said_and_a_batch_before_a_single_pass_comes_second():
    # 20 times 80 µs of issuing, beside 1.7 ms of loading, and beside 2.5.
    near, far = a_pass(125, 1_700).get(Bound), a_pass(125, 2_500).get(Bound)
    assert near.name == "launch-bound" and "38% waiting for the host to launch kernels and 40% waiting for the next batch" in near.summary
    assert far.name == "data-bound" and " and " not in far.summary


def test_an_allocator_that_fills_its_cache_in_a_pass_is_judged_in_part():
    """Before each of 20 kernels of 45 µs memory is taken for 75 µs, and never given back."""
    trace = Trace()
    for k in range(20):
        at = 125.0 * k
        trace.op(f"aten::op{k}", at, 84).call("cudaMalloc", at + 1, 75).launch(at + 78, at + 80, at + 125, f"{GEMM}_{k % 10}", dur=2)
    headline = run(trace.timeline(), built_in().values()).headline
    assert headline.bottleneck == "allocator-bound" and headline.judged == "partly" and headline.judged_reason == "allocates"


def test_idle_time_that_bounds_the_step_of_which_nothing_speaks_is_judged_in_part():
    # Between kernels that were queued long before the device idles for 40 % of the step; it computes for 35 and fills for 25 %.
    def body(trace, host, gpu):
        for k in range(5):
            at = gpu + 200 * k
            trace.launch(host + 2 * k, at, at + 70, GEMM).launch(host + 2 * k + 1, at + 110, at + 160, "Memset (Device)", kind="memset")

    headline = run(queued(body, gpu=1000).timeline(), built_in().values()).headline
    assert headline.bottleneck == "dependency-bound" and headline.judged == "partly"
    assert "40%" in headline.judged_why


def test_idle_time_that_recording_may_have_made_is_not_what_bounds_the_step():
    """Of some 860 µs as nobody records the device may work for all but 120, or idle for more than it computes, communicates or copies."""
    trace, step_us = Trace(recorder="kineto"), 1_120.0
    for step in range(6):
        at = step * step_us
        trace.step(at, step_us - 1)
        for number in range(10):
            trace.op("aten::view", at + 1 + 40 * number, 30)
        begin = at + 460
        trace.op("aten::mm", begin - 12, 8).launch(begin - 10, begin, begin + 230, GEMM).launch(begin - 8, begin + 230, begin + 450, REDUCE)
        trace.copy(begin - 6, 1.0, begin + 450, begin + 600, memory="Pinned").call("cudaDeviceSynchronize", begin - 1, 602)
    bound = trace.get(Bound)
    assert bound.open and bound.shares.largest == "idle" and bound.name == "gpu-bound"
