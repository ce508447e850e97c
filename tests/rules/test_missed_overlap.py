"""missed-overlap: gradients averaged on the stream that computes; quiet on sums that products need, on waits, and beside products."""

import msgspec
import pytest

import advisor
from advisor.engine.rule import built_in
from tests.paths import needs_shared, shared_files
from tests.rules.test_rules import clear, found, queued, widened

REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_NNN"


def training(count=6, each=100.0, compute=1000.0, stream=7, between="", longer=0.0, update="Optimizer.step#SGD.step"):
    """A step: products, then so many averages; `between` names a kernel after each; the last one takes `longer`; a range says that something is trained."""

    def body(trace, host, gpu):
        trace.note(update, host + 40, 5)
        trace.launch(host + 1, gpu, gpu + compute, GEMM, grid_blocks=132)
        at = gpu + compute
        for n in range(count):
            end = at + each + (longer if n == count - 1 else 0)
            trace.launch(host + 2 + n, at, end, REDUCE, stream=stream, grid_blocks=24)
            at = end
            if between:
                trace.launch(host + 2.5 + n, at, at + 10, between, grid_blocks=132)
                at += 10

    return queued(body, gpu=compute + count * (each + (10 if between else 0)) + longer)


def test_averages_after_the_backward_pass_are_found_with_what_overlap_gains_of_them():
    finding = found("missed-overlap", training())
    assert finding.saving.expected_us == pytest.approx(0.35 * 600, rel=0.02)
    low, _ = widened("missed-overlap", 120, 420, 1600)
    # Kernels of 1,000 µs stay whole, and at least half of the 180 µs of transfers that no overlap hides.
    assert (finding.saving.low_us, finding.saving.high_us) == (low, pytest.approx(1600 - 1000 - 180 / 2))
    assert "6 collectives per step" in finding.summary and "DistributedDataParallel" in finding.fix.code.after
    assert finding.evidence[0].label == REDUCE


def test_kernels_that_only_scale_the_sums_part_no_run():
    assert found("missed-overlap", training(between="void at::native::vectorized_elementwise_kernel<8, at::native::BUnaryFunctor>"))


def test_a_sum_that_the_next_product_needs_is_tensor_parallelism():
    assert "in a run of 4" in clear("missed-overlap", training(between=GEMM))


def test_where_nothing_is_trained_no_gradients_are_averaged():
    assert "nothing is trained" in clear("missed-overlap", training(update="requests"))


def test_a_stream_of_their_own_overlaps_nothing_by_itself():
    assert "6 collectives per step" in found("missed-overlap", training(stream=20)).summary


def test_collectives_beside_the_products_are_overlapped():
    def body(trace, host, gpu):
        trace.note("Optimizer.step#SGD.step", host + 40, 5)
        trace.launch(host + 1, gpu, gpu + 1000, GEMM, grid_blocks=132)
        for n in range(6):
            trace.launch(host + 2 + n, gpu + 100 * n, gpu + 100 * (n + 1), REDUCE, stream=20, grid_blocks=24)

    assert "of collectives overlaps computing" in clear("missed-overlap", queued(body, gpu=1000))


def test_the_wait_for_a_slower_rank_is_no_transfer():
    finding = found("missed-overlap", training(longer=5000.0))
    # Five of 100 µs, and of the sixth no more than one and a half times that.
    assert finding.saving.expected_us == pytest.approx(0.35 * 650, rel=0.02)


@pytest.mark.parametrize(("option", "heard", "quiet"), [("min_run", 6, 7), ("min_saving_share", 0.13, 0.14)])
def test_both_sides_of_each_threshold(option, heard, quiet):
    assert found("missed-overlap", training(), **{option: heard})
    assert clear("missed-overlap", training(), **{option: quiet})


def test_one_device_alone_has_no_collectives():
    assert clear("missed-overlap", training(count=0)) == "no collective inside the window"


@needs_shared
@pytest.mark.parametrize("path", shared_files("corpus/ranks/ddp_*/*.json.gz") + shared_files("corpus/ranks/*_fixed/*.json.gz"), ids=str)
def test_overlapped_trainings_and_stragglers_are_not_told_to_overlap(path):
    report = advisor.analyze(path, rules=[built_in()["missed-overlap"]]).report
    assert not report.findings and msgspec.structs.asdict(report)["clear"]
