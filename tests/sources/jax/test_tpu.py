"""Profiles of TPUs: two cores built by hand, their time by class worked out by hand, and every format of their report."""

import gzip
import json
import math

import pytest

import advisor
from advisor import reports
from advisor.errors import TraceError
from advisor.recordings.tpu import TpuOp
from advisor.report.model import Report
from advisor.sources.jax.planes import agreeing
from advisor.sources.redact import redact
from advisor.views.tpu.core_time import class_of
from tests.sources.jax.test_jax import PlaneOf, run_in
from tests.sources.test_redact import report_of, same_but_for_names


def core(number, *, steps=True):
    """Two steps of 100 µs. In each the program runs for 90: a loop of 60 with a fusion of 40 and an all-reduce of 15 in it, then a
    wait of 10 for a copy and an infeed of 5; before them the core waits 5 for others."""
    made = PlaneOf(f"/device:TPU:{number}").is_a(device_type_string="TPU v9", peak_teraflops_per_second=100, peak_hbm_bw_gigabytes_per_second=1000)
    marks, programs, ops, waits, beside = [], [], [], [], []
    for at in (0, 100_000):
        marks.append((str(at), at, 100_000, {}))
        programs.append(("jit_step(77)", at, 90_000, {}))
        waits += [("barrier-cores", at, 5_000, {}), ("dependency-wait", at + 80_000, 10, {})]
        ops += [("%while.1 = (f32[8]) while(%t), body=%b", at + 5_000, 60_000, {}), ("%fusion.2 = f32[8] fusion(%p), kind=kLoop", at + 5_000, 40_000, {})]
        ops += [("%all-reduce.3 = f32[8] all-reduce(%p)", at + 45_000, 15_000, {}), ("%copy-done.4 = f32[8] copy-done(%c)", at + 65_000, 10_000, {})]
        ops += [("%infeed.5 = f32[8] infeed(%t)", at + 75_000, 5_000, {})]
        beside += [("%copy-start.4 = f32[8] copy-start(%p)", at + 10_000, 65_000, {})]
    if steps:
        made.line(1, "Steps", 0, *marks)
    made.line(2, "XLA Modules", 0, *programs, ("jit_step(77)", 200_000, 90_000, {})).line(3, "XLA Ops", 0, *ops)
    made.line(4, "XLA TraceMe", 0, *waits).line(5, "Async XLA Ops", 0, *beside)
    made.says("%while.1 = (f32[8]) while(%t), body=%b", hlo_category="while", flops=10**12)
    made.says(
        "%fusion.2 = f32[8] fusion(%p), kind=kLoop", hlo_category="loop fusion", flops=4, model_flops=10**9, bytes_accessed=20_000_000, tf_op="jit(step)/mul:"
    )
    made.says("%all-reduce.3 = f32[8] all-reduce(%p)", hlo_category="all-reduce", model_flops=0, bytes_accessed=10)
    made.says("%copy-done.4 = f32[8] copy-done(%c)", hlo_category="copy-done").says("%infeed.5 = f32[8] infeed(%t)", hlo_category="infeed")
    return made.says("%copy-start.4 = f32[8] copy-start(%p)", hlo_category="copy-start")


def analyzed(tmp_path, *planes):
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(b"".join(plane.bytes() for plane in planes))
    return advisor.analyze(path)


def test_each_moment_of_a_core_counts_once(tmp_path):
    report = analyzed(tmp_path, core(0), core(1))
    assert report.kind == "tpu" and [(d.id, d.name) for d in report.devices] == [(0, "TPU v9"), (1, "TPU v9")]
    assert (report.window.steps, report.window.step_us, report.window.basis) == (2, 100.0, "profiler-step")
    for time in report.time:
        # 40 of the fusion and 5 of the loop's own; 15 of the all-reduce and 5 for others; 10 and 5; 10 within the program; 10 outside.
        assert [t / 2 for t in (time.compute_us, time.exposed_comm_us, time.exposed_copy_us)] == pytest.approx([45, 20, 15])
        assert [t / 2 for t in (time.idle.dependency, time.idle.unknown, time.idle_us)] == pytest.approx([10, 10, 20])


