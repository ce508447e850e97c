"""The README's code runs as it stands; what CONTRIBUTING.md says of the tests, and the architecture's page of the folders."""

import ast
import csv
import importlib
import json
import re
import shutil
from pathlib import Path
from statistics import median

import pytest

from advisor.cli import app
from advisor.lab import accuracy, ledger
from tests.command import advisor
from tests.golden.readme import current
from tests.paths import ROOT

README = (ROOT / "README.md").read_text()
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
OWN_RULES = (ROOT / "docs" / "own-rules.md").read_text()
SAMPLES = ROOT / "samples"


def blocks(text: str, language: str, of: str) -> list[str]:
    """The blocks of code in that language that hold a word."""
    return [block for block in re.findall(rf"^```{language}\n(.*?)^```$", text, re.S | re.M) if of in block]


def test_the_rule_that_is_shown_runs_when_it_is_pasted(tmp_path: Path) -> None:
    (code,) = blocks(OWN_RULES, "python", 'rule("')
    (tmp_path / "mine.py").write_text(code)
    (name,) = re.findall(r'^@.*rule\("([\w/-]+)"', code, re.M)
    for sample, found in (("unfused-attention", "findings"), ("memcpy", "clear")):
        done = advisor("analyze", SAMPLES / sample / "slow.json.gz", "--rules", "mine.py", "-f", "json", "-o", "-", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert [kind for kind in ("findings", "clear", "skipped", "failed") for item in report[kind] if item["rule"] == name] == [found]
    assert advisor("explain", name, "--rules", "mine.py", cwd=tmp_path).returncode == 0


def test_the_library_does_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks(REFERENCE, "python", "advisor.analyze(")
    for name, side in (("trace", "slow"), ("before", "slow")):
        shutil.copy(SAMPLES / "launch-gap" / f"{side}.json.gz", tmp_path / f"{name}.json.gz")
    monkeypatch.chdir(tmp_path)
    made: dict[str, object] = {}
    exec(code, made)
    said = capsys.readouterr().out
    assert "launch-gap" in said and str(made["change"].summary) in said  # type: ignore[attr-defined]
    assert len(made["timeline"].gpu_ops)  # type: ignore[attr-defined]


def test_the_recording_in_code_is_one_that_analyze_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    (code,) = blocks(README, "python", "advisor.record(")
    (own,) = re.findall(r"`(profile\(schedule=.*?\))`", README, re.S)
    monkeypatch.chdir(tmp_path)
    net = torch.nn.Linear(8, 8)
    loader = [torch.ones(4, 8)] * 700
    exec(code, {"loader": loader, "train": lambda batch: net(batch).sum().backward()})
    assert {path.name for path in (tmp_path / "recording").iterdir()} == {"light.json.gz", "deep.json.gz", "recording.json"}
    with eval(own.replace("\n", " "), {"advisor": __import__("advisor"), "profile": torch.profiler.profile, "schedule": torch.profiler.schedule}) as profiler:
        for batch in loader[:20]:
            net(batch).sum().backward()
            profiler.step()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["trace.json.gz"]
    for written in ("recording", "out"):
        assert advisor("analyze", written, "-o", f"{written}.html", cwd=tmp_path).returncode == 0


def test_the_settings_that_are_shown_are_taken(tmp_path: Path) -> None:
    (settings,) = blocks(REFERENCE, "toml", "[tool.advisor]")
    (rule,) = blocks(OWN_RULES, "python", 'rule("')
    (name,) = re.findall(r'^@.*rule\("([\w/-]+)"', rule, re.M)
    (tmp_path / "perf").mkdir()
    (tmp_path / "perf" / "our_rules.py").write_text(rule)
    (tmp_path / "pyproject.toml").write_text(settings)
    done = advisor("analyze", SAMPLES / "launch-gap" / "slow.json.gz", "-f", "json", "-o", "-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    ran = {item["rule"] for kind in ("findings", "clear", "skipped") for item in report[kind]}
    assert name in ran and "low-arithmetic-intensity" not in ran


def test_the_commands_that_ci_runs_in_bare_environments_are_the_readme_s() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    (pattern,) = re.findall(r"grep '(.*?)' README\.md", script)
    commands = re.findall(f"{pattern}.*", README, re.M)
    assert [command.rpartition("&& ")[2] for command in commands] == [
        ".venv/bin/advisor analyze samples/launch-gap/slow.json.gz", ".venv/bin/python -m pytest",
    ]  # fmt: skip
    begins, later = script.index("commands["), script.index("apt-get")
    assert begins < script.index("${commands[1]}") < later and "install" not in script[begins:later].replace("skipped", "")


def reasons():
    """Modules without which tests skip, and the reasons that are given by hand."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            said = [word.value for word in node.keywords if word.arg == "reason"]
            if node.func.attr == "importorskip":
                yield path, node.args[0].value.split(".")[0]
            elif ast.unparse(node.func) in ("pytest.skip", "pytest.mark.skip", "pytest.mark.skipif", "mark.skipif"):
                yield path, ast.unparse((said or node.args)[0])


def test_all_that_tests_skip_for_is_listed():
    table = (ROOT / "CONTRIBUTING.md").read_text().split("| Missing | What is not tested |", 1)[1].split("\n\n", 1)[0]
    for path, reason in reasons():
        words = set(re.findall(r"[\w/.-]{3,}", reason))
        assert any(word in table for word in words), f"{path.relative_to(ROOT)} skips for {reason!r}: say so in the table of CONTRIBUTING.md"


def test_the_page_of_the_architecture_names_files_that_are_there():
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = {name for name in re.findall(r"`([\w./]+)`", text) if "/" in name and not name.startswith("team/")}
    homes = (ROOT, ROOT / "advisor", ROOT / "advisor" / "views")
    assert not {name for name in named if not any((home / name.rstrip("/")).exists() for home in homes)}
    folders = {f"advisor/{path.name}/" for path in (ROOT / "advisor").iterdir() if (path / "__init__.py").exists()}
    assert folders - {"advisor/cli/"} <= named, "say what the new folder is for"


def test_texts_name_only_commands_that_there_are():
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    for path in (path for folder in ("advisor", "reports", "rules") for path in (ROOT / folder).rglob("*.py")):
        texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        named = {name for text in texts for name in re.findall(r"(?:: |`|^|with )advisor ([a-z]+)\b", text)}
        assert named <= known, f"{path.relative_to(ROOT)}: no such command"


def test_what_the_readme_shows_is_what_is_printed():
    assert current(README) == README, "python -m tests.golden writes it anew"


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_the_readme_s_figures_are_those_of_the_tables():
    said = " ".join(README.split())
    sets = list(csv.DictReader((ROOT / "corpus" / "blind.csv").open()))
    medians = [100 * float(one["median_error"]) for one in sets[-10:]]
    inside = [100 * int(one["inside"]) / int(one["fixes"]) for one in sets[-10:]]
    assert f"by {min(medians):.1f} to {max(medians):.1f} % of the step in the median. Between {min(inside):.0f} and {max(inside):.0f} %" in said
    assert f"all {len(sets)} sets" in said
    pairs = accuracy.of_ledger(ledger.standing(ROOT / "corpus")).pairs
    error, inside_all = median(abs(pair.expected - pair.measured) for pair in pairs), sum(pair.in_interval for pair in pairs) / len(pairs)
    assert f"Over all {len(pairs):,} timed fixes the median error is {100 * error:.1f} % and {100 * inside_all:.0f} %" in said
    (flip,) = re.findall(r"\((.*?)\), \d+ of [\d,]+ savings move", (ROOT / "docs" / "stability.md").read_text())
    assert f"{flip.replace('%', ' %')} of the findings flip" in said


def test_the_reference_is_the_code_s():
    assert importlib.import_module("docs.reference").page() + "\n" == REFERENCE, "python docs/reference.py > docs/reference.md"
