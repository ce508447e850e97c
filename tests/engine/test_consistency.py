"""What a report says holds together: every golden report does, and each way of breaking one is noticed."""

import json
from html import escape

import msgspec
import pytest

from advisor.engine.checklist import ORDER, checklist
from advisor.engine.consistency import consistent, contradictions
from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.report.finding import Clear
from advisor.report.recording import Health, Prediction
from advisor.report.step import Part, PathPart
from advisor.reports.report import html
from tests.analysed import analysed
from tests.paths import ROOT
from tests.rules.test_rules import queued, repeat, small_kernels

replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def launch_bound():
    return run(repeat(100, small_kernels).timeline(), built_in().values())


@pytest.fixture(scope="module")
def spinning():
    def body(trace, host, gpu):
        trace.launch(host + 1, gpu, gpu + 300, "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_NNN")
        trace.launch(host + 2, gpu + 300, gpu + 1000, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")

    return run(queued(body, gpu=1000).timeline(), built_in().values())


def head(report, **fields):
    return replace(report, headline=replace(report.headline, **fields))


def test_whole_reports_hold_together(launch_bound, spinning):
    assert contradictions(launch_bound) == contradictions(spinning) == ()
    assert consistent(launch_bound) is launch_bound


@pytest.mark.parametrize("path", sorted((ROOT / "samples").glob("*/slow.*")), ids=lambda p: p.parent.name)
def test_no_sample_contradicts_itself(path):
    report = analysed(path)
    assert contradictions(report) == ()
    assert [answer.id for answer in report.checklist] == list(ORDER) and len(set(ORDER)) == 15
    for number, broken in enumerate(broken_anywhere(report)):
        assert contradictions(broken), f"mutation {number} was not noticed"


def broken_anywhere(report):
    """Whatever a report says, these make it contradict itself."""
    finding = replace(report.findings[0], folded_into="", allowed="")
    yield head(report, bottleneck="cpu-only", judged="yes")
    yield head(report, predicted_step_us=Prediction(low=0, expected=3 * report.headline.step_us, high=4 * report.headline.step_us))
    yield replace(head(report, judged="yes"), health=(*report.health, Health(check="replay", status="failed", detail="x")))
    yield replace(report, findings=(replace(finding, severity="medium", status="possible"),))
    yield replace(report, findings=(replace(finding, severity="info"), replace(finding, severity="high", status="found")))
    yield replace(report, findings=(replace(finding, severity="low", folded_into="nobody"),))
    yield replace(
        report,
        findings=(replace(finding, severity="high", status="found"),),
        checklist=tuple(replace(a, good=True) for a in report.checklist),
    )


def test_the_checklist_asks_the_fifteen_questions():
    assert ORDER == (
        "gpu-busy", "gaps", "data-loading", "memory-bound", "tensor-cores", "mixed-precision", "compiled", "fused", "synchronisation",
        "copies", "batch-size", "allocation", "utilisation", "communication", "easy-wins",
    )  # fmt: skip


def test_each_question_is_answered_with_a_figure_and_a_link_in_the_page_and_in_json(launch_bound, spinning):
    for report in (launch_bound, spinning):
        asked = json.loads(report.to_json())["checklist"]
        assert [answer["id"] for answer in asked] == list(ORDER)
        page = html.render(report)
        for answer in report.checklist:
            assert answer.link.startswith("#") and answer.detail and escape(answer.question, quote=False) in page
            assert f'id="{answer.link[1:]}"' in page or answer.answer == "not recorded"
            assert answer.answer == "not recorded" or 0 <= answer.figure <= 1, answer


def test_a_spinning_collective_is_no_work(spinning):
    assert spinning.headline.bottleneck == "communication-bound" and spinning.findings
    busy = next(answer for answer in spinning.checklist if answer.id == "gpu-busy")
    assert (busy.answer, busy.good) == ("no", False) and "exposed communication" in busy.detail


def mutations(good, spinning):
    finding = good.findings[0]
    yield head(good, bottleneck="copy-bound")
    yield head(good, bottleneck="compute-bound")
    yield head(good, bottleneck="cpu-only", judged="no")
    yield head(spinning, bottleneck="memory-bound")
    yield replace(head(spinning, judged="yes"), findings=(), clear=(*spinning.clear, *(Clear(rule=f.rule, why="x") for f in spinning.findings)))
    yield replace(good, checklist=tuple(replace(a, good=True) for a in good.checklist))
    yield replace(spinning, checklist=tuple(replace(a, good=True) if a.id == "gpu-busy" else a for a in spinning.checklist))
    yield replace(good, findings=(replace(finding, severity="low"), finding))
    yield replace(good, findings=(finding, replace(finding, severity="low", folded_into="nobody")))
    yield replace(good, findings=(replace(finding, confidence=0.2), replace(finding, severity="low", folded_into=finding.rule, rule="x")))
    yield replace(good, findings=(replace(finding, status="possible"),))
    yield replace(good, findings=(replace(finding, saving=replace(finding.saving, per="request")),))
    yield head(good, predicted_step_us=Prediction(low=0, expected=-5.0, high=1))
    yield head(good, predicted_step_us=Prediction(low=0, expected=2 * good.headline.step_us, high=1))
    yield replace(good, health=(*good.health, Health(check="replay", status="failed", detail="x")))
    yield replace(spinning, headline=replace(spinning.headline, bottleneck="gpu-bound"))
    yield head(good, predicted_step_us=Prediction(low=0, expected=0.0, high=1))
    device = (PathPart(link="kernel", total_us=96.0, share=0.96, count=1), PathPart(link="host", total_us=4.0, share=0.04, count=1))
    yield replace(good, critical_path=device)
    idle = [replace(t, compute_us=t.compute_us + 0.45 * t.window_us, idle_us=t.idle_us - 0.45 * t.window_us) for t in good.time]
    path = (PathPart(link="dispatch", total_us=96.0, share=0.96, count=1), PathPart(link="kernel", total_us=4.0, share=0.04, count=1))
    yield replace(head(good, bottleneck="compute-bound"), time=tuple(idle), critical_path=path)


def test_each_way_of_breaking_one_is_noticed_and_said(launch_bound, spinning):
    for number, broken in enumerate(mutations(launch_bound, spinning)):
        found = contradictions(broken)
        assert found, f"mutation {number} was not noticed"
        told = consistent(broken)
        assert told.headline.judged in ("partly", "no") and not any(answer.good for answer in told.checklist)
        assert told.health[-1].check == "consistency" and found[0] in told.health[-1].detail


def test_a_job_is_held_together_too(launch_bound):
    parts = (Part(kind="compute", name="compute", us=7.0), Part(kind="idle", name="wait", us=28.0), Part(kind="idle", name="host", us=56.0))
    job = head(replace(launch_bound, kind="job", time=None, breakdown=parts), bottleneck="balanced")
    assert any("balanced" in told for told in contradictions(job)) and contradictions(head(job, bottleneck="host-bound")) == ()
    unsure = replace(job, headline=replace(job.headline, bottleneck="host-bound"), findings=(replace(job.findings[0], status="possible"),))
    assert any("unconfirmed" in told for told in contradictions(unsure))


def test_without_gpu_work_nothing_is_answered(launch_bound):
    bare = replace(launch_bound, devices=(), time=(), kernels=(), clear=(), findings=(), rates=None)
    assert [a.answer for a in checklist(bare) if a.id in ("gpu-busy", "copies", "utilisation", "compiled")] == ["not recorded"] * 4
