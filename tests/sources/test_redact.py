"""Redaction removes what names people and machines, and changes no figure."""

import gzip
import json
import os
import re
import sqlite3
import stat

import msgspec
import pytest

from advisor import analyze
from advisor.engine import redact_job as giveaway
from advisor.errors import OutputError, TraceError, UsageError
from advisor.knowledge import devices
from advisor.knowledge.framework_ranges import BY_FRAMEWORK
from advisor.knowledge.server_marks import server_step
from advisor.sources import read
from advisor.sources.redact import COPIERS, redact
from advisor.sources.redact.names import Names, device
from advisor.sources.secrets_in import secrets_like
from tests.paths import MANY_SAMPLES, ROOT, sampled, shared_files, slow, slowly

SECRET = "hf_" + "a1B2" * 8


def report_of(path):
    """The report, less its path and size."""
    report = json.loads(analyze(path).to_json())
    report["source"]["path"] = report["source"]["bytes"] = None
    return report


GIVEN = re.compile(r"\b(?:kernel|op|call|range|frame|path|src|thread|process|rank|group|file|function|metric|host)-[a-z]+\b|redacted")


def same_but_for_names(before, after, at="report"):
    """Whether two reports are alike: where a text differs, it holds a name that redaction gave."""
    if isinstance(before, str) and isinstance(after, str):
        assert before == after or GIVEN.search(after), f"{at}: {before!r} became {after!r}"
        return
    assert type(before) is type(after), f"{at}: {before!r} became {after!r}"
    if isinstance(before, dict):
        assert before.keys() == after.keys(), at
        for key in before:
            same_but_for_names(before[key], after[key], f"{at}.{key}")
    elif isinstance(before, list):
        assert len(before) == len(after), f"{at}: {len(before)} became {len(after)}"
        for i, (one, other) in enumerate(zip(before, after, strict=True)):
            same_but_for_names(one, other, f"{at}[{i}]")
    else:
        assert before == after, f"{at}: {before!r} became {after!r}"


@pytest.fixture
def named(tmp_path):
    """A sample as it comes from a user's machine: absolute paths, a host, a job."""
    trace = json.loads(gzip.decompress((ROOT / "samples" / "sync-stall" / "slow.json.gz").read_bytes()))
    for event in trace["traceEvents"]:
        name = event.get("name", "")
        if event.get("cat") == "python_function" and name.startswith(("torch/", "workloads/")):
            prefix = "/home/lovelace/venv/lib/python3.12/site-packages/" if name.startswith("torch/") else "/home/lovelace/secret-project/"
            event["name"] = prefix + name
    trace |= {"host_name": "gpu-7.corp.example", "PT_PROFILER_JOB_NAME": "moonshot", "username": "lovelace", "trace_id": "ABC"}
    trace["traceName"] = "/home/lovelace/traces/t.json"
    path = tmp_path / "named.json"
    path.write_text(json.dumps(trace, indent=1))
    return path


@pytest.mark.parametrize("suffix", slowly([".json", ".json.gz"], quick=1))
def test_a_trace_keeps_its_figures_and_loses_its_names(tmp_path, named, suffix):
    target = tmp_path / f"clean{suffix}"
    redact(named, target)
    raw = target.read_bytes()
    text = (gzip.decompress(raw) if suffix.endswith("gz") else raw).decode()
    for word in ("/home", "lovelace", "secret-project", "gpu-7", "moonshot", "ABC"):
        assert word not in text, word
    same_but_for_names(report_of(named), report_of(target))
    assert any(e.source and e.source.file.startswith("src") for f in analyze(target).findings for e in f.evidence)


