"""`python -m tests.golden [PATTERN]` writes the goldens anew, of all samples or of those whose name holds the pattern; and what the
README shows of outputs."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.golden.digest import FOLDER, differences, digest, golden_of, name, recordings, written
from tests.golden.readme import README, current


def main(pattern: str = "") -> None:
    """Write what changed, and say of each sample what it was."""
    everything = recordings()
    chosen = [recording for recording in everything if pattern in name(recording)]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        made = dict(zip(chosen, pool.map(digest, chosen), strict=True))
    by_file: dict[Path, dict[str, Any]] = defaultdict(dict)
    for recording in everything:
        file = golden_of(recording)
        before = (json.loads(file.read_text()) if file.exists() else {}).get(name(recording))
        kept = made.get(recording, before)
        if kept is not None:
            by_file[file][name(recording)] = kept
        for line in differences(before, kept) if before and kept else ():
            print(f"{name(recording)}: {line}")
    FOLDER.mkdir(exist_ok=True)
    for file in {*FOLDER.glob("*.json")} - {*by_file}:
        file.unlink()
    for file, kept in by_file.items():
        file.write_text(written(kept))
    README.write_text(current(README.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{len(made)} of {len(everything)} samples, {sum(file.stat().st_size for file in by_file) / 1e6:.2f} MB in {FOLDER}")


if __name__ == "__main__":
    main(*sys.argv[1:])
