"""Every call that waits, by line, with what stands in for it."""

from html import unescape

import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.errors import UsageError
from advisor.recordings.recording import Recording
from advisor.report.model import Report
from advisor.reports.report import html, markdown, text
from advisor.views.replay.wait_table import WaitTable
from tests.build import Trace


def waiting(frames=True):
    """Four steps, each with two reads of bincount on one line, one of an unknown op on another and a wait for the device."""
    trace = Trace()
    for step in range(4):
        at = 1000 * step
        trace.step(at, 999, step + 1).op("aten::mm", at, 20).launch(at + 10, at + 16, at + 40, dur=4)
        for line, start, op in ((7, 100, "aten::bincount"), (7, 200, "aten::bincount"), (9, 300, "my::routing")):
            if frames:
                trace.python(f"train.py({line}): step", at + start - 5, 60)
            trace.op(op, at + start, 50).op("aten::item", at + start + 1, 48).copy(at + start + 5, 3, at + start + 9, at + start + 10, "Pinned", 8, kind="DtoH")
            trace.call("cudaStreamSynchronize", at + start + 9, 20)
        trace.call("cudaDeviceSynchronize", at + 400, 30)
    return trace


def test_a_row_is_of_one_line_and_call_with_how_often_it_waits():
    rows = {row.op: row for row in waiting().get(WaitTable).waits.rows}
    counted = rows["aten::bincount"]
    assert (counted.source.line, counted.waits_a_step, counted.known, counted.module) == (7, 2, True, "") and "scatter_add_" in counted.instead
    assert counted.us == pytest.approx(40, abs=8), "the copy and the synchronisation of one op are one wait"
    assert (rows["my::routing"].call, rows["my::routing"].known) == ("my::routing", False)
    assert (rows["cudaDeviceSynchronize"].call, rows["cudaDeviceSynchronize"].source) == ("cudaDeviceSynchronize", None)


def test_without_frames_a_row_is_of_one_op():
    rows = {row.op: row for row in waiting(frames=False).get(WaitTable).waits.rows}
    assert rows["aten::bincount"].source is None and rows["aten::bincount"].call == "bincount"


def test_it_is_in_text_markdown_html_and_json_where_it_is_asked_for():
    timeline, rules = waiting().timeline(), [built_in()["sync-stall"]]
    asked = run(timeline, rules, waits=True)
    for shown in (text.render(asked), markdown.render(asked), html.render(asked)):
        shown = unescape(shown)
        assert "4 waits for the GPU per step" in shown and "train.py:7" in shown and "scatter_add_" in shown
    assert Report.from_json(asked.to_json()).host_waits == asked.host_waits
    plain = run(timeline, rules)
    assert plain.host_waits is None and "waits for the GPU per step" not in text.render(plain) + markdown.render(plain) + html.render(plain)


def test_what_was_not_recorded_is_said():
    trace = Trace()
    for step in range(3):
        trace.step(100 * step, 99, step + 1).gpu(100 * step + 10, 100 * step + 60)
    assert "no calls that launch GPU work were recorded" in run(trace.timeline(), [], waits=True).host_waits.why


def test_a_recording_of_another_kind_lists_none():
    with pytest.raises(UsageError, match="lists no waits"):
        run(Recording("memory", "snapshot.pickle", ()), [], waits=True)
