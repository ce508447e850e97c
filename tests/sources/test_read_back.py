"""What `redact` and `convert` write for others, the formats' own readers read, and find the same in it."""

import gzip
import json
import pickle
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from advisor.sources.redact import redact
from tests.command import advisor
from tests.kineto_ranks import write_as_json
from tests.paths import ROOT, slowly

SAMPLES = ROOT / "samples"


def redacted(sample: str, folder: Path) -> Path:
    path = folder / Path(sample).name.removesuffix(".gz")
    redact(SAMPLES / sample, path)
    return path


@pytest.mark.parametrize("sample", slowly(["launch-gap/slow.json.gz", "sync-stall/slow.json.gz", "missed-overlap/slow.json.gz"], quick=1))
def test_torchs_validator_finds_in_a_redacted_trace_what_it_finds_in_the_recording(sample, tmp_path):
    validator = pytest.importorskip("torch.profiler._trace_validator")

    def rules(path: Path) -> Counter[str]:
        return Counter(violation.rule_name for violation in validator.validate_trace(str(path))[1])

    assert rules(redacted(sample, tmp_path)) == rules(SAMPLES / sample)


def test_torchs_validator_finds_in_columns_turned_into_json_what_it_finds_in_the_recording(tmp_path):
    validator = pytest.importorskip("torch.profiler._trace_validator")
    sample = SAMPLES / "launch-gap" / "slow.json.gz"
    for before, after in ((sample, "t.trace.zst"), ("t.trace.zst", "t.json.gz")):
        assert advisor("convert", before, after, cwd=tmp_path).returncode == 0
    assert validator.validate_trace(str(tmp_path / "t.json.gz")) == validator.validate_trace(str(sample))
    categories = [
        Counter(event.get("cat") for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]) for path in (sample, tmp_path / "t.json.gz")
    ]
    assert all(categories[0][cat] == categories[1][cat] > 0 for cat in ("kernel", "cuda_runtime", "cpu_op"))


@pytest.mark.parametrize("sample", slowly([f"memory/{name}.slow.pickle.gz" for name in ("adam_state", "kept_losses", "long_scores")], quick=1))
def test_torchs_viewer_of_memory_shows_of_a_redacted_snapshot_what_it_shows_of_the_recording(sample, tmp_path):
    viz = pytest.importorskip("torch.cuda._memory_viz")
    recording = pickle.loads(gzip.decompress((SAMPLES / sample).read_bytes()))
    kept = pickle.loads(redacted(sample, tmp_path).read_bytes())
    assert viz.segsum(kept) == viz.segsum(recording)
    assert len(viz.trace(kept).splitlines()) == len(viz.trace(recording).splitlines())
    assert viz.trace_plot(kept).startswith("<!DOCTYPE html>") or "<html" in viz.trace_plot(kept)
    assert viz.segments(kept, format_flamegraph=str.splitlines) and viz.memory(kept, format_flamegraph=str.splitlines)


def test_sqlite_finds_a_redacted_export_whole(tmp_path):
    sample = "nsys/encoder_infer.slow.sqlite"
    tables = {}
    for which, path in (("recording", SAMPLES / sample), ("kept", redacted(sample, tmp_path))):
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert not database.execute("PRAGMA foreign_key_check").fetchall()
            tables[which] = database.execute("SELECT COUNT(*), MIN(start), MAX(end) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchall()
    assert tables["kept"] == tables["recording"]


def test_jaxs_reader_finds_in_a_redacted_profile_the_work_of_the_recording(tmp_path):
    jax_profiler = pytest.importorskip("jax.profiler")
    sample = "jax/op_by_op.slow.xplane.pb.gz"
    recording = tmp_path / "recording.xplane.pb"
    recording.write_bytes(gzip.decompress((SAMPLES / sample).read_bytes()))

    def device_events(path: Path) -> list[tuple[float, float]]:
        data = jax_profiler.ProfileData.from_file(str(path))
        return [(event.start_ns, event.duration_ns) for plane in data.planes if "/device:" in plane.name for line in plane.lines for event in line.events]

    assert device_events(redacted(sample, tmp_path)) == device_events(recording) != []


def test_holistic_trace_analysis_divides_a_redacted_job_as_the_recording(tmp_path):
    hta = pytest.importorskip("hta.trace_analysis")
    job, given = tmp_path / "job", tmp_path / "given"
    write_as_json(SAMPLES / "jobs" / "ddp_even_2", job)
    redact(job, given)
    times = []
    for folder in (job, given):
        analysis = hta.TraceAnalysis(trace_files={rank: f"rank{rank}.json.gz" for rank in range(2)}, trace_dir=str(folder))
        times.append(analysis.get_temporal_breakdown(visualize=False))
    assert len(times[0]) == 2 and times[0].equals(times[1])