def test_ops_by_category(tmp_path):
    report = analyzed(tmp_path, core(0), core(1))
    rows = {row.name: row for row in report.categories}
    assert {name: row.us for name, row in rows.items()} == pytest.approx(
        {"loop fusion": 40, "all-reduce": 15, "copy-done": 10, "while": 5, "infeed": 5, "waiting for other cores": 5}
    )
    assert {name: row.kind for name, row in rows.items() if row.kind != "compute"} == {
        "all-reduce": "communication", "waiting for other cores": "communication", "copy-done": "copy", "infeed": "copy",
    }  # fmt: skip
    fusion = rows["loop fusion"]
    # A GFLOP and 20 MB in 40 µs; of the loop, which says what its ops say, nothing.
    assert (fusion.calls, fusion.tflops, fusion.gbps, fusion.share) == pytest.approx((1, 25, 500, 0.4)) and rows["while"].tflops == 0
    assert report.rates.flops_step == pytest.approx(1e9 / (100e-6 * 100e12)) and report.rates.known == pytest.approx(40 / 45)
    assert next(row for row in report.kernels if row.name == "fusion.2").op == "jit(step)/mul"
    assert sum(part.us for part in report.breakdown) == pytest.approx(100)


def test_asynchronous_ops_stand_beside(tmp_path):
    # No run of a copy's start was recorded among the ops, so that its category has no time: it is not made up.
    assert all(row.name != "copy-start" for row in analyzed(tmp_path, core(0)).categories)
    made = PlaneOf("/device:TPU:0").line(1, "XLA Modules", 0, ("jit_f(1)", 0, 100_000, {}))
    made.line(2, "XLA Ops", 0, ("copy-start.4", 0, 1_000, {}), ("fusion.1", 1_000, 50_000, {})).line(3, "Async XLA Ops", 0, ("copy-start.4", 0, 40_000, {}))
    report = analyzed(tmp_path, made)
    assert {row.name: (row.us, row.beside_us) for row in report.categories} == {"fusion": (50.0, 0.0), "copy-start": (1.0, 40.0)}


def test_without_marks_the_program_that_repeats_is_the_step(tmp_path):
    window = analyzed(tmp_path, core(0, steps=False)).window
    assert (window.basis, window.steps, window.step_us, window.detail) == ("detected", 2, 100.0, "from each run of jit_step to the next")


def test_where_nothing_repeats_the_whole_is_one(tmp_path):
    report = analyzed(tmp_path, PlaneOf("/device:TPU:0").line(1, "XLA Ops", 0, ("fusion.1", 0, 30_000, {}), ("dot.2", 40_000, 10_000, {})))
    assert (report.window.basis, report.window.step_us, report.time[0].compute_us) == ("whole", 50.0, 40.0)
    assert {check.check: check.status for check in report.health}["steps"] == "degraded"


def test_advice_abstains_and_says_why(tmp_path):
    report = analyzed(tmp_path, core(0))
    assert (report.headline.judged, report.findings, report.clear) == ("no", (), ())
    assert {"launch-gap", "precision", "recompilation"} <= {item.rule for item in report.skipped} and "memory-churn" not in {i.rule for i in report.skipped}
    assert {item.why for item in report.skipped} == {"advice is for GPUs, and this is the profile of a TPU"}


@pytest.mark.parametrize("name", sorted(reports.formats()))
def test_every_format_shows_it(tmp_path, name):
    report = analyzed(tmp_path, core(0), core(1))
    shown = reports.formats()[name].render(report)
    if name in ("text", "markdown", "html"):
        assert "TPU" in shown and "all-reduce" in shown and "infeed" in shown and "GPU 0" not in shown


def test_it_is_saved_and_compared(tmp_path):
    from advisor.compare import compare

    report = analyzed(tmp_path, core(0))
    assert Report.from_json(report.to_json()) == report.report
    assert compare([report], [report]).verdict == "unchanged"


def test_what_two_programs_say_differently_of_one_name_is_not_known():
    said, other = {"hlo_category": "loop fusion", "model_flops": 5}, {"hlo_category": "loop fusion", "model_flops": 7}
    assert agreeing(said, other) == {"hlo_category": "loop fusion"} and agreeing({}, said) == said


