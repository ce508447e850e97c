"""Profiles of JAX: an XPlane of a few events built by hand, damaged ones, and the shared captures end to end."""

import gzip
import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import advisor
from advisor.engine.redact_job import redact
from advisor.errors import TraceError
from advisor.integrations.mcp_tools import Tools
from advisor.reports import formats
from advisor.sources import read
from advisor.sources.jax import names
from advisor.sources.jax.directory import newest_run
from advisor.sources.sniff import is_xplane
from tests.paths import SHARED, needs_shared


def varint(number):
    number &= (1 << 64) - 1
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


class PlaneOf:
    """An XPlane whose names are numbered as they come."""

    def __init__(self, name):
        self.name, self.titles, self.stats, self.lines, self.own, self.of_titles = name, [], [], b"", b"", {}

    def _number(self, known, text):
        if text not in known:
            known.append(text)
        return known.index(text) + 1

    def line(self, number, name, at_ns, *events):
        """events: name, offset and duration in ns, stats."""
        body = field(1, number) + field(2, name) + field(3, at_ns)
        for title, offset, duration, stats in events:
            event = field(1, self._number(self.titles, title)) + field(2, offset * 1000) + field(3, duration * 1000)
            body += field(4, event + self._stats(4, stats))
        self.lines += field(3, body)
        return self

    def _stats(self, number, stats):
        kinds = {int: 4, str: 5, bytes: 6}
        return b"".join(field(number, field(1, self._number(self.stats, key)) + field(kinds[type(v)], v)) for key, v in stats.items())

    def says(self, title, **stats):
        """What all events of a title have in common."""
        self.of_titles[self._number(self.titles, title)] = self._stats(5, stats)
        return self

    def is_a(self, **stats):
        """The plane's own stats."""
        self.own += self._stats(6, stats)
        return self

    def bytes(self):
        metadata = b"".join(field(4, field(1, i) + field(2, field(1, i) + field(2, n) + self.of_titles.get(i, b""))) for i, n in enumerate(self.titles, 1))
        stats = b"".join(field(5, field(1, i) + field(2, field(1, i) + field(2, n))) for i, n in enumerate(self.stats, 1))
        return field(1, field(1, 1) + field(2, self.name) + self.lines + metadata + stats + self.own)


KERNEL = {"correlation_id": 7, "kernel_details": "regs:46 static_shared:8 dynamic_shared:12288 grid:128,2,1 block:64,2,1 occ_pct:62.5"}
COPY = {"correlation_id": 8, "memcpy_details": "kind_src:device kind_dst:pinned size:4 dest:0 async:1"}


def five_events():
    gpu = PlaneOf("/device:GPU:0").line(14, "Stream #14(Compute)", 1000, ("gemm_fusion_dot", 500, 300, KERNEL), ("MemcpyD2H", 900, 100, COPY))
    host = PlaneOf("/host:CPU").line(
        -5, "python3", 1000, ("train", 0, 2000, {"step_num": 3}), ("gemm_fusion_dot", 400, 50, {"correlation_id": 7}), ("$mine.py:12 step", 10, 1900, {})
    )  # fmt: skip
    return gpu.bytes() + host.bytes()


@pytest.fixture
def xplane_file(tmp_path):
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(five_events())
    return path


def test_five_events_by_hand(xplane_file):
    t = advisor.load(xplane_file)
    assert t.source.format == "jax" and t.source.events == 5 and t.base_ns == 1000
    kernel, copy = (dict(zip(t.gpu_ops, row, strict=True)) for row in t.gpu_ops.rows())
    assert (kernel["kind"], kernel["name"], kernel["stream"], kernel["start_us"], kernel["dur_us"]) == ("kernel", "gemm_fusion_dot", 14, 0.5, 0.3)
    assert (kernel["grid_blocks"], kernel["block_threads"], kernel["registers"], kernel["shared_bytes"]) == (256, 128, 46, 12296)
    assert (kernel["occupancy_pct"], kernel["correlation"]) == (62.5, 7)
    assert (copy["kind"], copy["name"], copy["bytes"], copy["copy_kind"]) == ("memcpy", "Memcpy DtoH (Device -> Pinned)", 4, "DtoH")
    assert t.api_calls.rows("name", "correlation", "tid")[0] == ("cuLaunchKernel", 7, -5)
    assert t.annotations["name"].tolist() == ["ProfilerStep#3"] and t.python_calls["name"].tolist() == ["mine.py(12): step"]


