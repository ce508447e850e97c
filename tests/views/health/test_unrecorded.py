"""Work that was not recorded is no idle time: each kind of it is counted, named and judged for what it is."""

import json

import numpy as np
import pytest

from advisor import load
from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.knowledge.structs import replace
from advisor.recordings.timeline import LeftOut, Timeline
from advisor.report.model import UNKNOWN
from advisor.reports import formats
from advisor.sources import ranks, read
from advisor.views.trace.steps import Steps
from advisor.views.trace.unseen import Unseen
from advisor.views.workspace import Workspace
from tests.build import Trace
from tests.views.health.test_health import answers, detail, loop


def report_of(trace, **source):
    timeline = trace if isinstance(trace, Timeline) else trace.timeline()
    return run(replace(timeline, source=replace(timeline.source, **source)), built_in().values())


def hints(report):
    return {item.record_with for item in (*report.skipped, *report.health) if item.record_with}


def unrecorded(call, inner="", recorder="kineto"):
    """Four steps of five launches each, none of which left an op."""
    trace = Trace(devices=(), recorder=recorder)
    for s in range(4):
        trace.step(1000.0 * s, 990, s + 1)
        for k in range(5):
            at, trace.correlation = 1000.0 * s + 100 * k, trace.correlation + 1
            trace.op("aten::mm", at, 50).call(call, at + 10, 20, trace.correlation)
            if inner:
                trace.call(inner, at + 12, 10, trace.correlation)
    return trace


@pytest.mark.parametrize(
    ("call", "inner", "device"),
    [
        ("cudaLaunchKernel", "", "CUDA"), ("cuLaunchKernelEx", "", "CUDA"), ("hipExtModuleLaunchKernel", "", "CUDA"), ("hipLaunchByPtr", "", "CUDA"),
        ("urEnqueueKernelLaunchWithArgsExp", "zeCommandListAppendLaunchKernelWithArguments", "XPU"), ("piEnqueueKernelLaunch", "", "XPU"),
        ("clEnqueueNDRangeKernel", "", "XPU"), ("aclrtLaunchKernel", "", "NPU"), ("aclnnMatmul", "", "NPU"), ("musaLaunchKernel", "", "PrivateUse1"),
    ],
)  # fmt: skip
def test_launches_without_any_op_are_no_program_of_the_cpu(call, inner, device):
    """A driver's call inside the runtime's is the same launch."""
    report = report_of(unrecorded(call, inner))
    assert (report.headline.bottleneck, report.headline.judged) == (UNKNOWN, "no")
    assert report.headline.summary.startswith("The check for presence of GPU work (`gpu-events`) failed: none of 20 launches left an op in the trace")
    assert "although the program launched 20 pieces of work" in report.headline.judged_why
    ((row),) = report.unseen
    assert (row.kind, row.count, row.us) == ("launch", 20, None) and call in row.what
    assert not report.findings and not report.clear
    others = {"CUDA", "XPU", "NPU"} - {device}
    assert not [hint for hint in hints(report) if any(f"ProfilerActivity.{other}" in hint for other in others)]
    if device != "CUDA":
        assert not [hint for hint in hints(report) if "CUDA" in hint or "nsys" in hint]
    if device in ("XPU", "PrivateUse1"):
        assert [hint for hint in hints(report) if f"ProfilerActivity.{device}" in hint]


def test_what_a_program_without_a_device_does_is_its_own():
    report = report_of(Trace(devices=(), recorder="kineto").op("aten::mm", 0, 50))
    assert report.headline.bottleneck == "cpu-only" and not report.unseen


def test_launches_that_a_graph_captured_ran_nothing():
    trace = Trace().call("cudaStreamBeginCapture", 0, 1).op("aten::mm", 0, 90)
    for k in range(5):
        trace.call("cudaLaunchKernel", 10.0 + 10 * k, 2, k + 1)
    report = report_of(trace.call("cudaStreamEndCapture", 80, 5))
    assert report.headline.bottleneck == UNKNOWN and "5 launches were captured into graphs, which runs nothing" in report.headline.judged_why
    assert not report.unseen, "nothing of it ran unseen"


