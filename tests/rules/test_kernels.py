"""The rules for measured kernels: found, and quiet on both sides of each threshold and on look-alikes."""

import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.knowledge.structs import replace
from advisor.recordings.kernel_profiles import KernelProfiles
from advisor.recordings.recording import Recording
from advisor.report.finding import ShareSaved
from advisor.reports import formats
from tests.kernels import judged, kernel


def found(rule, *kernels, **options):
    (finding,) = judged(rule, *kernels, **options).findings
    assert isinstance(finding.saving, ShareSaved) and finding.fix.code and finding.evidence[0].label in finding.summary
    return finding


def clear(rule, *kernels, **options):
    report = judged(rule, *kernels, **options)
    assert not report.findings and len(report.clear) == 1, (report.findings, report.skipped)


@pytest.mark.parametrize(
    "rule",
    [
        "uncoalesced-access",
        "bank-conflicts",
        "low-occupancy",
        "divergence",
        "atomic-contention",
        "fp64",
        "local-memory",
        "latency-bound",
    ],
)
def test_a_counter_that_was_not_collected_is_no_good_news(rule):
    report = judged(rule, kernel())
    if rule != "low-occupancy":  # the launch alone tells
        (skipped,) = report.skipped
        assert skipped.record_with.startswith("ncu --section ")
    assert not report.findings


# uncoalesced-access: L1 at 98 %, 3 of 4 sectors in excess; without them L2, at 46 %, is the bound.
STRIDED = {"sectors": 400, "excess": 300, "l1": 98, "l2": 46, "dram": 28, "compute": 20}


def test_excess_sectors_are_found_and_bounded_by_what_is_left():
    finding = found("uncoalesced-access", kernel(**STRIDED))
    assert finding.severity == "high" and "4.0 times" in finding.summary
    assert finding.saving.expected == pytest.approx(1 - 0.46 / 0.7)
    assert finding.saving.high == pytest.approx(1 - 0.46 / 0.92)


def test_a_launch_that_loses_nothing_gives_no_weight_to_one_that_does():
    # The same kernel on much data waits for DRAM, which moves no byte too many: its 900 µs are not the fault's.
    packed = {"dram": 92, "dram__bytes_read.sum": 100 * 32.0, "dram__bytes_write.sum": 0.0}
    finding = found("uncoalesced-access", kernel(**STRIDED), kernel(grid=8192, **{**STRIDED, **packed, "us": 900.0}))
    assert (finding.evidence[0].count, finding.evidence[0].dur_us) == (1, 100.0)


def test_the_coalescing_threshold_has_two_sides():
    assert found("uncoalesced-access", kernel(**STRIDED), max_excess=0.74)
    clear("uncoalesced-access", kernel(**STRIDED), max_excess=0.76)


def test_local_memory_s_share_of_the_traffic_stays():
    # Of L1's sectors and of its misses 90 % are local: packing the rest of the accesses leaves L2 as busy as it is.
    misses = {f"l1tex__t_sectors_pipe_lsu_mem_{space}_op_ld_lookup_miss.sum": n for space, n in (("local", 900), ("global", 100))}
    clear("uncoalesced-access", kernel(**{**STRIDED, "l2": 90}, local=3600, loads=400, **misses))


def test_excess_sectors_that_keep_no_memory_busy_are_left_alone():
    clear("uncoalesced-access", kernel(**{**STRIDED, "l1": 25, "l2": 20}))


def test_excess_sectors_beside_a_bound_that_stays_gain_nothing():
    clear("uncoalesced-access", kernel(**{**STRIDED, "compute": 90}))


# bank-conflicts: L1 at 91 %, 94 of 100 wavefronts are conflicts.
CONFLICTS = {"shared": 100, "conflicts": 94, "l1": 91, "l2": 33, "dram": 26, "compute": 11}


def test_bank_conflicts_are_found():
    finding = found("bank-conflicts", kernel(**CONFLICTS))
    assert finding.saving.expected == pytest.approx(1 - 0.33 / 0.7)
    clear("bank-conflicts", kernel(**CONFLICTS), max_excess=0.95)


def test_conflicts_that_nobody_waits_for_are_left_alone():
    clear("bank-conflicts", kernel(**{**CONFLICTS, "l1": 10, "l2": 80}))


# Nobody collected the counters of accesses: the pipe alone is known, with 14 wavefronts for each request.
CROWDED = {
    "l1": 99,
    "l2": 7,
    "dram": 1,
    "compute": 9,
    "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed": 98,
    "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_elapsed": 7,
}


