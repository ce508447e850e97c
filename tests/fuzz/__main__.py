"""Fuzz for as long as one likes: `python -m tests.fuzz --minutes 60`. It goes on where it stopped; what broke lies in --out."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.fuzz.harness import limit_memory, made, read_progress, run, strict, tried
from tests.fuzz.targets import TARGETS


def main() -> int:
    names = [target.name for target in TARGETS]
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", nargs="*", help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--out", type=Path, default=Path(".fuzz"), help="progress, and inputs that broke a law")
    parser.add_argument("--any-memory", action="store_true", help="set no limit: the address sanitizer reserves terabytes of addresses")
    parser.add_argument("--markdown", action="store_true", help="print the rows of the table in docs/security.md from --out, and run nothing")
    parser.add_argument("--number", type=int, help="make and check this input of one target alone")
    given = parser.parse_args()
    if unknown := set(given.target) - set(names):
        parser.error(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    chosen = [target for target in TARGETS if not given.target or target.name in given.target]
    if given.markdown:
        for name, one in read_progress(given.out).items():
            if one.next and name in [target.name for target in chosen]:
                figures = f"{one.next:,} | {one.refused:,} | {one.next - one.refused:,} | {one.seconds:.0f} | {one.longest_s:.3f} | {one.most_mb:,}"
                print(f"| {name} | {figures} |")
        return 0
    if not given.any_memory:
        limit_memory()
    if given.number is not None:
        with strict():
            broken = tried(chosen[0], made(chosen[0], given.number))
        print(broken or "all laws hold")
        return bool(broken)
    at = run(chosen, given.out, given.minutes * 60)
    for target in chosen:
        progress = at[target.name]
        print(
            f"{target.name:16} {progress.next:>9,} of {target.goal:>9,}  {progress.refused:>9,} refused  {progress.seconds:8.0f} s, "
            f"{progress.longest_s:6.3f} s the longest  {progress.most_mb:>5,} MB  {len(progress.broken)} broke a law"
        )
    return any(at[target.name].broken for target in chosen)


if __name__ == "__main__":
    raise SystemExit(main())
