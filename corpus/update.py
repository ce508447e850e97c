"""Predicts the corpus anew and writes what is made of it: its tables, and the documents that sum them up.

    python corpus/update.py                  every trace that is here is analysed, in as many processes as there are cores
    python corpus/update.py --documents      the documents alone, of the tables as they stand

A row whose prediction comes out otherwise gets the commit that HEAD is.
"""

from __future__ import annotations

import argparse
import pickle
import subprocess
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from advisor.engine.run import report_of
from advisor.lab import accuracy, accuracy_chart, accuracy_page, coverage, judged, ledger, tables, true_steps
from advisor.report.model import Report

CORPUS = Path(__file__).resolve().parent
ROOT = CORPUS.parent
DOCS, SAMPLES = ROOT / "docs", ROOT / "samples"


def analysed(path: Path) -> bytes:
    """A trace's report, as one process hands it to another."""
    return pickle.dumps(report_of(path))


def documents() -> dict[Path, str]:
    """What stands in each document that is made of the tables."""
    steps, said, verdicts = true_steps.standing(CORPUS), tables.read(CORPUS / coverage.FILE, coverage.Cell), judged.sets(CORPUS)
    return {
        DOCS / "accuracy.md": accuracy_page.as_markdown(accuracy.of_ledger(ledger.standing(CORPUS)), "corpus"),
        DOCS / "accuracy-by-set.svg": accuracy_chart.by_set_as_svg(accuracy_page.blind(CORPUS)),
        DOCS / "true-steps.md": true_steps.as_markdown(steps, "corpus"),
        DOCS / "true-steps.svg": true_steps.as_svg(steps),
        DOCS / "rules-by-sample.md": coverage.as_markdown(said, "samples"),
        DOCS / "rules-by-sample.svg": coverage.as_svg(said),
        DOCS / "judged-findings.md": judged.as_markdown(verdicts, len(tables.read(CORPUS / judged.WRONG, judged.WrongFinding))),
        DOCS / "judged-findings.svg": judged.as_svg(verdicts),
    }


def predict(report_of: Callable[[Path], Report]) -> None:
    """Write the tables anew. report_of: the report of a trace."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    rows = ledger.predicted(CORPUS, report_of, commit).rows
    steps = true_steps.held(CORPUS)
    said = coverage.cells(coverage.samples(SAMPLES, report_of), coverage.reasons(SAMPLES))
    (CORPUS / ledger.FILE).write_text(tables.as_csv(rows, ledger.Row), encoding="utf-8")
    (CORPUS / true_steps.FILE).write_text(tables.as_csv(steps, true_steps.Held), encoding="utf-8")
    (CORPUS / coverage.FILE).write_text(tables.as_csv(said, coverage.Cell), encoding="utf-8")


def traces() -> list[Path]:
    """Every trace that a table needs, the largest first."""
    named = {CORPUS / row.trace for row in ledger.read(CORPUS) if row.trace} | set(coverage.traces(SAMPLES))
    return sorted({path.resolve() for path in named if path.exists()}, key=lambda path: -path.stat().st_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", action="store_true")
    if not parser.parse_args().documents:
        paths = traces()
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            reports = dict(zip(paths, pool.map(analysed, paths, chunksize=4), strict=True))
        predict(lambda path: pickle.loads(reports[path.resolve()]))
    for path, text in documents().items():
        path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
