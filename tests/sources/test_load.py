"""What `load` opens, and what it says about all that is not a trace."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import sqlite3
import sys
import types
import zipfile
from pathlib import Path

import pytest

import advisor
from advisor.errors import TraceError, UsageError
from advisor.sources import load, read, separate_recordings
from advisor.sources.ranks import holds_ranks, rank_traces, traces_among
from advisor.sources.sniff import PPROF_HEAD
from advisor.sources.stream import zstd
from tests.sources.kineto.layouts import EVENTS, compact

TRACE = compact().encode()


def refused(path: Path) -> TraceError:
    with pytest.raises(TraceError) as error:
        load(path)
    assert error.value.exit_code == 3 and error.value.hint and "\n" not in error.value.message
    return error.value


@pytest.mark.parametrize("given", [42, None, [], ["a.json"], b"a.json"])
@pytest.mark.parametrize("take", [advisor.analyze, advisor.load, advisor.read, advisor.schedule])
def test_what_is_no_path_is_said_to_be_none(take, given):
    with pytest.raises(UsageError, match="is no path"):
        take(given)


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "t", "t.sqlite"])
@pytest.mark.parametrize("packed", [False, True])
def test_content_decides_not_the_suffix(tmp_path: Path, name: str, packed: bool) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(TRACE) if packed else TRACE)
    seen: list[tuple[int, int | None]] = []
    timeline = load(str(path), progress=lambda done, size: seen.append((done, size)))
    assert timeline.source.events == len(EVENTS) and timeline.source.bytes == len(TRACE)
    assert timeline.source.path == str(path) and timeline.source.format == "kineto"
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


def test_a_byte_order_mark_is_no_harm(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(b"\xef\xbb\xbf" + TRACE)
    assert load(tmp_path / "t.json").source.events == len(EVENTS)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(gzip.compress(TRACE))))
    assert load("-").source.events == len(EVENTS)


def test_directories(tmp_path: Path) -> None:
    assert "holds no trace" in str(refused(tmp_path))
    (tmp_path / "other.json").write_bytes(TRACE)
    assert load(tmp_path).source.events == len(EVENTS)
    (tmp_path / "w0.pt.trace.json.gz").write_bytes(gzip.compress(TRACE))
    assert load(tmp_path).source.path.endswith("w0.pt.trace.json.gz")
    (tmp_path / "w1.pt.trace.json").write_bytes(TRACE)
    recording = read(tmp_path)
    assert recording.kind == "job" and [t.label for t in recording.parts[0].traces] == ["w0.pt.trace.json.gz", "w1.pt.trace.json"]
    assert "of kind job" in str(refused(tmp_path))


def test_cycles_of_a_handler_that_said_no_more_than_its_times_are_one_process(tmp_path):
    old = b'{"advisor_recording": {"unprofiled_step_us": [1.0], "warmup_step_us": [2.0], "torch": "2"},' + TRACE.lstrip()[1:]
    for name in ("trace", "trace-1", "trace-10", "trace-9"):
        (tmp_path / f"{name}.json.gz").write_bytes(gzip.compress(old))
    assert load(tmp_path).source.path.endswith("trace-10.json.gz")
    for path in tmp_path.iterdir():
        path.write_bytes(gzip.compress(TRACE))
    assert read(tmp_path).kind == "job", "of others' files such names say nothing"


def test_other_json_beside_traces_is_none_of_them(tmp_path: Path) -> None:
    for name, text in (("results.json", '{"accuracy": 1}'), ("report.json", '{"schema": 1, "advisor": "0.1.0"}'), ("a.sqlite", "")):
        (tmp_path / name).write_text(text)
    assert traces_among([str(path) for path in tmp_path.iterdir()]) == [str(tmp_path / "a.sqlite")]
    (tmp_path / "t.json").write_bytes(TRACE)
    assert load(tmp_path).source.path.endswith("t.json")
    (tmp_path / "cut.json").write_bytes(b'{"schemaVersion": 1, "devicePro')  # a rank that was killed is said, not left out
    (tmp_path / "meta_llama.json").write_bytes(TRACE)
    assert [t.label for t in read(tmp_path).parts[0].traces] == ["cut.json", "meta_llama.json", "t.json"]


def test_a_snapshot_of_memory_beside_ranks_is_said_to_be_left_out(tmp_path: Path) -> None:
    for name in ("rank0.json", "rank1.json"):
        (tmp_path / name).write_bytes(TRACE)
    assert not read(tmp_path).parts[0].chosen
    (tmp_path / "peak.pickle.gz").write_bytes(b"")
    assert "peak.pickle.gz" in read(tmp_path).parts[0].chosen and "--memory" in read(tmp_path).parts[0].chosen


def test_other_json_hides_no_snapshot(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("results.json", "snapshot.pickle.gz")]
    Path(names[0]).write_text("{}")
    assert traces_among(names) == [] and traces_among(names[:1]) == names[:1]


def test_each_recording_of_a_directory_is_looked_at_whatever_its_kind_and_nothing_else(tmp_path: Path) -> None:
    saved = b'{"schema":4,"advisor":"0.1.0","note":"\\"ph\\":"}'
    schedule = b'{"displayTimeUnit": "ns", "trace-advisor": {"advisor": "0.1.0", "trace": "x"}, "traceEvents": []}'
    recorded = {
        "a.pt.trace.json": TRACE, "b.json.gz": gzip.compress(TRACE), "c.sqlite": b"", "d.pickle.gz": b"", "e.ncu-rep": b"", "f.xplane.pb": b"",
        "g.csv": b'"ID","Process ID","Kernel Name"\n', "h.csv.gz": gzip.compress(b'"ID","Kernel Name"\n'), "i.prof": PPROF_HEAD, "j.json": TRACE[:40],
        "config.json": TRACE, "meta_llama.json.gz": gzip.compress(TRACE), "m.pickle": pickle.dumps({"segments": []}),
        "l.json": b'{"displayTimeUnit": "ms", "stackFrames": {' + b" " * (1 << 20) + b"}, " + TRACE.lstrip()[1:],
    }  # fmt: skip
    others = {
        "README.md": b"# read", "s.csv": b"step,loss\n", "c.prof": b"{\x0a", "r.json": saved, "q.json": b"[1]", "p.perfetto.json": schedule, "a.html": b"<html>",
        "c.sqlite.gz": b"", "f.trace.json.gz": gzip.compress(TRACE),
        "k.json": b'{"images": [' + b"1, " * (1 << 19) + b"1]}", "n.pickle": pickle.dumps({"a": 1}), "o.pickle.gz": gzip.compress(pickle.dumps([1])),
        "config_rank0.json": b"{}", "manifest.json": b'{"schemaVersion": 2}',
    }  # fmt: skip
    for name, data in (recorded | others).items():
        (tmp_path / name).write_bytes(data)
    for given in (str(tmp_path), f"{tmp_path}/*"):
        assert sorted(Path(path).name for path in separate_recordings([given])) == sorted(recorded)


def test_directories_that_a_pattern_names_are_looked_at_as_those_named_by_hand(tmp_path: Path) -> None:
    """Two captures of a program each by itself, a job's ranks as one; a directory without recordings is none, and what ** enters is named already."""
    for name in ("b.json", "run1/c.json", "run1/d.json", "job/rank0.json", "job/rank1.json", "plots/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(TRACE.replace(b"{", b'{"distributedInfo": {"rank": 1}, ', 1) if "rank1" in name else TRACE)

    def named(*given: str) -> list[str]:
        return [str(Path(path).relative_to(tmp_path)) for path in separate_recordings([f"{tmp_path}/{one}" for one in given])]

    assert named("*") == ["b.json", "job", "run1/c.json", "run1/d.json"]
    assert named("r*") == named("run1") and named("j*") == named("job") == ["job/rank0.json", "job/rank1.json"]
    assert sorted(named("**")) == ["b.json", "job/rank0.json", "job/rank1.json", "run1/c.json", "run1/d.json"]
    assert read(f"{tmp_path}/*").path == f"{tmp_path}/b.json", "what is read as one is of files alone"


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("gpu3.json", 3),
        ("trace_worker-3.pt.trace.json", 3),
        ("rank3_4711.1700000000000000000.pt.trace.json.gz", 3),
        ("worker_3.1700000000000000000.pt.trace.json", 3),
        # By torch's handler, and by JAX: the machine's name, and in torch's the process.
        ("gpu0423_4711.1700000000000000000.pt.trace.json.gz", None),
        ("gpu0423-ib0.cluster.example.com_4711.1700000000000.pt.trace.json", None),
        ("worker-2_4711.1700000000000000000.pt.trace.json", None),
        ("gpu0423.xplane.pb.gz", None),
        ("gpu0423.cluster.local.xplane.pb", None),
        ("gpu0423_Jun_10_16_30_51.pickle", None),
        # Of the program's own naming: a rank, and the step that it was recorded in.
        ("trace_gpu1_100.pt.trace.json", 1),
        ("gpu0423_rank3.json", 3),
    ],
)
def test_a_number_of_a_machine_s_name_is_no_rank(name: str, rank: int | None) -> None:
    (trace,) = rank_traces([name])
    assert trace.named == rank