def test_other_units_are_said_to_be_left_out(tmp_path):
    other = PlaneOf("/device:TPU:0 SparseCore 1").line(1, "XLA Ops", 0, ("gather.1", 0, 10_000, {}))
    report = analyzed(tmp_path, core(0), other)
    assert [d.id for d in report.devices] == [0]
    assert next(check for check in report.health if check.check == "tpu-units").status == "degraded"


def test_the_chrome_trace_says_as_much_but_for_the_device(tmp_path):
    head = [{"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "/device:TPU:0"}}]
    head += [{"ph": "M", "pid": 3, "tid": tid, "name": "thread_name", "args": {"name": name}} for tid, name in ((2, "XLA Modules"), (3, "XLA Ops"))]
    said = {"hlo_category": "convolution fusion", "long_name": "%fusion.1 = bf16[8] fusion(%p)", "model_flops": "2000000", "bytes_accessed": "8"}
    spans = [
        {"ph": "X", "pid": 3, "tid": 2, "ts": 0, "dur": 20, "name": "jit_f(1)"},
        {"ph": "X", "pid": 3, "tid": 3, "ts": 5, "dur": 10, "name": "fusion.1", "args": said},
    ]
    path = tmp_path / "vm.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"displayTimeUnit": "ns", "traceEvents": head + spans}).encode()))
    report = advisor.analyze(path)
    assert [(row.name, row.us, row.tflops) for row in report.categories] == [("convolution fusion", 10.0, 0.2)] and report.rates is None
    assert next(check for check in report.health if check.check == "poorer-format").record_with


@pytest.mark.parametrize("packed", [True, False])
def test_a_redacted_one_gives_the_same_report(tmp_path, packed):
    plain, clean = tmp_path / "vm.xplane.pb", tmp_path / f"clean.xplane.pb{'.gz' if packed else ''}"
    plain.write_bytes(core(0).bytes() + core(1).bytes())
    redact(plain, clean)
    same_but_for_names(report_of(plain), report_of(clean))


def test_a_job_of_tpus_says_what_to_do(tmp_path):
    folder = run_in(tmp_path, "2026_01_02_00_00_00", "a", "b")
    for host in "ab":
        (folder / f"{host}.xplane.pb").write_bytes(core(0).bytes())
    with pytest.raises(TraceError, match=r"is the profile of a TPU: look at it alone, advisor analyze .*[ab]\.xplane\.pb"):
        advisor.analyze(folder)


def test_which_run_of_a_log_was_read_is_said(tmp_path):
    for day in (1, 2):
        (run_in(tmp_path, f"2026_01_0{day}_00_00_00", "vm") / "vm.xplane.pb").write_bytes(core(0).bytes())
    (told,) = [check for check in advisor.analyze(tmp_path).health if check.check == "latest-recording"]
    assert "the run 2026_01_02_00_00_00 was read, the newest of 2" in told.detail and "--each" in told.record_with


@pytest.mark.parametrize(
    ("name", "category", "expected"),
    [
        ("all-gather-start.1", "all-gather-start", "communication"), ("async-collective-done.2", "async-done", "communication"),
        ("all-gather-done.3", "async-done", "communication"), ("copy-done.1", "copy-done", "copy"), ("send.1", "host send", "copy"),
        ("send-done.1", "send-done", "communication"), ("slice-start.1", "async-start", "copy"), ("copy.5", "copy", "compute"),
        ("bitcast.1", "data formatting", "compute"), ("reduce.1", "reduce", "compute"), ("outfeed", "outfeed", "copy"),
    ],
)  # fmt: skip
def test_what_an_op_is_for(name, category, expected):
    assert class_of(TpuOp(name, category)) == expected


def test_numbers_beyond_reason_are_unknown(tmp_path):
    plane = PlaneOf("/device:TPU:0").line(1, "XLA Ops", 0, ("dot.1", 0, 10_000, {})).says("dot.1", model_flops=2**62, bytes_accessed=-5)
    report = analyzed(tmp_path, plane)
    assert report.work.flops == 0 and math.isfinite(report.categories[0].gbps)
