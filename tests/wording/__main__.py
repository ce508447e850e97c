"""python -m tests.wording [--write] [AREA …]: every fault of those areas with its place; with --write the new limits in counts.csv."""

from __future__ import annotations

import sys

from tests.wording.areas import AREAS, SLOW_AREAS
from tests.wording.counts import NAMES, counted, write
from tests.wording.language import KINDS, faults
from tests.wording.names import nameless


def main(arguments: list[str]) -> None:
    keep = "--write" in arguments
    every = {**AREAS, **SLOW_AREAS}
    rows = {}
    for area in [word for word in arguments if not word.startswith("-")] or [*AREAS, NAMES]:
        if area == NAMES:
            found = list(nameless())
            rows[area] = dict.fromkeys(("words", *KINDS), 0) | {"term": len(found)}
            lines = [f"{place}: {name}" for place, name in found]
        else:
            texts = list(every[area]())
            rows[area] = counted(texts)
            lines = [f"{place}: {fault.kind}: {fault.found}: {fault.sentence}" for place, text in texts for fault in faults(text)]
        if not keep:
            print("\n".join(dict.fromkeys(lines)))
        print(area, rows[area], file=sys.stderr)
    if keep:
        write(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
