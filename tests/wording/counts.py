"""How many faults each area has, and how many it may have: counts.csv, which only falls."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.wording.areas import Place
from tests.wording.language import HABITS, KINDS, PER_HABIT, count_words, distinct, faults

FILE = Path(__file__).with_name("counts.csv")
NAMES = "names"
Counts = dict[str, int]


def counted(texts: Iterable[Place]) -> Counts:
    """Words and faults of each kind, each sentence once."""
    made: Counter[str] = Counter()
    for sentence in distinct(text for _, text in texts):
        made["words"] += count_words(sentence)
        made.update(fault.kind for fault in faults(sentence))
    return {kind: made[kind] for kind in ("words", *KINDS)}


def allowed() -> dict[str, Counts]:
    """The faults that an area may still have."""
    with FILE.open(encoding="utf-8") as file:
        return {row.pop("area"): {kind: int(number) for kind, number in row.items()} for row in csv.DictReader(file)}


def exceeding(now: Counts, limit: Counts) -> dict[str, str]:
    """The kinds of which there are too many: how many, of how many. A habit may be one word in a thousand."""
    rates = {kind: now.get("words", 0) // PER_HABIT for kind in HABITS}
    most = {kind: max(limit[kind], rates.get(kind, 0)) for kind in now if kind != "words"}
    return {kind: f"{now[kind]} of at most {limit}" for kind, limit in most.items() if now[kind] > limit}


def write(rows: dict[str, Counts]) -> None:
    """Lower the limits to what there is; none rises."""
    old = allowed() if FILE.exists() else {}
    for area, now in rows.items():
        before = old.get(area, now)
        old[area] = {kind: number if kind == "words" else min(number, before[kind]) for kind, number in now.items()}
    with FILE.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, ["area", "words", *KINDS], lineterminator="\n")
        table.writeheader()
        table.writerows({"area": area, **counts} for area, counts in old.items())