def test_a_compressed_one_is_the_same(xplane_file, tmp_path):
    packed = tmp_path / "vm.xplane.pb.gz"
    packed.write_bytes(gzip.compress(xplane_file.read_bytes()))
    assert advisor.load(packed).gpu_ops.to_pandas().equals(advisor.load(xplane_file).gpu_ops.to_pandas())


@settings(deadline=None)
@given(st.integers(60, len(five_events()) - 1))
def test_a_cut_one_is_refused(tmp_path_factory, at):
    path = tmp_path_factory.mktemp("cut") / "vm.xplane.pb"
    path.write_bytes(five_events()[:at])
    try:
        advisor.load(path)
    except TraceError:
        return
    # A cut between two planes leaves a whole one.
    assert at == len(five_events()) or five_events()[at:].startswith(b"\x0a")


@settings(deadline=None)
@given(st.data())
def test_changed_bytes_do_no_harm(tmp_path_factory, data):
    raw = bytearray(five_events())
    for _ in range(3):
        raw[data.draw(st.integers(24, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("changed") / "vm.xplane.pb"
    path.write_bytes(bytes(raw))
    with suppress(TraceError):
        advisor.load(path)


def test_a_length_beyond_the_file_is_refused(tmp_path):
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(b"\x0a" + varint(1 << 40) + field(1, 1) + field(2, "/device:GPU:0"))
    with pytest.raises(TraceError, match="damaged XPlane"):
        advisor.load(path)


def test_a_profile_of_the_cpu_is_refused_with_how_that_comes(tmp_path):
    path = tmp_path / "vm.xplane.pb"
    host = PlaneOf("/host:CPU").line(5, "python3", 0, ("PjitFunction(step)", 0, 1000, {}))
    path.write_bytes(PlaneOf("/host:metadata").is_a(cpu_version="cpu").bytes() + host.bytes())
    with pytest.raises(TraceError, match="JAX on the CPU") as error:
        advisor.analyze(path)
    assert "jax.devices()" in error.value.hint


def test_one_that_was_copied_as_text_says_so(tmp_path):
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(field(1, field(1, 1) + field(2, "/device:GPU:0") + b"\xff\xfe" * 8)[:30].decode("utf-8", "replace").encode())
    with pytest.raises(TraceError, match=r"damaged XPlane.*copied as text"):
        advisor.analyze(path)


def test_a_profile_without_any_work_is_refused_with_what_it_is_of(tmp_path):
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(PlaneOf("/device:TPU:0").line(1, "XLA Ops", 0).bytes())
    with pytest.raises(TraceError, match="profile of a TPU that holds no work of it"):
        advisor.analyze(path)


def run_in(root, date, *hosts):
    folder = root / "plugins" / "profile" / date
    folder.mkdir(parents=True)
    for host in hosts:
        (folder / f"{host}.xplane.pb").write_bytes(five_events())
        (folder / f"{host}.trace.json.gz").write_bytes(b"")
    return folder


@pytest.mark.parametrize("below", ["", "plugins", "plugins/profile", "plugins/profile/2026_01_03_00_00_00"])
def test_a_log_is_its_newest_run(tmp_path, below):
    run_in(tmp_path, "2026_01_02_00_00_00", "vm")
    newest = run_in(tmp_path, "2026_01_03_00_00_00", "vm")
    assert advisor.load(tmp_path / below).source.path == str(newest / "vm.xplane.pb")


TOLD = "the run 2026_01_03_00_00_00 was read, the newest of 3 that lie there; 2 older ones not"


def test_a_log_of_several_runs_says_which_was_read(tmp_path):
    for day in (1, 2, 3):
        run_in(tmp_path, f"2026_01_0{day}_00_00_00", "vm")
    page = formats()["text"].render(advisor.analyze(tmp_path))
    assert f"note: {TOLD}. advisor analyze --each" in " ".join(page.split())
    assert TOLD in json.loads(Tools(tmp_path).analyze("."))["from_trace"]["which_was_read"]
    assert "the newest of" not in formats()["json"].render(advisor.analyze(tmp_path / "plugins/profile/2026_01_02_00_00_00"))


def test_several_hosts_are_a_job(tmp_path):
    assert newest_run(run_in(tmp_path, "2026_01_03_00_00_00", "a", "b").parent) == newest_run(tmp_path)
    assert read(tmp_path).kind == "job" and read(tmp_path).parts[0].chosen == ""
    for day in (1, 2):
        run_in(tmp_path, f"2026_01_0{day}_00_00_00", "a", "b")
    assert read(tmp_path).parts[0].chosen == TOLD and not read(tmp_path).parts[0].notes


def closed(monkeypatch, *runs):
    """Directories that may not be looked into."""

    def iterdir(path, whole=Path.iterdir):
        if path in runs:
            raise PermissionError(13, "Permission denied", str(path))
        return whole(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)


def test_an_older_run_that_may_not_be_read_costs_nothing_and_is_counted(tmp_path, monkeypatch):
    runs = [run_in(tmp_path, f"2026_01_0{day}_00_00_00", "vm") for day in (1, 2, 3)]
    closed(monkeypatch, runs[0])
    recording = read(tmp_path)
    assert recording.path == str(runs[2] / "vm.xplane.pb") and TOLD in [issue.detail for issue in recording.parts[0].source.issues]
    with pytest.raises(TraceError, match="cannot be redacted: Permission denied"):
        redact(tmp_path, tmp_path / "given")
    closed(monkeypatch, runs[2])
    with pytest.raises(TraceError, match="cannot be opened: Permission denied"):
        read(tmp_path)


def test_hosts_of_one_run_are_all_read_packed_or_not(tmp_path):
    run = run_in(tmp_path, "2026_01_03_00_00_00", "b", "c")
    for host in "ab":
        (run / f"{host}.xplane.pb.gz").write_bytes(gzip.compress(five_events()))
    assert newest_run(tmp_path) == [str(run / name) for name in ("a.xplane.pb.gz", "b.xplane.pb", "c.xplane.pb")]


@pytest.mark.parametrize("where", [".", ".."])
def test_chrome_traces_are_found_from_within_the_log(tmp_path, monkeypatch, where):
    run = tmp_path / "plugins/profile/2026_01_03_00_00_00"
    run.mkdir(parents=True)
    (run / "vm.trace.json.gz").write_bytes(b"")
    monkeypatch.chdir(run if where == ".." else run.parent)
    assert [Path(name).name for name in newest_run(Path(where))] == ["vm.trace.json.gz"]


def chrome(events):
    head = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}}]
    head += [{"ph": "M", "pid": 1, "tid": 14, "name": "thread_name", "args": {"name": "Stream #14(Compute)"}}]
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": head + events})


