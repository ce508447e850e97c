import gzip
import json

import pytest

import advisor
from advisor.errors import TraceError
from advisor.sources import is_one_capture, separate_recordings
from tests.sources.kineto.layouts import compact, x

OP = [x("cpu_op", "aten::mm", 10, 5), x("user_annotation", "ProfilerStep#1", 0, 100)]
SHAPED = [x("cpu_op", "aten::mm", 10, 5, **{"Input Dims": [[2, 2]], "Input type": ["float"]}), x("user_annotation", "ProfilerStep#9", 0, 100)]


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "light.json.gz").write_bytes(gzip.compress(compact(OP, {}).encode()))
    (tmp_path / "deep.json.gz").write_bytes(gzip.compress(compact(SHAPED, {}).encode()))
    return tmp_path


def say(directory, **said):
    (directory / "recording.json").write_text(json.dumps({"version": 1, "unprofiled_step_us": [90.0, 91], **said}))


def test_a_recording_is_one_timeline_with_its_measured_steps(directory):
    say(directory, light="light.json.gz", deep="deep.json.gz")
    timeline = advisor.load(directory)
    assert timeline.source.unprofiled_step_us == (90.0, 91.0) and timeline.source.path == str(directory)
    assert timeline.cpu_ops["dims"].tolist() == ["[[2, 2]]"]


@pytest.mark.parametrize("said", [{"light": "light.json.gz"}, {"light": "light.json.gz", "deep": "gone.json.gz"}, {"light": "light.json.gz", "deep": 7}])
def test_one_trace_stands_alone(directory, said):
    say(directory, **said)
    assert advisor.load(directory).source.shapes is False


def test_the_steps_that_a_trace_carries_count_where_the_directory_has_none(directory):
    carried = compact(OP, {"advisor_recording": {"unprofiled_step_us": [77]}})
    (directory / "light.json.gz").write_bytes(gzip.compress(carried.encode()))
    say(directory, light="light.json.gz", unprofiled_step_us=None)
    assert advisor.load(directory).source.unprofiled_step_us == (77.0,)


@pytest.mark.parametrize("name", ["../secret.json", "/etc/passwd", "sub/light.json.gz", "..", ""])
def test_nothing_outside_the_directory_is_read(directory, name):
    say(directory, light=name)
    with pytest.raises(TraceError, match="holds no trace"):
        advisor.load(directory)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', "[" * 100_000])
def test_a_damaged_recording_is_told(directory, text):
    (directory / "recording.json").write_text(text)
    with pytest.raises(TraceError, match=r"recording\.json"):
        advisor.load(directory)


def of_processes(tmp_path, kind, folders):
    """What `advisor record` leaves of several processes."""
    for folder in folders:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "light.json.gz").write_bytes(gzip.compress(compact(OP, {}).encode()))
        say(tmp_path / folder, light="light.json.gz")
    rows = [{"folder": folder, "light": "light.json.gz"} for folder in folders]
    (tmp_path / "manifest.json").write_text(json.dumps({"version": 1, "recorded": kind, "processes": rows}))


def test_ranks_that_were_recorded_together_are_one_job(tmp_path):
    of_processes(tmp_path, "job", ["rank0", "rank1"])
    recording = advisor.read(tmp_path)
    assert recording.kind == "job"
    assert [(trace.named, advisor.load(trace.path).source.unprofiled_step_us) for trace in recording.parts[0].traces] == [(0, (90.0, 91.0)), (1, (90.0, 91.0))]
    assert is_one_capture(tmp_path) and len(separate_recordings([str(tmp_path)])) == 2


def test_processes_that_are_no_ranks_are_looked_at_one_by_one(tmp_path):
    of_processes(tmp_path, "processes", ["process0", "process1"])
    with pytest.raises(TraceError, match="not ranks of the same job: process0, process1") as error:
        advisor.read(tmp_path)
    assert "--each" in error.value.hint
    assert [path.rpartition("/")[2] for path in separate_recordings([str(tmp_path)])] == ["process0", "process1"]


@pytest.mark.parametrize("rows", [None, 7, [7], [{"folder": "..", "light": "x"}], [{"folder": 3, "light": "x"}], [{"folder": "rank0"}]], ids=str)
def test_a_damaged_manifest_names_nothing(tmp_path, rows):
    (tmp_path / "manifest.json").write_text(json.dumps({"version": 1, "recorded": "job", "processes": rows}))
    with pytest.raises(TraceError, match="no trace of any"):
        advisor.read(tmp_path)