def test_machines_called_by_number_are_told_apart_in_torch_s_names() -> None:
    traces = rank_traces([f"gpu0{machine}_{process}.1700000000000000000.pt.trace.json" for machine in (7, 9) for process in (11, 12)])
    assert [trace.host for trace in traces] == ["gpu07", "gpu07", "gpu09", "gpu09"]


def test_directories_of_files_that_zstd_packed(tmp_path: Path) -> None:
    (tmp_path / "t.json.zst").write_bytes(zstd.compress(TRACE))
    assert load(tmp_path).source.events == len(EVENTS)
    ranked = TRACE.replace(b"{", b'{"distributedInfo": {"rank": 3}, ', 1)
    (tmp_path / "rank0.json.zst").write_bytes(zstd.compress(ranked))
    (tmp_path / "t.json.zst").write_bytes(zstd.compress(ranked.replace(b"3}", b"4}")))
    assert read(tmp_path).kind == "job" and holds_ranks(tmp_path)


def test_a_packed_export_is_found_and_the_command_that_unpacks_it_said(tmp_path: Path) -> None:
    for packed, command in ((gzip.compress, "gunzip -k"), (zstd.compress, "zstd -dk")):
        path = tmp_path / f"a.sqlite.{'zst' if packed is zstd.compress else 'gz'}"
        path.write_bytes(packed(b"SQLite format 3\0"))
        assert f"{command} {path}" in refused(tmp_path).hint
        path.unlink()


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    assert "no file" in str(refused(tmp_path / "absent.json"))
    path = tmp_path / "t.json"
    path.write_bytes(TRACE)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user reads everything")
    assert "cannot be opened" in str(refused(path))


