"""Programs end, print and leave the same with `advisor record` around them and without it.

The programs are those of `unharmed/`: each is run twice, once by itself. Here a few of them; with ADVISOR_UNHARMED=all all of them, some ten minutes.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from advisor.lab.recorded import prepare

pytest.importorskip("torch")

ALL = os.environ.get("ADVISOR_UNHARMED") == "all"
PROGRAMS = Path(__file__).with_name("unharmed")
ENVIRONMENT = {"PYTHONPATH": "hidden", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
RECORD = [sys.executable, "-I", "-c", "from advisor.cli import main; main()", "record", "--warmup", "1", "--timed", "3", "--light", "2", "--deep", "2"]
_KINETO = re.compile(r"USDT:|ERROR: External init callback must run in same thread")
"""How lines begin that torch's profiler writes by itself, once a process: with times in them, and where it first starts in a thread."""
BOTH = {"light.json.gz", "deep.json.gz"}


@dataclass
class Ended:
    """How a program ended and what it left: `files` in its directory, `recorded` the traces of each of its processes."""

    code: int
    output: str
    errors: str
    files: dict[str, bytes]
    said: list[str]
    recorded: dict[str, set[str]] = field(default_factory=dict)


@pytest.fixture
def run(tmp_path):
    """Runs a program in a copy of its own of the folder, which has the same name every time."""
    here, out = tmp_path / "here", tmp_path / "out"

    def copy():
        shutil.rmtree(here, ignore_errors=True)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(PROGRAMS, here, ignore=shutil.ignore_patterns("__pycache__"))

    def started(*words, record=(), **options):
        copy()
        command = [*record, sys.executable, *(str(out) if word == "OUT" else word for word in words)]
        environment = {**os.environ, **ENVIRONMENT}
        return subprocess.Popen(command, cwd=here, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

    def ended(process, given=None):
        output, errors = process.communicate(given, timeout=300)
        lines = [line for line in errors.splitlines(keepends=True) if not _KINETO.match(line)]
        said = [line for line in lines if line.startswith("advisor: ")]
        # A shell tells a signal as 128 and its number, and so do we.
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        files = {str(path.relative_to(here)): path.read_bytes() for path in sorted(here.rglob("*")) if path.is_file()}
        recorded = {}
        for path in out.rglob("*.gz"):
            recorded.setdefault(str(path.parent.relative_to(out)), set()).add(path.name)
        return Ended(code, output, "".join(line for line in lines if line not in said), files, said, recorded)

    def ran(*words, record=(), given=None):
        return ended(started(*words, record=record, stdin=subprocess.PIPE), given)

    ran.started, ran.ended = started, ended
    ran.recording = lambda *options: [*RECORD, "-o", str(out), *options, "--"]
    ran.out = out
    return ran


ALONE = {".": BOTH}
RANKS = {"rank0": BOTH, "rank1": BOTH}
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29537", "ranks.py", "45")
CASES = {
    # What it is: its words, and the traces that are recorded of it.
    "plain": (("plain.py",), ALONE),
    "what it sees": (("seen.py", "a", "b c"), ALONE),
    "exit code": (("exit_code.py",), ALONE),
    "exit text": (("exit_code.py", "text"), ALONE),
    "error at once": (("raises.py", "at once"), {}),
    "error in a step": (("raises.py",), ALONE),
    "os._exit": (("hard_exit.py", "50"), ALONE),
    "os._exit at once": (("hard_exit.py", "4"), {}),
    "mp.spawn": (("spawned.py",), {f"process{i}": BOTH for i in range(3)}),
    "ranks by mp.spawn": (("ranks.py", "45"), RANKS),
    "ranks by torchrun": (TORCHRUN, RANKS),
    "subprocess": (("started.py", "one"), ALONE),
    "two programs": (("started.py", "two"), {"process0": BOTH, "process1": BOTH}),
    "os.fork": (("forks.py", "child"), ALONE),
    "forks in the midst": (("forks.py", "midway"), ALONE),
    "forked process": (("forks.py", "process"), ALONE),
    "pool": (("pools.py", "pool"), {"process0": BOTH, "process1": BOTH}),
    "executor": (("pools.py", "executor"), ALONE),
    "loader forks": (("loaders.py", "fork"), ALONE),
    "loader spawns": (("loaders.py", "spawn"), ALONE),
    "threads": (("threads.py",), ALONE),
    "SIGTERM handled": (("signals.py", "graceful"), ALONE),
    "alarms that raise": (("signals.py", "alarm"), None),
    "SIGKILL": (("signals.py", "SIGKILL"), ALONE),
    "SIGINT": (("signals.py", "SIGINT"), ALONE),
    "SIGSEGV": (("signals.py", "SIGSEGV"), ALONE),
    "no room at all": (("no_room.py", "limit", "0", "OUT"), {}),
    "no room for a trace": (("no_room.py", "limit", "20", "OUT"), None),
    "folder gone": (("no_room.py", "gone", "20", "OUT"), {}),
    "files closed": (("no_room.py", "closed", "10", "OUT"), ALONE),
    "elsewhere": (("elsewhere.py",), ALONE),
    "piped": (("piped.py",), ALONE),
    "inference": (("infers.py",), ALONE),
    "notebook": (("notebook.py",), ALONE),
    "starts itself anew": (("again.py", "0"), ALONE),
    "profiles itself later": (("profiles.py",), ALONE),
    "oddities": (("odd.py",), ALONE),
    "warnings are errors": (("-W", "error", "plain.py"), ALONE),
}
ALWAYS = ("what it sees", "mp.spawn", "no room at all", "os._exit")


@pytest.mark.parametrize("case", CASES if ALL else ALWAYS)
def test_a_program_is_the_same_with_us_and_without(run, case):
    words, traces = CASES[case]
    if case == "notebook":
        pytest.importorskip("IPython")
    given = "1 2 3 4\n" * 50 if case == "piped" else None
    alone = run(*words, given=given)
    recorded = run(*words, record=run.recording("--keep-going"), given=given)
    assert (recorded.code, recorded.output, recorded.errors) == (alone.code, alone.output, alone.errors), recorded.said
    assert recorded.files == alone.files
    assert traces is None or recorded.recorded == traces, recorded.said
    assert recorded.recorded or recorded.said, "what is not recorded is said"
    assert not [name for name in os.listdir(run.out) if name.startswith(".")] if run.out.exists() else True


@pytest.mark.skipif(not ALL, reason="ADVISOR_UNHARMED=all runs it")
@pytest.mark.parametrize("kilobytes", [8, 40])
def test_a_full_disk_ends_the_recording_and_not_the_program(run, tmp_path, kilobytes):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)], capture_output=True, check=False).returncode:
        pytest.skip("only root may mount")
    try:
        alone = run("plain.py")
        recorded = run("plain.py", record=[*RECORD, "-o", str(disk / "out"), "--keep-going", "--"])
    finally:
        subprocess.run(["umount", str(disk)], check=False)
    assert (recorded.code, recorded.output, recorded.errors, recorded.files) == (alone.code, alone.output, alone.errors, alone.files)
    assert recorded.code == 0 and sum("failed" in line for line in recorded.said) == 1, recorded.said


