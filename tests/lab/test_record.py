import gzip
import json
import sys
import threading
import warnings

import pytest

torch = pytest.importorskip("torch")

import advisor  # noqa: E402
from advisor.cli import main  # noqa: E402
from advisor.errors import TraceError, UsageError  # noqa: E402
from advisor.knowledge.how_to_record import RECORD_ON_A_GPU  # noqa: E402
from advisor.lab import profilers  # noqa: E402
from advisor.lab.clock import settled, without_start_up  # noqa: E402
from advisor.lab.launch import launch  # noqa: E402
from advisor.lab.record import Options  # noqa: E402
from tests.lab.programs import INFER, TRAIN, written  # noqa: E402

FEW = {"warmup": 1, "settle": 0, "timed": 3, "light": 2, "deep": 2}
PYTHON = sys.executable


@pytest.fixture
def train():
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(batch):
        optimizer.zero_grad()
        net(batch).sum().backward()
        optimizer.step()

    return step


@pytest.fixture(autouse=True)
def soon_timed(monkeypatch):
    monkeypatch.setattr("advisor.lab.record.TIMED_S", 0.0)


def batches(count):
    return (torch.ones(4, 8) for _ in range(count))


def trace_of(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def test_a_loop_is_timed_then_recorded_lightly_then_deeply(tmp_path, train):
    with advisor.record(tmp_path, **FEW) as run:
        for batch in run.steps(batches(30)):
            train(batch)
    assert run.done and len(run.unprofiled_step_us) == 3
    saved = json.loads((tmp_path / "recording.json").read_text())
    assert saved["version"] == 1 and saved["unprofiled_step_us"] == run.unprofiled_step_us
    assert (saved["light"], saved["deep"]) == ("light.json.gz", "deep.json.gz")
    light, deep = advisor.load(tmp_path / "light.json.gz"), advisor.load(tmp_path / "deep.json.gz")
    assert not light.source.shapes and not light.source.stacks
    assert deep.source.shapes and deep.source.stacks and deep.source.memory
    for timeline, steps in ((light, 2), (deep, 2)):
        assert sum(name.startswith("ProfilerStep#") for name in timeline.annotations["name"]) == steps
        assert (timeline.annotations["name"] == "Optimizer.step#SGD.step").sum() == steps


def test_every_trace_carries_what_was_measured_and_nothing_private(tmp_path, train):
    with advisor.record(tmp_path, **FEW) as run:
        for batch in run.steps(batches(30)):
            train(batch)
    for name in ("light", "deep"):
        carried = trace_of(tmp_path / f"{name}.json.gz")["advisor_recording"]
        assert carried["unprofiled_step_us"] == run.unprofiled_step_us and carried["torch"] == torch.__version__
    assert set(carried) == {"unprofiled_step_us", "steady", "peak_memory_bytes", "device", "torch", "options", "frameworks", "loops"}
    assert str(tmp_path) not in (tmp_path / "recording.json").read_text()


def test_steps_are_found_over_epochs_and_the_program_goes_on(tmp_path, train):
    seen = 0
    with advisor.record(tmp_path, **FEW) as run:
        for _ in range(10):
            for batch in run.steps(batches(5)):
                train(batch)
                seen += 1
    assert run.done and seen == 50


def test_a_program_too_short_says_what_is_missing_and_keeps_what_there_is(tmp_path, train):
    run = advisor.record(tmp_path, **FEW)
    with pytest.warns(UserWarning, match="the program ended after 9 steps, before the deep trace: 14 steps or more are needed"), run:
        for batch in run.steps(batches(9)):
            train(batch)
    saved = json.loads((tmp_path / "recording.json").read_text())
    assert len(saved["unprofiled_step_us"]) == 3 and "deep" not in saved and "14 steps" in saved["notes"][0]
    longer = advisor.record(tmp_path / "longer", **FEW)
    with warnings.catch_warnings(), longer:
        warnings.simplefilter("error")
        for batch in longer.steps(batches(longer.steps_needed)):
            train(batch)


def test_an_error_of_the_program_stays_its_own(tmp_path, train):
    with pytest.raises(KeyError), pytest.warns(UserWarning), advisor.record(tmp_path, **FEW) as run:
        for batch in run.steps(batches(30)):
            train(batch)
            raise KeyError("ours")


def test_a_file_of_somebody_else_is_not_replaced(tmp_path):
    (tmp_path / "light.json.gz").write_text("mine")
    with pytest.raises(UsageError, match="no recording of advisor's"), advisor.record(tmp_path):
        pass


def test_options_that_make_no_sense_are_refused(tmp_path):
    for option, value, least in (("timed", 0, 1), ("light", -1, 0)):
        with pytest.raises(UsageError, match=f"{option} is {value} steps") as error:
            advisor.record(tmp_path, **{option: value})
        assert error.value.hint == f"Give {least} or more."


def test_steps_have_settled_when_two_runs_of_five_agree():
    assert not settled([100.0] * 9)
    assert settled([100.0] * 5 + [105.0] * 5)
    assert not settled([100.0] * 5 + [120.0] * 5)
    assert settled([100.0] * 4 + [9000.0] + [100.0] * 5), "one outlier is no trend"


def test_leading_steps_far_above_the_median_are_start_up():
    assert without_start_up([900.0, 200.0, 100.0, 110.0, 300.0, 100.0, 90.0]) == [100.0, 110.0, 300.0, 100.0, 90.0]
    assert without_start_up([]) == [] and without_start_up([5.0]) == [5.0]


def test_a_profiler_of_the_users_own_gets_the_steps_it_waits_for(tmp_path, train):
    from torch.profiler import profile, schedule

    with profile(schedule=schedule(wait=5, warmup=2, active=2, repeat=2), on_trace_ready=advisor.trace_handler(tmp_path), record_shapes=True) as profiler:
        for batch in batches(18):
            train(batch)
            profiler.step()
    first, second = (trace_of(tmp_path / name)["advisor_recording"] for name in ("trace.json.gz", "trace-1.json.gz"))
    # Of five steps the first has nothing before it to begin at and the second is cold; in the next round one is.
    assert 1 <= len(first["unprofiled_step_us"]) <= 3 and len(first["warmup_step_us"]) == 2
    assert 4 <= len(second["unprofiled_step_us"]) <= 3 + 4
    assert first["profiler"] == second["profiler"] and (first["cycle"], second["cycle"]) == (0, 1)
    assert first["options"] == {"record_shapes": True, "with_stack": False, "profile_memory": False}
    assert advisor.load(tmp_path / "trace.json.gz").source.shapes


def test_cycles_of_one_handler_are_one_process_and_a_later_run_replaces_them(tmp_path, train):
    from torch.profiler import profile, schedule

    def run(cycles):
        with profile(schedule=schedule(wait=3, warmup=1, active=2, repeat=cycles), on_trace_ready=advisor.trace_handler(tmp_path)) as profiler:
            for batch in batches(6 * cycles):
                train(batch)
                profiler.step()

    def names():
        return sorted(path.name for path in tmp_path.iterdir())

    run(3)
    (tmp_path / "trace-7.json.gz").write_bytes(gzip.compress(b"{}"))
    assert advisor.load(tmp_path).source.path.endswith("trace-2.json.gz")
    (tmp_path / "trace-2.json.gz").rename(tmp_path / "a.json.gz")
    assert advisor.load(tmp_path).source.path.endswith("a.json.gz"), "what stands inside counts, whatever the name"
    recorded = b'{"advisor_recording": {"unprofiled_step_us": [1.0]}, "traceEvents": []}'
    (tmp_path / "trace-8.json.gz").write_bytes(gzip.compress(recorded))
    run(1)
    assert names() == ["a.json.gz", "trace-7.json.gz", "trace-8.json.gz", "trace.json.gz"], "what no handler named or wrote stays"


def test_a_recording_of_a_program_without_a_gpu_does_not_ask_for_another_profiler(tmp_path, train):
    with advisor.record(tmp_path, **FEW) as run:
        for batch in run.steps(batches(30)):
            train(batch)
    assert {s.record_with for s in advisor.analyze(tmp_path).skipped if "GPU work" in s.why} == {RECORD_ON_A_GPU.text}


def test_a_script_is_recorded_unchanged_and_ends_when_enough_is(tmp_path, monkeypatch, capfd):
    few = [part for name, value in FEW.items() if name != "settle" for part in (f"--{name}", str(value))]
    command = ["advisor", "record", "-o", str(tmp_path / "out"), *few, "--", PYTHON, written(tmp_path, TRAIN), "100000"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    said = capfd.readouterr()
    assert ended.value.code == 0 and said.out == ""
    assert f"now: advisor analyze {tmp_path / 'out'}" in said.err
    saved = json.loads((tmp_path / "out" / "recording.json").read_text())
    assert len(saved["unprofiled_step_us"]) >= 3 and saved["deep"] == "deep.json.gz"


def test_a_script_that_goes_on_prints_and_exits_as_without_us(tmp_path, monkeypatch, capfd):
    # The start-up module that ours hides runs too.
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert launch([PYTHON, written(tmp_path, TRAIN), "2000", "7"], tmp_path / "out", Options(**FEW), keep_going=True) == 7
    assert capfd.readouterr().out == "mine\ntrained\n"
    assert (tmp_path / "out" / "deep.json.gz").exists()


def test_inference_is_found_by_the_outermost_modules_forward(tmp_path):
    assert launch([PYTHON, written(tmp_path, INFER.replace("range(200)", "range(10**6)"))], tmp_path, Options(**FEW)) == 0
    light = advisor.load(tmp_path / "light.json.gz")
    assert sum(name.startswith("ProfilerStep#") for name in light.annotations["name"]) == 2
    # One product a step: neither the inner modules' calls nor those of the cheaper outer one are steps.
    assert (light.cpu_ops["name"] == "aten::linear").sum() == 2


SERVE = """
import asyncio, torch
net = torch.nn.Linear(8, 8)
async def answer():
    await asyncio.sleep(0)
    with torch.inference_mode():
        return net(torch.ones(1, 8))
async def serve():
    for _ in range(10**6):
        await asyncio.gather(answer(), answer())
asyncio.run(serve())
"""


def test_a_program_with_an_event_loop_ends_without_a_traceback(tmp_path, capfd):
    assert launch([PYTHON, written(tmp_path, SERVE)], tmp_path / "out", Options(**FEW)) == 0
    assert "Traceback" not in capfd.readouterr().err and (tmp_path / "out" / "light.json.gz").exists()


BY_HAND = """
import torch
w = torch.ones(8, requires_grad=True)
for step in range(10**6):
    (w - 1).square().sum().backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.grad = None
"""


def test_a_profile_function_of_the_program_outlives_the_stacks(tmp_path, train):
    def hook(frame, event, arg):
        pass

    sys.setprofile(hook)
    try:
        with advisor.record(tmp_path, **FEW) as run:
            for batch in run.steps(batches(30)):
                train(batch)
        assert sys.getprofile() is hook
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("steps", ["auto", "backward"])
def test_updates_by_hand_have_a_step_for_each_backward(tmp_path, steps):
    assert launch([PYTHON, written(tmp_path, BY_HAND)], tmp_path, Options(**FEW), steps=steps) == 0
    light = advisor.load(tmp_path / "light.json.gz")
    assert sum(name.startswith("ProfilerStep#") for name in light.annotations["name"]) == 2
    assert (light.cpu_ops["name"] == "aten::square").sum() == 2


def test_many_backwards_before_the_first_update_are_of_one_step(tmp_path):
    micro = TRAIN.replace("    net(torch.ones(4, 8))", "    for _ in range(15): net(torch.ones(4, 8))")
    assert launch([PYTHON, written(tmp_path, micro), "1000000"], tmp_path, Options(**FEW)) == 0
    light = advisor.load(tmp_path / "light.json.gz")
    assert (light.annotations["name"] == "Optimizer.step#SGD.step").sum() == 2 and (light.cpu_ops["name"] == "aten::linear").sum() == 30


def test_objects_of_the_program_that_are_gone_do_no_harm(tmp_path):
    """A weak proxy whose object is gone raises for whatever asks it for its class."""
    gone = "import weakref\nclass A: pass\na = A()\nproxies = [weakref.proxy(a)]\ndel a\n"
    assert launch([PYTHON, written(tmp_path, gone + INFER.replace("range(200)", "range(10**6)"))], tmp_path, Options(**FEW)) == 0


PROFILED = TRAIN.replace("for step in", "profiler = torch.profiler.profile(BY)\nprofiler.start()\nfor step in").replace('print("trained")', "profiler.stop()")


@pytest.mark.parametrize("keep_going", [False, True])
@pytest.mark.parametrize("by", ["", "schedule=torch.profiler.schedule(wait=0, warmup=10**6, active=1)"], ids=["recording", "warming up"])
def test_a_program_that_profiles_itself_is_refused_and_neither_timed_nor_ended_by_it(tmp_path, keep_going, by):
    script = written(tmp_path, PROFILED.replace("BY", by))
    with pytest.raises(UsageError, match="a profiler of its own"):
        launch([PYTHON, script, "40"], tmp_path / "out", Options(**FEW), keep_going=keep_going)
    assert not (tmp_path / "out").exists(), "nothing was recorded"


def test_a_program_that_records_itself_is_refused_and_its_own_recording_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loop = TRAIN.replace("for step", f"import advisor\nrun = advisor.record('own', **{FEW}).__enter__()\nfor step").replace(
        "    optimizer.step()", "    optimizer.step(); run.step()"
    )
    with pytest.raises(UsageError, match=r"advisor\.record, into own"):
        launch([PYTHON, written(tmp_path, loop), "600"], tmp_path / "out", Options(), keep_going=True)
    assert (tmp_path / "own" / "deep.json.gz").exists()


def test_a_recording_gives_way_to_one_that_begins_inside_of_it(tmp_path, train):
    outer, inner = (advisor.record(tmp_path / name, **FEW) for name in ("outer", "inner"))
    with pytest.warns(UserWarning, match=r"into .*inner: the recording ended there"), outer, inner:
        for batch in inner.steps(outer.steps(batches(30))):
            train(batch)
    assert (tmp_path / "inner" / "deep.json.gz").exists() and not (tmp_path / "outer").exists()


def test_a_recording_inside_of_a_profiler_is_refused(tmp_path):
    with torch.profiler.profile(), pytest.raises(UsageError, match="a profiler is on already"), advisor.record(tmp_path):
        pass


def test_a_profiler_that_starts_during_a_trace_finds_its_way_clear(tmp_path, train):
    with pytest.warns(UserWarning, match="profiler of its own"), advisor.record(tmp_path, **FEW) as run:
        for batch in run.steps(batches(run.steps_needed - 1)):
            train(batch)
        with torch.profiler.profile() as own:
            train(torch.ones(4, 8))
    assert len(own.events()) and (tmp_path / "light.json.gz").exists()


def test_steps_in_a_thread_are_recorded_and_the_program_goes_on(tmp_path, capfd, monkeypatch):
    # As one of two ranks, which count steps and no time.
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    threaded = (
        TRAIN.replace("for step", "import threading\ndef loop():\n  for step").replace("    optimizer", "      optimizer").replace("    net", "      net")
    )
    threaded = threaded.replace('print("trained")', 'one = threading.Thread(target=loop); one.start(); one.join(); print("trained")')
    # Once to the end, and once so short that the thread ends in a trace: a profiler that is left on there ends the program.
    for steps, last in (("500", "deep"), ("9", "light")):
        assert launch([PYTHON, written(tmp_path, threaded), steps], tmp_path / steps, Options(**FEW)) == 0
        assert capfd.readouterr().out == "trained\n" and (tmp_path / steps / "rank0" / f"{last}.json.gz").exists()


@pytest.fixture
def in_a_trace(tmp_path, train):
    """A recording whose light trace a living thread is in the midst of; a call lets that thread go on, to its end."""
    run, reached, go_on = advisor.record(tmp_path / "out", **FEW), threading.Event(), threading.Event()

    def loop():
        for _ in range(run.steps_needed - 5):
            train(torch.ones(4, 8))
            run.step()
        reached.set()
        go_on.wait(60)
        for _ in range(5):
            train(torch.ones(4, 8))
            run.step()

    thread = threading.Thread(target=loop, daemon=True)

    def rest():
        go_on.set()
        thread.join(60)
        assert not thread.is_alive() and not profilers.running()

    with warnings.catch_warnings(record=True) as run.said:
        warnings.simplefilter("always")
        with run:
            thread.start()
            reached.wait(60)
            assert profilers.running()
            yield run, rest


def test_a_recording_that_ends_while_a_thread_goes_on_is_written_and_says_what_is_missing(in_a_trace):
    run, rest = in_a_trace
    run.finish()
    assert run.done and "before the light and deep trace" in str(run.said[-1].message)
    saved = (run.directory / "recording.json").read_text()
    assert len(json.loads(saved)["unprofiled_step_us"]) == 3
    rest()
    assert [path.name for path in run.directory.iterdir()] == ["recording.json"], "nothing is written once it is over"
    assert (run.directory / "recording.json").read_text() == saved


def test_a_trace_in_another_thread_gives_way_at_its_next_step(in_a_trace):
    run, rest = in_a_trace
    run.give_way(UsageError("another", "Take it out."))
    assert run.done and run.gave_way and profilers.running(), "only its own thread can end it"
    rest()
    assert not run.directory.exists(), "no trace was recorded"


def test_a_recording_gives_way_in_the_midst_of_a_trace(tmp_path, train):
    outer, inner = (advisor.record(tmp_path / name, **FEW) for name in ("outer", "inner"))
    with pytest.warns(UserWarning, match=r"into .*inner: the recording ended there"), outer:
        for batch in outer.steps(batches(outer.steps_needed - 1)):
            train(batch)
        with inner:
            for batch in inner.steps(batches(30)):
                train(batch)
    assert (tmp_path / "inner" / "deep.json.gz").exists() and (tmp_path / "outer" / "light.json.gz").exists()


def test_a_recording_that_ends_while_a_step_ends_elsewhere_waits_for_it(tmp_path, train, monkeypatch):
    run, inside, ended = advisor.record(tmp_path, **FEW), threading.Event(), threading.Event()

    def compilations():
        inside.set()
        ended.wait(0.2)
        return 0

    monkeypatch.setattr("advisor.lab.record.compilations", compilations)
    thread = threading.Thread(target=run.step)
    with pytest.warns(UserWarning, match="before the light and deep trace"), run:
        thread.start()
        inside.wait(60)
    thread.join()
    assert run.done


def test_what_is_needed_is_told_by_how_long_steps_take(tmp_path, train, monkeypatch):
    monkeypatch.setattr("advisor.lab.record.TIMED_S", 60.0)
    monkeypatch.setattr("advisor.lab.record.MAX_TIMED", 50)
    with pytest.warns(UserWarning, match=r"61 steps or more are needed .*50 at most.*\(warmup, light, deep\)"), advisor.record(tmp_path, **FEW) as run:
        for batch in run.steps(batches(20)):
            train(batch)
    assert run.steps_needed == 1 + 2 + 50 + 4 + 4


def test_a_warning_points_at_the_program_and_nothing_empty_is_left(tmp_path):
    with pytest.warns(UserWarning) as warned, advisor.record(tmp_path / "out"):
        pass
    assert warned[0].filename == __file__ and not (tmp_path / "out").exists()


def test_a_program_that_a_signal_kills_says_which(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["advisor", "record", "-o", str(tmp_path / "out"), "--", PYTHON, "-c", "import os; os.kill(os.getpid(), 11)"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 139 and "which SIGSEGV (segmentation fault) leaves" in capfd.readouterr().err


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_earlier_recording_stays_until_there_is_another(tmp_path, monkeypatch, capfd):
    out = tmp_path / "out"
    few = [part for name, value in FEW.items() if name != "settle" for part in (f"--{name}", str(value))]

    def record(text, *arguments):
        monkeypatch.setattr(sys, "argv", ["advisor", "record", "-o", str(out), *few, "--", PYTHON, written(tmp_path, text), *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    assert record(TRAIN, "100000") == 0
    earlier = contents(out)
    too_short = TRAIN, "3", "7"
    for program in (("1 / 0",), ("print('no step')",), too_short[:2], too_short):
        assert record(*program) != 0 and "earlier recording" in capfd.readouterr().err
        assert contents(out) == earlier
    assert record(TRAIN, "100000") == 0 and contents(out).keys() == earlier.keys() and contents(out) != earlier
    killed_in_a_trace = TRAIN.replace(
        "    optimizer.step()", "    optimizer.step()\n    if list(OUT.glob('.advisor-*/*/light.json.gz')): os.kill(os.getpid(), 9)"
    )
    killed_in_a_trace = f"import os, pathlib\nOUT = pathlib.Path({str(out)!r})\n{killed_in_a_trace}"
    assert record(killed_in_a_trace, "100000") == 137
    assert sorted(map(str, contents(out))) == ["light.json.gz", "recording.json"], "what there is is kept"
    assert "the program ended after at least" in capfd.readouterr().err


def test_a_recording_takes_the_place_of_one_of_more_ranks(tmp_path, monkeypatch, train):
    command = [PYTHON, written(tmp_path, TRAIN), "100000"]
    for world, rank in ((2, 1), (2, 0)):
        monkeypatch.setenv("WORLD_SIZE", str(world))
        monkeypatch.setenv("RANK", str(rank))
        assert launch(command, tmp_path / "out", Options(**FEW)) == 0
        assert {path.parent.name for path in (tmp_path / "out").rglob("*.json")} == {f"rank{rank}"}
    monkeypatch.delenv("WORLD_SIZE")
    with advisor.record(tmp_path / "out", **FEW) as run:
        for batch in run.steps(batches(30)):
            train(batch)
    assert sorted(map(str, contents(tmp_path / "out"))) == ["deep.json.gz", "light.json.gz", "recording.json"]


def test_an_earlier_recording_outlives_an_error_in_the_loop(tmp_path, train):
    def record(count):
        with advisor.record(tmp_path, **FEW) as run:
            for batch in run.steps(batches(count)):
                train(batch)
            1 / (count - 5)

    record(30)
    earlier = contents(tmp_path)
    with pytest.warns(UserWarning, match="the earlier recording"), pytest.raises(ZeroDivisionError):
        record(5)
    assert contents(tmp_path) == earlier


def test_a_program_without_steps_says_so(tmp_path):
    with pytest.raises(TraceError, match="no step was found"):
        launch([PYTHON, "-c", "print('hello')"], tmp_path, Options(**FEW))


def test_a_command_that_does_not_exist_says_so(tmp_path):
    with pytest.raises(UsageError, match="cannot be started"):
        launch([str(tmp_path / "nothing")], tmp_path, Options())


def test_ranks_count_the_same_steps_however_long_theirs_take(tmp_path, train, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("advisor.lab.record.TIMED_S", 60.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with advisor.record(tmp_path, warmup=1, timed=3, light=1, deep=1) as run:
            steps = 0
            while not run.done:
                train(torch.ones(4, 8))
                run.step()
                steps += 1
    # One that begins, 1 + 20 to settle, one before the timed ones, 3 of them, and two traces of 2 + 1.
    assert steps == 1 + 21 + 1 + 3 + 6 and len(run.unprofiled_step_us) == 3


def test_several_ranks_record_each_into_its_own_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert launch([PYTHON, written(tmp_path, TRAIN), "100000"], tmp_path, Options(**FEW)) == 0
    assert (tmp_path / "rank1" / "light.json.gz").exists()


def test_nsys_wraps_the_command_and_its_export_is_named(tmp_path, monkeypatch):
    # A stand-in that writes what it was called with, then runs the program or makes the export's file.
    tool = tmp_path / "nsys"
    tool.write_text(
        f"#!{PYTHON}\nimport sys, os, subprocess\na = sys.argv[1:]\nif a[0] == 'export':\n"
        "    open(a[a.index('-o') + 1], 'w').close()\n    sys.exit(0)\n"
        "assert '--capture-range=cudaProfilerApi' in a\nsys.exit(subprocess.call(a[a.index('-o') + 2 :]))\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    stub = TRAIN.replace(
        "import sys, torch",
        "import sys, torch\ntorch.cuda.profiler.start = torch.cuda.profiler.stop = lambda: None\n"
        "import contextlib; torch.cuda.nvtx.range = lambda name: contextlib.nullcontext()",
    )
    options = Options(**{**FEW, "light": 0, "deep": 0}, nsys=2)
    assert launch([PYTHON, written(tmp_path, stub), "100000"], tmp_path, options) == 0
    assert json.loads((tmp_path / "recording.json").read_text())["nsys"] == "nsys.sqlite"
