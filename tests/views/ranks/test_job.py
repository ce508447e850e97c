"""Matching, waits, the replay and the culprit on jobs whose answer is worked out by hand."""

from __future__ import annotations

import msgspec
import networkx as nx
import numpy as np
import pytest

from advisor.engine.kinds.job import _bound, _recorded_late
from advisor.engine.rule import catalog
from advisor.engine.run import run
from advisor.errors import TraceError
from advisor.knowledge import recording_cost
from advisor.knowledge.structs import replace
from advisor.recordings.recording import Recording
from advisor.report.recording import Health, Prediction
from advisor.report.step import Part
from advisor.sources.ranks import OF_ONE_EXPORT
from advisor.views.health.cost import MEASURE
from advisor.views.ranks.culprit import Culprit, _between_steps
from advisor.views.ranks.edits import Evened, JobEdits, MedianParts
from advisor.views.ranks.graph import JobGraph
from advisor.views.ranks.job import Job, RankSummaries
from advisor.views.ranks.lane import PARTS
from advisor.views.ranks.summary import RankSummary
from advisor.views.replay.true_step import TrueStep
from tests.build import Trace
from tests.views.ranks.build import TRANSFER_US, job_of, rank_timeline, summary_of

STEPS = 3
EVEN = [[[1000.0, 500.0]] * STEPS for _ in range(3)]
SLOW = [[[1000.0, 500.0]] * STEPS, [[1000.0, 500.0]] * STEPS, [[1800.0, 500.0]] * STEPS]


def test_waits_belong_to_the_rank_that_came_last():
    job = job_of(SLOW)
    assert job.matched.count == 2 * STEPS and job.matched.proved and job.matched.said.method == "group, kind and order"
    # Ranks 0 and 1 wait 800 µs at the first collective of a step, nobody at the second.
    assert job.waits_us == pytest.approx([800.0, 800.0, 0.0])
    assert job.lateness_us == pytest.approx([0.0, 0.0, 800.0])
    assert job.matched.transfer_us == pytest.approx(TRANSFER_US)


def test_no_fix_of_a_rank_s_host_leaves_less_than_devices_compute():
    # Of 3,700 µs rank 2 idles 2,000 for its host: without that the ranks still compute 1,500, and hardly faster.
    replay = job_of([*SLOW[:2], [[3000.0, 500.0]] * STEPS]).replay
    own, (compute, host) = replay.corrected.own.copy(), (PARTS.index(part) for part in ("compute", "host"))
    late = own[:, compute] == 3000.0
    own[late, compute], own[late, host] = 1000.0, 2000.0
    schedule, edit = replay.corrected.edited(own=own), MedianParts(ranks=(2,))
    saving = replace(replay, corrected=schedule, recorded=schedule).saving(JobEdits(edit, edit, edit), "")
    assert (saving.expected_us, saving.high_us) == pytest.approx((2000.0, 3700 - 1500 / recording_cost.spread().gpu_faster))
    assert saving.high_us < 2000 * 1.3


def test_a_job_that_cannot_be_matched_takes_the_mean_of_what_its_ranks_tell():
    ranks = [summary_of(rank_timeline(r, own, SLOW, group=str(r))) for r, own in enumerate(SLOW)]
    alone = [(4000.0, Prediction(3000.0, 3500.0, 4400.0)), (2500.0, Prediction(2000.0, 2300.0, 2400.0)), (1000.0, Prediction(800.0, 900.0, 1200.0))]
    told = tuple(
        replace(one, facts=msgspec.structs.replace(one.facts, step_us=step, true_step_us=true)) for one, (step, true) in zip(ranks, alone, strict=True)
    )
    job = Job.build(RankSummaries(told))
    assert not job.matched.proved and job.step_us == pytest.approx(2500.0)
    true = job.true_step
    assert (true.low_us, true.expected_us, true.high_us) == pytest.approx((5800 / 3, 6700 / 3, 7400 / 3)), "none is longer than it was recorded"
    assert true.recording_us == pytest.approx(800 / 3)


