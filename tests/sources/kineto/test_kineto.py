"""Real traces against the reference reader, and one test for each mistake that would go unnoticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor import analyze
from advisor.errors import TraceError
from advisor.recordings.timeline import Timeline
from advisor.sources import load
from advisor.sources.copies import describe_copy
from advisor.sources.kineto.columns import InexactTimes, Microseconds, integer, integers, nanoseconds
from advisor.sources.kineto.events import Args, Event, parse
from tests.paths import examples, needs_shared, shared_files
from tests.sources.kineto import reference
from tests.sources.kineto.compare import assert_same
from tests.sources.kineto.layouts import EVENTS, compact, events_first, kineto, x
from tests.sources.kineto.test_layouts import read

PUBLIC = shared_files("public/kineto/**/*.json.gz")
CORPUS = [
    path
    for name in ("item_every_microstep.slow", "healthy_gpt_compiled.fixed", "launch_bound_train.slow", "pageable_h2d.slow")
    for path in shared_files(f"corpus/kineto/{name}.json.gz")
]


@needs_shared
@pytest.mark.parametrize("path", [*PUBLIC, *CORPUS], ids=lambda path: path.name[:40])
def test_real_traces_equal_the_reference(path: Path) -> None:
    if path.name.startswith("ibm_aiu"):
        with pytest.raises(TraceError, match="a trace of IBM's AIU"):
            load(path)
        return
    tables, _ = reference.read_path(path)
    timeline = load(path)
    assert_same(timeline, tables)
    assert timeline.source.issues == ()
    if path.stat().st_size < 100_000:
        data = path.read_bytes()
        assert_same(read(data, 1 << 12), tables)


def one(*events: dict[str, Any], **members: Any) -> Timeline:
    """The timeline of a few events after an op at 0."""
    return read(compact([x("cpu_op", "first", 0, 0), *events], members))


def test_engines_of_mtia_are_work_and_its_queues_waits_are_not() -> None:
    said = {"pid": 17, "cat": "mtia_ccp_events"}
    timeline = one(
        {**x("mtia_ccp_events", "event_wait", 5, 15_000, stream=108), **said},
        {**x("mtia_ccp_events", "pe_exe", 20, 7_000, stream=108), **said},
        {**x("mtia_ccp_events", "dma_request", 7_100, 5, stream=105, direction="DEVICE_TO_HOST", size=1024), **said},
        {**x("mtia_runtime", "runFunction - job_prep_and_submit_for_execution", 10, 4, correlation=3)},
    )
    ops = timeline.gpu_ops
    assert ops["name"].tolist() == ["pe_exe", "dma_request"] and ops["kind"].tolist() == ["kernel", "memcpy"]
    assert ops["copy_kind"].tolist() == ["", "DtoH"] and ops["bytes"].tolist()[1] == 1024 and set(ops["device"]) == {17}
    health = {row.check: row.status for row in analyze(timeline).health}
    assert health["runtime"] == "failed", "what its runtime's calls wait for is not known"


# Mistakes that fail in silence (DESIGN.md, "Reading fast")


def test_times_are_exact_to_the_nanosecond() -> None:
    ts, ns = 4346407436942.376, 4346407436942376
    late = 8796093022207.999  # just below 2^43
    times, valid = nanoseconds([ts, late, 0.001, 5, "7.5"])
    assert times.tolist() == [ns, 8796093022207999, 1, 5000, 7500] and valid.all()


@settings(max_examples=examples(300))
@given(st.integers(-(2**43) * 1000 + 1, 2**43 * 1000 - 1))
def test_any_time_below_2_to_the_43_is_exact(ns: int) -> None:
    sign, digits = ("-" if ns < 0 else ""), abs(ns)
    assert nanoseconds([float(f"{sign}{digits // 1000}.{digits % 1000:03d}")])[0].tolist() == [ns]


@settings(max_examples=examples(100))
@given(st.integers(2**43 * 1000, 8 * 10**18), st.lists(st.integers(0, 2**52), min_size=1, max_size=4))
def test_times_above_are_read_as_text(base: int, offsets: list[int]) -> None:
    times = [base + offset for offset in offsets]
    texts = [f"{ns // 1000}.{ns % 1000:03d}" for ns in times]
    text = '{"traceEvents":[' + ",".join(f'{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":{t},"dur":0.001}}' for t in texts) + "]}"
    timeline = read(text, 150)
    assert timeline.base_ns == min(times)
    assert timeline.cpu_ops["start_us"].tolist() == sorted((ns - min(times)) / 1000 for ns in times)
    assert (timeline.cpu_ops["dur_us"] == 0.001).all()


def test_float64_is_refused_where_it_cannot_hold_the_time() -> None:
    with pytest.raises(InexactTimes):
        nanoseconds([float(2**43) + 0.5])
    assert nanoseconds([1695835572943623])[0].tolist() == [1695835572943623000]
    assert nanoseconds([Microseconds("1695835572943623.123")])[0].tolist() == [1695835572943623123]


def test_no_cut_loses_an_event() -> None:
    events = [x("cpu_op", f"op {i}", i) for i in range(2000)]
    for chunk_bytes in (100, 1000, 4096, 10_000):
        timeline = read(kineto(events), chunk_bytes)
        assert timeline.cpu_ops["name"].tolist() == [f"op {i}" for i in range(2000)]


@pytest.mark.parametrize("chunk_bytes", [50, 500, 1 << 20])
def test_objects_after_the_list_are_no_events(chunk_bytes: int) -> None:
    timeline = read(events_first(EVENTS, {"more": [x("kernel", "no event", i) for i in range(50)]}), chunk_bytes)
    assert "no event" not in {*timeline.gpu_ops["name"], *timeline.cpu_ops["name"]}
    assert timeline.source.events == len(EVENTS)


def test_the_list_named_in_a_string_is_not_the_list() -> None:
    timeline = read(compact([x("cpu_op", "real", 1)], {"log": '"traceEvents": [{"ph": "X"}]', "deep": {"traceEvents": [1]}}))
    assert timeline.cpu_ops["name"].tolist() == ["real"]


def test_stream_ids_beyond_16_and_32_bits() -> None:
    timeline = one(*({**x("kernel", "k", 1, pid=0), "args": {"stream": s}} for s in (172722288, 1 << 40)))
    assert timeline.gpu_ops["stream"].tolist() == [172722288, 1 << 40]


def test_nested_values_stay_text() -> None:
    (event,) = parse(b'{"ph": "X", "args": {"Input Dims": [[1, 2]], "grid": [1, 2, 3]}}')
    assert bytes(event.args.dims) == b"[[1, 2]]" and bytes(event.args.grid) == b"[1, 2, 3]"
    assert not event.args.types


def test_kernels_without_a_launch_row_are_kept() -> None:
    assert len(one({**x("kernel", "k", 1, pid=0), "args": {"correlation": 99}}).gpu_ops) == 1


def test_the_recorded_parent_id_is_kept() -> None:
    calls = one(x("python_function", "f", 1, Python_id=5, Python_parent_id=4)).python_calls
    assert [calls[name][0] for name in ("python_id", "parent_id", "module_id")] == [5, 4, -1]


def test_only_the_category_makes_gpu_work() -> None:
    timeline = one({**x("cpu_op", "triton_poi", 1), "args": {"stream": 7, "device": 0, "grid": "grid(100,)"}})
    assert not len(timeline.gpu_ops) and len(timeline.cpu_ops) == 2


def test_overlapping_work_is_kept() -> None:
    kernels = [{**x("kernel", "k", 1 + i, 50, pid=0, tid=7), "args": {"stream": 7}} for i in range(5)]
    assert len(one(*kernels).gpu_ops) == 5


# Values


def test_numbers_of_other_types() -> None:
    assert integers([1, "2", 3.0, None, "stream 7", "x", [1], True]).tolist() == [1, 2, 3, -1, 7, -1, -1, 1]
    assert integer(10159970886766084423) == 10159970886766084423 - 2**64
    assert integer(10**30) == -1 and integer(float("nan")) == -1 and integer(-(2**63)) == -(2**63)
    timeline = one(
        {**x("kernel", "k", 1, pid=2, tid="stream 9"), "args": {"correlation": "12", "Comms Id": 10**25, "bytes": 2**63}},
        {**x("kernel", "k", 2, pid="GPU 1", tid=3), "args": {"registers per thread": 2**40, "grid": "?", "block": [2, 3]}},
        x("cpu_op", "o", 3, pid="77", tid="78"),
    )
    assert timeline.gpu_ops["device"].tolist() == [2, 0] and timeline.gpu_ops["stream"].tolist() == [9, 3]
    assert timeline.gpu_ops["correlation"].tolist() == [12, -1] and timeline.gpu_ops["bytes"].tolist() == [-(2**63), -1]
    assert timeline.gpu_ops["registers"].tolist() == [-1, -1] and timeline.gpu_ops["block_threads"].tolist() == [-1, 6]
    assert [timeline.cpu_ops[name][1] for name in ("pid", "tid")] == [77, 78]


def test_types_nobody_expects_cost_only_their_value() -> None:
    timeline = one(
        {**x("cpu_op", "o", 3), "name": 5, "args": {"External id": [1], "Sequence number": 4, "Call stack": {"a": 1}}},
        {**x("cpu_op", "p", 4), "args": None},
        {**x("cpu_op", "q", 5), "args": ["x"]},
    )
    assert timeline.cpu_ops["name"].tolist() == ["first", "5", "p", "q"]
    assert [timeline.cpu_ops[name][1] for name in ("external_id", "sequence")] == [-1, 4]


def test_impossible_durations_are_zero_and_reported() -> None:
    week = 7 * 86400 * 1e6
    timeline = one(*(x("cpu_op", "o", 1, dur) for dur in (-1, -0.001, week + 1, week, 0)), {**x("cpu_op", "o", 1), "dur": None})
    assert timeline.cpu_ops["dur_us"].tolist() == [0, 0, 0, 0, week, 0, 0]
    (issue,) = timeline.source.issues
    assert issue.check == "durations" and "4 events" in issue.detail


def test_an_event_without_duration_lasts_nothing() -> None:
    event = x("cpu_op", "o", 1)
    del event["dur"]
    assert one(event).cpu_ops["dur_us"].tolist() == [0, 0]


def test_events_without_a_time_are_reported() -> None:
    timeline = one({**x("cpu_op", "o", 1), "ts": None}, {**x("cpu_op", "o", 1), "ts": 1e300}, {**x("cpu_op", "o", 1), "ts": "soon"})
    assert len(timeline.cpu_ops) == 1
    (issue,) = timeline.source.issues
    assert issue.check == "timestamps" and "3 events" in issue.detail


def test_begin_and_end_events_are_joined() -> None:
    base = {"pid": 1, "tid": 2}
    events = [
        {"ph": "B", "cat": "cpu_op", "name": "outer", "ts": 10.001, **base},
        {"ph": "B", "cat": "cpu_op", "name": "inner", "ts": 11.5, **base},
        {"ph": "B", "cat": "cpu_op", "name": "other thread", "ts": 11.6, "pid": 1, "tid": 3},
        {"ph": "E", "ts": 12.25, **base},
        {"ph": "E", "ts": 20.002, **base},
        {"ph": "E", "ts": 21, **base},
    ]
    for chunk_bytes in (60, 1 << 20):
        ops = read(compact([x("cpu_op", "first", 0, 0), *events], {}), chunk_bytes).cpu_ops
        assert ops["name"].tolist() == ["first", "outer", "inner"]
        assert ops["start_us"].tolist() == [0, 10.001, 11.5] and ops["dur_us"].tolist() == [0, 10.001, 0.75]


def test_framework_ranges_of_2021_become_annotations() -> None:
    timeline = one(
        x("Operator", "aten::mm", 3), x("Operator", "ProfilerStep#4", 1, external_id=3), x("user_annotation", "mine", 2),
        x("Operator", "Optimizer.step#SGD.step", 0.5), x("Operator", "Optimizer.own", 9),
    )  # fmt: skip
    assert timeline.annotations["name"].tolist() == ["Optimizer.step#SGD.step", "ProfilerStep#4", "mine"]
    assert timeline.cpu_ops["name"].tolist() == ["first", "aten::mm", "Optimizer.own"]
    assert list(timeline.cpu_ops["name"].categories) == ["first", "aten::mm", "Optimizer.own"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("Memcpy HtoD (Pageable -> Device)",), ("HtoD", "pageable", "device")),
        (("Memcpy DtoH (Device -> Pinned)",), ("DtoH", "device", "pinned")),
        (("Memcpy PtoP (Device -> Device)",), ("PtoP", "device", "device")),
        (("Memcpy DtoH (Device -> Host)", "DtoH"), ("DtoH", "device", "")),
        (("Memcpy DtoD (Managed Static -> Device Static)",), ("DtoD", "managed", "device")),
        (("Memcpy HtoA (Pinned -> Array)",), ("HtoD", "pinned", "array")),
        (("Memcpy", "HtoD", "pinned", "device"), ("HtoD", "pinned", "device")),
        (("CopyHostToDevice",), ("HtoD", "", "")),
        (("CopyDeviceToDevice", ""), ("DtoD", "", "")),
        (("something else",), ("", "", "")),
    ],
)
def test_copies(given: tuple[str, ...], expected: tuple[str, str, str]) -> None:
    assert describe_copy(*given) == expected


def test_cuspy_copies_say_it_in_their_arguments() -> None:
    event = {
        **x("gpu_memcpy", "Memcpy", 1, pid=0),
        "args": {"copy kind": "DtoH", "src kind": "device", "dst kind": "pinned", "stream": 7},
    }
    memset = {**x("gpu_memset", "Memset", 1, pid=0), "args": {"memory kind": 2, "kind": 2, "stream": 7}}
    static = {**x("gpu_memcpy", "Memcpy", 1, pid=0), "args": {"copy kind": "DtoD", "src kind": "device_static", "dst kind": "managed", "stream": 7}}
    unsaid = {**x("gpu_memcpy", "Memcpy", 1, pid=0), "args": {"stream": 7}}
    ops = one(event, memset, static, unsaid).gpu_ops
    assert ops.rows("kind", "copy_kind", "src_kind", "dst_kind") == [
        ("memcpy", "DtoH", "device", "pinned"), ("memset", "", "", ""), ("memcpy", "DtoD", "device", "managed"), ("memcpy", "", "", ""),
    ]  # fmt: skip
    assert ops["name"].tolist() == ["Memcpy DtoH (Device -> Pinned)", "Memset", "Memcpy DtoD (Device Static -> Managed)", "Memcpy"]


def test_an_op_has_one_name_whatever_the_profiler_was_asked_for() -> None:
    names = ["aten::add.Tensor", "aten::add", "aten::add.Scalar", "torch.distributed.ddp.reducer::copy_bucket_to_grad", "my.range::op.out", "Optimizer.own"]
    ops = one(*(x("cpu_op", name, 1 + at) for at, name in enumerate(names))).cpu_ops[1:]
    assert ops["name"].tolist() == ["aten::add"] * 3 + ["torch.distributed.ddp.reducer::copy_bucket_to_grad", "my.range::op", "Optimizer.own"]
    assert ops["overload"].tolist() == ["Tensor", "", "Scalar", "", "out", ""]
    assert list(ops["name"].categories).count("aten::add") == 1


@pytest.mark.parametrize(("args", "stream"), [({"stream": 7}, 7), ({"stream": 7, "original_stream": 23}, 23), ({"stream": 7, "annotated_stream": 9}, 7)])
def test_work_of_a_graph_that_is_drawn_on_another_lane_is_of_the_stream_that_it_ran_on(args: dict[str, Any], stream: int) -> None:
    assert one({**x("kernel", "k", 1, pid=0, tid=7), "args": args}).gpu_ops["stream"].tolist() == [stream]


def test_a_collective_kernel() -> None:
    args = {"Collective name": "allreduce", "dtype": "BFloat16", "Group size": 8, "In msg nelems": 9600, "Out msg nelems": 9601}
    ops = one({**x("kernel", "nccl", 1, pid=3), "args": args}).gpu_ops
    (row,) = (dict(zip(ops, values, strict=True)) for values in ops.rows())
    assert (row["collective"], row["collective_dtype"], row["group_size"]) == ("allreduce", "BFloat16", 8)
    assert (row["in_elements"], row["out_elements"], row["device"]) == (9600, 9601, 3)


def test_every_field_of_the_structs_has_its_own_key() -> None:
    keys = [field for kind in (Args, Event) for field in kind.__struct_encode_fields__]
    assert len(set(Args.__struct_encode_fields__)) == len(Args.__struct_fields__) and "args" in keys


def test_a_trace_of_other_things_says_what_it_holds() -> None:
    text = json.dumps({"traceEvents": [x("mine", "a", 1)] * 3 + [x("cuda_runtime", "b", 1)]})
    with pytest.raises(TraceError, match=r"4 events but no GPU work.*3 mine, 1 api_calls") as error:
        read(text)
    assert "torch.profiler" in error.value.hint and error.value.exit_code == 3
    with pytest.raises(TraceError, match="0 events"):
        read('{"traceEvents": []}')


def test_shapes_written_differently_are_one_category() -> None:
    text = '{"traceEvents": [' + ",".join(
        '{"ph":"X","cat":"cpu_op","name":"o","pid":1,"tid":1,"ts":1,"args":{"Input Dims":' + dims + "}}"
        for dims in ("[[1,2],[]]", "[[1, 2], []]", "[ [ 1,\n2 ], [ ] ]")
    ) + "]}"  # fmt: skip
    assert list(read(text).cpu_ops["dims"].categories) == ["[[1, 2], []]"]


def test_metadata_names_no_host_or_user() -> None:
    members = {"host_name": "secret", "username": "me", "trace_id": "x", "cupti_version": 130001, "hip_runtime_version": 6}
    source = one(**members).source
    assert source.metadata == {"cupti_version": 130001, "hip_runtime_version": 6}
    assert "secret" not in str(msgspec.structs.asdict(source))


def test_ties_keep_the_order_of_the_file() -> None:
    names = [f"k{i}" for i in range(50)]
    events = [{**x(("kernel", "gpu_memset")[i % 2], name, 5 - i // 25, pid=0)} for i, name in enumerate(names)]
    assert one(*events).gpu_ops["name"].tolist() == names[25:] + names[:25]
    assert np.issubdtype(one(*events).gpu_ops["start_us"].dtype, np.float64)


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ({"unprofiled_step_us": [12.5, 13]}, (12.5, 13.0)),
        ({"unprofiled_step_us": []}, ()),
        ({"unprofiled_step_us": [12.5, -1]}, ()),
        ({"unprofiled_step_us": [12.5, True]}, ()),
        ({"unprofiled_step_us": "12"}, ()),
        ({"unprofiled_step_us": [12.5, None]}, ()),
        ([1], ()),
    ],
)
def test_step_times_measured_without_the_profiler_are_read_where_they_are_times(written: Any, read_as: tuple[float, ...]) -> None:
    assert one(advisor_recording=written).source.unprofiled_step_us == read_as


def test_frameworks_that_the_recorder_found_are_read_where_they_are_known() -> None:
    written = {
        "unprofiled_step_us": [],
        "frameworks": {"transformers": "4.57.1", "mine": "1", "timm": "x/../y"},
        "loops": ["transformers.Trainer", "transformers.Other", "timm.Model", 3],
    }
    source = one(advisor_recording=written).source
    assert source.frameworks == {"transformers": "4.57.1"} and source.loops == ("transformers.Trainer",)
    assert one(advisor_recording={"frameworks": ["transformers"]}).source.frameworks == {}
