"""host-bound: found where the program's own work holds up the launches, quiet for everything that has a rule of its own."""

import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import run
from tests.analysed import analysed
from tests.build import Trace
from tests.paths import TRACES
from tests.rules.test_rules import clear, found, queued, repeat, skipped

USER = "train.py(30): step"


def work(pause, frames=(("targets.py(8): build", 1.0),), kernel=100):
    """A step in which the host works for `pause` µs, then launches one kernel."""

    def body(trace, at):
        if frames:
            trace.python(USER, at, pause + kernel + 30)
        for name, share in frames:
            trace.python(name, at + 1, share * (pause - 2))
        trace.op("aten::mm", at + pause, 20).launch(at + pause + 5, at + pause + 12, at + pause + 12 + kernel)

    return body


def period(pause, kernel=100):
    return pause + kernel + 40


def test_what_the_host_does_after_a_wait_is_the_cause_and_the_wait_its_symptom():
    """Each step reads a value, works 1 ms for itself and launches 4 ms of kernels: without the wait that millisecond would hide behind them, too."""

    def body(trace, at):
        work(1000, kernel=4000)(trace, at)
        trace.op("aten::item", at + 1030, 4000).copy(at + 1035, 3990, at + 5015, at + 5016, "Pinned", 4, kind="DtoH")

    report = run(repeat(5060, body).timeline(), built_in().values())
    by_rule = {f.rule: f for f in report.findings}
    host, wait = by_rule["host-bound"], by_rule["sync-stall"]
    assert host.severity == "high" and not host.folded_into and host.saving.expected_us == pytest.approx(1000, rel=0.05)
    assert wait.folded_into == "host-bound" and wait.severity == "low"


def test_python_between_launches_is_found_and_named():
    finding = found("host-bound", repeat(period(3000), work(3000)))
    assert finding.severity == "high" and "build (targets.py:8)" in finding.summary
    assert finding.evidence[0].source.file == "targets.py" and finding.evidence[0].count == 4
    assert finding.saving.expected_us == pytest.approx(3000, rel=0.03)
    assert finding.saving.low_us == pytest.approx(1500, rel=0.03)


@pytest.mark.parametrize(("pauses", "busy"), [((3000, 3000), True), ((3000, 20), False)])
def test_of_a_window_of_one_step_the_one_that_closes_it_tells_whether_work_comes_again(pauses, busy):
    trace = Trace()
    for s, pause in enumerate(pauses):
        trace.step(3200.0 * s, pause + 150, s + 1)
        work(pause)(trace, 3200.0 * s)
    assert bool([f for f in run(trace.timeline(), built_in().values()).findings if f.rule == "host-bound"]) == busy


def test_frames_of_other_threads_name_no_pause():
    """Without a name a pause of 700 µs may be the framework's."""

    def body(trace, at):
        work(700, frames=())(trace, at)
        trace.python("threading.py(982): run", at, 800, tid=99)

    assert "for 1000 µs" in clear("host-bound", repeat(period(700), body))


def test_the_length_of_a_pause_has_two_sides():
    trace = repeat(period(600), work(600))
    assert found("host-bound", trace)
    clear("host-bound", trace, min_pause_us=800)


def test_the_saving_threshold_has_two_sides():
    trace = repeat(period(600, 5400), work(600, kernel=5400))  # a tenth of the step
    assert found("host-bound", trace, min_saving_share=0.09)
    assert "threshold 11%" in clear("host-bound", trace, min_saving_share=0.11)


def test_without_stacks_only_long_pauses_count():
    clear("host-bound", repeat(period(700), work(700, frames=())))
    finding = found("host-bound", repeat(period(3000), work(3000, frames=())))
    assert finding.confidence <= 0.5 and finding.saving.expected_us == pytest.approx(3000, rel=0.03)
    assert finding.saving.low_us <= 750 and "whether the host works or waits there" in finding.summary


@pytest.mark.parametrize(("times", "batch"), [(1, True), (4, False)])
def test_work_that_comes_again_and_again_in_a_training_step_makes_no_batch(times, batch):
    def body(trace, at):
        for k in range(times):
            work(3000, frames=())(trace, at + 3200 * k)
        trace.op("autograd::engine::evaluate_function: MmBackward0", at + 3200 * times, 5)

    fix = found("host-bound", repeat(3200 * times + 20, body)).fix
    assert ("DataLoader" in fix.code.after) == batch and any("DataLoader" in str(step) for step in fix.steps) == batch


def between_tensors(pause, made, name="aten::tensor"):
    """A step in which Python works for `pause` µs, ops make `made` tensors of its lists, or views, 300 µs each, and one kernel is launched."""

    def body(trace, at):
        for k in range(made):
            trace.op(name, at + pause + 300 * k, 290)
        work(pause + 300 * made, frames=())(trace, at)

    return repeat(period(pause + 300 * made), body)