def test_a_chrome_trace_is_recognised_by_its_processes(tmp_path):
    path = tmp_path / "anything.json"
    path.write_text(chrome([{"ph": "X", "pid": 1, "tid": 14, "ts": 2.5, "dur": 1.0, "name": "loop_add_fusion", "args": {"correlation_id": "9"}}]))
    t = advisor.load(path)
    assert t.source.format == "jax" and t.gpu_ops["correlation"].tolist() == [9] and t.gpu_ops["dur_us"].tolist() == [1.0]


def test_a_chrome_trace_says_what_it_lacks(tmp_path):
    path = tmp_path / "vm.trace.json"
    path.write_text(chrome([{"ph": "X", "pid": 1, "tid": 14, "ts": 2.5, "dur": 1.0, "name": "loop_add_fusion"}]))
    check = next(c for c in advisor.analyze(path).health if c.check == "poorer-format")
    assert check.status == "degraded" and ".xplane.pb" in check.record_with


@pytest.mark.parametrize("odd", [1.7e308, -1.7e308, 1e16])
def test_an_event_beyond_time_costs_itself(tmp_path, odd):
    path = tmp_path / "x.trace.json"
    names = ("gemm", "odd", "add")
    path.write_text(chrome([{"ph": "X", "pid": 1, "tid": 14, "ts": ts, "dur": 1.0, "name": n} for n, ts in zip(names, (2.5, odd, 4.5), strict=True)]))
    with np.errstate(all="raise"):
        ops = advisor.load(path).gpu_ops
    assert ops["dur_us"].tolist() == [1.0, 1.0] and np.diff(ops["start_us"])[0] == 2.0