def test_the_replay_is_the_recording_and_its_edit_is_exact():
    replay = job_of(SLOW).replay
    step = 1800 + 500 + 2 * TRANSFER_US
    assert replay.step_us == pytest.approx(step, abs=1) and replay.error < 1e-3
    assert replay.share(replay.recorded, MedianParts(ranks=(2,))) == pytest.approx(800 / step, abs=1e-3)
    # Divided evenly, between each two collectives, each rank works 1767 µs of rank 2's 2300, and none waits.
    assert replay.share(replay.recorded, Evened()) == pytest.approx((2300 - 5300 / 3) / step, abs=1e-3)


def test_the_culprit_is_the_rank_without_whose_excess_the_job_is_fastest():
    culprit = Culprit.build(job_of(SLOW))
    assert culprit.at == 2 and culprit.cause == "compute" and culprit.steady and culprit.explained == pytest.approx(1.0)
    assert culprit.excess_us == pytest.approx({"compute": 800.0, "host": 0.0, "data-loading": 0.0, "copy": 0.0}, abs=1)
    assert Culprit.build(job_of(EVEN)).gain == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize(("shown", "between_us", "guessed"), [(False, 780.0, True), (False, 500.0, False), (True, 780.0, False)])
def test_a_host_late_between_steps_waits_for_input_only_where_a_loader_would_not_show(shown, between_us, guessed):
    ranks = list(job_of(SLOW).ranks)
    ranks[2] = replace(ranks[2], facts=msgspec.structs.replace(ranks[2].facts, shows_loader=shown, between_steps_us=between_us))
    assert _between_steps(Job.build(RankSummaries(tuple(ranks))), 2, 800.0) is guessed


def late(*extra: float) -> list[int]:
    """Ranks that are late as recorded, of such as each do so much more work before a collective of their own; recording is held to have cost half."""
    work = [[[1000.0 + (us if k == r else 0.0) for k in range(len(extra))]] * STEPS for r, us in enumerate(extra)]
    job = job_of(work)
    vars(job)["true_step"] = TrueStep(job.step_us / 4, job.step_us / 2, job.step_us, job.step_us, "estimated")
    return _recorded_late(job)


def test_all_ranks_are_named_that_others_wait_for_much_unless_most_are():
    # Steps of six times 1100 µs and what is late: a tenth of 9100 µs is 910, of 8700 870.
    assert late(1500, 0, 0, 1000, 0, 0) == [0, 3]
    assert late(1500, 0, 0, 600, 0, 0) == [0], "600 µs are less than a tenth of the step"
    assert late(1500, 1500, 1500, 1500, 1500, 1500) == [], "each is late for the others"
    assert late(800, 700) == [0], "of two, the later one, if most of the waiting is for it"


@pytest.mark.parametrize(
    ("compute", "transfer", "wait", "data_loading", "host", "bottleneck"),
    [
        (50, 20, 20, 5, 5, "balanced"),
        (30, 35, 25, 5, 5, "communication-bound"),
        (10, 1, 39, 10, 40, "host-bound"),  # what each waits for is the others' hosts: nothing is on the wire
        (20, 1, 39, 30, 10, "data-bound"),
        (30, 4, 64, 1, 1, "communication-bound"),
    ],
)
def test_waiting_by_turns_counts_for_what_holds_the_others_up(compute, transfer, wait, data_loading, host, bottleneck):
    shares = {"compute": compute, "transfer": transfer, "wait": wait, "data_loading": data_loading, "host": host}
    name, why = _bound(tuple(Part(kind="idle", name=part, us=share) for part, share in shares.items()), "The ranks")
    assert name == bottleneck and f"{transfer + wait}%" in why