def test_short_pauses_and_ops_on_the_cpu_between_the_same_launches_are_the_same_work():
    assert found("host-bound", between_tensors(3000, 6)).saving.expected_us == pytest.approx(4800, rel=0.03)
    mostly_ops = found("host-bound", between_tensors(3000, 12))
    assert mostly_ops.saving.expected_us == pytest.approx(6600, rel=0.03)
    mostly_views = found("host-bound", between_tensors(3000, 12, "aten::view"))
    assert mostly_views.saving.expected_us == pytest.approx(3000, rel=0.03), "the pause is less than half of what is between launches"


def put_together(count, name="aten::add", each=6, kernel=100):
    """Tensors on the host, `each` µs for one and 2 to the next, then two layers."""

    def body(trace, at):
        for k in range(count):
            trace.op(name, at + (each + 2) * k, each)
        at += (each + 2) * count
        for k in range(2):
            trace.op("aten::mm", at + 30 * k, 20).launch(at + 30 * k + 5, at + 12 + kernel * k, at + 12 + kernel * (k + 1))

    return body


def test_a_batch_put_together_of_many_short_tensors_is_the_programs_work():
    """100 x 6 µs of adding on the CPU, and the 2 µs between them: all 800 µs between two launches are one work."""
    finding = found("host-bound", repeat(1020, put_together(100)))
    assert "mostly short tensor ops on the CPU, most of them aten::add" in finding.summary and "ProcessPoolExecutor" in finding.fix.code.after
    trained = found("host-bound", repeat(1020, put_together(100)).note("Optimizer.step#SGD.step", 1000, 1))
    assert "collate_fn" in trained.fix.code.after
    assert finding.saving.expected_us == pytest.approx(800, rel=0.05)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (put_together(70), "less than 500 µs"),
        (put_together(100, "aten::slice"), "views compute nothing"),
    ],
)
def test_short_ops_that_compute_little_are_dispatch(body, why):
    assert "never pauses" in clear("host-bound", repeat(1100, body)), why


def compiled(first, second):
    """A step of one compiled region, whose code launches a kernel after `first` µs and its author's own after `second` more."""

    def body(trace, at):
        trace.op("Torch-Compiled Region: 0/0", at, first + second + 80).note("## Call CompiledFxGraph abc", at + 1, first + second + 78)
        trace.op("triton_poi_fused_mul_0", at + first + 2, 20).launch(at + first + 5, at + first + 12, at + first + 30)
        trace.op("my_kernel_0", at + first + second + 22, 20).launch(at + first + second + 25, at + first + second + 32, at + first + second + 70)

    return repeat(first + second + 100, body)


def test_a_pause_between_two_launches_of_compiled_code_is_the_next_kernels():
    finding = found("host-bound", compiled(10, 3000))
    assert "host code before my_kernel_0 in compiled code" in finding.summary and "launching that kernel" in finding.fix.title
    assert finding.saving.expected_us == pytest.approx(1500, rel=0.06), "half of it"


def test_what_compiled_code_does_before_its_first_launch_is_the_compiler_s():
    clear("host-bound", compiled(3000, 10))
    clear("host-bound", compiled(10, 700))


def test_what_happens_once_is_start_up():
    def body(trace, at):
        work(3000 if at == 2 * 200 else 20)(trace, at if at <= 2 * 200 else at + 3000)

    trace = Trace()
    for s in range(8):
        trace.step(200 * s + (3000 if s > 2 else 0), 199, s + 1)
        body(trace, 200 * s)
    assert "in only 1 of" in clear("host-bound", trace)


def test_garbage_collection_and_sleep_have_their_own_advice():
    collect = work(3000, ((("<built-in function collect>"), 0.99),))
    assert "gc.freeze" in found("host-bound", repeat(period(3000), collect)).fix.code.after
    sleep = work(3000, ((("<built-in function sleep>"), 0.99),))
    assert "sleep" in found("host-bound", repeat(period(3000), sleep)).fix.title


def test_the_frameworks_own_python_is_left_alone():
    clear("host-bound", repeat(period(3000), work(3000, (("torch/nn/modules/module.py(1783): _call_impl", 0.99),))))

    def optimizer(trace, at):
        trace.note("Optimizer.step#AdamW.step", at, 3000)
        work(3000, ())(trace, at)

    clear("host-bound", repeat(period(3000), optimizer))


def test_an_op_that_computes_on_the_cpu_is_found():
    def body(trace, at):
        trace.op("aten::sort", at, 3000, [[1000000]])
        work(0, ())(trace, at + 3000)

    finding = found("host-bound", repeat(period(3000), body))
    assert "aten::sort on the CPU, 1000000." in finding.summary and "GPU" in finding.fix.title
    assert "aten::sort" in finding.fix.code.before