def test_a_damaged_chrome_trace_is_refused(tmp_path):
    path = tmp_path / "cut.json"
    path.write_text(chrome([])[:-5])
    with pytest.raises(TraceError, match="damaged"):
        advisor.load(path)


def test_what_the_host_copies_for_itself_is_no_work_of_the_device(tmp_path):
    mine = {"memcpy_details": "kind_src:pinned kind_dst:pageable size:8 dest:0 async:1"}
    plane = PlaneOf("/device:GPU:0").line(14, "Stream #14", 0, ("k", 0, 50, KERNEL), ("MemcpyOther", 10, 90, mine))
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(plane.bytes())
    assert advisor.load(path).gpu_ops["name"].tolist() == ["k"]


@pytest.mark.parametrize(
    "head", [b"", b"\x0a", b"\x0a\x05", b"\x0a\x04\x08\x01\x10\x02", b"\x0a\x20\x12\x05hello", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"]
)
def test_other_protobufs_are_no_xplanes(head):
    assert not is_xplane(head)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("$mine.py:12 step", "mine.py(12): step"),
        ("$array.py:293 __float__", "site-packages/jax/array.py(293): __float__"),
        ("$builtins isinstance", "<built-in function isinstance>"),
        ("PjitFunction(f)", ""),
    ],
)
def test_frames_are_spelled_as_torch_profiler_does(name, call):
    assert names.python_call(name) == call


@pytest.mark.parametrize(
    ("name", "waits"), [("$array.py:293 __float__", "jax.Array.__float__"), ("np.asarray(jax.Array)", "np.asarray(jax.Array)"), ("$mine.py:3 item", "")]
)
def test_what_waits_for_the_device(name, waits):
    assert names.wait(name) == waits


CASES = SHARED / "corpus" / "jax"


@needs_shared
@pytest.mark.parametrize("suffix", ["xplane.pb.gz", "trace.json.gz"])
@pytest.mark.parametrize(("name", "rule"), [("op_by_op", "launch-gap"), ("float_each_layer", "sync-stall"), ("shape_changes", "recompilation")])
def test_the_fault_is_first_and_gone_when_fixed(name, rule, suffix):
    slow, fixed = (advisor.analyze(CASES / f"{name}.{v}.{suffix}") for v in ("slow", "fixed"))
    assert slow.findings[0].rule == rule and "jax" in slow.findings[0].fix.url
    assert rule not in [f.rule for f in fixed.findings if f.severity in ("high", "medium")]


@needs_shared
@pytest.mark.parametrize("path", sorted((SHARED / "public" / "jax").glob("*")), ids=lambda p: p.name[:20])
def test_profiles_of_others_are_read(path):
    assert len(advisor.load(path).gpu_ops)


def test_a_timeline_of_tensorflow_1_is_named_as_such(tmp_path):
    # As made of RunMetadata by tensorflow.python.client.timeline: two processes a stream, ops without launches.
    path = tmp_path / "timeline.json"
    names = ("Allocators", "/device:GPU:0/stream:22 Compute", "/device:GPU:0/stream:22 Tensors", "/job:localhost/replica:0/task:0/device:GPU:0 Compute")
    events = [{"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}} for pid, name in enumerate(names)]
    path.write_text(json.dumps({"traceEvents": [*events, {"ph": "X", "cat": "Op", "pid": 1, "tid": 0, "ts": 1574403997050618, "dur": 9, "name": "MatMul"}]}))
    with pytest.raises(TraceError, match="timeline of TensorFlow 1"):
        advisor.load(path)


def test_the_xplane_beside_a_chrome_trace_is_read_in_its_place(xplane_file, tmp_path):
    poorer = tmp_path / "vm.trace.json.gz"
    events = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}}]
    poorer.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    t = advisor.load(poorer)
    assert t.source.path == str(xplane_file) and len(t.gpu_ops) == 2
    assert [(i.check, i.status) for i in t.source.issues] == [("fuller-file", "ok")]
    assert "vm.xplane.pb was read in place of vm.trace.json.gz" in t.source.issues[0].detail
    xplane_file.unlink()
    with pytest.raises(TraceError, match="without any GPU's work"):
        advisor.load(poorer)
