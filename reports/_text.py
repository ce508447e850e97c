"""Pieces of text that formats share: links, names of places, code within prose."""

from __future__ import annotations

import re

from advisor.report.finding import Finding

_PLACES = {"#why": "Kernel by kernel", "#health": "Checks", "#skipped": "Skipped rules", "#time": "Time"}


def section_anchor(link: str) -> str:
    """A section of the page by the name that it bears, for a link to it."""
    return _PLACES.get(link, link.removeprefix("#").capitalize())


def short_path(path: str, most: int = 48) -> str:
    """The end of a long path, which tells files apart: `…/run-7/rank0.json.gz`."""
    if len(path) <= most:
        return path
    parts = path.split("/")
    kept = parts[-1]
    for part in reversed(parts[:-1]):
        if len(kept) + len(part) + 3 > most:
            break
        kept = f"{part}/{kept}"
    return f"…/{kept}" if len(kept) <= most else f"…{kept[-most:]}"


def first_up(text: str) -> str:
    """A bottleneck as a heading: `Launch-bound`, `GPU-bound`."""
    for short in ("gpu", "cpu", "dram"):
        text = text.replace(f"{short}-", f"{short.upper()}-", 1) if text.startswith(f"{short}-") else text
    return text[:1].upper() + text[1:]


def anchors(findings: tuple[Finding, ...]) -> list[str]:
    """One id a finding, fit for a link: `finding-launch-gap`, and `-2` for the second of the same rule."""
    made: list[str] = []
    for finding in findings:
        base = "finding-" + (re.sub(r"[^A-Za-z0-9_.-]+", "-", finding.rule).strip("-") or "unnamed")
        number = 1
        while (anchor := base if number == 1 else f"{base}-{number}") in made:
            number += 1
        made.append(anchor)
    return made


def code_spans(text: str) -> list[tuple[bool, str]]:
    """Prose cut at its `code`: pairs of whether a piece is code, and the piece without its backticks."""
    pieces = re.split(r"`([^`\n]+)`", text)
    return [(position % 2 == 1, piece) for position, piece in enumerate(pieces) if piece]