def test_a_copy_on_the_cpu_is_converted_on_the_gpu_and_nothing_sorted():
    def body(trace, at):
        trace.op("aten::copy_", at, 3000, [[24, 4096], [24, 4096], []])
        work(0, ())(trace, at + 3000)

    finding = found("host-bound", repeat(period(3000), body))
    assert "aten::copy_ on the CPU, 24 × 4096." in finding.summary
    assert finding.fix.code.after.startswith('x = batch.to("cuda").float()')


def test_an_op_inside_one_that_computes_counts_once():
    def body(trace, at):
        trace.op("aten::unique_dim", at, 3000)
        trace.op("aten::sort", at + 100, 1400)
        work(0, ())(trace, at + 3000)

    (evidence,) = found("host-bound", repeat(period(3000), body)).evidence
    assert evidence.label == "aten::unique_dim on the CPU" and evidence.dur_us == pytest.approx(4 * 3000)


def test_a_tree_of_many_short_ops_is_dispatch():
    def body(trace, at):
        trace.op("aten::unflatten_dense_tensors", at, 3000)
        for k in range(100):
            trace.op("aten::narrow", at + 30 * k, 29)
        work(0, ())(trace, at + 3000)

    clear("host-bound", repeat(period(3000), body))


@pytest.mark.parametrize(
    "other",
    [
        lambda t, at: t.op("entire_frame_compile", at, 3000),
        lambda t, at: t.call("cudaMalloc", at, 3000),
        lambda t, at: t.overhead("Activity Buffer Request", at, 3000),
    ],
    ids=["compilation", "allocation", "profiler"],
)
def test_what_another_rule_speaks_of_is_not_this_ones(other):
    def body(trace, at):
        other(trace, at)
        work(0, ())(trace, at + 3000)

    clear("host-bound", repeat(period(3000), body))


def test_work_that_the_gpu_runs_through_costs_nothing():
    def body(trace, host, gpu):
        trace.python(USER, host, 790)
        trace.op("aten::mm", host + 760, 20).launch(host + 765, gpu, gpu + 3990)

    clear("host-bound", queued(body, host=800, gpu=4000))


def test_without_framework_ops_it_does_not_guess():
    skipped("host-bound", repeat(3200, lambda t, at: t.launch(at + 3000, at + 3005, at + 3100)))


def own(pause, names=(), kernel="mine", recorder="nsys", steps=6):
    """Steps of a program whose ops were not recorded: a pause, then a kernel of 100 µs that is waited for, all in a range a step."""
    trace = Trace(recorder=recorder)
    for k in range(steps):
        at = k * (pause + 200)
        trace.note(f"iteration {k}", at, pause + 190)
        for name in names:
            trace.note(name.format(k), at + 10, pause - 20)
        trace.launch(at + pause, at + pause + 5, at + pause + 105, kernel).call("cudaDeviceSynchronize", at + pause + 10, 100)
    return trace


def test_a_program_without_a_framework_pauses_for_itself():
    finding = found("host-bound", own(3000))
    assert finding.severity == "medium" and finding.evidence[0].label == "host code between launches"
    assert finding.saving.expected_us == pytest.approx(1500, rel=0.1)
    assert "on the host" in finding.fix.code.before and "cuda" in finding.fix.code.before
    clear("host-bound", own(900))


def test_its_pauses_have_the_names_of_its_ranges_without_their_numbers():
    finding = found("host-bound", own(3000, ("read block {}",)))
    assert finding.evidence[0].label == "host code in read block #" and finding.evidence[0].count == 5


def test_where_ops_of_a_framework_were_not_recorded_only_ranges_tell_whose_time_it_is():
    at = "void at::native::vectorized_elementwise_kernel<4>"
    skipped("host-bound", own(3000, kernel=at))  # a range around the whole step says nothing: it may wait for a batch
    assert found("host-bound", own(3000, ("update targets",), kernel=at)).evidence[0].label == "host code in update targets"


def test_a_pause_in_a_call_of_the_operating_system_has_its_name():
    trace = own(3000, ("read block {}",))
    for k in range(6):
        trace._add("os_calls", name="poll", pid=1, tid=1, start_us=3200.0 * k + 20, dur_us=2900.0)
    assert found("host-bound", trace).evidence[0].label == "blocked in poll"