def test_a_job_of_ranks_whose_traces_fail_a_check_is_judged_in_part():
    ranks = list(job_of(EVEN).ranks)
    check = Health(check="start-up", status="failed", detail="60% of the window went into calls that happen once")
    ranks[1] = replace(ranks[1], facts=msgspec.structs.replace(ranks[1].facts, health=(check,)))
    whole, failing = (run(Recording("job", "job", (RankSummaries(tuple(of)),)), []).headline for of in (job_of(EVEN).ranks, ranks))
    assert whole.judged == "yes" and failing.judged == "partly"
    assert "fail start-up: rank 1: 60% of the window" in failing.judged_why


@pytest.mark.parametrize(
    ("details", "status", "told"),
    [
        (("2 steps", "3 steps", ""), "degraded", "2 of 3 ranks; on rank 0: 2 steps"),
        (("2 steps", "2 steps", "2 steps"), "degraded", "all 3 ranks: 2 steps"),
        (("", "2 steps", ""), "degraded", "rank 1: 2 steps"),
        (("2 steps", "none", ""), "failed", "2 of 3 ranks; on rank 1: none"),
    ],
)
def test_what_ranks_checks_say_is_told_of_the_rank_whose_figures_they_are(details, status, told):
    """And no option is named that a job refuses."""
    statuses = ["failed" if detail == "none" else "degraded" for detail in details]
    checks = [
        (Health(check="cost", status=is_, detail=said, record_with=MEASURE, missing="step-time"),) if said else ()
        for said, is_ in zip(details, statuses, strict=True)
    ]
    ranks = [replace(one, facts=msgspec.structs.replace(one.facts, health=said)) for one, said in zip(job_of(EVEN).ranks, checks, strict=True)]
    (row,) = (check for check in run(Recording("job", "job", (RankSummaries(tuple(ranks)),)), []).health if check.check == "cost")
    assert (row.status, row.detail) == (status, told) and "advisor record" in row.record_with and "--step-ms" not in row.record_with


@pytest.mark.parametrize(("strangers", "judged"), [((0, 1, 2), "no collective is on"), ((2,), "no collective that rank 2 shared"), ((), "")])
def test_ranks_that_share_no_collective_are_said_to_be_several_programs_perhaps(strangers, judged):
    ranks = tuple(summary_of(rank_timeline(r, EVEN[r], EVEN, **({"group": f"of program {r}"} if r in strangers else {}))) for r in range(3))
    report = run(Recording("job", "job", (RankSummaries(ranks),)), [])
    (matched,) = (check for check in report.health if check.check == "ranks-matched")
    assert ("if these are not ranks of the same job, advisor analyze --each" in matched.record_with) == bool(strangers)
    assert judged in report.headline.judged_why and ("--each" in report.headline.judged_why) == (len(strangers) == 3)
    exported = run(Recording("job", "job", (RankSummaries(ranks, notes=(OF_ONE_EXPORT,)),)), [])
    assert not any("--each" in check.record_with for check in exported.health), "one file is looked at as before"


def test_a_rank_that_is_late_in_one_step_only_is_not_steady():
    once = [[[1000.0, 500.0]] * STEPS, [[1000.0, 500.0]] * STEPS, [[2600.0, 500.0], [1000.0, 500.0], [1000.0, 500.0]]]
    assert not Culprit.build(job_of(once)).steady


def test_clocks_apart_are_found_and_corrected():
    ranks = [summary_of(rank_timeline(r, own, SLOW)) for r, own in enumerate(SLOW)]
    # Rank 1's host is 3 ms ahead.
    ranks[1] = replace(ranks[1], facts=msgspec.structs.replace(ranks[1].facts, base_ns=ranks[1].facts.base_ns + 3_000_000))
    job = Job.build(RankSummaries(tuple(ranks)))
    assert job.matched.offsets_us[1] - job.matched.offsets_us[0] == pytest.approx(3000.0, abs=1)
    assert job.waits_us == pytest.approx([800.0, 800.0, 0.0], abs=2) and job.matching.clock_offset_us == pytest.approx(3000.0, abs=1)


