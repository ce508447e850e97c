"""What servers write into one directory is read as the ranks that it is of, and stages of one process as one recording."""

import gzip
import json

import pytest

from advisor.engine.run import analyze
from advisor.errors import TraceError
from advisor.knowledge.structs import replace
from advisor.recordings.timeline import Timeline
from advisor.sources import load, read
from advisor.sources.kineto.write import write
from advisor.sources.ranks import JobTraces
from advisor.sources.stages import by_coordinates, by_process, joined, without_wholes
from advisor.views.trace.serving import Serving
from advisor.views.workspace import Workspace
from tests.build import Trace

FRONT_END = {
    "traceEvents": [
        {"ph": "X", "cat": "python_function", "name": f"f.py({n}): step", "pid": 1, "tid": 1, "ts": 10 * n, "dur": 5, "args": {}} for n in range(50)
    ]
}


def stage(mark, steps, kernels, base_ns=0):
    """Steps of 100 us, each of so many kernels of 10 us."""
    trace = Trace()
    for at in range(steps):
        trace.note(mark, 100.0 * at, 80)
        for k in range(kernels):
            trace.op("aten::mm", 100.0 * at + 2 + 4 * k, 3, dims=[[4, 4], [4, 4]])
            trace.launch(100.0 * at + 3 + 4 * k, 100.0 * at + 10 + 12 * k, 100.0 * at + 20 + 12 * k, f"{mark[5:9]}_{k}")
    return replace(trace.timeline(), base_ns=base_ns)


PREFILL, DECODE = stage("step[EXTEND bs=2 toks=512]", 4, 6, 10**18), stage("step[DECODE bs=8]", 6, 3, 10**18 + 5 * 10**9)


def test_stages_of_one_process_stand_on_one_clock_and_keep_their_launches():
    both = joined([DECODE, PREFILL])
    assert len(both.gpu_ops) == len(PREFILL.gpu_ops) + len(DECODE.gpu_ops) and both.base_ns == PREFILL.base_ns
    assert len({*both.gpu_ops["correlation"].tolist()}) == len(both.gpu_ops) and both.gpu_ops["start_us"][-1] > 5e6
    serving = Workspace(both).get(Serving)
    assert [(p.phase, p.requests, len(p.steps), p.eager_launches, p.step_us) for p in serving.phases] == [("prefill", 2, 4, 6, 100), ("decode", 8, 6, 3, 100)]
    assert serving.steps[3].lasts_us < 200, "what nobody recorded between the stages is no part of a step"


def test_stages_whose_clocks_overlap_stand_one_behind_the_other():
    both = joined([replace(PREFILL, base_ns=0), replace(DECODE, base_ns=0)])
    assert [len(p.steps) for p in Workspace(both).get(Serving).phases] == [4, 6]


def test_one_trace_is_that_trace():
    assert joined([PREFILL]) is PREFILL


def test_files_of_a_process_are_told_by_their_names():
    names = [f"d/17.5-TP-{tp}-EP-{tp}-{stage}.trace.json.gz" for tp in (0, 1) for stage in ("EXTEND", "DECODE")]
    assert by_process(names) == [tuple(names[:2]), tuple(names[2:])]
    others = ["d/17-TP-0.trace.json.gz", "d/17-TP-1.trace.json.gz", "d/rank0.json.gz"]
    assert by_process(others) == [(name,) for name in others]


def test_what_is_of_all_ranks_or_of_the_front_end_is_left_out_beside_them_alone():
    merged, front, rank = "merged-17.5.trace.json.gz", "host_9.async_llm.17.pt.trace.json.gz", "17.5-TP-0.trace.json.gz"
    assert without_wholes([merged, front, rank]) == [rank]
    assert without_wholes([merged]) == [merged] and without_wholes([front]) == [front]
    assert without_wholes(["merged-other.trace.json.gz", rank]) == ["merged-other.trace.json.gz", rank]


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["7-TP-0-PP-0", "7-TP-1-PP-0", "7-TP-0-PP-1", "7-TP-1-PP-1"], [0, 1, 2, 3]),
        (["7-TP-0-DP-0-EP-0", "7-TP-1-DP-0-EP-1", "7-TP-2-DP-1-EP-2"], [0, 1, 2]),
        (["7-TP-0-DP-1", "7-TP-0-DP-0"], [1, 0]),
        (["7-TP-0", "other"], [None, None]),
        (["7-TP-0", "8-TP-0"], [None, None]),
    ],
)  # fmt: skip
def test_ranks_by_their_place_in_parallelism(names, ranks):
    assert by_coordinates([f"{name}.trace.json.gz" for name in names]) == ranks


def saved(path, timeline):
    path.write_bytes(gzip.compress(write(timeline)))


def test_a_directory_of_stages_is_one_recording_or_a_job_of_them(tmp_path):
    one, job = tmp_path / "one", tmp_path / "job"
    for folder, ranks in ((one, (0,)), (job, (0, 1))):
        folder.mkdir()
        for rank in ranks:
            for name, timeline in (("EXTEND", PREFILL), ("DECODE", DECODE)):
                saved(folder / f"17-TP-{rank}-{name}.trace.json.gz", replace(timeline, source=replace(timeline.source, rank=rank if len(ranks) > 1 else None)))
    report = analyze(one)
    assert {phase.phase for phase in report.serving.phases} == {"prefill", "decode"}
    assert "one a stage" in next(h.detail for h in report.health if h.check == "latest-recording")
    traces = next(part for part in read(job).parts if isinstance(part, JobTraces)).traces
    assert [(len(trace.stages), trace.named) for trace in traces] == [(1, 0), (1, 1)]


def test_the_front_end_is_named_with_what_lies_beside_it(tmp_path):
    front = tmp_path / "host_9.async_llm.1773709742341.pt.trace.json"
    front.write_text(json.dumps(FRONT_END))
    with pytest.raises(TraceError) as alone:
        load(front)
    assert "lies beside it" not in alone.value.hint
    saved(tmp_path / "dp0_pp0_tp0_dcp0_ep0_rank0.1773709742342.pt.trace.json.gz", DECODE)
    with pytest.raises(TraceError) as told:
        load(front)
    assert "dp0_pp0_tp0_dcp0_ep0_rank0.1773709742342.pt.trace.json.gz" in told.value.hint
    (timeline,) = (part for part in read(tmp_path).parts if isinstance(part, Timeline))
    assert any("front end" in issue.detail for issue in timeline.source.issues)