def replays(recorded=0, untied=False):
    """Six steps, each a kernel and a graph that runs for 400 of 500 µs; of so many graphs the kernels were recorded."""
    trace = Trace()
    for s in range(6):
        at = 500.0 * s
        trace.step(at, 499, s + 1).launch(at + 2, at + 6, at + 9, "index").call("cudaGraphLaunch", at + 10, 8, 100 + s)
        if s < recorded:
            for k in range(4):
                trace.gpu(at + 25 + 100 * k, at + 120 + 100 * k, f"node{k}", correlation=-1 if untied else 100 + s)
        trace.call("cudaStreamSynchronize", at + 20, 410)
    return trace


def test_graphs_without_their_kernels_are_not_waited_for_in_vain():
    report = report_of(replays())
    assert (report.headline.bottleneck, report.headline.judged) == (UNKNOWN, "no")
    assert report.headline.summary.startswith("The check for presence of GPU work (`gpu-events`) failed: 5 of 5 graph launches in the window left no GPU op")
    assert [(row.kind, row.what, row.count) for row in report.unseen] == [("graph-launch", "graph launches without GPU ops (cudaGraphLaunch)", 6)]
    assert not report.findings


@pytest.mark.parametrize(("recorded", "untied", "status"), [(6, False, "ok"), (6, True, "ok"), (3, False, "failed"), (0, False, "failed")])
def test_a_graph_is_seen_by_its_ops_whether_they_name_it_or_not(recorded, untied, status):
    """Three of six: two of the five in the window."""
    assert answers(replays(recorded, untied))["gpu-events"] == status


def steps_that_lost(first, all_of_them=True, steps=7):
    """Steps of ten kernels; the first ones lost theirs, all of them or every second one."""
    trace = Trace()
    for s in range(steps):
        trace.step(1000.0 * s, 990, s + 1)
        for k in range(10):
            at, gone = 1000.0 * s + 90 * k, s < first and (all_of_them or k % 2)
            trace.op("aten::mm", at, 30)
            if gone:
                trace.call("cudaLaunchKernel", at + 5, 5, 10_000 + 10 * s + k)
            else:
                trace.launch(at + 5, at + 12, at + 80, dur=5)
    return trace


@pytest.mark.parametrize("all_of_them", [True, False])
def test_first_steps_that_lost_their_kernels_are_left_out_and_named(all_of_them):
    trace = steps_that_lost(3, all_of_them)
    steps = trace.get(Steps)
    assert (steps.steps, steps.start_us, steps.step_us) == (3, 3012, 1000)
    lost = 30 if all_of_them else 15
    if not all_of_them:
        assert steps.detail.endswith("; the first 3 steps left out: 15 of 30 launches left no GPU op in the trace")
    assert detail(trace, "gpu-events").startswith(f"of 30 launches in the window none lacks its GPU op; outside the window {lost} of 40 have none")
    if all_of_them:
        assert "(3 steps: ProfilerStep#1 to ProfilerStep#3)" in detail(trace, "gpu-events")
    assert answers(trace)["gpu-events"] == "degraded"
    report = report_of(trace)
    assert report.headline.judged == "yes" and not [s for s in report.skipped if "gpu-events" in s.why]


def test_steps_that_lost_kernels_stay_where_nothing_whole_follows():
    assert trace_steps(steps_that_lost(5, all_of_them=False)) == 6 and answers(steps_that_lost(5, all_of_them=False))["gpu-events"] == "failed"
    assert trace_steps(steps_that_lost(0)) == 6


def trace_steps(trace):
    return trace.get(Steps).steps


def waiting(us, seen="", steps=6):
    """Steps of 1,000 µs in which the host waits that long for a device of which nothing is seen meanwhile, or what else is."""
    trace = Trace()
    for s in range(steps):
        at = 1000.0 * s
        trace.step(at, 999, s + 1).launch(at + 5, at + 10, at + 60).call("cudaDeviceSynchronize", at + 70, us)
        if seen == "kernel":
            trace.gpu(at + 70, at + 70 + us, "unlinked", stream=9)
        if seen == "overhead":
            trace.overhead("Buffer Flush", at + 70, us)
    return trace


@pytest.mark.parametrize(
    ("us", "seen", "status"),
    [(250, "", "ok"), (300, "", "ok"), (310, "", "degraded"), (440, "", "degraded"), (460, "", "failed"), (800, "kernel", "ok"), (800, "overhead", "ok")],
)
def test_waits_while_nothing_runs(us, seen, status):
    assert answers(waiting(us, seen))["unseen-work"] == status