def test_a_full_pipe_of_many_wavefronts_a_request_is_told_by_what_the_kernel_uses():
    finding = found("bank-conflicts", kernel(shared_bytes=25_000, **CROWDED))
    assert "14 wavefronts" in finding.summary and "SourceCounters shows which" in finding.summary
    # The widest access needs 4 of 14: L1 keeps 0.99 * 4 / 14 of its load, at 0.7 of its peak.
    assert finding.saving.expected == pytest.approx(1 - 0.99 * 4 / 14 / 0.7)
    assert "many lines" in found("uncoalesced-access", kernel(**CROWDED)).summary
    for rule, at in (("bank-conflicts", {}), ("uncoalesced-access", {"shared_bytes": 25_000})):
        assert not judged(rule, kernel(**at, **CROWDED)).findings


@pytest.mark.parametrize(
    "other",
    [
        {"sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_elapsed": 20},  # 5 a request: 16 bytes a thread and a little
        {"tensor": 30},  # Tensor Cores read shared memory by the same pipe
        {"compute": 100},
        {"l1": 50, "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed": 50},
    ],
)
def test_wavefronts_that_something_else_explains_are_no_conflicts(other):
    assert not judged("bank-conflicts", kernel(shared_bytes=25_000, **{**CROWDED, **other})).findings


# low-occupancy: one block of 256 threads fits, and nothing is busy.
FEW = {"shared_bytes": 200 << 10, "dram": 5, "l2": 7, "l1": 3, "compute": 15, "issue": 17}


def test_few_warps_that_wait_are_found():
    finding = found("low-occupancy", kernel(**FEW))
    assert "1 block" in finding.summary and "shared memory" in finding.summary
    assert finding.saving.expected == pytest.approx(1 - 1 / 4)
    assert finding.saving.high == pytest.approx(1 - 0.15 / 0.92)


def test_low_occupancy_alone_is_no_finding():
    clear("low-occupancy", kernel(**{**FEW, "compute": 85}))
    clear("low-occupancy", kernel(**{**FEW, "issue": 90}))
    clear("low-occupancy", kernel(**{**FEW, "shared_bytes": 48 << 10}))  # half of the warps fit
    clear("low-occupancy", kernel(grid=60, **FEW))  # not even one wave: more room would stay empty


def test_a_block_that_is_no_multiple_of_a_warp_is_named():
    finding = found("low-occupancy", kernel(block=250, **FEW))
    assert "250 threads are no multiple of 32" in finding.fix.steps[0]


def test_blocks_of_one_thread_leave_all_lanes_but_one_empty():
    # Half of the warps fit and DRAM is at 0.53: whole warps take it to 0.7, and at best need 1 of 32 requests.
    alone = kernel(block=1, grid=1 << 20, dram=53, l2=20, l1=35, compute=3)
    finding = found("low-occupancy", alone)
    assert finding.severity == "high" and "97% of the lanes" in finding.summary and "1 thread:" in finding.summary
    assert (finding.saving.low, finding.saving.expected, finding.saving.high) == (0.0, pytest.approx(1 - 0.53 / 0.7), pytest.approx(1 - 1 / 32))
    clear("low-occupancy", kernel(block=32, grid=1 << 20, dram=80))


# divergence: 8 of 32 threads, schedulers busy.
APART = {"threads": 8, "compute": 98, "dram": 7, "l2": 9, "l1": 3}


def test_divergent_warps_are_found():
    finding = found("divergence", kernel(**APART))
    assert finding.saving.low == pytest.approx(1 - 0.98 * 0.25 / 0.5) and finding.saving.high < 0.9
    clear("divergence", kernel(**{**APART, "threads": 24}))


def test_divergence_behind_a_memory_bound_gains_nothing():
    clear("divergence", kernel(**{**APART, "compute": 30, "dram": 90}))


def test_where_nothing_is_busy_divergence_costs_no_more_than_the_lanes_that_are_off():
    # 24 of 32 lanes, and of 10 cycles of a warp 6 wait for memory: at most a quarter, likely a quarter of the other 4.
    waits = {"long_scoreboard": 6.0, "wait": 3.0, "selected": 1.0}
    finding = found("divergence", kernel(threads=23, compute=35, issue=33, dram=1, l2=1, l1=24, **waits))
    off = 9 / 32
    assert finding.saving.low == 0.0 and finding.severity == "medium"
    assert finding.saving.high == pytest.approx(off) and finding.saving.expected == pytest.approx(0.4 * off)


