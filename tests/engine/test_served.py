"""What a report says of a server: rows by phase and batch, what holds a step, a sentence in the headline."""

import msgspec
import pytest

from advisor.engine.run import analyze
from advisor.engine.served import served_by
from advisor.knowledge.structs import replace
from advisor.recordings.recording import Recording
from advisor.recordings.served_load import LoadBeside
from advisor.report.model import Report
from advisor.report.serving import Decoding, Serving, ServingLoad
from advisor.reports.report import html, markdown, text
from advisor.views.ranks.job import Job, RankSummaries
from tests.build import Trace
from tests.reports.by_hand import BY_HAND
from tests.views.ranks.build import rank_timeline, summary_of


@pytest.fixture(scope="module")
def report():
    return BY_HAND["served"]()


def test_a_row_is_a_phase_and_batch_with_what_the_marks_say(report):
    prefill, nine, twelve = report.serving.phases
    assert report.serving.engine == "vLLM"
    assert (prefill.phase, prefill.requests, prefill.query_tokens, prefill.kv_tokens, prefill.padded_to) == ("prefill", 1, 512, 512, None)
    assert [(row.requests, row.kv_tokens, row.padded_to, row.graph_launches, row.eager_launches) for row in (nine, twelve)] == [
        (9, 900, 16, 1, 0), (12, 1200, 16, 1, 0),
    ]  # fmt: skip
    assert (nine.graph_coverage, prefill.graph_coverage) == (1, 0)
    assert nine.tokens_per_s == pytest.approx(9e6 / nine.step_us)


def test_parts_of_a_step_sum_to_it(report):
    for row in report.serving.phases:
        assert sum(getattr(row.parts, name) for name in row.parts.__struct_fields__) == pytest.approx(1)
    nine = report.serving.phases[1].parts
    # Of 364 µs in the mean four norms, four attentions and eight products of 19 each.
    assert (nine.other, nine.attention, nine.products) == pytest.approx((76 / 364, 76 / 364, 152 / 364))


def test_what_bounds_decode_and_what_it_can_have_read_at_most(report):
    prefill, nine, _ = report.serving.phases
    mean_us, peak = 364.0, 4800e9  # the H200's memory
    assert nine.bound_by == "weights" and prefill.bound_by != "kv-cache"
    assert nine.weight_bytes_most == pytest.approx(152e-6 * peak, rel=1e-6)
    assert nine.kv_bytes_most == pytest.approx(76e-6 * peak / 900, rel=1e-6)
    assert nine.parts.products * mean_us == pytest.approx(152)
    assert "at most 730 MB of weights. Attention can have read 405 kB per cached token" in " ".join(text.render(report).split())


@pytest.mark.parametrize(
    ("kernel", "rows", "bound"), [("nvjet_tst", 8, "weights"), ("nvjet_tst", 8000, "compute"), ("flash_fwd_splitkv_kernel", 8, "kv-cache")]
)
def test_gemms_on_few_rows_read_weights_and_on_many_compute(kernel, rows, bound):
    trace = Trace()
    for step in range(4):
        at = 100.0 * step
        trace.note(f"step[DECODE bs={rows}]", at, 50).launch(at + 1, at + 10, at + 100, f"{kernel}_bf16")
    assert analyze(trace.timeline()).report.serving.phases[0].bound_by == bound


def test_the_headline_begins_with_what_the_server_does(report):
    assert report.headline.summary.startswith("vLLM decodes 12 requests per step, ") or "9 to 12 requests" in report.headline.summary
    assert "100% of the GPU's time in CUDA graphs" in report.headline.summary


@pytest.mark.parametrize("form", [text, markdown, html])
def test_every_format_for_people_has_the_table(report, form):
    made = form.render(report)
    assert "by phase and batch" in made and "prefill" in made and "1,200" in made


def test_what_is_saved_is_read_again(report):
    assert Report.from_json(report.to_json()).serving == report.serving
    assert len(report.tables()["serving"]) == 3


def test_a_program_that_serves_nothing_has_no_table():
    report = BY_HAND["eager"]()
    assert report.serving is None and "by phase and batch" not in text.render(report) + markdown.render(report) + html.render(report)


def test_communication_counts_where_nothing_computes_beside_it():
    from advisor.views.time.served_time import ServedTime

    trace = Trace()
    for step in range(3):
        at = 100.0 * step
        trace.note("step[DECODE bs=1]", at, 50).launch(at + 1, at + 10, at + 50, "nvjet_tst_64x8")
        trace.launch(at + 2, at + 40, at + 70, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", stream=8)
    (shares,) = trace.get(ServedTime).shares
    products, _, communication, _, idle = shares
    whole = 100 + 100 + 60
    assert (products, communication, idle) == pytest.approx((120 / whole, 60 / whole, 80 / whole))


def job_of_server(labels):
    """Ranks of a server whose steps decode 8 requests each, by their traces' names."""
    served = Serving("vLLM", "", (), decoding=Decoding(requests=8, first=8, last=8, step_us=4000.0))
    made = [summary_of(rank_timeline(rank, own, WORK)) for rank, own in enumerate(WORK)]
    ranks = [replace(one, facts=msgspec.structs.replace(one.facts, label=label, serving=served)) for one, label in zip(made, labels, strict=True)]
    return Job.build(RankSummaries(tuple(ranks)))


WORK = [[[50.0]] * 3, [[60.0]] * 3]
MEASURED = LoadBeside(ServingLoad(source="Prometheus", running=16.0), "0.33.0")


@pytest.mark.parametrize(
    ("labels", "replicas", "steady"),
    [
        (("dp0_pp0_tp0_ep0_rank0.1.pt.trace.json", "dp1_pp0_tp0_ep1_rank1.1.pt.trace.json"), 2, "yes"),
        (("7-TP-0-DP-0-EP-0.trace.json.gz", "7-TP-0-DP-1-EP-1.trace.json.gz"), 2, "yes"),
        (("dp0_pp0_tp0_rank0.1.pt.trace.json", "dp0_pp0_tp1_rank1.1.pt.trace.json"), 1, "no"),
        (("rank0.json", "rank1.json"), 1, "no"),
    ],
)
def test_what_a_job_was_measured_of_is_what_all_copies_of_its_model_decode(labels, replicas, steady):
    served = served_by(job_of_server(labels), MEASURED)
    assert (served.rank, served.replicas, served.version, served.load.steady) == (0, replicas, "0.33.0", steady)


def test_a_job_of_no_server_has_no_served_steps():
    assert served_by(Job.build(RankSummaries(tuple(summary_of(rank_timeline(r, own, WORK)) for r, own in enumerate(WORK)))), MEASURED) is None


def test_the_report_of_a_servers_ranks_has_the_table_and_what_was_measured():
    job = job_of_server(("rank0.json", "rank1.json"))
    report = analyze(Recording("job", "job", (RankSummaries(job.ranks), MEASURED))).report
    assert report.serving.load.steady == "no" and "serving-load" in {check.check for check in report.health}
    assert "Measured by Prometheus: 16 requests running" in text.render(report)
