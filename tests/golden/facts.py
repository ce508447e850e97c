"""What a report concludes, as a row of facts.csv that a person can read: no sentence of it, and no digit that nobody acts on."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from advisor.engine.run import report_of
from advisor.errors import AdvisorError
from advisor.report.finding import Finding
from advisor.report.model import Report
from tests.differences import EXACT_DIGITS, steady
from tests.paths import ROOT

SAMPLES, CORPUS = ROOT / "samples", ROOT / "corpus" / "traces"
FILE = Path(__file__).with_name("facts.csv")
COLUMNS = ("trace", "judged", "bottleneck", "step_us", "together", "findings", "skipped", "checks")
"""Together: what all fixes save, in percent of the step. Findings in the report's order, each as `rule severity percent`, and what limits it.
Skipped: rules that could not look. Checks: those of the trace that do not hold."""

LISTS = {"findings": "; ", "skipped": " ", "checks": "; "}
"""Columns that hold several entries, and what stands between these."""

STEP_DIGITS = 3
NO_RECORDINGS = {".py", ".pyc", ".msgpack", ".cu", ".md", ".toml", ".json"}
Row = dict[str, str]


def recordings() -> list[Path]:
    """Every sample and every trace of the corpus. A job is one recording, of all its ranks."""
    jobs = [path for path in (SAMPLES / "jobs").iterdir() if path.is_dir()]
    files = [
        path
        for path in SAMPLES.rglob("*")
        if path.is_file() and path.suffix not in NO_RECORDINGS and not path.name.startswith(".") and path.relative_to(SAMPLES).parts[0] != "jobs"
    ]
    return sorted([*jobs, *files, *CORPUS.glob("*.trace.zst")], key=name)


def name(recording: Path) -> str:
    return recording.relative_to(ROOT).as_posix()


def facts(recording: Path, analyze: Callable[[Path], Report] = report_of) -> Row:
    """The row of a recording."""
    try:
        report = analyze(recording)
    except AdvisorError as error:
        return dict.fromkeys(COLUMNS, "") | {"trace": name(recording), "judged": f"refused: {type(error).__name__}"}
    return {"trace": name(recording)} | concluded(report)


def concluded(report: Report) -> Row:
    """The row of a report, but for where its recording lies."""
    head = report.headline
    saved = None if head.step_us is None or head.predicted_step_us is None else head.step_us - head.predicted_step_us.expected
    return {
        "judged": head.judged,
        "bottleneck": head.bottleneck,
        "step_us": "" if head.step_us is None else f"{steady(head.step_us, STEP_DIGITS):.{EXACT_DIGITS}g}",
        "together": percent(saved / head.step_us) if saved and head.step_us else "",
        "findings": LISTS["findings"].join(_found(finding, report) for finding in report.findings),
        "skipped": " ".join(sorted(entry.rule for entry in report.skipped)),
        "checks": "; ".join(
            [*(f"{check.check} {check.status}" for check in report.health if check.status != "ok"), *(f"{rule.rule} crashed" for rule in report.failed)]
        ),
    }


def percent(share: float) -> str:
    return f"{steady(100 * share, EXACT_DIGITS):.0f}"


def _found(finding: Finding, report: Report) -> str:
    limits = (
        "possible" if finding.status == "possible" else "",
        f"in {finding.folded_into}" if finding.folded_into else "",
        "allowed" if finding.allowed else "",
    )
    return " ".join([finding.rule, finding.severity, percent(report.share(finding)), *filter(None, limits)])


def kept() -> dict[str, Row]:
    """The rows of facts.csv by trace."""
    with FILE.open(newline="", encoding="utf-8") as file:
        return {row["trace"]: row for row in csv.DictReader(file)}


def write(rows: Iterable[Row], file: Path = FILE) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        table = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(sorted(rows, key=lambda row: row["trace"]))


def differences(before: Row, after: Row) -> Iterator[str]:
    """What changed of a row, in words; of a list only the entries that did."""
    for column in COLUMNS[1:]:
        if before[column] == after[column]:
            continue
        if column in LISTS:
            yield from _entries(column, before[column], after[column])
        else:
            yield f"{column} {before[column] or 'none'} → {after[column] or 'none'}"


def entries(row: Row, column: str) -> list[tuple[str, str]]:
    """A list of a row as pairs: what it is of, and what is said of that."""
    apart = LISTS[column]
    return [entry.partition(" ")[::2] for entry in row[column].split(apart) if entry]  # type: ignore[misc]


def _entries(column: str, before: str, after: str) -> Iterator[str]:
    old, new = (_numbered(entries({column: text}, column)) for text in (before, after))
    what = f"{column}: "
    for key in dict.fromkeys([*old, *new]):
        if key not in new:
            yield f"{what}no {key} any more ({old[key]})" if old[key] else f"{what}no {key} any more"
        elif key not in old:
            yield f"{what}{key} {new[key]} is new".replace("  ", " ")
        elif old[key] != new[key]:
            yield f"{what}{key} {old[key]} → {new[key]}"
    if {*old} == {*new} and [*old] != [*new]:
        yield f"{what}now in the order {', '.join(new)}"


def _numbered(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """By name: the second finding of a rule is `rule #2`."""
    names = [key for key, _ in pairs]
    return {key if key not in names[:at] else f"{key} #{names[:at].count(key) + 1}": said for at, (key, said) in enumerate(pairs)}