def nsys_export(tmp_path):
    path = tmp_path / "in.sqlite"
    db = sqlite3.connect(path)
    db.executescript("""
        CREATE TABLE StringIds (id INTEGER, value TEXT);
        INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'cudaLaunchKernel_v7000'), (3, 'HF_TOKEN=unused-but-here'), (4, '/home/lovelace/x.py');
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
            correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 9000, 0, 7, 1, 16777216, 1, 1);
        CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER);
        INSERT INTO NVTX_EVENTS VALUES (0, 9500, 59, 'load /home/lovelace/data/train.bin', 16777217, NULL);
        CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT);
        INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 'gpu-7.corp.example'), ('Environment', 'AWS_SECRET_ACCESS_KEY=abcdef');
        CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
        INSERT INTO META_DATA_CAPTURE VALUES ('COMMAND_LINE', 'python /home/lovelace/train.py --password hunter2');
        CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
        INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '2025.3'), ('EXPORT_INPUT', '/home/lovelace/r.nsys-rep');
        CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, uuid TEXT, smCount INTEGER);
        INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200', 'GPU-uuid-1234', 132);
        CREATE VIEW peek AS SELECT * FROM TARGET_INFO_SYSTEM_ENV;
    """)
    db.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Environment', ?)", (f"X={SECRET}",))
    db.commit()
    db.close()
    return path


def test_an_export_keeps_its_figures_and_loses_its_environment(tmp_path):
    path, target = nsys_export(tmp_path), tmp_path / "out.sqlite"
    before = path.read_bytes()
    redact(path, target)
    raw = target.read_bytes()
    for word in (b"/home", b"lovelace", b"gpu-7", b"abcdef", b"hunter2", b"HF_TOKEN", b"uuid-1234", SECRET.encode(), b"peek"):
        assert word not in raw, "deleted values may not stay in free pages"
    same_but_for_names(report_of(path), report_of(target))
    assert path.read_bytes() == before
    with sqlite3.connect(target) as db:
        assert db.execute("SELECT text FROM NVTX_EVENTS").fetchone() == ("range-a",)


def test_what_looks_like_a_secret_is_named_and_never_shown(tmp_path):
    found = secrets_like(nsys_export(tmp_path))
    assert "AWS_SECRET_ACCESS_KEY" in found and "HF_TOKEN" in found and "a Hugging Face token" in found
    assert not any(SECRET in f or "abcdef" in f for f in found)


def test_nothing_is_overwritten_or_left_half_done(tmp_path, named):
    (tmp_path / "there.json").write_text("mine")
    with pytest.raises(UsageError, match="there already"):
        redact(named, tmp_path / "there.json")
    assert (tmp_path / "there.json").read_text() == "mine"
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(named.read_bytes())[:-2000])
    with pytest.raises(TraceError):
        redact(tmp_path / "cut.json.gz", tmp_path / "out.json")
    (tmp_path / "bad.sqlite").write_bytes(nsys_export(tmp_path).read_bytes()[:5000])
    with pytest.raises(TraceError):
        redact(tmp_path / "bad.sqlite", tmp_path / "out.sqlite")
    assert not [p for p in tmp_path.iterdir() if p.name.startswith((".", "out"))]


SAMPLES = sorted((ROOT / "samples" / "nsys").glob("serial*")) + sorted((ROOT / "samples" / "memory").glob("kept_*")) + [
    ROOT / "samples" / "memory" / "jax.memory.prof", ROOT / "samples" / "kernels" / "pairs_raw.csv.gz", ROOT / "samples" / "launch-gap" / "slow.json.gz",
    ROOT / "samples" / "data-loading" / "slow.json.gz", ROOT / "samples" / "recompilation" / "slow.json.gz", ROOT / "samples" / "unfused-attention" / "slow.json.gz",
    *(ROOT / "samples" / "jax" / f"{case}.slow.xplane.pb.gz" for case in ("attention", "convolution_layout", "host_arrays", "new_static_value")),
]  # fmt: skip
CORPUS = [
    *shared_files("corpus/nsys/elementwise_chain.slow.sqlite"), *shared_files("corpus/kineto/item_every_microstep.slow.json.gz"),
    *shared_files("corpus/kineto/pageable_h2d.slow.json.gz"), *shared_files("corpus/jax/float_each_layer.slow.xplane.pb.gz"),
    *shared_files("public/kineto/moe_05_large_capacity.json.gz"),
]  # fmt: skip


