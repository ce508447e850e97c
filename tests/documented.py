"""The commands that the README, docs/ and the skill show, and the files that they speak of, so that each can be run as it stands."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import advisor
from tests.kineto_ranks import write_as_json
from tests.paths import ROOT

MEASURE_HERE = {"record", "try", "verify", "bench", "attention"}
"""Commands that need torch, and time: tests/lab runs them."""
OF_EVERY_SAMPLE = ("validate samples",)
"""Minutes each: tests/lab/test_documents.py runs them where every golden is asked for."""
ELSEWHERE = ("dask://", "advisor mcp", "--install-completion", "--capture", "--serving")
"""What asks for a cluster, waits for an agent, asks which shell it runs in, or needs what a server wrote beside its trace:
tests/engine/test_fleet_elsewhere.py, tests/integrations/test_mcp.py, tests/cli/test_completion.py and tests/cli/test_beside.py run them."""
WHOLE_ALONE = {"rules", "schema"}
"""Commands that say something without an argument; a page that names another one alone only speaks of it."""
EXIT = {"--fail-on": 1, "--kernels": 2}
"""What a gate returns for the trace that stands for all; and that the report which stands for all is of another program than that."""

NAMES = {"RULE": "launch-gap", "3/8": "1/1"}
"""What stands for a word that is no file."""
TEXTS = {
    "pyproject.toml": '[tool.advisor]\nrules = ["acme_rules/use_our_kernel.py"]\n[tool.advisor.budgets]\nstep_ms = 1000\nregression_percent = 5\n',
    "DIR/manifest.json": json.dumps({"cases": {"pair": {"rule": "launch-gap", "slow_ms": 2.0, "fixed_ms": 0.3, "kineto": {"slow": "slow.json.gz"}}}}),
    "accuracy.jsonl": '{"name": "pair", "rule": "launch-gap", "low": 0.1, "expected": 0.2, "high": 0.3, "measured": 0.2}\n',
}
SAMPLES = {
    "launch-gap/slow.json.gz": (
        "trace.json trace.json.gz TRACE A B C BEFORE IN recording/light.json.gz runs/a.json.gz runs/b.json.gz main-runs/a.json.gz "
        "main-runs/b.json.gz DIR/slow.json.gz samples/launch-gap/slow.json.gz"
    ),
    "launch-gap/fixed.json.gz": "AFTER",
    "memory/kept_losses.slow.pickle.gz": "snapshot.pickle before.pickle",
    "memory/kept_losses.fixed.pickle.gz": "after.pickle",
    "kernels/pairs.ncu-rep.gz": "x.ncu-rep report.ncu-rep before.ncu-rep after.ncu-rep",
    "nsys/encoder_infer.slow.sqlite": "report.sqlite",
    "jax/op_by_op.slow.xplane.pb.gz": "log/plugins/profile/2026_01_31_12_00_00/vm.xplane.pb before.xplane.pb",
    "jax/op_by_op.fixed.xplane.pb.gz": "after.xplane.pb",
}
SAVED = ["saved.json", "report.json", "main.json", "perf/main.json", "before.json", "after.json"]
COMPILED = ROOT / "tests" / "views" / "trace" / "compile_logs"
OWN_RULE = "docs/examples/team_rules/acme_rules/use_our_kernel.py"


def pages() -> list[Path]:
    """What a user reads to begin."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *skill()]


def skill() -> list[Path]:
    """What an agent reads."""
    return sorted((ROOT / "skills").rglob("*.md"))


def commands(page: Path) -> Iterator[list[str]]:
    """The arguments of each command that a page shows in a block, and the reference's tasks in a line too; each once."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M)
    shown = [line for language, block in blocks if language in ("", "sh", "yaml") for line in block.splitlines()]
    if page.name == "reference.md":
        shown += re.findall(r"`(advisor [^`]*)`", text.partition("## Options")[0])
    found = (match[1] for line in shown if (match := re.search(r"(?:^|^- |&& \.venv/bin/)(advisor .*?)(?=\s+#| &&|$)", line.strip())))
    for command in dict.fromkeys(found):
        yield [NAMES.get(word, word) for word in shlex.split(command.replace("…", ""))[1:]]


def runs(arguments: list[str]) -> bool:
    """Whether a command is run as it stands, rather than held against its --help."""
    whole = len(arguments) > 1 or arguments[0] in WHOLE_ALONE
    said = " ".join(["advisor", *arguments])
    return whole and arguments[0] not in MEASURE_HERE and not any(word in said for word in (*OF_EVERY_SAMPLE, *ELSEWHERE))


def prepare(place: Path) -> None:
    """The files that the pages name, under those names."""
    for sample, names in SAMPLES.items():
        for name in names.split():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "samples" / sample, place / name)
    for name, text in TEXTS.items():
        (place / name).write_text(text)
    for folder in (place, place / "traces", place / "JOB_DIR"):
        write_as_json(ROOT / "samples" / "jobs" / "ddp_even_2", folder)
    merge(place / "JOB_DIR", place / "merged.json.gz")
    shutil.copy(COMPILED / "print.json.gz", place / "compiled.json.gz")
    (place / "compile_log").mkdir()
    (place / "compile_log" / "dedicated_log_torch_trace_a.log").write_bytes(gzip.decompress((COMPILED / "print.log.gz").read_bytes()))
    report = advisor.analyze(ROOT / "samples" / "launch-gap" / "slow.json.gz").to_json()
    for name in SAVED:
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(report)
    for command in ("init -q", "-c user.name=a -c user.email=a@example.com commit -q --allow-empty -m first"):  # for `history`
        subprocess.run(["git", *command.split()], cwd=place, check=True)
    for name, team in (("mine.py", "mine/"), ("acme_rules/use_our_kernel.py", "acme/")):  # of two files, two rules
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text((ROOT / OWN_RULE).read_text().replace("acme/", team))


def merge(ranks: Path, out: Path) -> None:
    """One file of a job's ranks, named as engines that serve name them."""
    events = []
    for rank, path in enumerate(sorted(ranks.glob("rank*.json.gz"))):
        with gzip.open(path) as file:
            events += [{**event, "pid": f"[TP{rank:02}] {event.get('pid')}"} for event in json.load(file)["traceEvents"]]
    with gzip.open(out, "wt") as file:
        json.dump({"traceEvents": events}, file)
