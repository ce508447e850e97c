"""The charts' data: few enough slices, nothing lost unsaid, and text that cannot end its element."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import msgspec
import numpy as np
import pytest

import advisor
from advisor.engine.analysis import Analysis
from advisor.engine.checklist import checklist as answers_of
from advisor.report.charts import Cut, Lane
from advisor.report.kernels import KernelRow
from advisor.report.model import Report
from advisor.report.roofline import peaks_of, rates, reach, standing
from advisor.report.step import PathPart
from advisor.report.wording import critical_path
from advisor.reports._clean import Limits, clean
from advisor.reports.report import html
from advisor.reports.report._checklist import checklist
from advisor.reports.report._columns import packed, steps
from advisor.reports.report._draw import embedded
from advisor.reports.report._thin import thin
from tests.paths import ROOT
from tests.reports.examples import healthy, hostile, hostile_trace, launch_bound


def cut(number: int, dur_us: float, depth: int = 0) -> Cut:
    """So many slices of one length, end to end, on two lanes by turns; each is launched by the first."""
    rows = np.arange(number)
    lane = np.sort(rows % 2)
    start = np.r_[rows[: (number + 1) // 2], rows[: number // 2]] * dur_us * 2.0
    return Cut(
        0.0, number * dur_us, (Lane("a", "host", 1, 1), Lane("b", "gpu", 0, 7)), lane, np.full(number, depth), start,
        np.full(number, dur_us), np.zeros(number, np.int64), ("k",), rows, np.full(number, -1), tuple(f"n{i}" for i in rows),
        np.where(lane == 1, 0, -1), 0,
    )  # fmt: skip


def test_few_slices_are_left_as_they_are() -> None:
    whole = cut(50, 10.0)
    made = thin(whole, 100, 9)
    assert made.count.tolist() == [1] * 50
    assert sorted(made.longest.tolist()) == list(range(50))


@pytest.mark.parametrize("most", [10, 300, 4_000])
def test_many_slices_are_merged_to_few_and_none_is_lost(most: int) -> None:
    made = thin(cut(60_000, 1.0), most, 9)
    assert len(made.lane) <= most
    if most >= 300:
        assert made.count.sum() == 60_000
    assert (made.end_us >= made.start_us).all()
    assert (made.of < len(made.lane)).all()
    assert made.of[0] >= 0 or most < 300


def test_wide_slices_are_never_merged() -> None:
    whole = cut(10_000, 1.0)
    whole.slice_dur_us[7] = 5_000.0
    made = thin(whole, 1_000, 9)
    assert made.count[made.longest.tolist().index(7)] == 1


def test_what_is_nested_deeper_is_left_out() -> None:
    assert len(thin(cut(10, 1.0, depth=9), 100, 9).lane) == 0


def test_the_data_holds_no_character_that_could_end_it() -> None:
    for analysis in (Analysis(hostile()), hostile_trace()):
        made = embedded(clean(analysis.report, Limits()), analysis.picture, 4_000)
        assert not set(made) & set("<>&\u2028\u2029")
        made.encode()
        json.loads(made)


def columns(packed: dict[str, Any]) -> dict[str, np.ndarray]:
    """What the page's script makes of the packed columns."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(packed["columns"])), np.uint8)
    made = planes.reshape(8, 4, packed["n"]).transpose(0, 2, 1).copy().view("<u4")[:, :, 0].astype(np.int64)
    found = dict(zip(("start", "len", "name", "kind", "op", "by", "count", "blank"), made, strict=True))
    for name in ("start", "by"):
        found[name] = np.cumsum(np.where(found[name] & 1, -((found[name] + 1) // 2), found[name] // 2))
    return found


def test_columns_come_back_as_they_were_and_are_small() -> None:
    values = np.array([0, 5, 3, 2**31, 7])
    packed_ = {"columns": packed((steps(values), *[np.array([0, 255, 256, 65_536, 2**32 - 1])] * 4, steps(values), values, values)), "n": 5}
    found = columns(packed_)
    assert found["start"].tolist() == values.tolist() == found["count"].tolist()
    assert found["name"].tolist() == [0, 255, 256, 65_536, 2**32 - 1]
    regular = packed([np.full(100_000, 3)] * 7)
    assert len(regular) < 20_000


def test_the_timelines_rows_point_into_their_tables() -> None:
    report = advisor.analyze(ROOT / "samples" / "data-loading" / "slow.json.gz")
    assert report.picture is not None and report.picture.whole is not None
    data = json.loads(embedded(report.report, report.picture, 4_000))
    one, found = data["timeline"], columns(data["timeline"])
    assert 0 < one["n"] <= 4_000 and sum(count for *_, count in one["rows"]) == one["n"]
    assert found["name"].max() < len(data["names"]) and found["op"].max() <= len(data["names"])
    assert found["kind"].max() < len(one["kinds"]) and found["by"].max() <= one["n"] and found["by"].min() >= 0
    assert max(lane for lane, *_ in one["rows"]) < len(one["lanes"])
    assert one["rows"] == sorted(one["rows"]) and (found["count"] >= 1).all()
    at = 0
    for *_, count in one["rows"]:
        assert (np.diff(found["start"][at : at + count]) >= 0).all()
        at += count
    assert data["moments"][0]["from"] < data["moments"][0]["to"] <= one["dur"] + 1e-3


def test_what_is_to_stay_whole_is_not_merged() -> None:
    whole = cut(60_000, 1.0)
    made = thin(whole, 4_000, 9, [(1_000.0, 1_500.0)])
    inside = (made.start_us >= 1_000.0) & (made.end_us <= 1_500.0)
    assert (made.count[inside] == 1).all() and inside.sum() == 500 // 2 * 2
    assert len(made.lane) <= 4_000 and made.count.sum() == 60_000


def test_a_page_with_a_picture_keeps_its_limit() -> None:
    made = hostile_trace()
    assert made.picture is not None and len(html.render(made).encode()) < html.LIMIT
    many = msgspec.structs.replace(made.report, findings=made.report.findings * 200, kernels=made.report.kernels * 40)
    assert len(html.render(Analysis(many, made.draw)).encode()) < html.LIMIT


# --- rooflines and the checklist


def row(gbps: float, tflops: float, precision: str = "bf16", us: float = 100.0) -> KernelRow:
    return KernelRow("k", "gemm", precision, 1, us, us, 0.5, gbps=gbps, tflops=tflops)


def on_h200(*rows: KernelRow) -> Report:
    return msgspec.structs.replace(healthy(), kernels=rows)


def test_reach_is_the_larger_share_of_both_roofs() -> None:
    peaks = peaks_of(healthy())
    assert peaks is not None and peaks.memory_gbps and peaks.bf16_tflops
    memory = reach(row(peaks.memory_gbps / 2, 1.0), peaks)
    assert memory and memory.share == pytest.approx(0.5) and memory.memory_side
    compute = reach(row(100.0, peaks.bf16_tflops * 0.8), peaks)
    assert compute and compute.share == pytest.approx(0.8) and not compute.memory_side
    assert reach(row(0.0, 0.0), peaks) is None
    assert reach(row(1.0, 1.0), None) is None


def test_standing_weighs_by_time() -> None:
    peaks = peaks_of(healthy())
    assert peaks is not None and peaks.memory_gbps
    known = standing(on_h200(row(peaks.memory_gbps, 1.0, us=300.0), row(0.0, 0.0, us=100.0)))
    assert known and known.known == pytest.approx(0.75) and known.memory == 1 and known.reached == 1
    assert standing(on_h200(row(0.0, 0.0))) is None


def answered(report: Report) -> Report:
    report = msgspec.structs.replace(report, rates=rates(report))
    return msgspec.structs.replace(report, checklist=answers_of(report))


def test_every_question_is_answered_and_only_good_news_is_praised() -> None:
    for report in (launch_bound(), healthy(), hostile()):
        answers = checklist(answered(report), None)
        assert len({answer.question for answer in answers}) == len(answers) == 15 + 3
        assert all(answer.status == "good" for answer in answers if answer.praise)
    by_question = {answer.question: answer for answer in checklist(answered(launch_bound()), None)}
    assert by_question["Is the GPU busy?"].status == "look"
    assert by_question["Are the steps steady?"].status == "unknown"
    assert by_question["Easy wins left?"].status == "look"
    assert {a.question: a for a in checklist(answered(healthy()), None)}["Easy wins left?"].status == "good"


def test_a_report_that_could_not_be_judged_praises_nothing() -> None:
    report = answered(healthy())
    unjudged = msgspec.structs.replace(report, headline=msgspec.structs.replace(report.headline, judged="partly", judged_why="x"))
    assert [a for a in checklist(report, None) if a.praise] and not [a for a in checklist(unjudged, None) if a.praise]


def test_rates_are_shares_of_the_peaks_over_the_time_in_which_it_works() -> None:
    peaks = peaks_of(healthy())
    assert peaks is not None and peaks.memory_gbps and peaks.bf16_tflops
    found = rates(on_h200(row(peaks.memory_gbps / 2, peaks.bf16_tflops / 4, us=300.0), row(0.0, 0.0, us=100.0)))
    assert found is not None and found.flops_busy == pytest.approx(0.1875) and found.bytes_busy == pytest.approx(0.375)
    assert found.known == 0.75 and found.basis == "estimated" and found.flops_step is not None and found.flops_step <= found.flops_busy


def test_a_path_that_is_the_hosts_beside_another_headline_is_explained():
    replace = msgspec.structs.replace
    report = replace(healthy(), critical_path=(PathPart(link="host", total_us=90.0, share=0.9, count=1),))
    for name, told in (("communication-bound", "only traces of all ranks"), ("memory-bound", "either may be the bound"), ("launch-bound", "")):
        said = critical_path(replace(report, headline=replace(report.headline, bottleneck=name)))
        assert said.startswith("Critical path") and (told in said if told else said.endswith("90%."))
    # Twice as long recorded, all of the rest the recorder's doing: unrecorded the device works as much as before.
    (time,), window = report.time or (), report.traced
    idle = replace(time.idle, profiler=time.window_us)
    slow = replace(time, window_us=2 * time.window_us, idle_us=time.idle_us + time.window_us, idle=idle)
    window = replace(window, recording_us=time.window_us / window.steps)
    recorded = replace(report, time=(slow,), window=window, headline=replace(report.headline, bottleneck="memory-bound"))
    assert "either may be the bound" in critical_path(recorded)
