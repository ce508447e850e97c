"""A report as its golden keeps it: what is concluded in full, the long parts as a short hash each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from advisor.engine.run import analyze
from advisor.errors import AdvisorError
from advisor.report.model import Report
from tests.paths import ROOT

SAMPLES = ROOT / "samples"
FOLDER = Path(__file__).parent / "samples"
NO_RECORDINGS = {".py", ".pyc", ".cu", ".md", ".toml", ".json"}
DIGITS = 6
"""Significant ones of every number: versions of numpy, and processors, add up in other orders."""

EXACT_DIGITS = 12
"""To which sums in any order agree: rounded to these first, a half of the last digit kept falls to the same side everywhere."""

IN_FULL = ("kind", "window", "time", "headline", "failed")
OF_A_FINDING = ("severity", "status", "confidence", "saving", "cause", "ranks", "folded_into", "summary")
ALIKE = ("unit", "basis", "removes", "level")
"""Of a saving, what hardly differs from one finding of a rule to the next."""

USUALLY_PER = "step"
"""What a saving is of where nothing else is kept."""


def recordings() -> list[Path]:
    """Every sample: a job is one, of all its ranks."""
    jobs = sorted(path for path in (SAMPLES / "jobs").iterdir() if path.is_dir())
    files = [path for path in SAMPLES.rglob("*") if path.is_file() and path.suffix not in NO_RECORDINGS and SAMPLES / "jobs" not in path.parents]
    return [*jobs, *sorted(path for path in files if not path.name.startswith("."))]


def name(recording: Path) -> str:
    return str(recording.relative_to(SAMPLES))


def golden_of(recording: Path) -> Path:
    """The file that holds it, with those of the same folder."""
    return FOLDER / f"{str(recording.parent.relative_to(SAMPLES)).replace('/', '.')}.json"


def digest(recording: Path, analyze: Callable[[Path], Report] = analyze) -> dict[str, Any]:
    """What is kept of a recording's report."""
    try:
        report = analyze(recording)
    except AdvisorError as error:
        return {"refused": type(error).__name__}
    # Commands that a report gives name the file, wherever this checkout lies.
    return digested(json.loads(report.to_json().decode().replace(str(recording), name(recording))))


def digested(report: dict[str, Any]) -> dict[str, Any]:
    report = rounded(report)
    for changing in ("advisor", "schema", "source"):
        report.pop(changing, None)
    findings, clear, skipped, health = (report.pop(part) for part in ("findings", "clear", "skipped", "health"))
    kept: dict[str, Any] = {part: report.pop(part) for part in IN_FULL if part in report}
    kept["health"] = {check["check"]: check["status"] for check in health if check["status"] != "ok"}
    for finding in findings:
        finding["alike"] = {part: finding["saving"].pop(part) for part in ALIKE if part in finding["saving"]}
        if finding["saving"].get("per") == USUALLY_PER:
            del finding["saving"]["per"]
    kept["findings"] = {
        finding["id"]: {part: finding.pop(part) for part in OF_A_FINDING if finding.get(part) not in ("", [], None)} | {"rest": short(finding)}
        for finding in findings
    }
    kept["clear"] = {entry["rule"]: short(entry) for entry in clear}
    kept["skipped"] = {entry["rule"]: short(entry) for entry in skipped}
    kept["hashes"] = {"health": short(health)} | {part: short(value) for part, value in sorted(report.items()) if value}
    return kept


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{float(f'{value:.{EXACT_DIGITS}g}'):.{DIGITS}g}")
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return {key: rounded(item) for key, item in value.items()} if isinstance(value, dict) else value


def short(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:6]


def differences(kept: Any, made: Any, where: str = "") -> Iterator[str]:
    """Each field that differs, with both values."""
    if isinstance(kept, dict) and isinstance(made, dict):
        for key in [*kept, *(key for key in made if key not in kept)]:
            yield from differences(kept.get(key), made.get(key), f"{where}.{key}" if where else key)
    elif isinstance(kept, list) and isinstance(made, list) and len(kept) == len(made):
        for at, (before, after) in enumerate(zip(kept, made, strict=True)):
            yield from differences(before, after, f"{where}[{at}]")
    elif kept != made:
        yield f"{where}: {json.dumps(kept)} → {json.dumps(made)}"


def written(kept: dict[str, dict[str, Any]]) -> str:
    """A field a line, so that a diff names what changed; what is short stands on one."""
    lines = []
    for sample, parts in sorted(kept.items()):
        fields = [f"  {json.dumps(part)}: {_lines(value)}" for part, value in parts.items()]
        lines.append(f" {json.dumps(sample)}: {{\n" + ",\n".join(fields) + "\n }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _lines(value: Any) -> str:
    if isinstance(value, dict) and any(isinstance(item, dict) for item in value.values()):
        return "{\n" + ",\n".join(f"   {json.dumps(key)}: {_short(item)}" for key, item in value.items()) + "\n  }"
    return _short(value)


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