@pytest.mark.parametrize(("late", "status"), [(250, "ok"), (300, "ok"), (310, "degraded"), (440, "degraded"), (460, "failed")])
def test_queued_work_that_begins_late_on_an_idle_device(late, status):
    trace, busy = (Trace().launch(100, 110, 120, "before") for _ in range(2))
    for s in range(1, 7):
        at = 1000.0 * s
        trace.step(at, 999, s + 1).launch(at + 5, at + 6 + late, at + 900)
        busy.step(at, 999, s + 1).launch(at + 5, at + 6 + late, at + 900).gpu(at - 90, at + late, "unlinked", stream=9)
    assert answers(trace)["unseen-work"] == status
    assert answers(busy)["unseen-work"] == "ok", "it waits for what runs there"


def test_a_wait_that_has_no_reason_is_the_headline():
    report = report_of(waiting(800))
    assert (report.headline.bottleneck, report.headline.judged) == (UNKNOWN, "no")
    assert report.headline.summary.startswith(
        "The check for unrecorded work (`unseen-work`) failed: 2.75 ms in 5 waits of the host while nothing runs on any device, 55% of the window"
    )


def failing(count, error, call="cudaLaunchKernel"):
    trace = loop(periods=(100,) * 20)
    for k in range(count):
        trace.call(call, 50.0 + 100 * (k % 19), 2)
        trace.rows["api_calls"][-1]["error"] = error
    return trace


def test_calls_that_failed_are_no_lost_launches():
    trace = failing(5, 700)
    assert not trace.get(Unseen).lost.any() and answers(trace)["gpu-events"] == "ok"
    (check,) = (h for h in report_of(trace).health if h.check == "failed-calls")
    assert (
        check.status == "degraded"
        and "5 of 25 launches among them, which ran nothing: 5 of cudaLaunchKernel with CUDA error 700, cudaErrorIllegalAddress" in check.detail
    )
    assert "compute-sanitizer" in check.record_with
    assert answers(failing(60, 209))["failed-calls"] == "failed"
    assert "failed-calls" not in answers(failing(5, 0))
    (memory,) = (h for h in report_of(failing(2, 2, "cudaMalloc")).health if h.check == "failed-calls")
    assert memory.status == "ok" and not memory.touches, "an allocator that frees its cache and asks again"


LEFT = (LeftOut("spans of the process Ascend Hardware", 180, 3240.0), LeftOut("enqueue spans of the process Python", 180, 720.0, of_host=True))


def test_spans_that_nobody_read_may_be_a_devices_work():
    trace = Trace(devices=(), recorder="kineto").op("aten::mm", 0, 50)
    report = report_of(trace, left_out=LEFT, events=400)
    assert (report.headline.bottleneck, report.headline.judged) == (UNKNOWN, "no")
    assert "180 spans of the process Ascend Hardware (3.24 ms)" in report.headline.summary
    assert [(row.kind, row.count, row.us) for row in report.unseen] == [("left-out", 180, 3240.0), ("left-out", 180, 720.0)]
    assert not [hint for hint in hints(report) if "CUDA" in hint] and any("MindStudio" in hint for hint in hints(report))


@pytest.mark.parametrize(("left", "status"), [(LEFT[:1], "degraded"), (LEFT[1:], "ok")])
def test_beside_a_devices_work_only_what_is_not_the_hosts_is_a_weakness(left, status):
    report = report_of(loop(), left_out=left, events=400)
    (check,) = (h for h in report.health if h.check == "unread-spans")
    assert (check.status, check.touches) == (status, ()) and left[0].what in check.detail
    assert report.headline.bottleneck != UNKNOWN


def test_every_format_says_what_no_figure_holds():
    report = report_of(unrecorded("cudaLaunchKernel"))
    for name, made in formats().items():
        if name == "gitlab":
            continue  # a list of findings, and nothing else
        said = made.render(report)
        assert "cudaLaunchKernel" in said and "launches without their GPU op" in said, name
    assert json.loads(formats()["json"].render(report))["unseen"] == [
        {"kind": "launch", "what": "launches without their GPU op (cudaLaunchKernel)", "count": 20, "us": None}
    ]
    text = formats()["text"].render(report)
    assert (
        "Next: a longer recording, some steps after a warm-up, with torch.cuda.synchronize()" in text
        and "because the check for presence of GPU work (`gpu-events`) failed" in text
    )
    assert Workspace(unrecorded("cudaLaunchKernel").timeline()).get(Unseen).told()


