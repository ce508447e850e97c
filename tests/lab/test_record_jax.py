"""Recording a program of JAX: steps timed without a profiler, then one profile, which is analysed with them. JAX is a stand-in here."""

import gzip
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import advisor
from advisor.errors import UsageError
from advisor.lab import find_steps_jax, record_jax
from advisor.lab.record import record
from advisor.views.replay.replay import Replay
from advisor.views.replay.true_step import Calibration
from advisor.views.workspace import Workspace
from tests.paths import ROOT

FEW = {"warmup": 1, "settle": 0, "timed": 16, "light": 3}
PROFILE = gzip.decompress((ROOT / "samples/jax/op_by_op.fixed.xplane.pb.gz").read_bytes())


@pytest.fixture
def jax(monkeypatch):
    """What JAX does of all this: marks, and a profile below the log's directory."""
    fake = ModuleType("jax")
    fake.__version__, fake.marks, fake.logs = "0.11.2", [], []
    fake.local_devices = lambda: [SimpleNamespace(device_kind="NVIDIA H200")]
    fake.device_put, fake.block_until_ready = lambda value, device: value, lambda values: values

    def stop():
        run = fake.logs[-1] / "plugins" / "profile" / "2026"
        run.mkdir(parents=True)
        (run / "host.xplane.pb").write_bytes(PROFILE)

    class Mark:
        def __init__(self, name, step_num):
            fake.marks.append(step_num)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

    fake.profiler = SimpleNamespace(start_trace=lambda log: fake.logs.append(Path(log)), stop_trace=stop, StepTraceAnnotation=Mark)
    monkeypatch.setitem(sys.modules, "jax", fake)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return fake


def test_a_recording_carries_times_without_the_profiler_and_its_profile(tmp_path, jax):
    with record(tmp_path / "r", **FEW) as run:
        for _ in run.steps(range(800)):
            if run.done:
                break
    assert run.done and not run.notes and len(run.unprofiled_step_us) == record_jax.ROUNDS
    assert jax.marks == [0, 1, 2, 3], "one mark more than steps: the last closes the window"
    told = json.loads((tmp_path / "r" / "recording.json").read_text())
    assert told["light"] == "light.xplane.pb" and told["jax"] == "0.11.2" and told["unprofiled_step_us"] == run.unprofiled_step_us
    timeline = advisor.load(tmp_path / "r")
    assert timeline.source.format == "jax" and timeline.source.unprofiled_step_us == tuple(run.unprofiled_step_us)


def test_a_program_that_marks_its_steps_gets_no_second_marks(tmp_path, jax):
    with record(tmp_path / "r", **FEW) as run:
        for i in run.steps(range(100, 900)):
            if run.done:
                break
            with jax.profiler.StepTraceAnnotation("train", step_num=i):
                pass
    assert run.done and min(jax.marks) >= 100


def test_the_true_step_is_the_one_that_was_timed(tmp_path, jax):
    with record(tmp_path / "r", **FEW) as run:
        list(run.steps(range(800)))
    file = tmp_path / "r" / "recording.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "unprofiled_step_us": [160.0, 161.0, 162.0]}))
    timeline = advisor.load(tmp_path / "r")
    step = Workspace(timeline, Calibration.build(timeline)).get(Replay).true_step
    assert step.basis == "measured" and step.expected_us == 161.0


def test_a_program_that_ends_early_says_so_and_leaves_nothing(tmp_path, jax):
    with pytest.warns(UserWarning, match="ended after 1 step"), record(tmp_path / "r", **FEW) as run:
        run.step()
    assert not (tmp_path / "r").exists()


def test_a_profiler_that_does_not_start_costs_no_step(tmp_path, jax):
    def refuse(log):
        raise RuntimeError("Only one profile may be run at a time.")

    jax.profiler.start_trace = refuse
    with pytest.warns(UserWarning, match="Only one profile"), record(tmp_path / "r", **FEW) as run:
        list(run.steps(range(800)))
    assert run.done and json.loads((tmp_path / "r" / "recording.json").read_text())["unprofiled_step_us"]


def test_what_is_torchs_alone_is_refused(tmp_path, jax):
    with pytest.raises(UsageError, match="nsys"):
        record(tmp_path / "r", nsys=3)


def test_marks_of_a_program_that_knows_nothing_of_us_are_its_steps(tmp_path, jax, monkeypatch):
    monkeypatch.setattr(find_steps_jax.atexit, "register", lambda *a: None)
    monkeypatch.setattr(find_steps_jax.os, "register_at_fork", lambda **a: None)
    monkeypatch.setitem(sys.modules, "jax.profiler", jax.profiler)
    find_steps_jax.install(json.dumps({"directory": str(tmp_path), "steps": "auto", "keep_going": False, **FEW}))
    with pytest.raises(SystemExit):
        for i in range(20_000):  # steps of nothing settle late on a busy machine
            with jax.profiler.StepTraceAnnotation("train", step_num=i):
                pass
    (told,) = tmp_path.glob("*/recording.json")
    assert len(json.loads(told.read_text())["unprofiled_step_us"]) == record_jax.ROUNDS
    assert (told.parent / "light.xplane.pb").read_bytes() == PROFILE
