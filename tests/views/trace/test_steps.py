"""What a step is, and which window holds whole steps. `tests/views/test_views.py` has the plain loops; here are the hard ones."""

import numpy as np
import pytest

from advisor.views.trace.launches import Launches
from advisor.views.trace.steps import Steps
from tests.build import H200, Trace


def loop(host, gpu, steps=4, first=5.0):
    """A mark every `host` µs; each step launches one kernel of `gpu` µs that starts when the one before is done."""
    trace, free = Trace(), first
    for s in range(steps):
        trace.step(host * s, host - 1, s + 1)
        start = max(free, host * s + 5)
        free = start + gpu
        trace.launch(host * s + 1, start, free)
    return trace


def test_backlog_of_warm_up_is_neither_in_the_step_time_nor_in_the_window():
    # wait=1, warmup=2, active=3. The two warm-up steps were launched at -60 and -30, before recording began, and
    # still run until 205. Host window / 3 is 30; the GPU needs 80 a step.
    trace, free = Trace(), 45.0
    for _ in (-60, -30):
        free += 80
        trace.gpu(free - 80, free, "warm-up")
    for s in range(4):
        trace.step(30.0 * s, 29, s + 3)
        free += 80
        trace.launch(30 * s + 1, free - 80, free)
    steps = trace.get(Steps)
    assert (steps.basis, steps.clock, steps.start_us, steps.end_us, steps.steps) == ("profiler-step", "gpu", 205, 445, 3)
    assert steps.step_us == 80, "not (4 x 30 - 1) / 4 = 30, nor the whole span over three"


def test_the_last_mark_only_closes_the_window():
    # The sync that ends the capture, and what it waits for, come after the last step's first kernel.
    trace = loop(100, 20).call("cudaDeviceSynchronize", 330, 5000)
    assert trace.get(Steps).end_us == 305 and trace.get(Steps).step_us == 100


def test_step_marks_win_over_the_users_ranges_and_the_optimizers():
    trace = loop(100, 20, steps=5)
    for s in range(5):
        trace.note(f"epoch {s}", 100 * s, 99).note("Optimizer.step#SGD.step", 100 * s + 50, 20)
    assert trace.get(Steps).basis == "profiler-step"


def test_step_marks_of_2021_stand_among_the_ops():
    trace = Trace()
    for s in range(4):
        trace.op(f"ProfilerStep#{s}", 100 * s, 95).launch(100 * s + 1, 100 * s + 5, 100 * s + 25)
    assert (trace.get(Steps).basis, trace.get(Steps).step_us) == ("profiler-step", 100)


def test_marks_need_not_be_recorded_in_order():
    trace = Trace()
    for s in (2, 0, 3, 1):
        trace.step(100 * s, 99, s + 1).launch(100 * s + 1, 100 * s + 5, 100 * s + 25)
    assert (trace.get(Steps).start_us, trace.get(Steps).end_us, trace.get(Steps).steps) == (5, 305, 3)


def test_a_mark_that_is_there_twice_is_one_step():
    trace = loop(100, 20)
    for s in range(4):
        trace.step(100 * s, 99, s + 1)
    assert (trace.get(Steps).steps, trace.get(Steps).step_us) == (3, 100)


@pytest.mark.parametrize(("gpu", "basis", "step_us"), [(20, "profiler-step", 100), (400, "whole", 1600)])
def test_steps_of_the_host_are_not_those_of_a_device_that_is_far_behind(gpu, basis, step_us):
    # Nothing says which step launched an op.
    trace = Trace()
    for s in range(4):
        trace.step(100.0 * s, 99, s + 1).gpu(max(100, gpu) * s + 5, max(100, gpu) * s + 5 + gpu)
    steps = trace.get(Steps)
    assert (steps.basis, steps.step_us) == (basis, step_us)


def test_work_that_the_host_does_after_the_marks_leaves_them_as_they_are():
    trace = Trace()
    for s in range(4):
        trace.step(100.0 * s, 99, s + 1).gpu(100 * s + 5, 100 * s + 25)
    for at in (400, 500, 600):
        trace.op("aten::mm", at, 10).gpu(at + 5, at + 85)
    assert trace.get(Steps).basis == "profiler-step"


