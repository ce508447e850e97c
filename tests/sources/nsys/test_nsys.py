"""nsys exports: every schema by asking the file, hostile ones, and real ones."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from advisor import analyze, load
from advisor.errors import TraceError
from advisor.sources import nsys
from tests.paths import ROOT, SHARED, needs_shared, slow

PID, VM = 77, 1 << 48
KERNEL = (
    "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, "
    "demangledName INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER"
)
RUNTIME = "start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER"
MEMCPY = (
    "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, "
    "copyKind INTEGER, srcKind INTEGER, dstKind INTEGER"
)


def process(pid=PID):
    return VM | pid << 24


def export(path, *statements):
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(1, "gemm"), (2, "cudaLaunchKernel_v7000"), (3, "cudaMemcpyAsync_v3020")])
    db.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({KERNEL})")
    db.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME ({RUNTIME})")
    for statement, *rows in statements:
        db.executemany(statement, rows) if rows else db.execute(statement)
    db.commit()
    db.close()
    return path


def kernel(start, end, correlation, device=0, stream=7, pid=PID):
    values = (start, end, device, 1, stream, correlation, process(pid), 1, 1, 4, 2, 1, 128, 1, 1)
    return "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", values


def call(start, end, correlation, name=2, pid=PID):
    return "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,?,?,?)", (start, end, process(pid) | 5, correlation, name)


def test_kernels_and_calls(tmp_path):
    timeline = load(export(tmp_path / "a.sqlite", call(1000, 5000, 9), kernel(7500, 9501, 9)))
    op, api = (dict(zip(rows, rows.rows()[0], strict=True)) for rows in (timeline.gpu_ops, timeline.api_calls))
    assert (op["name"], op["start_us"], op["dur_us"], op["grid_blocks"], op["block_threads"]) == ("gemm", 6.5, 2.001, 8, 128)
    assert (api["name"], api["start_us"], api["dur_us"], api["pid"], api["tid"]) == ("cudaLaunchKernel", 0, 4, PID, 5)
    assert op["correlation"] == api["correlation"] and timeline.source.format == "nsys"


@pytest.mark.parametrize("enum", [True, False], ids=["the file's enum", "no enum"])
def test_memory_kinds_are_nsys_own_not_cuptis(tmp_path, enum):
    copies = [(10, 20, 0, 7, 1, process(), 64, 1, 0, 2), (30, 40, 0, 7, 2, process(), 64, 1, 1, 2), (50, 60, 0, 7, 3, process(), 64, 2, 2, 1)]
    tables = [(f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({MEMCPY})",), ("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,?,?,?,?,?,?,?,?)", *copies)]
    if enum:
        tables += [("CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER, name TEXT, label TEXT)",)]
        kinds = [(0, "A", "Pageable"), (1, "B", "Pinned"), (2, "C", "Device")]
        tables += [("INSERT INTO ENUM_CUDA_MEM_KIND VALUES (?,?,?)", *kinds)]
    ops = load(export(tmp_path / "a.sqlite", *tables)).gpu_ops
    assert ops["src_kind"].tolist() == ["pageable", "pinned", "device"] and ops["dst_kind"].tolist() == ["device", "device", "pinned"]
    assert ops["copy_kind"].tolist() == ["HtoD", "HtoD", "DtoH"] and ops["name"][0] == "Memcpy HtoD (Pageable -> Device)"


def test_rows_of_the_runtime_and_the_driver_under_one_correlation_are_one_launch(tmp_path):
    # cudaLaunchKernel, what it is compiled to, and the driver's call inside: one launch, from the first start to the last end.
    names = ("INSERT INTO StringIds VALUES (?, ?)", (4, "cudaLaunchKernel"), (5, "cuLaunchKernel"))
    rows = [s for i in range(1, 9) for at in [i * 100_000] for s in (
        call(at, at + 2000, i, 4), call(at + 500, at + 4000, i, 2), call(at + 600, at + 1500, i, 5), kernel(at + 9000, at + 20_000, i)
    )]  # fmt: skip
    timeline = load(export(tmp_path / "a.sqlite", names, *rows))
    assert timeline.api_calls["name"].tolist() == ["cudaLaunchKernel"] * 8 and set(timeline.api_calls["dur_us"]) == {4.0}
    health = {h.check: h for h in analyze(timeline).health}
    assert health["gpu-events"].status == "ok" and "none lacks its GPU op" in health["gpu-events"].detail
    assert health["launch-links"].status == "ok"


def test_pages_of_managed_memory_migrate_and_are_no_copies(tmp_path):
    moves = [(10 * i, 10 * i + 5, 0, 7, -1, process(), 4096, kind, 7, 7) for i, kind in enumerate((11, 12))]
    tables = [(f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({MEMCPY})",), ("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,?,?,?,?,?,?,?,?)", *moves)]
    ops = load(export(tmp_path / "a.sqlite", *tables)).gpu_ops
    assert ops["copy_kind"].tolist() == ["migration HtoD", "migration DtoH"]


def test_a_log_that_cannot_be_read_is_named(tmp_path):
    path = export(tmp_path / "a.sqlite", *(kernel(i * 10_000, i * 10_000 + 5000, i) for i in range(9)))
    assert not load(path).source.issues
    (tmp_path / "a.sqlite-wal").write_bytes(b"pages")
    (issue,) = load(path).source.issues
    assert issue.check == "complete-file" and "a.sqlite-wal" in issue.detail and "wal_checkpoint" in issue.detail


def left_open(folder):
    """An export of 9 kernels of which 4 stand in the log alone, as the process that wrote it left them."""
    path = export(folder / "open.sqlite", *(kernel(i * 10_000, i * 10_000 + 5000, i) for i in range(5)))
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript("PRAGMA wal_autocheckpoint = 0")
        for i in range(5, 9):
            db.execute(*kernel(i * 10_000, i * 10_000 + 5000, i))
        db.commit()
        for name in ("a.sqlite", "a.sqlite-wal"):
            (folder / name).write_bytes((folder / name.replace("a.", "open.", 1)).read_bytes())
    return folder / "a.sqlite"


def test_a_log_of_committed_rows_is_read_and_nothing_is_written_beside_it(tmp_path):
    path = left_open(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.glob("a.*")}
    timeline = load(path)
    assert len(timeline.gpu_ops) == 9 and not timeline.source.issues and timeline.source.path == str(path)
    assert {file.name: file.read_bytes() for file in tmp_path.glob("a.*")} == before


def test_a_log_too_large_to_copy_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("advisor.sources.nsys.log.LARGEST_COPY", 1000)
    path = left_open(tmp_path)
    timeline = load(path)
    assert len(timeline.gpu_ops) == 5 and "a.sqlite-wal" in timeline.source.issues[0].detail


def test_processes_and_gpus_stay_apart(tmp_path):
    mapping = [("CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER)",)]
    mapping += [("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (?,?,?)", (0, 0, 77), (1, 0, 78))]
    # Both processes call their GPU 0 and use correlation 9.
    rows = [call(0, 1000, 9, pid=77), call(50_000, 51_000, 9, pid=78), kernel(2000, 3000, 9, pid=77), kernel(52_000, 60_000, 9, pid=78)]
    timeline = nsys.read(str(export(tmp_path / "a.sqlite", *mapping, *rows)))
    assert timeline.gpu_ops["device"].tolist() == [0, 1] and len({*timeline.gpu_ops["correlation"].tolist()}) == 2
    report = analyze(timeline)
    assert [t.device for t in report.time] == [0, 1] and not [h for h in report.health if h.check == "launch-links" and h.status != "ok"]


@pytest.mark.parametrize(("other_us", "alone"), [(2, True), (0.1, False)])
def test_of_processes_that_do_not_communicate_one_is_judged_and_the_others_are_said(tmp_path, other_us, alone):
    rows = [call(0, 1000, 9, pid=77), call(50_000, 51_000, 9, pid=78), kernel(2000, 2000 + int(1000 * other_us), 9, pid=77), kernel(52_000, 60_000, 9, pid=78)]
    timeline = load(export(tmp_path / "a.sqlite", *rows))
    assert timeline.gpu_ops["dur_us"].tolist() == ([8] if alone else [0.1, 8])
    assert timeline.api_calls["pid"].tolist() == ([78] if alone else [77, 78])
    assert [i.detail for i in timeline.source.issues if i.check == "one-process"] == [
        "of 2 processes that do not communicate, 78 was read, whose work takes 80% of the GPU ops' time; the others not"
    ] * alone


def test_whole_graphs_are_busy_and_said(tmp_path):
    columns = "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphId INTEGER"
    graph = [(f"CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE ({columns})",)]
    graph += [("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?,?,?,?,?,?,?)", (1000, 91_000, 0, 7, 3, process(), 5))]
    report = analyze(export(tmp_path / "a.sqlite", call(0, 500, 3), *graph))
    assert report.time[0].compute_us == 90
    (said,) = [h for h in report.health if h.check == "graph-trace"]
    assert said.status == "failed" and "--cuda-graph-trace=node" in said.detail


def test_ranges_are_steps_and_pytorchs_are_ops(tmp_path):
    nvtx = [("CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER)",)]
    rows = [(100_000 * i, 100_000 * i + 90_000, 59, f"step {i}", process() | 5, None) for i in range(5)]
    rows += [(100_000 * i + 10, 100_000 * i + 50_000, 59, "aten::mm.out, seq = 12, sizes = [[8, 4], [4, 2]]", process() | 5, None) for i in range(5)]
    rows += [(7, None, 34, "a mark", process() | 5, None)]
    work = [s for i in range(5) for s in (call(100_000 * i + 20_000, 100_000 * i + 24_000, i), kernel(100_000 * i + 30_000, 100_000 * i + 60_000, i))]
    timeline = load(export(tmp_path / "a.sqlite", *nvtx, ("INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,?,?)", *rows), *work))
    assert set(timeline.cpu_ops.rows("name", "overload")) == {("aten::mm", "out")}
    assert timeline.cpu_ops["sequence"].tolist() == [12] * 5
    assert timeline.cpu_ops["dims"][0] == "[[8, 4], [4, 2]]" and timeline.source.shapes
    window = analyze(timeline).window
    assert window.basis == "nvtx" and window.step_us == 100


def test_ranges_without_an_end_are_left_out_and_said(tmp_path):
    nvtx = [("CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER)",)]
    rows = [(100, 900, 59, "load", process() | 5, None), (7, None, 34, "a mark", process() | 5, None), (-5, 0, 59, "before", process() | 5, None)]
    path = export(tmp_path / "whole.sqlite", *nvtx, ("INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,?,?)", *rows), call(0, 500, 9), kernel(700, 950, 9))
    assert not [h for h in analyze(path).health if h.check == "open-ranges"]
    rows += [(200, None, 59, "open", process() | 5, None), (300, 0, 60, "open too", process() | 5, None)]
    path = export(tmp_path / "cut.sqlite", *nvtx, ("INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,?,?)", *rows), call(0, 500, 9), kernel(700, 950, 9))
    timeline = load(path)
    assert sorted(timeline.annotations["name"]) == ["before", "load"]
    (said,) = [h for h in analyze(timeline).health if h.check == "open-ranges"]
    assert said.status == "degraded" and "left out 2 NVTX ranges without an end" in said.detail and "--capture-range" in said.record_with


@pytest.mark.parametrize(
    ("without", "short_ns", "status"),
    [((), 100, None), (("9",), 30, "ok"), (("9",), 100, "degraded"), (("1",), 100, "failed"), (("1", "2", "9"), 100, "failed")],
)
def test_kernels_without_names_are_said_and_not_judged_where_they_take_most_of_the_time(tmp_path, without, short_ns, status):
    short = kernel(9_000, 9_000 + short_ns, 10)
    short = (short[0], (*short[1][:7], 9, 9, *short[1][9:]))
    names = [("INSERT INTO StringIds VALUES (9, 'relu')",), *((f"DELETE FROM StringIds WHERE id = {number}",) for number in without)]
    report = analyze(export(tmp_path / "a.sqlite", call(0, 500, 9), kernel(700, 8_000, 9), call(1_000, 1_500, 10), short, *names))
    said = {h.check: h for h in report.health if h.check.endswith("-names")}
    assert ("kernel-names" in said) == bool(without) and ("call-names" in said) == ("2" in without)
    if status:
        assert said["kernel-names"].status == status and ("1 kernel of 2" in said["kernel-names"].detail) == (len(without) == 1)
    assert ("unfused-elementwise" in {s.rule for s in report.skipped if "kernel-names" in s.why}) == (status == "failed")


@pytest.mark.parametrize("drop", ["StringIds", "CUPTI_ACTIVITY_KIND_RUNTIME"])
def test_any_table_may_be_absent(tmp_path, drop):
    path = export(tmp_path / "a.sqlite", call(0, 1, 9), kernel(2000, 9000, 9), (f"DROP TABLE {drop}",))
    assert not analyze(path).failed


def test_no_gpu_work_is_refused_with_how_to_record(tmp_path):
    with pytest.raises(TraceError) as error:
        load(export(tmp_path / "a.sqlite", call(0, 1, 9)))
    assert "no GPU work" in error.value.message and "nsys profile -t cuda,nvtx" in error.value.hint
    assert "launched 1 kernels, but the GPU's side was not recorded" in error.value.message


def test_a_recording_under_wsl_without_the_gpus_side_says_what_to_allow(tmp_path):
    release = ("5.15.146.1-microsoft-standard-WSL2",)
    system = [
        ("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)",),
        ("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('SoftwareReleaseVersion', ?)", release),
    ]
    with pytest.raises(TraceError) as error:
        load(export(tmp_path / "a.sqlite", call(0, 1, 9), call(2, 3, 10), *system))
    assert "launched 2 kernels" in error.value.message and "performance counters" in error.value.hint
    # Where nothing was launched, nothing is missing.
    with pytest.raises(TraceError) as error:
        load(export(tmp_path / "b.sqlite", *system))
    assert "launched" not in error.value.message and "nsys profile" in error.value.hint


def test_a_view_named_like_a_table_is_not_run(tmp_path):
    path = export(
        tmp_path / "a.sqlite", kernel(2000, 9000, 9), ("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME",),
        ("CREATE VIEW CUPTI_ACTIVITY_KIND_RUNTIME AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS start FROM c",),
    )  # fmt: skip
    assert not len(load(path).api_calls)


def test_text_where_a_number_belongs_is_refused(tmp_path):
    path = export(tmp_path / "a.sqlite", kernel(2000, 9000, 9), ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon'",))
    with pytest.raises(TraceError, match="start of table CUPTI_ACTIVITY_KIND_KERNEL"):
        load(path)


@pytest.mark.parametrize("cut", [20, 5000, 9000])
def test_a_truncated_file_is_refused_and_untouched(tmp_path, cut):
    path = export(tmp_path / "a.sqlite", *(kernel(i, i + 1, i) for i in range(400)))
    path.write_bytes(path.read_bytes()[:cut])
    before = path.read_bytes(), path.stat().st_mtime_ns
    with pytest.raises(TraceError):
        load(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before and [p.name for p in tmp_path.iterdir()] == ["a.sqlite"]


def test_reading_leaves_the_file_as_it_was(tmp_path):
    path = export(tmp_path / "a.sqlite", call(0, 1, 9), kernel(2000, 9000, 9))
    before = path.read_bytes(), path.stat().st_mtime_ns
    analyze(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before and [p.name for p in tmp_path.iterdir()] == ["a.sqlite"]


def test_bytes_that_are_no_text(tmp_path):
    path = export(tmp_path / "a.sqlite", kernel(2000, 9000, 9), ("UPDATE StringIds SET value = CAST(x'ff41' AS TEXT) WHERE id = 1",))
    assert load(path).gpu_ops["name"][0] == "\ufffdA"


def test_what_the_hardware_measured_is_reported(tmp_path):
    metrics = [("CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INTEGER, metricId INTEGER, metricName TEXT)",)]
    metrics += [("INSERT INTO TARGET_INFO_GPU_METRICS VALUES (?,?,?)", (1 << 48, 3, "SMs Active [Throughput %]"))]
    metrics += [("CREATE TABLE GPU_METRICS (timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER)",)]
    samples = [(t, 1 << 48, 3, 40 if t < 50_000 else 80) for t in range(-20_000, 100_000, 10_000)]
    report = analyze(export(tmp_path / "a.sqlite", *metrics, ("INSERT INTO GPU_METRICS VALUES (?,?,?,?)", *samples), kernel(0, 100_000, 9)))
    (row,) = report.utilization
    assert (row.device, row.unit, row.mean_pct, row.samples) == (0, "SMs active", 60, 10)


def test_what_the_host_was_blocked_in_is_said(tmp_path):
    waits = [("CREATE TABLE OSRT_API (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER)",)]
    waits += [("INSERT INTO StringIds VALUES (?,?)", (8, "pthread_cond_timedwait"))]
    waits += [("INSERT INTO OSRT_API VALUES (?,?,?,?)", (20_000, 890_000, process() | 5, 8))]
    rows = [call(0, 5000, 1), kernel(6000, 20_000, 1), call(900_000, 905_000, 2), kernel(906_000, 950_000, 2)]
    headline = analyze(export(tmp_path / "a.sqlite", *waits, *rows)).headline
    assert headline.bottleneck == "host-bound" and headline.summary.endswith("blocked in pthread_cond_timedwait.")


def public():
    return [pytest.param(p, id=p.stem) for p in sorted((SHARED / "public" / "nsys").glob("*.sqlite"))] if SHARED.is_dir() else []


NO_KERNELS = {"centerformer_baseline", "cs336_ihor_result", "lighttransport_gemm_profile"}


@needs_shared
@pytest.mark.parametrize("path", public())
def test_public_export_is_analysed_or_refused_with_a_true_reason(path):
    if path.stem in NO_KERNELS:
        with pytest.raises(TraceError, match="no GPU work"):
            load(path)
        return
    report = analyze(path)
    assert not report.failed
    for time in report.time or ():
        parts = time.compute_us + time.exposed_comm_us + time.exposed_copy_us + time.exposed_memset_us + time.idle_us
        assert parts == pytest.approx(time.window_us, rel=1e-6)


@needs_shared
@pytest.mark.parametrize(("name", "total_ms"), [("nsysai_mfu_2gpu_before", 535.20), ("nsysai_mfu_2gpu_after", 488.84)])
def test_two_gpus_with_communication(name, total_ms):
    path = SHARED / "public" / "nsys" / f"{name}.sqlite"
    ops = nsys.read(path).gpu_ops
    kernels = ops[ops["kind"] == "kernel"]
    assert np.unique(ops["device"]).tolist() == [0, 1]
    assert kernels["dur_us"].sum() / 1000 == pytest.approx(total_ms, abs=0.005)
    assert "communication" in {row.family for row in analyze(nsys.read(path)).kernels}


def both_formats():
    import json

    if not SHARED.is_dir():
        return []
    cases = json.loads((SHARED / "corpus" / "manifest.json").read_text())["cases"]
    return [pytest.param(c, v, id=f"{n}.{v}") for n, c in cases.items() for v in c.get("nsys", {}) if v in c["kineto"]]


@needs_shared
@pytest.mark.parametrize(("case", "side"), both_formats())
def test_both_formats_say_the_same(case, side):
    one, other = (analyze(SHARED / "corpus" / case[f][side]) for f in ("kineto", "nsys"))
    first, second = ([f.rule for f in r.findings if f.severity in ("high", "medium")][:1] for r in (one, other))
    assert first == second or not case["fixed_quiet"]

    def shares(report):
        t = report.time[0]
        return np.array([t.compute_us, t.exposed_copy_us, t.idle_us]) / t.window_us

    # Host-bound steps differ by what each profiler costs the host; a pageable copy differs from run to run (7.2 against
    # 6.0 GB/s here). The rest agrees.
    tolerance = 0.06 if case["step"] else 0.30
    assert np.abs(shares(one) - shares(other)).max() <= tolerance


def test_one_program_with_its_graphs_as_nodes_and_as_wholes():
    """The same prefill: what is known without its kernels agrees, and nothing is said of them."""
    nodes, whole = (analyze(ROOT / "samples" / "nsys" / f"prefill_graphs.fixed{mode}.sqlite") for mode in ("", ".graph"))
    assert whole.window.step_us == pytest.approx(nodes.window.step_us, rel=0.05)
    assert not nodes.findings and not whole.findings
    # Kernels whose shapes nobody recorded are not called near the hardware's rate.
    assert whole.headline.bottleneck == nodes.headline.bottleneck == "gpu-bound"
    abstained = {s.rule for s in whole.skipped if "--cuda-graph-trace=node" in s.record_with}
    assert {"precision", "unfused-attention", "unfused-elementwise", "memory-layout", "small-grid"} <= abstained
    assert {"launch-gap", "sync-stall", "allocator"} <= {c.rule for c in whole.clear}, "what the host did is known all the same"


@slow
def test_samples_of_nsys_are_analysed():
    paths = sorted((ROOT / "samples" / "nsys").glob("*.sqlite"))
    assert paths
    for path in paths:
        assert not analyze(path).failed


def test_memory_events_are_of_the_device_or_of_the_host_by_their_kind(tmp_path):
    memory = ("INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (?,?,?,?,?,?,?)", *[
        (10, process(), 0, 7, 1024, 0, 2), (20, process(), 0, 8, 4096, 0, 1), (30, process(), 0, 7, 1024, 1, 2),
    ])  # fmt: skip
    columns = "start INTEGER, globalPid INTEGER, deviceId INTEGER, address INTEGER, bytes INTEGER, memoryOperationType INTEGER, memKind INTEGER"
    made = (f"CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS ({columns})",)
    timeline = load(export(tmp_path / "a.sqlite", made, memory, call(1000, 5000, 9), kernel(7500, 9501, 9)))
    assert timeline.memory.rows("bytes", "device_type") == [(1024, 1), (4096, 0), (-1024, 1)]
