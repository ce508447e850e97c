"""What a server's steps are: phase, requests, tokens, launches in graphs and outside, rows that are padding."""

import numpy as np
import pytest

from advisor.recordings.timeline import Device
from advisor.views.time.step_work import Batch
from advisor.views.trace.serving import Serving
from tests.build import Trace

DECODE, PREFILL = "step[DECODE bs={}]", "step[EXTEND bs=1 toks=500]"


def graph(trace, at, kernels, us=10.0, name="layer", **more):
    """One launch of a graph of so many kernels, one behind the other."""
    trace.correlation += 1
    trace.call("cudaGraphLaunch", at, 2, trace.correlation)
    for k in range(kernels):
        trace.gpu(at + 5 + us * k, at + 5 + us * (k + 1), name, trace.correlation, **more)


def served(*steps, period=200.0):
    """Steps of 200 µs: (mark, kernels in a graph, kernels launched one by one), each kernel 10 µs."""
    trace = Trace()
    for k, (mark, in_graph, eager) in enumerate(steps):
        at = period * k
        trace.note(mark, at, period - 20)
        for n in range(eager):
            trace.launch(at + 1 + n, at + 100 + 10 * n, at + 110 + 10 * n, "sample")
        if in_graph:
            graph(trace, at + 1 + eager, in_graph)
    return trace


def test_steps_are_grouped_by_phase_and_requests():
    trace = served(*[(DECODE.format(4), 8, 2)] * 3, (PREFILL, 0, 6), (DECODE.format(5), 8, 2), (DECODE.format(5), 8, 2))
    serving = trace.get(Serving)
    assert serving.engine == "SGLang" and len(serving.steps) == 6
    assert [(p.phase, p.requests, len(p.steps), p.graph_launches, p.eager_launches) for p in serving.phases] == [
        ("prefill", 1, 1, 0, 6), ("decode", 4, 3, 1, 2), ("decode", 5, 2, 1, 2),
    ]  # fmt: skip
    prefill, four, _ = serving.phases
    assert (four.graph_coverage, prefill.graph_coverage) == (0.8, 0)
    assert four.step_us == 200 and four.tokens_per_s == pytest.approx(4 / 200e-6)
    assert prefill.tokens_per_s == pytest.approx(500 / prefill.step_us * 1e6)


def test_steps_that_compute_more_tokens_than_requests_verify_drafts():
    mark = "execute_20_context_0(sq0sk0sqsq0sqsk0)_generation_4(sq20sk4000sqsq100sqsk20000)"
    (phase,) = served(*[(mark, 8, 2)] * 3).get(Serving).phases
    assert (phase.phase, phase.requests, phase.query_tokens) == ("verify", 4, 20) and np.isnan(phase.tokens_per_s)


def test_launches_belong_to_the_mark_that_they_are_called_in():
    trace = served((DECODE.format(4), 8, 2), (DECODE.format(4), 8, 2))
    trace.launch(190, 195, 198, "output copy")
    assert [step.eager_launches for step in trace.get(Serving).steps] == [2, 2]


def test_a_copy_is_no_launch_of_a_kernel_but_time_outside_of_graphs():
    trace = served((DECODE.format(4), 8, 0)).copy(150, 5, 155, 175)
    (step,) = trace.get(Serving).steps
    assert (step.eager_launches, step.graph_us, step.eager_us) == (0, 80, 20)


def test_the_gap_before_a_step_is_what_the_device_idles_before_its_first_op():
    assert [step.gap_us for step in served(*[(DECODE.format(4), 10, 0)] * 3).get(Serving).steps[1:]] == [100, 100]
    assert np.isnan(served((DECODE.format(4), 10, 0)).get(Serving).steps[0].gap_us)


def test_marks_inside_each_other_are_one_step_that_knows_what_either_says():
    trace = served(("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk900sqsq32sqsk900)", 8, 2))
    trace.note("step[DECODE bs=32]", 1, 150)
    serving = trace.get(Serving)
    (step,) = serving.steps
    assert serving.engine == "SGLang" and (step.mark.requests, step.mark.kv_tokens) == (32, 900)


def test_graphs_whose_kernels_were_not_recorded_have_no_coverage():
    trace = served((DECODE.format(4), 0, 3), (DECODE.format(4), 0, 3))
    for k in range(2):
        trace.call("cudaGraphLaunch", 200 * k + 50, 2, 900 + k)
    (phase,) = trace.get(Serving).phases
    assert phase.graph_launches == 1 and np.isnan(phase.graph_coverage)


def padded(rows, requests=9, sm_count=132, heads=4, at=0.0):
    trace = Trace((Device(0, "NVIDIA H200", sm_count, (9, 0)),)).note(DECODE.format(requests), at, 180)
    for k in range(3):
        graph(trace, 1 + 20 * k, 1, name="vllm::rms_norm_kernel<bf16>", grid_blocks=rows)
    graph(trace, 70, 1, name="gemm", grid_blocks=64)
    graph(trace, 90, 2, name="vllm::rms_norm_kernel<bf16>", grid_blocks=rows * heads)
    return trace.get(Serving).phases[0].padded_to


def test_rows_of_a_graph_are_the_blocks_of_kernels_that_launch_one_a_row():
    assert padded(16) == 16
    assert padded(9) == 9
    assert padded(8) == -1, "fewer than there are requests are not its rows"
    assert padded(264) == -1, "a grid of two blocks for each multiprocessor is as large whatever there is to do"


def test_a_mark_may_say_what_it_is_padded_to():
    trace = served(("step[DRAFT_LOOP raw_bs=3 bs=4 topk=1]", 8, 0))
    assert [(p.phase, p.requests, p.padded_to) for p in trace.get(Serving).phases] == [("draft", 3, 4)]


def test_a_program_that_is_no_server_has_no_steps_of_one():
    serving = Trace().note("decode", 0, 100).launch(10, 20, 90).get(Serving)
    assert serving == Serving()


def test_the_batch_is_that_of_the_steps_that_are_judged():
    assert served(*[(DECODE.format(4), 8, 2)] * 4, (PREFILL, 0, 6)).get(Batch).a_step == 4
