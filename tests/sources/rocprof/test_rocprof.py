"""ROCm's recordings: what was put in is read back from each format, and judged as the Kineto trace of the same run."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from advisor import analyze, sources
from advisor.errors import TraceError
from advisor.knowledge.structs import replace
from advisor.recordings.columns import Categorical
from advisor.recordings.timeline import Timeline
from advisor.sources import json_pieces
from advisor.sources.redact import redact
from advisor.sources.rocprof import sdk_json
from tests.paths import ROOT, sample, slowly
from tests.sources.rocprof import build

Write = Callable[[Timeline, Path], None]


def _json(timeline: Timeline, path: Path) -> None:
    path.write_text(json.dumps(build.sdk_json(timeline)))


FORMS: dict[str, Write] = {"rocpd": build.rocpd, "rpd": build.rpd, "rocprofv3-json": _json}


def read(path: Path) -> Timeline:
    (part,) = sources.read(path).parts
    assert isinstance(part, Timeline) and part.source.format == "rocprof"
    return part


def of_hip(timeline: Timeline) -> Timeline:
    """A CUDA trace of one process, as rocprof records a run: calls under HIP's names, copies and kernels that a call made, nothing else."""
    ops = timeline.gpu_ops
    kept = ops[np.isin(ops["correlation"], timeline.api_calls["correlation"]) & ops["kind"].isin(("kernel", "memcpy"))]
    return replace(timeline, gpu_ops=kept)


TRACE = of_hip(sources.load(sample("sync-stall/slow")))