def test_the_device_with_most_of_the_work_is_the_clock():
    trace = Trace((H200,))
    for s in range(4):
        trace.step(100 * s, 99, s + 1)
        trace.launch(100 * s + 1, 100 * s + 50 - 10 * s, 100 * s + 51, "one kernel on GPU 1", device=1)
        for k in range(3):
            trace.launch(100 * s + 2 + k, 100 * s + 5 + 20 * k, 100 * s + 20 + 20 * k, device=0)
    assert trace.get(Steps).periods_us.tolist() == [100, 100, 100]


def test_a_prefetch_copy_launched_first_does_not_begin_the_step():
    # Launched in step s before its kernels, run long before them on a stream of its own.
    trace = Trace()
    for s in range(4):
        trace.step(30 * s, 29, s + 1).copy(30 * s + 1, 2, 30 * s + 5, 30 * s + 25, "Pinned", stream=13)
        trace.launch(30 * s + 6, 200 + 80 * s, 280 + 80 * s)
    assert (trace.get(Steps).start_us, trace.get(Steps).step_us) == (200, 80)


@pytest.mark.parametrize("beside", [False, True])
def test_a_tiny_kernel_on_a_stream_beside_begins_no_step(beside):
    """The host is two steps ahead of the device: what has a stream of its own runs at once, long before the rest of its step."""
    trace = loop(100, 400, steps=5)
    for s in range(5 * beside):
        trace.launch(100.0 * s + 50, 100 * s + 55, 100 * s + 56, "tiny", stream=9)
    steps = trace.get(Steps)
    assert (steps.steps, steps.step_us, steps.start_us) == (4, 400, 5)


def test_where_no_stream_works_in_every_step_the_first_kernel_of_any_begins_it():
    trace = Trace()
    for s in range(4):
        trace.step(100.0 * s, 99, s + 1).launch(100.0 * s + 1, 100 * s + 5, 100 * s + 50, stream=7 + s % 2)
    assert trace.get(Steps).step_us == 100


def test_a_step_of_copies_alone_still_has_a_clock():
    trace = Trace()
    for s in range(4):
        trace.step(100 * s, 99, s + 1).copy(100 * s + 1, 90, 100 * s + 8, 100 * s + 90)
    assert (trace.get(Steps).start_us, trace.get(Steps).step_us, trace.get(Steps).clock) == (8, 100, "gpu")


def test_steps_whose_gpu_work_is_unknown_are_timed_on_the_host():
    trace = Trace().gpu(10, 20).gpu(110, 120)
    for s in range(4):
        trace.step(100 * s, 99, s + 1)
    steps = trace.get(Steps)
    assert (steps.clock, steps.start_us, steps.end_us, steps.step_us) == ("host", 0, 300, 100)
    assert "no GPU work could be tied" in steps.detail


def test_without_gpu_work_the_host_is_the_window():
    steps = Trace().op("aten::mm", 10, 30).op("aten::add", 50, 25).get(Steps)
    assert (steps.basis, steps.start_us, steps.end_us) == ("whole", 10, 75)


# Ranges of the user


def ranged(*names, work=(5, 90), count=4):
    trace = Trace()
    for s in range(count):
        for name, (start, dur) in names:
            trace.note(name.format(s), 100 * s + start, dur)
        trace.launch(100 * s + work[0], 100 * s + work[0] + 3, 100 * s + work[1])
    return trace


def test_of_nested_ranges_the_outer_is_the_step():
    trace = ranged(("forward", (2, 40)), ("batch {}", (0, 95)))
    assert (trace.get(Steps).basis, trace.get(Steps).host_edges_us.tolist()) == ("nvtx", [0, 100, 200, 300])


@pytest.mark.parametrize(
    "name",
    [
        "## Call CompiledFxGraph abc ##",
        "enumerate(DataLoader)#_Single.__next__",
        "nccl:all_reduce",
        "Torch-Compiled Region: 0/0",
        "FSDP::pre_forward (layers.0)",
        "TorchDynamo Cache Lookup",
    ],
)
def test_ranges_that_frameworks_open_are_no_steps(name):
    assert ranged((name, (0, 95))).get(Steps).basis == "whole"


def test_a_range_around_less_than_most_of_the_work_is_no_step():
    trace = ranged(("log", (0, 8)))
    for s in range(4):
        trace.launch(100 * s + 95, 100 * s + 96, 100 * s + 99)
    assert trace.get(Steps).basis == "nvtx", "85 of 88 µs"
    trace = ranged(("log", (0, 8)))
    for at in range(500, 2500, 20):  # four repeats, then other work without the range
        trace.launch(at, at + 2, at + 20, f"other {at}")
    assert trace.get(Steps).basis == "whole"


