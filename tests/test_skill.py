"""The skill for agents: in the form that agents read, small, true to the code, every command in it run, and installed over nobody's file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from advisor.lab.verify import Gain
from advisor.report.finding import SEVERITIES
from advisor.report.schema import brief_schema, schema
from tests.command import advisor
from tests.documented import EXIT, commands, prepare, runs, skill
from tests.paths import ROOT

FOLDER = ROOT / "skills" / "advisor"
SKILL = (FOLDER / "SKILL.md").read_text(encoding="utf-8")
TEXT = "".join(page.read_text(encoding="utf-8") for page in skill())


def test_the_head_is_as_the_format_of_skills_wants_it() -> None:
    """agentskills.io: a name of lower-case letters that is the folder's, a description of at most 1,024 characters, no key of one's own."""
    _, head, body = SKILL.split("---\n", 2)
    keys = dict(re.findall(r"^([a-z-]+):(?: (.*))?$", head, re.M))
    assert keys["name"] == FOLDER.name and re.fullmatch("[a-z0-9-]{1,64}", keys["name"])
    assert 0 < len(keys["description"]) <= 1024 and "Use it" in keys["description"] and not re.search(r"[<>]|: ", keys["description"])
    assert set(keys) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"} and len(keys["compatibility"]) <= 500
    assert body.lstrip().startswith("# ")


@pytest.mark.parametrize("page", skill(), ids=lambda page: page.name)
def test_every_page_is_small_and_leads_only_to_pages_of_the_skill(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.encode()) <= 6_000
    assert all((page.parent / target).resolve().is_relative_to(FOLDER) and (page.parent / target).is_file() for target in re.findall(r"\]\(([^)]+)\)", text))


def test_every_page_is_named_in_the_first() -> None:
    assert {f"references/{page.name}" for page in skill() if page.name != "SKILL.md"} == {*re.findall(r"\]\(([^)]+)\)", SKILL)}


def test_fields_verdicts_and_severities_are_those_of_the_code() -> None:
    known = json.dumps([schema(), brief_schema()])
    rows = re.findall(r"^\| `([\w.]+)`", (FOLDER / "references" / "reading.md").read_text(), re.M)
    assert len(rows) > 15
    for name in (*rows, *re.findall(r"`((?:headline|fix|saving|findings\[\])\.\w+)`", TEXT)):
        assert all(f'"{part}"' in known for part in name.replace("[]", "").split(".")), name
    assert all(f"`{severity}`" in TEXT for severity in SEVERITIES)
    verdicts = {Gain(1, 1, low, mid, high).verdict for low, mid, high in ((0.1, 0.2, 0.3), (-0.3, -0.2, -0.1), (-0.01, 0, 0.01), (-0.3, 0, 0.3))}
    assert len(verdicts) == 4 and all(f"`{verdict}`" in TEXT for verdict in verdicts)


def test_every_command_in_it_runs(tmp_path: Path) -> None:
    prepare(tmp_path)
    shown = {tuple(arguments) for page in skill() for arguments in commands(page)}
    assert len(shown) > 15
    for arguments in sorted(shown):
        if runs([*arguments]):
            done = advisor(*arguments, cwd=tmp_path)
            assert done.returncode == next((EXIT[word] for word in arguments if word in EXIT), 0), (arguments, done.stderr)
        else:
            options = {word for word in arguments[: (*arguments, "--").index("--")] if word.startswith("--")}
            help_ = advisor(arguments[0], "--help", cwd=tmp_path).stdout.decode()
            assert options <= {*re.findall(r"--[a-z-]+", help_)}, arguments


def test_it_is_installed_over_nobody_s_file(tmp_path: Path) -> None:
    there = advisor("skill", "--path", cwd=tmp_path).stdout.decode().strip()
    assert Path(there).samefile(FOLDER) and advisor("skill", cwd=tmp_path).stdout.decode() == SKILL
    for _ in range(2):  # what is ours is written anew
        assert advisor("skill", "--install", "agent/skills", cwd=tmp_path).returncode == 0
    made = tmp_path / "agent" / "skills" / "advisor"
    assert {page.relative_to(made): page.read_text() for page in made.rglob("*.md")} == {page.relative_to(FOLDER): page.read_text() for page in skill()}
    (made / "references" / "reading.md").write_text("My notes.\n")
    (made / "SKILL.md").write_text(SKILL.replace("Never add up", "Always add up"))
    refused = advisor("skill", "--install", "agent/skills", cwd=tmp_path)
    assert refused.returncode == 2 and b"reading.md is there already" in refused.stderr
    assert "Always add up" in (made / "SKILL.md").read_text()  # nothing was written
    (made / "SKILL.md").write_text("---\nname: advisor\ndescription: Of another author.\n---\n")
    (made / "references" / "reading.md").unlink()
    assert b"SKILL.md is there already" in advisor("skill", "--install", "agent/skills", cwd=tmp_path).stderr
    assert advisor("skill", "--install", "agent/skills", "--force", cwd=tmp_path).returncode == 0
    assert advisor("skill", "--path", "--install", "x", cwd=tmp_path).returncode == 2