class _Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("a pickle was opened",))


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.pkl", TRACE)
        archive.writestr("version", b"3")
    return file.getvalue()


FOREIGN = {
    "a.pickle": (pickle.dumps(_Trap()), "pickle"),
    "b.json": (pickle.dumps(_Trap(), protocol=2), "pickle"),
    "c.pickle": (b"(dp0\n.", "pickle"),
    "d.zip": (_zip(), "zip archive"),
    "e.json.xz": (lzma.compress(TRACE), "xz"),
    "twice.json.gz": (gzip.compress(gzip.compress(TRACE)), "packed twice: it unpacks to another gzip"),
    "twice.json.zst": (zstd.compress(zstd.compress(TRACE)), "packed twice: it unpacks to another zstd"),
    "f.json.zst": (b"\x28\xb5\x2f\xfd\xff", ""),
    "g.bz2": (bz2.compress(TRACE), "bzip2"),
    "h.pftrace": (b"\x0a\x8f\x01\x3a\x02\x08\x02\x00\x01", "Perfetto"),
    "i.nsys-rep": (b"\x01\x02\x03\x04\0\0", "Nsight Systems"),
    "j.qdrep": (b"\x01\x02\x03\x04\0\0", "Nsight Systems"),
    "k.ncu-rep": (b"NVR\0\1\2", "ends inside a block, after 0 kernels"),
    "l.json": (b"", "empty"),
    "m.json": (b" \n\n ", "blanks"),
    "n.json": (TRACE.decode().encode("utf-16"), "UTF-16"),
    "o.json": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS"),
    "p.json": (b"<!DOCTYPE html><html></html>", "HTML"),
    "q.csv": (b"id,name\n1,2\n", "a table of values, not a trace that advisor reads: its columns say nothing of a recording (columns id, name)"),
    "r.bin": (bytes(range(256)) * 4, "binary"),
    "s.json": (b'{"a": 1, "nodes": []}', "members a, nodes"),
    "t.json": (b'{"traceEvents": {"a": 1}}', "not a list"),
    "u.json": (b'{"schemaVersion": 1, "deviceProp', "no list of events"),
    "v.json": (b"{}", "empty object"),
    "w.json": (b"[1, 2, 3]", "a list of values instead of events"),
    "x.json": (b"{" + b"\0" * 100, "binary"),
    "yb.json": (b'{ "traceEvents":[{}\n,{"args":{"name":"CPU HIP API"},"ph":"M","pid":2,"name":"process_name","sort_index":0}\n]}', "rocprof writes as JSON"),
    "za.json": (b'[{"name": "aten::add", "ph": "X", "ts": 1.5, "dur": 2, "tid": 1, "pid": "CPU functions", "args": {}}]', "how long each op took"),
    "zb.json": (b'[{"name": "[MEMCPY] HtoD", "ph": "X", "ts": 1.5, "dur": 2, "pid": 1, "tid": 7, "args": {"correlationId": 1}}]', "another tool wrote them"),
    "z.xplane.pb": (b"\x0a\x10\x01\x02\x03\x00\x05\x06\x07\x08", "protobuf"),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("packed", [False, True])
def test_what_is_no_trace_is_named(tmp_path: Path, name: str, packed: bool) -> None:
    data, expected = FOREIGN[name]
    path = tmp_path / (name + ".gz" if packed else name)
    path.write_bytes(gzip.compress(data) if packed else data)
    error = refused(path)
    assert expected in error.message, error.message


def test_a_database_waits_for_its_reader(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with sqlite3.connect(path) as database:
        database.execute("create table t (a)")
    assert "no GPU work" in str(refused(path))


def test_a_database_of_the_first_rocprof_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.rpd"
    with sqlite3.connect(path) as database:
        for table in ("HSA", "HIP", "OPS", "COPY", "KERN"):
            database.execute(f"create table {table} (id integer, start integer, end integer)")
    error = refused(path)
    assert "a database of ROCm" in error.message


def test_gzip_cut_in_its_header(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(TRACE)[:8])
    assert "cannot be unpacked" in str(refused(path))


def test_a_deep_nest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b'{"a":' * 100_000)
    refused(path)
    path.write_bytes(json.dumps({"traceEvents": EVENTS}).encode().replace(b'"context"', b'"x": ' + b"[" * 90_000 + b"]" * 90_000 + b', "c"'))
    assert len(load(path).cpu_ops) == 1