def test_collectives_that_do_not_end_together_are_not_matched():
    ranks = [summary_of(rank_timeline(r, own, SLOW)) for r, own in enumerate(SLOW)]
    scattered = np.array([0.0, 4000.0, -3000.0, 2500.0, -5000.0, 1500.0])
    ranks[1] = replace(ranks[1], end_us=ranks[1].end_us + scattered)
    ranks[0] = replace(ranks[0], end_us=ranks[0].end_us - scattered)
    job = Job.build(RankSummaries(tuple(ranks)))
    assert not job.matched.proved and "cannot be matched" in job.matching.detail
    report = run(Recording("job", "job", (RankSummaries(tuple(ranks)),)), [])
    assert report.headline.bottleneck == "unmatched" and not any(row.wait_us or row.lateness_us for row in report.ranks), "nobody knows who waits for whom"
    assert not any(step.wait_us for row in report.ranks for step in row.by_step) and not report.collectives and report.worst is None


def test_missing_ranks_are_said():
    ranks = [summary_of(rank_timeline(r, own, SLOW)) for r, own in enumerate(SLOW)]
    job = Job.build(RankSummaries((ranks[0], ranks[2])))
    assert job.matching.missing == (1,) and job.matching.status == "degraded" and "1 of 3 ranks" in job.matching.detail


def test_a_rank_whose_trace_shares_no_collective_is_as_good_as_missing():
    ranks = [summary_of(rank_timeline(r, own, SLOW)) for r, own in enumerate(SLOW)]
    ranks[2] = summary_of(rank_timeline(2, SLOW[2], SLOW, group="of another program"))
    job = Job.build(RankSummaries(tuple(ranks)))
    assert not job.missing and job.unmatched_ranks == (2,) and job.matching.status == "degraded" and "rank 2 in none of them" in job.matching.detail
    headline = run(Recording("job", "job", (RankSummaries(tuple(ranks)),)), []).headline
    assert headline.bottleneck == "ranks missing" and headline.judged == "partly" and "no collective that rank 2 shared" in headline.judged_why


def test_a_summary_survives_its_file_and_is_small():
    one = summary_of(rank_timeline(0, SLOW[0], SLOW))
    again = RankSummary.from_bytes(one.to_bytes())
    assert again.facts == one.facts and np.array_equal(again.own, one.own) and len(one.to_bytes()) < 1 << 20
    with pytest.raises(TraceError):
        RankSummary.from_bytes(b"nothing")


def test_the_hot_loop_agrees_with_networkx():
    graph = job_of(SLOW).replay.recorded.graph
    drawn = graph.graph()
    start = dict.fromkeys(drawn, 0.0)
    for node in nx.topological_sort(drawn):
        for _, after, edge in drawn.out_edges(node, data=True):
            start[after] = max(start[after], start[node] + drawn.nodes[node]["dur_us"] + edge["lag_us"])
    assert graph.starts_us(np.zeros(len(start))) == pytest.approx([start[n] for n in range(len(start))])


def test_a_circle_is_refused():
    none = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    with pytest.raises(TraceError, match="circle"):
        JobGraph.create(
            np.ones(2),
            np.zeros(2, np.int64),
            (np.array([0, 1]), np.array([1, 0]), np.zeros(2)),
            none,
            (np.array([0]), np.zeros(1)),
            np.array([1]),
            np.zeros(1),
            1,
        )