def test_two_of_a_kind_are_no_pattern():
    assert ranged(("batch {}", (0, 95)), count=2).get(Steps).basis == "whole"
    assert ranged(("batch {}", (0, 95)), count=3).get(Steps).basis == "nvtx"


def numbered(*lasts, kernel=400):
    """Ranges of such names and lengths, one after the other, in each of which a kernel runs."""
    trace, at = Trace(), 0.0
    for name, us in lasts:
        trace.note(name, at, us).launch(at + 1, at + 2, at + 2 + min(us / 2, kernel))
        at += us + 5
    return trace


@pytest.mark.parametrize(
    ("lasts", "steps"),
    [
        ((("part 0", 20), ("part 1", 500_000), ("part 2", 6_000)), False),
        ((("step 0", 500_000), ("step 1", 900), ("step 2", 1_000), ("step 3", 950)), True),  # the first one compiles
        ((("part 0", 1_000), ("part 1", 20), ("part 2", 900), ("part 3", 30)) * 3, False),
        ((("step 0", 20_000), ("step 1", 900), ("step 2", 1_000), ("step 3", 950)) * 3, True),  # epochs
    ],
)
def test_numbered_ranges_whose_lengths_differ_by_orders_are_parts_of_a_step(lasts, steps):
    assert (numbered(*lasts).get(Steps).basis == "nvtx") == steps


def test_ranges_of_which_one_holds_all_the_work_are_no_steps():
    trace = numbered(("save", 10_000), kernel=5_000)
    for k in range(8):
        trace.note("save", 10_100 + 100 * k, 90).launch(10_110 + 100 * k, 10_112 + 100 * k, 10_113 + 100 * k)
    assert trace.get(Steps).basis != "nvtx"


@pytest.mark.parametrize("name", ["step[{}]", "[train] step {}", "iteration [{}/100]", "[rank 0] step {}"])
def test_a_bracket_hides_no_step(name):
    assert ranged((name, (0, 95))).get(Steps).basis == "nvtx"


def of_two_processes(name, second_us=37.0, more=0):
    """Two ranks in one recording, each with a device of its own and marks of the same names, the second somewhat later."""
    trace = Trace()
    for s in range(5):
        for rank in (0, 1):
            at = 100 * s + second_us * rank
            trace.note(name.format(s), at, 95, pid=10 + rank, tid=10 + rank)
            for k in range(4 + more * rank):
                trace.launch(at + 2 + k, at + 10 + 15 * k, at + 20 + 15 * k, f"k{k}", pid=10 + rank, tid=10 + rank, device=rank)
    return trace.get(Steps)


@pytest.mark.parametrize("name", ["step {}", "ProfilerStep#{}", "step[DECODE bs={}]", "train"])
def test_steps_are_of_one_process_where_several_mark_them_by_the_same_names(name):
    steps = of_two_processes(name)
    assert (steps.steps, steps.step_us, steps.start_us) == (4, 100, 10)
    assert of_two_processes(name, more=1).start_us == 47, "of the process that launches most, on its own device"


def test_a_launch_sequence_is_one_processs_too():
    steps = of_two_processes("nccl:all_reduce")
    assert (steps.basis, steps.step_us) == ("detected", 100)


def test_a_process_that_marks_nothing_is_in_no_step_of_the_other():
    trace = Trace()
    for s in range(4):
        trace.note("step", 100 * s, 95).launch(100 * s + 20, 100 * s + 30, 100 * s + 60)
        for k in range(5):
            trace.launch(100 * s + 5 + k, 100 * s + 9 + 4 * k, 100 * s + 12 + 4 * k, "other", pid=2, tid=2, device=1)
    assert trace.get(Steps).start_us == 30


def test_ranges_that_overlap_each_other_are_no_steps():
    assert ranged(("request {}", (0, 150))).get(Steps).basis == "whole"


def test_the_optimizers_period_is_a_step():
    trace = Trace()
    for s in range(6):
        trace.launch(100 * s + 1, 100 * s + 5, 100 * s + 80, f"k{s}").note("Optimizer.step#AdamW.step", 100 * s + 85, 10)
    steps = trace.get(Steps)
    assert (steps.basis, steps.step_us) == ("detected", 100) and "Optimizer.step" in steps.detail


