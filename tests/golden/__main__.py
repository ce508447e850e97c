"""`python -m tests.golden [PATTERN]` writes facts.csv anew, of every recording or of those whose name holds the pattern; and what the
README shows of outputs. It says in words what changed."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.golden.facts import FILE, differences, facts, kept, name, recordings, write
from tests.golden.readme import README, current
from tests.paths import ROOT

PROCESSES = 2


def main(pattern: str = "") -> None:
    """Analyse, write what was concluded, and print of each trace what is no longer as it was."""
    before = kept() if FILE.exists() else {}
    everything = {name(recording): recording for recording in recordings()}
    chosen = [recording for trace, recording in everything.items() if pattern in trace]
    rows = {trace: row for trace, row in before.items() if trace in everything}
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        for made in pool.map(facts, chosen):
            trace = made["trace"]
            changed = [*differences(before[trace], made)] if trace in before else ["is new"]
            if changed:
                print(f"{trace}: {'; '.join(changed)}", flush=True)
            rows[trace] = made
    for trace in sorted({*before} - {*everything}):
        print(f"{trace}: is gone")
    write(rows.values())
    README.write_text(current(README.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{len(chosen)} of {len(everything)} recordings analysed; {FILE.relative_to(ROOT)} has {len(rows)} rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