@pytest.mark.parametrize(("updates", "averages"), [(1, 4), (2, 1), (0, 1)])
def test_in_a_recording_without_steps_averages_are_counted_where_it_updates_once(updates, averages):
    # Four forward passes of the wrapper, each with kernels of its own, that end with one update, with two, or with none: two are two steps.
    trace = Trace()
    for k in range(4):
        trace.note("DistributedDataParallel.forward", 100.0 * k - 3, 43)
        for i in range(4):
            trace.launch(100.0 * k + 10 * i, 100 * k + 10 * i + 4, 100 * k + 10 * i + 12, f"kernel{k}{i}")
    for k in range(updates):
        at = 400.0 - 200 * k - 15
        trace.note("Optimizer.step#SGD.step", at, 12).launch(at + 2, at + 5, at + 8, "void multi_tensor_apply_kernel(SGD)")
    made = summary_of(trace.launch(420, 424, 430, "last").timeline())
    assert made.facts.basis == "whole" and made.facts.accumulations == averages


def test_a_collective_that_a_pausing_host_launches_late_waits_for_the_host_though_the_rank_goes_on_beside_it():
    # Each step: a kernel of 100 µs, a pause of the host, a collective at 2,100 and, beside it, the next kernel.
    trace = Trace()
    for s in range(4):
        at = 3000.0 * s
        trace.step(at, 2999, s + 1).launch(at, at + 5, at + 105, "gemm")
        trace.launch(
            at + 2100, at + 2105, at + 2200, "ncclDevKernel_SendRecv(x)", stream=20,
            collective="allreduce", collective_dtype="Float", group_size=2, in_elements=100, out_elements=100, group="0", group_ranks="[0, 1]",
        ).launch(at + 2110, at + 2115, at + 2300, "gemm")  # fmt: skip
    made = summary_of(trace.timeline())
    assert made.lag_us[:3] == pytest.approx(5, abs=1)  # the last lies behind the window


@pytest.mark.parametrize(("call", "waits_us"), [("cudaFree", 1890), ("cudaHostAlloc", 0)])
def test_a_host_that_frees_memory_when_a_collective_ends_was_held_by_it(call, waits_us):
    # Each step: a kernel until 105, a collective from 110 to 2,000, a call from 200 to 2,010, and only then the next kernel.
    trace = Trace()
    for s in range(4):
        at = 3000.0 * s
        trace.step(at, 2999, s + 1).launch(at, at + 5, at + 105, "gemm")
        trace.launch(
            at + 10, at + 110, at + 2000, "ncclDevKernel_SendRecv(x)", stream=20,
            collective="allreduce", collective_dtype="Float", group_size=2, in_elements=100, out_elements=100, group="0", group_ranks="[0, 1]",
        ).call(call, at + 200, 1810).launch(at + 2020, at + 2025, at + 2995, "gemm")  # fmt: skip
    made = summary_of(trace.timeline())
    assert made.steps_us[:, PARTS.index("communication")] == pytest.approx(waits_us, abs=5)


def of_small_sums(trains):
    """The report of two ranks, each of 20 products of 70 µs a step, whose results of 512 KiB are added up over ranks in 100 µs each."""
    ranks = job_of([[[70.0] * 20] * STEPS] * 2, size=1 << 18, trains=trains).ranks
    return run(Recording("job", "job", (RankSummaries(tuple(ranks)),)), [catalog()[name] for name in ("small-messages", "exposed-communication")])


def test_small_sums_that_the_next_product_needs_are_not_merged():
    report = of_small_sums(trains=False)
    (finding,) = report.findings
    assert (finding.rule, finding.status, finding.saving.expected_us) == ("exposed-communication", "possible", 0.0)
    assert finding.saving.high_us <= 20 * TRANSFER_US and finding.fix.holds_for == ("torch",)
    assert "20 sums that the next op needs" in next(item.why for item in report.clear if item.rule == "small-messages")


def test_small_averages_are_merged_for_no_more_than_they_take():
    finding = next(f for f in of_small_sums(trains=True).findings if f.rule == "small-messages")
    assert finding.fix.holds_for == ("training", "torch") and 0 < finding.saving.high_us <= 20 * TRANSFER_US