@pytest.mark.parametrize(("second", "dur"), [((97, 2), 10), ((88, 4), 10)], ids=["one after the other", "one inside the other"])
def test_two_optimizers_in_a_step_are_one_step(second, dur):
    trace = Trace()
    for s in range(8):
        trace.launch(100 * s + 1, 100 * s + 5, 100 * s + 80, f"k{s}").note("Optimizer.step#Muon.step", 100 * s + 85, dur)
        trace.note("Optimizer.step#AdamW.step", 100 * s + second[0], second[1])
    steps = trace.get(Steps)
    assert steps.basis == "detected" and steps.step_us == pytest.approx(100) and steps.periods_us.max() - steps.periods_us.min() < 1


# Its parts


def test_host_times_belong_to_the_step_the_host_was_issuing():
    steps = loop(100, 20).get(Steps)
    assert steps.of_host_time(np.array([-1.0, 0, 99.9, 100, 299, 300, 900])).tolist() == [-1, 0, 0, 1, 2, 3, 3]


def test_the_middle_of_a_window_is_a_window():
    steps = loop(100, 20, steps=8).get(Steps)  # seven whole steps
    middle = steps.middle(3)
    assert (middle.steps, middle.start_us, middle.end_us, middle.step_us) == (3, 205, 505, 100)
    assert (middle.host_start_us, middle.host_end_us) == (200, 500)
    assert (steps.middle(99).steps, steps.middle(99).start_us, steps.middle(99).end_us) == (7, 5, 705)


def filling(taken, steps=7, period=100):
    """A loop whose host spends so many µs of each step on `cudaMalloc`, before it launches."""
    trace = Trace()
    for s, us in enumerate([*taken, *[0] * (steps - len(taken))]):
        trace.step(period * s, period - 1, s + 1)
        if us:
            trace.call("cudaMalloc", period * s + 1, us)
        trace.launch(period * s + us + 2, period * s + us + 4, period * s + us + 40)
    return trace


@pytest.mark.parametrize(
    ("taken", "left"),
    [
        ((50, 30), 4),
        ((0, 30), 4),  # what comes before the last step that takes memory is no further
        ((4, 4), 6),  # little of a step
        ((30, 0, 0, 30), 6),  # the later half would not be most of what was recorded
        ((30, 30, 30, 30, 30, 30, 30), 6),  # every step does
        ((30, 0, 0, 0, 0, 30), 6),
    ],
)
def test_marked_steps_that_fill_the_allocators_cache_are_warm_up(taken, left):
    steps = filling(taken).get(Steps)
    assert steps.steps == left and ("taking device memory" in steps.detail) == (left < 6)


def few(taken, closing=100):
    """Steps of 100 µs and what each spends on device memory; the last one, `closing` µs of which were recorded, closes the window."""
    trace, at = Trace(), 0.0
    for s, us in enumerate(taken):
        long = 100.0 + us if s < len(taken) - 1 else closing
        trace.step(at, long - 1, s + 1)
        if us:
            trace.call("cudaFree", at + 1, us)
        for k in range(4):
            if (begun := at + us + 2 + 20 * k) < at + long:
                trace.launch(begun, begun + 2, begun + 20)
        at += long
    return trace


@pytest.mark.parametrize(
    ("taken", "left"),
    [
        ((0, 200, 0), (304, 404)),  # two of three do without: the device waits for the second one's first launch
        ((10, 200, 10), (314, 424)),  # what each spends is a step's own
        ((0, 200, 0, 0), (304, 504)),
        ((0, 0, 200, 0), (404, 504)),
    ],
)
def test_the_only_one_of_few_steps_that_takes_memory_leaves_the_window_and_is_named(taken, left):
    steps = few(taken).get(Steps)
    assert (steps.start_us, steps.end_us) == pytest.approx(left, abs=5) and "200 µs of the " in steps.detail and "went into device memory" in steps.detail


@pytest.mark.parametrize(
    ("taken", "closing"),
    [
        ((0, 200, 200), 300),  # two of three take it
        ((0, 200, 0), 15),  # nothing says which of two is usual
        ((0, 30, 0), 100),  # little of a step
        ((200, 0, 0), 100),  # before the window
        ((0, 0, 200, 0, 0, 0), 100),  # enough steps for a mean
    ],
)
def test_other_windows_keep_all_their_steps(taken, closing):
    assert few(taken, closing).get(Steps).steps == len(taken) - 1


def test_time_has_no_origin():
    for shift in (0, 1e9):
        trace = loop(30, 80)
        for rows in trace.rows.values():
            for row in rows:
                row["start_us"] += shift
        steps = trace.get(Steps)
        assert steps.start_us - shift == pytest.approx(5) and steps.step_us == pytest.approx(80)