def test_lanes_that_are_off_do_not_wait_for_constants_and_instructions():
    # As above, with the 6 of 10 cycles spent on the first constants and instructions of a launch of 5 µs.
    waits = {f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio": 3.0 for name in ("imc_miss", "no_instruction")}
    finding = found("divergence", kernel(threads=23, compute=35, issue=33, dram=1, l2=1, l1=24, **waits, wait=3.0, selected=1.0))
    assert finding.saving.expected == pytest.approx(0.4 * 9 / 32)


def test_a_block_of_few_threads_is_not_divergent():
    clear("divergence", kernel(block=8, **APART))


def test_a_last_warp_that_its_block_does_not_fill_is_not_divergent():
    # 42 threads are two warps with 21 lanes on average; of 64 the same 20 would be the threads' ways.
    clear("divergence", kernel(block=42, **{**APART, "threads": 20}))
    assert found("divergence", kernel(block=64, **{**APART, "threads": 20}))


# atomic-contention: one slice works, the rest waits.
QUEUE = {"reds": 1e7, "atomic_busiest": 33, "atomic_mean": 0.35, "dram": 1, "l2": 1, "l1": 1, "compute": 1}


def test_atomics_on_few_addresses_are_found():
    finding = found("atomic-contention", kernel(**QUEUE))
    assert finding.saving.expected > 0.9 and "10.0 million" in finding.summary


def test_atomics_that_spread_or_are_few_are_left_alone():
    clear("atomic-contention", kernel(**{**QUEUE, "atomic_mean": 20}))
    clear("atomic-contention", kernel(**{**QUEUE, "atomic_busiest": 10}))
    clear("atomic-contention", kernel(**{**QUEUE, "dram": 80}))


# fp64


def test_double_precision_is_found_with_less_confidence_where_the_data_are_double():
    busy = {"fp64": 80, "compute": 80, "dram": 10, "l2": 10}
    assert found("fp64", kernel(**busy)).confidence > found("fp64", kernel("f(double const*)", **busy)).confidence
    clear("fp64", kernel(**{**busy, "fp64": 20}))
    clear("fp64", kernel(**{**busy, "dram": 95}))


def test_double_precision_explains_only_the_time_of_its_unit_where_nothing_is_busy():
    # Busy for 0.32 of the time, with nothing at 0.6: half of that likely goes, four fifths of all at best, perhaps nothing.
    finding = found("fp64", kernel(fp64=32, compute=56, issue=40, dram=1, l2=1, l1=2))
    assert finding.severity == "medium" and (finding.saving.low, finding.saving.high) == (0.0, pytest.approx(0.8))
    assert finding.saving.expected == pytest.approx(0.32 * 0.5)


def test_a_fault_matters_no_more_than_its_kernels_take_of_the_measured_time():
    busy = {"fp64": 80, "compute": 80, "dram": 10, "l2": 10}
    alone = found("fp64", kernel("f", **busy))
    assert alone.severity == "high" and "measured time" not in alone.summary
    for others_us, severity, share in ((900, "high", ""), (9_900, "medium", "1.0%"), (999_900, "low", "<0.1%")):
        finding = found("fp64", kernel("f", **busy), kernel("long", us=others_us))
        assert finding.severity == severity and (f"takes {share} of the measured time" in finding.summary) == bool(share), finding.summary


LOADING = "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_elapsed"


def test_a_busy_pipe_that_issues_loads_is_no_computing():
    rates = {"compute": 83, "l1": 83, "dram": 20, "l2": 14, "fma": 9}
    assert judged("fp64", kernel(**rates)).headline.bottleneck in ("compute-bound", "l1-bound")
    by_loads = judged("fp64", kernel(**{**rates, LOADING: 83})).headline
    assert by_loads.bottleneck == "l1-bound" and "83%" in by_loads.summary
    alone = judged("fp64", without("l1tex__throughput", kernel(**{**rates, LOADING: 83}))).headline
    assert alone.bottleneck == "l1-bound", "its pipe tells, where L1's own rate was not collected"
    by_fma = judged("fp64", kernel(**{**rates, "l1": 30, "fma": 83, LOADING: 30})).headline
    assert by_fma.bottleneck == "compute-bound"


def test_nothing_is_called_idle_that_was_not_measured():
    measured = kernel(compute=20)
    rates = {name: value for name, value in measured.metrics.items() if "throughput" not in name or name.startswith("sm__")}
    headline = judged("fp64", replace(measured, metrics=rates)).headline
    assert headline.bottleneck == "unknown" and "Nothing is busy" not in headline.summary


WHOLE = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"


def without(part, measured):
    return replace(measured, metrics={name: value for name, value in measured.metrics.items() if not name.startswith(part)})


@pytest.mark.parametrize(("part", "limited"), [("lts__throughput", "L2"), ("l1tex__throughput", "L1 and shared memory"), ("gpu__dram_throughput", "DRAM")])
def test_a_part_of_memory_that_was_not_collected_may_be_what_is_busy(part, limited):
    for rates in (WAITS, {**WAITS, "shared_bytes": 200 << 10}):
        rule = "low-occupancy" if "shared_bytes" in rates else "latency-bound"
        report = judged(rule, without(part, kernel(**rates)))
        assert not report.findings and report.skipped and report.headline.bottleneck == "unknown" and "Nothing is busy" not in report.headline.summary
        # The figure of all stands for the part that is missing, but for L2's, which comes above it.
        whole, busy = (judged(rule, without(part, kernel(**rates, **{WHOLE: pct}))) for pct in (20, 85))
        assert bool(whole.findings) == (limited != "L2") and not busy.findings
        assert f"Limited by {limited}, at 85% of its peak" in busy.headline.summary or (limited == "L2" and busy.headline.bottleneck == "unknown")


def test_a_slice_that_queues_is_not_called_idle():
    headline = judged("atomic-contention", kernel(**QUEUE, long_scoreboard=8)).headline
    assert "A single L2 slice is busy with atomic operations for 33% of the time" in headline.summary and "Nothing is busy" not in headline.summary


# local-memory


def test_local_memory_is_found():
    spilled = {"local": 600, "loads": 400, "l1": 90, "l2": 20, "dram": 10}
    finding = found("local-memory", kernel(**spilled))
    assert finding.saving.expected == pytest.approx(1 - 0.36 / 0.7)
    clear("local-memory", kernel(**{**spilled, "local": 90}))
    clear("local-memory", kernel(**{**spilled, "l1": 20}))


# latency-bound
WAITS = {"long_scoreboard": 8, "selected": 1, "dram": 20, "l2": 20, "l1": 10, "compute": 10, "issue": 10}


def test_waiting_with_nothing_busy_is_found():
    finding = found("latency-bound", kernel(**WAITS))
    assert "waits for global" in finding.summary and finding.saving.expected == pytest.approx(0.5)


def test_what_another_rule_explains_is_left_to_it():
    clear("latency-bound", kernel(**{**WAITS, "dram": 60}))
    clear("latency-bound", kernel(shared_bytes=200 << 10, **WAITS))
    clear("latency-bound", kernel(grid=20, **WAITS))
    clear("latency-bound", kernel(grid=20, launch__waves_per_multiprocessor=0.02, **{**WAITS, "sms": 0}))
    clear("latency-bound", kernel(**WAITS, threads=8))
    clear("latency-bound", kernel(**WAITS, us=5))


def test_one_finding_a_fault_and_kernel():
    report = judged("divergence", kernel(**APART), kernel(**APART, us=300), kernel(grid=77, **APART), kernel("other", **APART))
    assert sorted(f.evidence[0].label for f in report.findings) == ["k", "other"]
    assert report.findings[0].evidence[0].count == 3
    assert [row.calls for row in report.kernels if row.name == "k"] == [2, 1]


def test_every_check_is_answered_or_says_what_to_collect():
    report = judged("divergence", kernel(**APART))
    (row,) = report.kernels
    assert len(row.counted.checks) == 20
    lacking = {c.check: c.record_with for c in row.counted.checks if c.status == "not collected"}
    assert lacking.pop("flags").startswith("ncu --set full") and all(how.startswith("ncu --section") for how in lacking.values())
    assert report.headline.bottleneck == "compute-bound" and report.window is None and report.headline.step_us is None


# small-grid and precision: the same rules as of timelines


def test_few_blocks_are_found_in_a_measured_kernel():
    few = {"dram": 13, "l2": 17, "l1": 2, "compute": 2, "us": 400}
    finding = found("small-grid", kernel(grid=16, **few))
    assert "<<<" in finding.fix.code.before and "torch" not in str(finding.fix), "a kernel of no known kind is no model of torch"
    assert "torch" in str(found("small-grid", kernel("void at::native::grid_sampler_2d_kernel<float>(x)", grid=16, **few)).fix)
    assert "16 blocks on 132" in finding.summary and finding.saving.expected == pytest.approx(1 - 0.34 - 5 / 400)
    clear("small-grid", kernel(grid=70, **{**few, "dram": 26}))
    clear("small-grid", kernel(grid=16, **{**few, "us": 15}))
    clear("small-grid", kernel(grid=16, **{**few, "dram": 60}))
    clear("small-grid", kernel("nvjet_tst_128x64_split_k", grid=16, **few))


def test_blocks_of_one_warp_fill_a_quarter_of_each_multiprocessor():
    # 100 blocks of one warp on 132 multiprocessors, which issue from 4 each: 0.19 of what they take.
    one = {"dram": 5, "l2": 5, "l1": 5, "compute": 3}
    finding = found("small-grid", kernel(block=32, grid=100, **one))
    assert "100 blocks of 1 warp" in finding.summary and finding.severity == "medium", "a kernel of no known family may be serial"
    clear("small-grid", kernel(block=128, grid=100, **{**one, "dram": 26}))
    assert found("small-grid", kernel("softmax_kernel", block=32, grid=100, **one)).severity == "high"


def test_what_a_report_that_is_not_whole_lacks_may_take_all_the_time():
    alone = kernel("softmax_kernel", grid=16, dram=5, l2=5, l1=5, compute=3)
    cut = KernelProfiles("k.ncu-rep", "ncu-rep", 1, (alone,), {0: "NVIDIA H200"}, damage="ncu ended before 1 more launch was measured")
    (finding,) = run(Recording("kernels", "k.ncu-rep", (cut,)), [built_in()["small-grid"]], {}).findings
    assert finding.severity == "medium" and found("small-grid", alone).severity == "high"


def fp32_product(**changes):
    ops = {f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum.per_cycle_elapsed": n for op, n in {"fadd": 1, "fmul": 1, "ffma": 98}.items()}
    return {"fma": 80, "tensor": 0, "compute": 85, "dram": 5, "l1": 40, **ops, **changes}


def test_a_product_on_cuda_cores_is_found_in_a_measured_kernel():
    finding = found("precision", kernel("my_matmul_kernel", **fp32_product()))
    assert finding.saving.expected > 0.9 and finding.saving.low == pytest.approx(1 - 0.4 / 0.5)
    assert found("precision", kernel("ampere_sgemm_128x64_nn", **fp32_product())).saving.low > 0.8
    clear("precision", kernel("my_matmul_kernel", **fp32_product(tensor=40)))
    clear("precision", kernel("horner", **fp32_product()))
    clear("precision", kernel("my_matmul_kernel", **fp32_product(fma=10)))
    # Of a direct convolution that multiplies and adds for 34 % of its time, no more than that is explained.
    part = found("precision", kernel("conv2d_kernel", **fp32_product(fma=34)))
    assert part.severity == "medium" and part.saving.low == 0 and 0.3 < part.saving.expected < 0.34 and part.saving.high > 0.9
    assert found("precision", kernel("ampere_sgemm_128x64_nn", **fp32_product(fma=34))).saving.expected > 0.9
    # Behind a full L1, faster arithmetic alone gains nothing.
    assert found("precision", kernel("conv2d_kernel", **fp32_product(fma=34, l1=99))).severity == "low"


def test_turing_without_tensor_cores_is_not_told_to_use_them():
    # Of compute capability 7.5 are T4 and RTX 20, and GTX 16, which has none.
    product = kernel("my_matmul_kernel", capability=(7, 5), **fp32_product())
    for device, found_there in (("Tesla T4", 1), ("NVIDIA GeForce GTX 1660 SUPER", 0)):
        assert len(judged("precision", product, device=device).findings) == found_there


@pytest.mark.parametrize(("rule", "fault"), [("divergence", {"threads": 8}), ("small-grid", {"grid": 32})])
def test_what_queues_at_an_atomic_has_that_one_fault(rule, fault):
    assert found("atomic-contention", kernel(**QUEUE, **fault))
    assert found(rule, kernel(**{**QUEUE, "reds": 0, "atomic_busiest": 0, "atomic_mean": 0}, **fault))
    clear(rule, kernel(**QUEUE, **fault))


def test_blocks_that_cannot_wait_for_each_other_may_gain_nothing():
    alone = {"grid": 1, "dram": 1, "l2": 1, "l1": 1, "compute": 1}
    finding = found("small-grid", kernel("wavefront", **alone, barrier=75, wait=25))
    assert finding.saving.low == 0 and finding.saving.expected < 0.5 and finding.confidence == 0.5
    assert found("small-grid", kernel("mine", **alone, long_scoreboard=75, wait=25)).saving.low > 0.4
    assert found("small-grid", kernel("softmax_kernel", **alone, barrier=75, wait=25)).saving.expected > 0.9


# What the report itself shows of dividing, and lanes that no block fills.
LATENT = {"dram": 5, "l2": 5, "l1": 5, "compute": 3, "us": 1000}


def test_threads_that_are_as_slow_in_more_blocks_are_not_sped_up_by_dividing_them():
    # 8,192 threads in 8 blocks, and in 256: as slow. Half of the time is likely each thread's own, at best the device's 64 times as many warps help.
    few, many = kernel("gemv_own", grid=8, block=1024, **LATENT), kernel("gemv_own", grid=256, block=32, **{**LATENT, "us": 950})
    finding = found("small-grid", few, many)
    assert finding.severity == "medium" and "the same threads in 256 blocks take as long" in finding.summary
    assert finding.saving.low == 0 and finding.saving.expected == pytest.approx(0.5 - 5 / 1000)
    for other in ({"grid": 256, "block": 32, "us": 700}, {"grid": 256, "block": 64}, {"grid": 12, "block": 683}):
        alone = found("small-grid", few, kernel("gemv_own", **{**LATENT, **other}))
        assert alone.saving.low > 0.4 and "take as long" not in alone.summary, "faster, more threads, hardly more blocks"
    another = judged("small-grid", few, kernel("another", grid=256, block=32, **LATENT)).findings
    assert len(another) == 2 and not any("take as long" in f.summary for f in another)


def test_that_more_blocks_are_as_slow_says_nothing_of_a_device_that_is_full():
    # 660 blocks of 8 warps on 132 multiprocessors: five each, 40 of the 64 warps that each holds.
    for grid, block in ((660, 256), (10000, 256)):
        clear("small-grid", kernel("mine", grid=grid, block=block, **LATENT), kernel("mine", grid=2 * grid, block=block // 2, **LATENT))


def test_waves_that_a_page_rounds_to_none_and_multiprocessors_that_it_leaves_out_are_no_numbers():
    few = kernel("mine", grid=8, block=1024, launch__waves_per_multiprocessor=0.0, **LATENT)
    # 8 blocks on 132 multiprocessors.
    assert "hold 16 times as many" in found("small-grid", few, kernel("mine", grid=256, block=32, **{**LATENT, "us": 950})).summary
    clear("low-occupancy", kernel(grid=8, block=16, launch__waves_per_multiprocessor=0.5, **{**LATENT, "sms": 0}))


def test_few_warps_on_all_multiprocessors_are_found_while_nothing_is_busy():
    # 132 blocks of 4 warps on 132 multiprocessors, of 64 warps each: a sixteenth; the busiest unit is at 5 %.
    finding = found("small-grid", kernel(grid=132, block=128, **LATENT))
    assert finding.severity == "medium" and "which hold 16 times as many" in finding.summary and "5%" in finding.summary
    assert (finding.saving.low, finding.saving.expected) == (0, pytest.approx(0.5 - 5 / 1000))
    assert finding.saving.high == pytest.approx(1 - 1 / 16 - 5 / 1000)
    clear("small-grid", kernel(grid=132, block=128, **{**LATENT, "dram": 26}))
    clear("small-grid", kernel(grid=132 * 5, block=128, **LATENT))
    clear("small-grid", kernel(grid=132, block=128, **LATENT, barrier=75, wait=25))


@pytest.mark.parametrize(("threads", "empty"), [(24, 25), (25, 0), (33, 48), (42, 34), (48, 25), (49, 0), (64, 0)])
def test_lanes_that_the_last_warp_of_a_block_leaves_empty_are_counted(threads, empty):
    busy = kernel(block=threads, grid=1 << 20, dram=35, l2=20, l1=35, compute=20, issue=65)
    if empty:
        assert f": {empty}% of the lanes" in found("low-occupancy", busy).summary
    else:
        assert not any("lanes" in f.summary for f in judged("low-occupancy", busy).findings)


def test_lanes_count_where_whole_warps_would_still_fill_the_device():
    # 16 threads a block: half as many whole warps on 132 multiprocessors of four schedulers need 1,056 blocks.
    half = {"block": 16, "dram": 35, "l2": 20, "l1": 35, "compute": 20, "issue": 65}
    assert "lanes" in found("low-occupancy", kernel(grid=1_056, **half)).summary
    assert not any("lanes" in f.summary for f in judged("low-occupancy", kernel(grid=1_055, **half)).findings)


def test_the_headline_counts_kernels_not_launch_configurations_and_says_who_looked():
    one = judged("small-grid", kernel("mine", grid=8, **LATENT), kernel("mine", grid=16, **LATENT))
    assert "A single kernel was measured" in one.headline.summary and "2 launch configurations" in one.headline.summary and one.findings
    two = judged("small-grid", kernel("a", us=60), kernel("b", us=50, grid=5000), kernel("b", us=50))
    assert "2 kernels" in two.headline.summary and "3 launch configurations" in two.headline.summary and not two.findings
    assert "b takes the most time (62%)" in two.headline.summary
    assert "no rule could look for faults" in judged("divergence", kernel()).headline.summary


def test_without_times_no_kernel_is_said_to_take_the_most():
    summary = judged("small-grid", kernel("a", us=0), kernel("b", us=0)).headline.summary
    assert "How long they took was not collected." in summary and "most time" not in summary
    headline = judged("small-grid", kernel("a", **{**LATENT, "us": 0}), kernel("b", us=0)).headline
    assert headline.bottleneck == "unknown" and "busy" not in headline.summary, "of which kernel?"


def test_few_blocks_are_said_of_kernels_too_short_to_gain():
    short = {**LATENT, "us": 3}
    assert judged("small-grid", kernel(grid=2, block=64, **short)).headline.summary.endswith(" It runs 2 blocks of 64 threads on 132 SMs.")
    assert "It runs" not in judged("small-grid", kernel(grid=70, **short)).headline.summary
    assert "It runs" not in judged("small-grid", kernel(grid=2, **{**short, "dram": 80})).headline.summary


def test_what_bounds_a_kernel_for_most_of_its_time_is_the_verdict():
    # The longest configuration, 100 µs, waits; the two others, 160 µs together, are limited by DRAM.
    waiting = kernel("a", grid=5000, us=100, dram=40, l2=20, l1=20, compute=20)
    headline = judged("small-grid", waiting, kernel("a", us=85), kernel("a", grid=6000, us=75)).headline
    assert headline.bottleneck == "dram-bound" and "In 2 of 3 launch configurations: Limited by DRAM" in headline.summary
    alone = judged("small-grid", waiting, kernel("a", us=50)).headline
    assert alone.bottleneck == "latency-bound" and "In 1 of 2 launch configurations: Nothing is busy" in alone.summary


def test_a_page_of_kernels_says_what_orders_its_findings_and_gives_them_no_moment():
    made = judged("atomic-contention", kernel("short", us=100, **QUEUE), kernel("long", us=1000, **QUEUE))
    page = formats()["html"].render(made)
    assert [finding.evidence[0].label for finding in made.findings] == ["long", "short"]
    assert "A saving is a share of its kernel" in page and "what a kernel gains" not in page and "First at" not in page


def test_a_kernel_that_wastes_its_traffic_is_no_well_used_device():
    """A copy at DRAM's peak waits for memory, and what it reads once cannot hit L2; one that uses a quarter of its sectors is at fault for both."""
    waits = {"long_scoreboard": 9.0, "selected": 1.0, "lts__t_sector_hit_rate.pct": 5.0}
    for excess, status in ((29.0, "ok"), (30.0, "concern")):
        (row,) = judged("divergence", kernel(sectors=100.0, excess=excess, **waits)).kernels
        assert {c.check: c.status for c in row.counted.checks if c.check in ("stalls", "L2 hit rate")} == {"stalls": status, "L2 hit rate": status}


def test_what_the_details_page_lacks_is_said_in_a_sentence():
    (row,) = judged("divergence", replace(kernel(), page="details")).kernels
    told = next(c.detail for c in row.counted.checks if c.check == "divergence")
    assert told == "this page lacks what section WarpStateStats has of it"