@pytest.mark.parametrize("path", [*sampled(SAMPLES, 1 if MANY_SAMPLES else 5), *slowly(CORPUS)], ids=lambda p: p.name)
def test_a_redacted_recording_gives_the_same_report(path, tmp_path):
    target = tmp_path / path.name
    redact(path, target)
    same_but_for_names(report_of(path), report_of(target))


@slow
def test_a_redacted_recording_is_redacted_already(tmp_path):
    for number, path in enumerate(SAMPLES[:1] + SAMPLES[-2:]):
        once, twice = tmp_path / f"once{number}{path.name}", tmp_path / f"twice{number}{path.name}"
        redact(path, once)
        redact(once, twice)
        same_but_for_names(report_of(once), report_of(twice))


def test_a_saved_report_loses_its_paths_and_hosts(tmp_path):
    saved, target = tmp_path / "report.json", tmp_path / "out.json"
    report = analyze(ROOT / "samples" / "launch-gap" / "slow.json.gz").report
    source = msgspec.structs.replace(report.source, path="/home/lovelace/secret-project/t.json")
    saved.write_bytes(msgspec.structs.replace(report, source=source).to_json())
    redact(saved, target)
    assert b"lovelace" not in target.read_bytes() and b"secret-project" not in target.read_bytes()
    same_but_for_names(json.loads(saved.read_bytes()), json.loads(target.read_bytes()))


def test_a_person_or_machine_that_a_path_or_a_file_tells_is_masked_everywhere(tmp_path):
    report = analyze(ROOT / "samples" / "launch-gap" / "slow.json.gz").report
    source = msgspec.structs.replace(report.source, path="/home/lovelace/t.json")
    headline = msgspec.structs.replace(report.headline, summary="The range lovelace_step, by Lovelace, takes 3 ms.")
    (tmp_path / "saved.json").write_bytes(msgspec.structs.replace(report, source=source, headline=headline).to_json())
    redact(tmp_path / "saved.json", tmp_path / "out.json")
    assert b"lovelace" not in (tmp_path / "out.json").read_bytes().lower()
    event = '{"ph": "X", "cat": "%s", "name": "%s", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"stream": 7}}'
    events = ", ".join(event % (category, "on_gpu0423_x") for category in ("kernel", "cpu_op", "python_function"))
    (tmp_path / "gpu0423_17.1700000000000.pt.trace.json").write_text(f'{{"traceEvents": [{events}]}}')
    redact(tmp_path / "gpu0423_17.1700000000000.pt.trace.json", tmp_path / "out2.json")
    assert "gpu0423" not in (tmp_path / "out2.json").read_text()


@pytest.mark.parametrize(
    "name",
    [
        "aten::_scaled_dot_product_efficient_attention", "torch.nn.functional.linear", "triton_poi_fused_add_0", "loop_add_fusion.12", "google.protobuf.internal.Decode",
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl>(int)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    ],
)  # fmt: skip
def test_what_programs_are_called_is_no_machine(name):
    assert Names().kernel(name) == name


def test_a_call_keeps_its_name_only_where_it_is_spelt_as_a_function():
    names = Names()
    assert names.call("cudaLaunchKernel_v7000") == "cudaLaunchKernel_v7000"
    assert "lovelace" not in names.call("read of Ada lovelace's scans")
    assert "lovelace" not in names.thread("lovelace") and names.thread("pin memory") == "pin memory"


@slow
def test_the_umask_holds_for_a_directory_too(tmp_path, named):
    (tmp_path / "job").mkdir()
    for rank in range(2):
        (tmp_path / "job" / f"rank{rank}.json").write_bytes(named.read_bytes())
    before = os.umask(0o027)
    try:
        giveaway.redact(tmp_path / "job", tmp_path / "out")
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out", *sorted((tmp_path / "out").iterdir()))] == [0o750, 0o640, 0o640]