def test_launches_of_a_step_are_counted_where_the_host_made_them():
    # 60 kernels may stand in a window in which 36 were launched: the step of a kernel is its launch's.
    trace = loop(30, 80)
    launches, steps = trace.get(Launches), trace.get(Steps)
    assert steps.of_host_time(launches.start_us).tolist() == [0, 1, 2, 3]


def test_a_step_that_launches_nothing_is_a_step_all_the_same():
    # Six marks 100 µs apart; the third step only works on the host.
    trace = Trace()
    for s in range(6):
        trace.step(100 * s, 99, s + 1)
        if s != 2:
            trace.launch(100 * s + 1, 100 * s + 5, 100 * s + 25)
    steps = trace.get(Steps)
    assert (steps.start_us, steps.end_us) == (5, 505)
    assert (steps.steps, steps.step_us) == (5, 100)


def of_one_kernel(others, n=20):
    """A kernel that is launched and waited for again and again, after so many others."""
    trace = Trace()
    for k in range(others):
        trace.launch(10 * k, 10 * k + 5, 10 * k + 8, f"other{k}")
    for k in range(n):
        at = 10 * others + 20.0 * k
        trace.launch(at, at + 5, at + 10, "evolve").call("cudaDeviceSynchronize", at + 2, 10)
    return trace.get(Steps)


def test_a_loop_of_one_kernel_is_a_loop_where_nothing_else_runs():
    alone = of_one_kernel(1)
    assert (alone.basis, alone.step_us) == ("detected", 20)
    assert of_one_kernel(5).basis == "whole", "in a row they may be a part of a step, as an optimizer's are"


def test_what_comes_after_the_repetition_is_said_with_its_time():
    trace = Trace()
    for k in range(10):
        for n, name in enumerate("abc"):
            trace.launch(30 * k + 10 * n, 30 * k + 10 * n + 2, 30 * k + 10 * n + 8, name)
    assert "apart" not in trace.get(Steps).detail
    for k in range(4):
        trace.launch(400 + 200 * k, 405 + 200 * k, 505 + 200 * k, f"after{k}")
    assert "apart from it, after: 4 GPU ops that take 400 µs" in trace.get(Steps).detail


@pytest.mark.parametrize(("kind", "start"), [("Single", 20), ("Multi", 130)])
def test_a_pass_begins_with_the_batch_that_the_main_process_made_for_it(kind, start):
    # A batch of 100 µs, then two kernels. What worker processes deliver first waits for their start, which happens once.
    trace = Trace().note(f"enumerate(DataLoader)#_{kind}ProcessDataLoaderIter.__next__", 20, 100)
    steps = trace.launch(130, 140, 160, "one").launch(150, 170, 190, "another").get(Steps)
    assert (steps.basis, steps.start_us, steps.host_start_us, steps.end_us) == ("whole", start, start, 190)
    assert ("the batch that the main process made" in steps.detail) == (kind == "Single")


def test_of_processes_merged_into_one_file_the_marks_of_one_are_the_steps():
    def merged(mark):
        trace = Trace()
        for s in range(6):
            for pid, at in ((1, 100.0 * s), (2, 100.0 * s + 37)):
                mark(trace, at, s + 1)
                trace.launch(at + 1, at + 5, at + 45, device=pid - 1)
                trace.rows["annotations"][-1]["pid"] = trace.rows["api_calls"][-1]["pid"] = pid
            trace.launch(100.0 * s + 80, 100.0 * s + 85, 100.0 * s + 90, device=1)  # the second does more
            trace.rows["api_calls"][-1]["pid"] = 2
        return trace.get(Steps)

    steps = merged(lambda trace, at, number: trace.step(at, 99, number))
    assert (steps.basis, steps.steps, steps.step_us, steps.start_us) == ("profiler-step", 5, 100, 42)
    steps = merged(lambda trace, at, number: trace.note("Optimizer.step#Adam.step", at + 60, 10))
    assert (steps.detail.split(";")[0], steps.step_us) == ("the period of Optimizer.step", 100)


def test_a_range_that_an_op_opens_is_no_step():
    """Layers that are alike have them at an even pace."""
    trace = Trace()
    for layer in range(6):
        at = 100.0 * layer
        trace.op("aten::detach_", at, 3).note("detach_", at + 1, 1)
        trace.launch(at + 10, at + 20, at + 90, "kernel").launch(at + 12, at + 90, at + 95, f"other {layer}")
    assert trace.get(Steps).basis != "nvtx"
