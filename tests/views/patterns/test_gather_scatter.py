"""What is fetched and added by index beside a chain, as a graph network passes messages, counted by hand."""

from advisor.views.patterns.compiled_step import CompiledStep
from advisor.views.patterns.fusion import Fusion
from advisor.views.patterns.gather_scatter import ByIndex
from advisor.views.replay.gpu_work import GpuWork
from tests.rules.test_rules import queued
from tests.views.patterns.test_fusion import ops_in_a_row

NODES, EDGES, A_VALUE = [1000, 64], [50_000, 64], [50_000, 1]
BYTES, OF_VALUES = 50_000 * 64 * 4, 50_000 * 4
FETCH = ("aten::gather", "vectorized_gather_kernel", [NODES, [], EDGES, [], EDGES], ["float", "Scalar", "long int", "Scalar", "float"])
ADD = ("aten::index_add_", "indexFuncLargeIndex", [NODES, [], [50_000], EDGES, []], ["float", "Scalar", "long int", "float", "Scalar"])
TIMES = ("aten::mul", "vectorized_elementwise_kernel", [EDGES, EDGES], ["float", "float"])
WEIGHTED = ("aten::mul", "elementwise_kernel", [EDGES, A_VALUE], ["float", "float"])
SUMS = ("aten::sum", "reduce_kernel", [EDGES], ["float"])
ROWS = ("aten::index_select", "vectorized_gather_kernel", [NODES, [], [50_000]], ["float", "Scalar", "long int"])
ZEROS = ("aten::fill_", "vectorized_elementwise_kernel", [NODES], ["float"])
PRODUCT = ("aten::mm", "gemm", [[64, 64], [64, 64]], ["float", "float"])


def stretch(*ops):
    return ops_in_a_row(*ops, PRODUCT).get(Fusion).stretches[0]


def test_what_is_fetched_for_a_chain_is_not_read_by_it():
    """Two tensors of 12.8 MB are multiplied and summed: read, or fetched within."""
    assert stretch(PRODUCT, TIMES, SUMS).likely == 2 * BYTES
    assert stretch(PRODUCT, FETCH, TIMES, SUMS).likely == BYTES, "one of them is fetched"
    both = stretch(PRODUCT, FETCH, FETCH, TIMES, SUMS)
    assert both.likely < 10 and both.known and len(both.handed) == 2, "both are: next to nothing crosses memory, but that is known"
    assert stretch(PRODUCT, ROWS, TIMES, SUMS).likely == BYTES, "rows by their numbers"
    unknown = [(name, kernel, [], []) for name, kernel, *_ in (TIMES, SUMS)]
    assert not stretch(PRODUCT, FETCH, *unknown).known, "what is fetched tells nothing of ops whose shapes were not recorded"
    assert stretch(PRODUCT, FETCH, *[(*op[:2], [NODES] * 2, op[3]) for op in (TIMES, TIMES)]).handed == (), "nothing of the chain has that size"


def test_a_step_and_its_backward_pass_begin_anew():
    trace = ops_in_a_row(TIMES, SUMS, FETCH)
    assert not trace.get(ByIndex).fetched, "what the next step does first"


def test_what_a_chain_adds_by_index_is_not_left_by_it():
    read = 2 * BYTES
    assert stretch(PRODUCT, TIMES, WEIGHTED, ZEROS).least == read + BYTES
    assert stretch(PRODUCT, TIMES, WEIGHTED, ZEROS, ADD).least == read
    other = (*ADD[:2], [NODES, [], [40_000], [40_000, 64], []], ADD[3])
    assert stretch(PRODUCT, TIMES, WEIGHTED, ZEROS, other).least == read + BYTES, "what is added is of another size"


def test_what_is_fetched_and_added_is_told_by_who_reads_it_not_by_what_runs_between():
    trace = ops_in_a_row(FETCH, PRODUCT, TIMES, SUMS, PRODUCT, ADD)
    by_index, work = trace.get(ByIndex), trace.get(GpuWork)
    assert {work.name(at) for at in by_index.fetched} == {"aten::mul"} and {work.name(at) for at in by_index.added} == {"aten::mul"}
    assert trace.get(Fusion).stretches[0].likely == BYTES


def compiled_us(name, *ops):
    """Of a step of kernels of 100 µs, what those of one name take once it is compiled."""

    def body(trace, host, gpu):
        for k, (op, kernel, dims, types) in enumerate(ops):
            trace.op(op, host + 5 * k, 4, dims, types).launch(host + 5 * k + 1, gpu + 100 * k, gpu + 100 * k + 99.5, kernel)

    trace = queued(body, gpu=100 * len(ops))
    work = trace.get(GpuWork)
    us = trace.get(CompiledStep).beside.apply(work.schedule).dur_us
    return {round(float(us[at]), 1) for at in range(len(us)) if work.name(at) == name}


def test_all_that_is_fetched_in_a_row_is_written_inside_the_kernel_alone():
    # 12.8 MB read and written and 25.6 of the index at 4.27 TB/s take 12.0 µs.
    assert compiled_us("aten::gather", FETCH, FETCH, PRODUCT) == {12.0}


def test_adding_by_index_reads_what_the_chain_made_though_zeros_are_made_between():
    # The 12.8 MB are read and added to as many, by an index of 0.4: 9.1 µs.
    assert compiled_us("aten::index_add_", TIMES, PRODUCT, ZEROS, ADD) == {9.1}
    half = [(*op[:2], [[25_000, 64]] * 2, op[3]) for op in (TIMES, TIMES)]
    assert compiled_us("aten::index_add_", *half, ZEROS, ADD) == {9.1}, "the chain makes something else"