def written(tmp_path, *documents):
    path = tmp_path / "trace.json"
    path.write_text("".join(json.dumps(document) for document in documents))
    return path


def document(prefix="", pid=7, gpu=None):
    """Three steps of a kernel each, of the processes that a merge renames. gpu: the prefix of the device's."""
    events, of_gpu = [], prefix if gpu is None else gpu
    for s in range(4):
        at, host, gpu = 1000.0 * s, f"{prefix}{pid}" if prefix else pid, f"{of_gpu}0" if of_gpu else 0
        events += [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{s}", "pid": host, "tid": 1, "ts": at, "dur": 990},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": host, "tid": 1, "ts": at + 5, "dur": 5, "args": {"correlation": s + 1}},
            {
                "ph": "X",
                "cat": "kernel",
                "name": "k",
                "pid": gpu,
                "tid": 7,
                "ts": at + 12,
                "dur": 800,
                "args": {"device": 0, "stream": 7, "correlation": s + 1},
            },
        ]
    return {"schemaVersion": 1, "traceEvents": events}


def test_a_file_that_goes_on_after_its_first_document_says_so(tmp_path):
    report = report_of(load(written(tmp_path, document(), document(pid=8))))
    assert report.window.steps == 3 and report.headline.judged == "partly"
    assert "the file goes on after its first document, with another recording" in report.headline.judged_why
    assert "one-document" not in {check.check for check in report_of(load(written(tmp_path, document()))).health}


@pytest.mark.parametrize(("first", "second", "numbers"), [("[TP00] ", "[TP01] ", [0, 1]), ("rank3_", "rank5_", [3, 5]), ("[TP0-DP1] ", "[TP0-DP0] ", [1, 0])])
def test_ranks_that_a_file_names_are_a_job(tmp_path, first, second, numbers):
    both = document(first)["traceEvents"] + document(second, pid=9)["traceEvents"]
    (part,) = read(written(tmp_path, {"traceEvents": both})).parts
    by_pid = sorted((np.unique(one.timeline.api_calls["pid"]).tolist(), one.named, len(one.timeline.gpu_ops), one.timeline.source.rank) for one in part.traces)
    assert by_pid == [([7], numbers[0], 4, numbers[0]), ([9], numbers[1], 4, numbers[1])]
    alone = load(written(tmp_path, document(first)))
    assert len(alone.gpu_ops) == 4 and not alone.source.issues


def test_ranks_whose_devices_nothing_tells_are_the_headline(tmp_path):
    """Of two processes that were numbered, on devices of one number; or of a rank that is named and one that is not."""
    for first, second in ((document(pid=7), document(pid=9)), (document("[TP00] "), document("[TP01] ", gpu="[TP00] "))):
        report = report_of(load(written(tmp_path, {"traceEvents": first["traceEvents"] + second["traceEvents"]})))
        assert (report.headline.bottleneck, report.headline.judged) == (UNKNOWN, "no")
        assert report.headline.summary.startswith("The check for a single rank per file (`one-rank`) failed: the file is a merge of ") and not report.findings
        assert "directory" in next(check.record_with for check in report.health if check.check == "one-rank")


@pytest.mark.parametrize(("lag_us", "split"), [(40.0, True), (0.5, False)])
def test_numbered_ranks_are_told_apart_by_their_devices(lag_us, split):
    """Two ranks whose calls have the same ids: a device whose work begins before a process calls is not of that process. In step nothing tells."""
    trace = Trace(devices=())
    for late, pid in ((0.0, 7), (lag_us, 9)):
        trace.correlation = 0
        for i in range(40):
            at = 100 * i + late
            trace.launch(at, at + 10, at + 60, "ncclDevKernel_AllReduce" if i % 4 == 3 else "k", pid=pid, device=1 if late else 0)
    parts = ranks.split(trace.timeline())
    assert len(parts) == 1 + split
    if split:
        assert [(np.unique(part.api_calls["pid"]).tolist(), np.unique(part.gpu_ops["device"]).tolist()) for part in parts] == [([7], [0]), ([9], [1])]
