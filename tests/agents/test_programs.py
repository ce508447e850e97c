"""Programs for agents: results whose worth is known, and folders that do not give the best change away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.agents import programs
from tests.paths import slow


@pytest.mark.parametrize(
    ("agent_s", "same", "report", "share", "false"),
    [
        (5.0, True, {"gain_pct": 48}, 1.0, 0),
        (6.0, True, {"gain_pct": None}, 0.8, 0),
        (9.0, True, {"gain_pct": 30}, 0.2, 1),
        (5.0, False, {"gain_pct": 50}, 0.0, 2),
        (5.0, False, {"gain_pct": None}, 0.0, 1),
        (10.0, True, {}, 0.0, 0),
    ],
)
def test_a_result_is_scored(agent_s: float, same: bool, report: dict[str, Any], share: float, false: int) -> None:
    found = programs.scored(10.0, 5.0, agent_s, same, report)
    assert found["share"] == pytest.approx(share) and len(found["false"]) == false


def test_where_nothing_gains_no_share_is_reached_and_a_claim_is_false() -> None:
    found = programs.scored(10.0, 9.9, 9.8, True, {"gain_pct": 25})
    assert found["share"] is None and len(found["false"]) == 1


def test_each_best_change_rewrites_one_file_of_its_program() -> None:
    for source in programs.PROGRAMS.iterdir():
        changed = {path.name for path in (source / "best").glob("*")}
        assert (len(changed) == 1 or source.name == "sensors") and changed <= {path.name for path in (source / "program").iterdir()}


@slow
def test_folders_hold_the_program_and_the_skill_alone(tmp_path: Path) -> None:
    programs.build(tmp_path)
    assert len(list(tmp_path.iterdir())) == 20
    assert {path.name for path in (tmp_path / "clips-with").iterdir()} == {"program", "prompt.md", "skill"}
    assert {path.name for path in (tmp_path / "clips-without").iterdir()} == {"program", "prompt.md"}
    assert (tmp_path / "clips-with" / "skill" / "SKILL.md").is_file()