def test_a_full_disk_is_an_output_that_cannot_be_written(tmp_path, monkeypatch):
    """Of a database SQLite says so, in an error of its own."""
    path = nsys_export(tmp_path)

    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setitem(COPIERS, "nsys", full)
    with pytest.raises(OutputError, match="disk is full"):
        redact(path, tmp_path / "out.sqlite")
    assert not list(tmp_path.glob("out*"))


def test_a_damaged_trace_is_refused_since_nobody_can_tell_what_it_holds(tmp_path):
    for name, text in (
        ("cut", '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k"'),
        ("broken", '{"traceEvents": [{"ph": "X", "name": "a" b"}, {"ph": "M", "pid": 1}]}'),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(TraceError, match="damaged"):
            redact(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_device_whose_rates_are_known_stays_that_device():
    for known in devices.all_peaks():
        for name in known.names:
            assert device(name) == name
            assert devices.find(device(name.upper().replace("-", " "))) is known
    assert device("Tesla V100-SXM2/16GB@") == "Tesla V100-SXM2-16GB"  # nothing but what devices.toml says
    assert device("NVIDIA A100-SXM4-80GB of lovelace") == "NVIDIA"


@pytest.mark.parametrize(
    "name",
    [
        "step[DECODE bs=31]", "step[EXTEND bs=15 toks=15360]", "execute_context_1(888_788544)_generation_0(0)",
        "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)", "[Executor] _forward_step 12: 0 ctx reqs, 32 gen reqs",
    ],
)  # fmt: skip
def test_marks_of_servers_stay(name):
    assert Names().range(name) == name and server_step(name)
    assert "lovelace" not in Names().range(name.replace("s=", "lovelace=").replace("_generation", "_lovelace").replace("gen reqs", "lovelace"))


@pytest.mark.parametrize(
    "name", ["MoE[experts=8, owner=lovelace]", "[lovelace] step 3", "FSDP::lovelace/forward", "nccl:lovelace 12", "lovelace", "lovelace 12"]
)
def test_a_range_that_marks_no_step_marks_none_under_its_other_name(name):
    given = Names().range(name)
    assert "lovelace" not in given and Names().range(given) == given
    assert bool(BY_FRAMEWORK.search(given)) == bool(BY_FRAMEWORK.search(name))


def test_ranks_of_a_merged_file_stay_ranks_and_lose_only_their_own_words(tmp_path):
    def events(rank):
        host, device = f"{rank}4100", f"{rank}0"
        return [
            {"ph": "M", "name": "process_name", "pid": host, "tid": 0, "args": {"name": "python"}},
            {"ph": "M", "name": "process_name", "pid": device, "tid": 0, "args": {"name": "Ascend Hardware" if "TP" in rank else "alice's box"}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": host, "tid": 1, "ts": 1, "dur": 2, "args": {"correlation": 5}},
            {"ph": "X", "cat": "kernel", "name": "k", "pid": device, "tid": 7, "ts": 9, "dur": 2, "args": {"device": 0, "stream": 7, "correlation": 5}},
        ]

    path = tmp_path / "merged.json"
    path.write_text(json.dumps({"traceEvents": [*events("[TP00] "), *events("rank1_"), *events("[alice] ")]}))
    redact(path, tmp_path / "shared.json")
    (part,) = read(tmp_path / "shared.json").parts
    assert [(one.label, len(one.timeline.gpu_ops), one.timeline.api_calls["pid"].tolist()) for one in part.traces] == [
        (label, 1, [4100]) for label in ("TP00", "rank1", "rank-a")
    ]
    text = (tmp_path / "shared.json").read_text()
    assert "alice" not in text and '"python"' in text and "Ascend Hardware" in text