@pytest.mark.parametrize("form", FORMS)
def test_what_was_recorded_is_read_back(form: str, tmp_path: Path) -> None:
    FORMS[form](TRACE, tmp_path / "x.db")
    found = read(tmp_path / "x.db")
    columns = ["device", "stream", "correlation", "grid_blocks", "block_threads", "dur_us"]
    for kind in ("kernel", "memcpy"):
        was, now = (t.gpu_ops[t.gpu_ops["kind"] == kind] for t in (TRACE, found))
        assert was["name"].tolist() == now["name"].tolist() if kind == "kernel" else (was["copy_kind"].tolist() == now["copy_kind"].tolist())
        chosen = columns if kind == "kernel" else ["stream", "bytes", "dur_us"]
        for column in chosen:
            assert now[column] == pytest.approx(was[column], abs=1e-3)
    assert [build.hip(name) for name in TRACE.api_calls["name"]] == found.api_calls["name"].tolist()
    assert TRACE.annotations["name"].tolist() == found.annotations["name"].tolist()
    assert np.allclose(np.diff(TRACE.api_calls["start_us"]), np.diff(found.api_calls["start_us"]), atol=2e-3)


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1000, 1 << 24])
def test_records_of_json_are_read_in_pieces_of_any_size(chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the size up to which a file is decoded as a whole, too; its metadata alone must be smaller."""
    path = tmp_path / "x.json"
    few = TRACE.gpu_ops["start_us"] < np.sort(TRACE.gpu_ops["start_us"])[20] if chunk_bytes < 100 else np.ones(len(TRACE.gpu_ops), bool)
    _json(replace(TRACE, gpu_ops=TRACE.gpu_ops[few], api_calls=TRACE.api_calls[: int(few.sum())]), path)
    whole = read(path)
    monkeypatch.setattr(sdk_json, "pieces", partial(json_pieces.pieces, chunk_bytes=chunk_bytes))
    monkeypatch.setattr(json_pieces, "MOST_BYTES", max(20_000, path.stat().st_size // 2))
    found = read(path)
    assert all(
        found.gpu_ops[name].tolist() == whole.gpu_ops[name].tolist() for name in ("name", "start_us", "dur_us", "device", "stream", "correlation", "bytes")
    )
    assert all(found.api_calls[name].tolist() == whole.api_calls[name].tolist() for name in ("name", "start_us", "correlation"))


def test_metadata_of_json_that_are_too_large_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _json(TRACE, tmp_path / "x.json")
    monkeypatch.setattr(json_pieces, "MOST_BYTES", 100)
    with pytest.raises(TraceError, match="unpacks to more than"):
        read(tmp_path / "x.json")


CASES = [(form, case) for case in ("memcpy/serial_pinned.slow", "launch-gap/slow", "memcpy/slow") for form in FORMS]


@pytest.mark.parametrize(("form", "case"), slowly(CASES, quick=3))
def test_a_pair_is_judged_as_its_twin(form: str, case: str, tmp_path: Path) -> None:
    """The same first finding, and a saving within five points of the step, where both are told the same step without a recorder: Kineto's cost is
    taken off its trace, and rocprof's is not known."""
    twin = sample(case)
    FORMS[form](of_hip(sources.load(twin)), tmp_path / "x.db")
    ms = json.loads(analyze(twin).to_json())["window"]["step_us"] / 1000
    was, now = (json.loads(analyze(path, step_ms=ms).to_json()) for path in (twin, tmp_path / "x.db"))
    first = [report["findings"][0] for report in (was, now)]
    assert first[0]["rule"] == first[1]["rule"]
    shares = [f["saving"]["expected_us"] / report["headline"]["step_us"] for f, report in zip(first, (was, now), strict=True)]
    assert shares[1] == pytest.approx(shares[0], abs=0.05)


def test_a_device_says_its_name_and_size(tmp_path: Path) -> None:
    for form in ("rocpd", "rocprofv3-json"):
        FORMS[form](TRACE, tmp_path / form)
        (device,) = read(tmp_path / form).devices
        assert (device.id, device.name, device.sm_count, device.warp_size) == (0, "AMD Instinct MI300X", 304, 64)


def test_queues_stand_for_streams_where_none_was_recorded(tmp_path: Path) -> None:
    build.rocpd(TRACE, tmp_path / "x.db", queues_only=True)
    found = read(tmp_path / "x.db").gpu_ops
    assert set(found[found["kind"] == "kernel"]["stream"]) == set(TRACE.gpu_ops[TRACE.gpu_ops["kind"] == "kernel"]["stream"])


def test_ranges_of_emit_nvtx_become_ops(tmp_path: Path) -> None:
    texts = ["aten::mm, seq = 4, sizes = [[2, 3], [3, 4]]", "step", "aten::add, op_id = 9"]
    ranges = TRACE.annotations[np.zeros(3, int)].with_columns(name=Categorical.of_texts(texts))
    build.rocpd(replace(TRACE, annotations=ranges), tmp_path / "x.db")
    found = read(tmp_path / "x.db")
    assert found.cpu_ops["name"].tolist() == ["aten::mm", "aten::add"] and found.cpu_ops["sequence"].tolist() == [4, -1]
    assert found.cpu_ops["dims"].tolist()[0] == "[[2, 3], [3, 4]]" and found.annotations["name"].tolist() == ["step"] and found.source.shapes


@pytest.mark.parametrize("form", FORMS)
def test_no_hint_asks_for_a_tool_of_cuda(form: str, tmp_path: Path) -> None:
    FORMS[form](TRACE, tmp_path / "x.db")
    report = json.loads(analyze(tmp_path / "x.db").to_json())
    hints = [row["record_with"] for row in (*report["skipped"], *report["health"])]
    assert not [hint for hint in hints if any(word in hint for word in ("nsys", "ncu ", "Nsight"))]


def test_a_file_without_work_says_how_to_record(tmp_path: Path) -> None:
    nothing = replace(TRACE, gpu_ops=TRACE.gpu_ops[:0])
    for form, write in FORMS.items():
        write(nothing, tmp_path / form)
        with pytest.raises(TraceError, match="holds no GPU work, and") as error:
            sources.read(tmp_path / form)
        assert "rocprofv3" in error.value.hint


def test_json_of_several_processes_is_refused(tmp_path: Path) -> None:
    value = build.sdk_json(TRACE)
    value["rocprofiler-sdk-tool"] *= 2
    (tmp_path / "x.json").write_text(json.dumps(value))
    with pytest.raises(TraceError, match="holds 2 processes"):
        sources.read(tmp_path / "x.json")


@pytest.mark.parametrize("form", FORMS)
def test_a_redacted_file_says_the_same(form: str, tmp_path: Path) -> None:
    FORMS[form](TRACE, tmp_path / "x.db")
    redact(tmp_path / "x.db", tmp_path / "shared.json")
    before, after = (json.loads(analyze(tmp_path / name).to_json()) for name in ("x.db", "shared.json"))
    assert [f["rule"] for f in before["findings"]] == [f["rule"] for f in after["findings"]]
    assert before["window"]["step_us"] == pytest.approx(after["window"]["step_us"], rel=1e-6)


def test_the_sample_finds_its_fault() -> None:
    path = ROOT / "samples" / "rocprof" / "serial_pinned.slow.db"
    assert analyze(path).findings[0].rule == "memcpy" and path.stat().st_size < 60_000
