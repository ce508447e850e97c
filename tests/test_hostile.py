"""Inputs that once broke reading, analysing or a terminal, each through the command: a clear answer in bounded memory."""

import json
import resource
import subprocess
import sys

import pytest

from tests.fuzz import examples
from tests.paths import ROOT, needs_shared, shared_files, slow

MEMORY_BYTES = 5 << 30
"""Of address space: what a bomb must not reach. Threads of numpy's libraries alone map some of it."""

RECORDINGS = [path for path in shared_files("hostile/*") if path.name.endswith((".json", ".json.gz", ".sqlite")) and "saved" not in path.name]
SETTINGS = shared_files("hostile/*.toml")


EVERY = """
import sys
from pathlib import Path
from tests.cli.every_command import COMMANDS, READ, advisor, line, parameters, reads, sane
path, place = map(Path, sys.argv[1:])
if path.suffix != ".toml":
    sane(advisor("analyze", path, "-f", "json", "-o", "report.json", cwd=place), "analyze")
small = path.stat().st_size < 40_000  # where a file is an argument, each command reads it; where it is an option, one command does, if it is small
for command in filter(reads, COMMANDS):
    places = {*READ, "memory", "kernels", "config"} if small and command == "analyze" else {*READ}
    for name in places & {*parameters(command, str, Path)}:
        sane(advisor(*line(command, place, place / "sample.json", **{name: str(path), "output": str(place / f"{command}-{name}.json")}), cwd=place), (command, name))
"""
"""Every command of the program with the file in each place."""


def advisor(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "advisor", *map(str, arguments)], cwd=cwd, capture_output=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
    )  # fmt: skip


def sane(done):
    told = done.stderr.decode("utf-8", "replace")
    assert done.returncode in (0, 1, 2, 3), told
    assert "Traceback" not in told and "Warning" not in told, told
    assert not any((ord(c) < 32 and c not in "\n\t") or c == "\x7f" for c in told), told
    assert not any(line.startswith("::") for line in told.splitlines()), told
    return told


@needs_shared
@slow
@pytest.mark.parametrize("path", [*RECORDINGS, *SETTINGS, *shared_files("hostile/saved_*.json")], ids=lambda p: p.name)
def test_what_was_made_to_break_gets_a_clear_answer_of_every_command(path, tmp_path):
    """In every parameter that takes a file, within the memory of this process; warnings of numpy's are errors."""
    (tmp_path / "sample.json").write_text(json.dumps(examples.training(3)))
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", EVERY, path, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    report = tmp_path / "report.json"
    assert not report.exists() or json.loads(report.read_text())["failed"] == []


@needs_shared
@pytest.mark.parametrize("path", SETTINGS, ids=lambda p: p.name)
def test_settings_made_to_break_are_refused_or_kept(path, tmp_path):
    trace = ROOT / "samples" / "launch-gap" / "slow.json.gz"
    for command in (["analyze", trace, "-f", "json", "-o", "report.json"], ["check", trace]):
        done = advisor(*command, "--config", path, cwd=tmp_path)
        sane(done)
        if command[0] == "analyze" and done.returncode == 0:
            assert json.loads((tmp_path / "report.json").read_text())["failed"] == []


@needs_shared
def test_a_name_of_a_trace_stays_in_its_block_of_a_step_summary(tmp_path):
    budget, trace = shared_files("hostile/device_name_budget.toml"), shared_files("hostile/device_name_check.json")
    if budget and trace:
        sane(advisor("check", trace[0], "--config", budget[0], cwd=tmp_path))


def test_files_that_lie_around_are_no_modules(tmp_path):
    """A trace large enough for a second process, analysed where somebody left files named like modules."""
    for name in ("contextlib", "pickle", "numpy", "msgspec", "isal"):
        (tmp_path / f"{name}.py").write_text(f"open('{name}.ran', 'w').close()\n")
    code = (
        "import sys; sys.path.remove('') if '' in sys.path else None\n"
        "from pathlib import Path\nfrom advisor.sources import kineto\nfrom advisor.sources.stream import Stream\n"
        "import gzip\ndata = gzip.open(sys.argv[1])\n"
        "print(len(kineto.read(Stream(data), 'x', processes=2, helped_from=0, chunk_bytes=1 << 14).gpu_ops))\n"
    )
    script = tmp_path / "elsewhere" / "script.py"
    script.parent.mkdir()
    script.write_text(code)
    trace = ROOT / "samples" / "launch-gap" / "slow.json.gz"
    done = subprocess.run([sys.executable, script, trace], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and int(done.stdout) > 0, done.stderr
    assert not list(tmp_path.glob("*.ran"))


@slow
def test_no_command_imports_what_lies_where_one_stands(tmp_path):
    """As the installed command runs: its own directory is on the path, the current one is not, whatever is imported late."""
    place, elsewhere = tmp_path / "place", tmp_path / "elsewhere"
    place.mkdir()
    elsewhere.mkdir()
    installed = (
        "numpy",
        "pandas",
        "msgspec",
        "jinja2",
        "rich",
        "typer",
        "click",
        "isal",
        "networkx",
        "torch",
        "jax",
        "mcp",
        "distributed",
        "fsspec",
        "backports",
        "markupsafe",
    )
    for name in (*sys.stdlib_module_names, *installed):
        (place / f"{name}.py").write_text(f"open({str(place / name)!r} + '.ran', 'w').close()\n")
    (place / "sample.json").write_text(json.dumps(examples.training(3)))
    (elsewhere / "advisor-command").write_text(
        f"import sys\nsys.path.append({str(ROOT)!r})\nfrom pathlib import Path\nfrom tests.cli.every_command import COMMANDS, QUICK, advisor, line\nplace = Path({str(place)!r})\n"
        "for command in COMMANDS:\n"
        "    if command not in QUICK:\n"
        "        advisor(*line(command, place, place / 'sample.json'), cwd=place)\n"
    )
    done = subprocess.run([sys.executable, elsewhere / "advisor-command"], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(place.glob("*.ran"))
