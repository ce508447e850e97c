"""Redaction removes what names people and machines, and changes no figure."""

import gzip
import json
import sqlite3

import pytest

from advisor import analyze
from advisor.errors import TraceError, UsageError
from advisor.sources.redact import redact, secrets_like
from tests.paths import ROOT, SHARED, needs_shared

SECRET = "hf_" + "a1B2" * 8


def figures(path):
    """The report, less the path, the size and the lines of source."""
    report = json.loads(analyze(path).to_json())
    report["source"]["path"] = report["source"]["bytes"] = None
    for finding in report["findings"]:
        for evidence in finding["evidence"]:
            evidence["source"] = (evidence["source"] or {}).get("line")
    return report


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


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_trace_keeps_its_figures_and_loses_its_names(tmp_path, named, suffix):
    target = tmp_path / f"clean{suffix}"
    redact(named, target)
    raw = target.read_bytes()
    text = (gzip.decompress(raw) if suffix.endswith("gz") else raw).decode()
    for word in ("/home", "lovelace", "secret-project", "gpu-7", "moonshot", "ABC"):
        assert word not in text, word
    assert figures(target) == figures(named)
    assert any(e.source and e.source.file.startswith("src") for f in analyze(target).findings for e in f.evidence)


def test_compact_text_is_cut_where_no_string_is(tmp_path, named, monkeypatch):
    monkeypatch.setattr("advisor.sources.redact.BLOCK", 1000)
    named.write_text(json.dumps(json.loads(named.read_text()), separators=(",", ":")))
    redact(named, tmp_path / "clean.json")
    assert "/home" not in (tmp_path / "clean.json").read_text() and figures(tmp_path / "clean.json") == figures(named)


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
    assert figures(target) == figures(path) and path.read_bytes() == before
    with sqlite3.connect(target) as db:
        assert db.execute("SELECT text FROM NVTX_EVENTS").fetchone() == ("load src/train.bin",)


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


@needs_shared
@pytest.mark.parametrize("name", ["item_every_microstep.slow", "pageable_h2d.slow", "elementwise_chain.slow"])
def test_the_corpus_keeps_its_figures(tmp_path, name):
    for path in (SHARED / "corpus" / "kineto" / f"{name}.json.gz", SHARED / "corpus" / "nsys" / f"{name}.sqlite"):
        target = tmp_path / path.name
        redact(path, target)
        assert figures(target) == figures(path)
