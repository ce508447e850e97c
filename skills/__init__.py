"""The kit for agents, as text: `advisor skill` shows it and installs it."""

from __future__ import annotations

from pathlib import Path

ADVISOR = Path(__file__).with_name("advisor")
"""The folder of the skill: SKILL.md, and what it refers to."""