STOPPED = {
    "plain": (("-c", "from loop import trained; trained(steps=10_000)"), ALONE, "the program was stopped there"),
    "ranks by mp.spawn": (("ranks.py", "10000"), RANKS, "the program was stopped there"),
    "ranks by torchrun": ((*TORCHRUN[:-1], "10000"), RANKS, "the program was stopped there"),
    "subprocess": (("-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import loop; loop.trained(steps=10_000)'])"), ALONE, "was stopped"),
    "pool": (("pools.py", "pool"), None, "the program runs on, as its steps run in a process that it started"),
    "threads": (("threads.py",), ALONE, "the program runs on, as its steps run in a thread"),
    "notebook": (("notebook.py",), ALONE, "the program runs on, as its steps run in a notebook"),
}


@pytest.mark.parametrize("case", STOPPED if ALL else ["ranks by mp.spawn"])
def test_a_program_ends_well_once_all_is_recorded_or_runs_on(run, case):
    words, traces, said = STOPPED[case]
    if case == "notebook":
        pytest.importorskip("IPython")
    done = run(*words, record=run.recording())
    assert done.code == 0 and not done.errors and said in "".join(done.said)
    assert traces is None or done.recorded == traces
    if case.startswith("ranks"):
        steps = [json.loads((run.out / rank / "recording.json").read_text())["steps"] for rank in RANKS]
        assert steps[0] == steps[1], "no rank went on alone"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1] if ALL else [signal.SIGUSR1], ids=lambda number: number.name)
def test_a_signal_to_us_is_the_programs_to_answer(run, number):
    process = run.started("signals.py", "wait", record=run.recording("--keep-going"))
    process.stdout.readline()
    process.send_signal(number)
    done = run.ended(process)
    assert (done.code, done.output, done.errors) == (4, "asked to stop\n", "")


def test_a_program_does_not_outlive_us(run):
    process = run.started("signals.py", "wait", record=run.recording("--keep-going"))
    pid = int(process.stdout.readline())
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    for _ in range(100):
        if not _runs(pid):
            break
        time.sleep(0.1)
    assert not _runs(pid)
    prepare(run.out)  # as the next recording there begins
    assert not os.listdir(run.out), "what was unfinished is taken away"


def _runs(pid):
    """A process that has ended and that nobody has waited for does not."""
    try:
        return not re.search(r"\) Z ", Path(f"/proc/{pid}/stat").read_text())
    except OSError:
        return False