def test_batches_that_the_training_process_makes_may_be_prepared_once():
    """A loader of 2 ms before a kernel of 0.3: nine tenths of it may go, and nothing is sure."""
    loader = "enumerate(DataLoader)#_{}DataLoaderIter.__next__"

    def step(name):
        def body(trace, at):
            trace.note(loader.format(name), at, 2000)
            trace.op("aten::mm", at + 2000, 20).launch(at + 2005, at + 2012, at + 2312)

        return body

    finding = found("host-bound", repeat(2350, step("SingleProcess")))
    assert (finding.status, finding.severity) == ("possible", "low") and "epoch" in finding.summary
    assert finding.saving.low_us == 0 and finding.saving.expected_us == pytest.approx(1800, rel=0.02)
    clear("host-bound", repeat(2350, step("MultiProcessing")))


def test_a_pause_in_the_forward_pass_of_a_wrapped_model_is_the_programs():
    """DistributedDataParallel marks the whole forward pass; inside, in a range of the model's own, the host pauses for 3 ms."""

    def body(trace, at):
        trace.note("DistributedDataParallel.forward", at, 3530).note("## sparse ##", at + 10, 2900)
        work(3000, frames=(), kernel=500)(trace, at)

    finding = found("host-bound", repeat(period(3000, 500), body))
    # Nine tenths of 3.39 ms: the host does nothing while the kernel of the step before runs, either.
    assert "host code in ## sparse ##" in finding.summary and finding.saving.expected_us == pytest.approx(0.9 * 3390, rel=0.02)


def between(before, after):
    """Without stacks: an op, 3 ms of nothing, another op and its kernel."""

    def body(trace, at):
        trace.op(before, at, 10)
        trace.op(after, at + 3010, 20).launch(at + 3015, at + 3022, at + 3122)

    return repeat(3150, body)


def test_work_that_nothing_names_is_told_by_the_ops_around_it_as_their_author_knows_them():
    finding = found("host-bound", between("aten::resolve_neg", "aten::lift_fresh"))
    assert "mostly host code between .numpy() or .tolist() and a tensor of an array." in finding.summary
    node = "autograd::engine::evaluate_function: MulBackward0"
    assert "mostly host code within the backward pass." in found("host-bound", between(node, node.replace("Mul", "Add"))).summary
    assert "mostly host code between two calls of aten::mul." in found("host-bound", between("aten::mul", "aten::mul")).summary


def test_gathering_gradients_to_clip_them_is_the_frameworks_own():
    accumulated = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    clear("host-bound", between(accumulated, "aten::_foreach_norm"))
    assert found("host-bound", between(accumulated, "aten::add"))


@pytest.mark.parametrize(("size", "later"), [(1 << 20, True), (8, False)])
def test_work_on_what_the_host_has_read_waits_for_the_next_step_to_be_launched(size, later):
    """A kernel, its result copied to the host, and 3 ms of Python on that: no loader sees it. Behind a loss of one number anything may follow."""

    def body(trace, at):
        trace.op("aten::mm", at, 20).launch(at + 5, at + 12, at + 112)
        trace.op("aten::copy_", at + 30, 110).copy(at + 35, 100, at + 112, at + 130, size=size, kind="DtoH")
        trace.op("aten::resolve_neg", at + 145, 5)

    fix = found("host-bound", repeat(3150, body)).fix
    assert ("while the next step runs" in fix.title, "synchronize" in fix.code.after) == (later, later)
    assert ("ProcessPoolExecutor(" in fix.code.after) == (not later), "nothing is trained, and no loader shows"


def test_work_behind_what_was_launched_since_the_result_was_read_is_not_on_that():
    def body(trace, at):
        trace.op("aten::copy_", at, 110).copy(at + 5, 100, at + 10, at + 100, kind="DtoH")
        trace.op("aten::mm", at + 115, 20).launch(at + 120, at + 130, at + 230)

    assert "ProcessPoolExecutor(" in found("host-bound", repeat(3250, body)).fix.code.after


@pytest.mark.parametrize(("names", "said"), [("abb", "mostly b (b.py:8)"), ("abc", "most of all a (a.py:8)")])
def test_most_of_the_work_is_half_of_it(names, said):
    """Three pauses a step, of 1.2, 1 and 1 ms, each before a kernel."""

    def body(trace, at):
        for name, pause in zip(names, (1200, 1000, 1000), strict=True):
            work(pause, ((f"{name}.py(8): {name}", 1.0),))(trace, at)
            at += pause + 140

    assert f", {said}." in found("host-bound", repeat(3700, body)).summary


def test_no_more_is_saved_than_the_host_works():
    """The replay of this recording takes 61 of its 70 ms: what it does not explain is no work of the host's, which takes 10.6 ms of 60.0."""
    finding = next(f for f in analysed(TRACES / "nanopore_basecaller.slow.trace.zst").findings if f.rule == "host-bound")
    assert "takes 10.6 ms of each 60.0 ms" in finding.summary
    assert finding.saving.low_us < finding.saving.expected_us == pytest.approx(sum(edit.host_us for edit in finding.edits), rel=1e-3)
