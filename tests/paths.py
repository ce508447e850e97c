"""Where traces for tests lie: the project's own samples, and the shared ones where they are at hand."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"

TRACES = ROOT / "corpus" / "traces"


def sample(name: str) -> Path:
    """A trace of samples/ by its name without suffix: as it was recorded, or in columns."""
    (found,) = (path for suffix in (".json.gz", ".trace.zst") if (path := ROOT / "samples" / f"{name}{suffix}").is_file())
    return found


def samples(pattern: str) -> list[Path]:
    """Files of samples/ by a pattern."""
    folder = ROOT / "samples"
    return sorted(path for path in folder.glob(pattern) if path.is_file())


ALL_SAMPLES = os.environ.get("ADVISOR_SAMPLES") == "all"
MANY_SAMPLES = ALL_SAMPLES or os.environ.get("ADVISOR_SAMPLES") == "many"
EACH = 1 if ALL_SAMPLES else 8 if MANY_SAMPLES else 64
"""Of so many samples one is read where every one could be: all take a quarter of an hour, and the README's command is to take four minutes."""


def sampled(recordings: Sequence[Any], each: int = EACH) -> list[Any]:
    """All of them as parameters, of which every `each`th is read and the others skip."""
    others = pytest.mark.skip(reason="one in so many is read: ADVISOR_SAMPLES=all reads every one")
    return [
        recording if at % each == 0 else pytest.param(*(recording if isinstance(recording, tuple) else (recording,)), marks=others)
        for at, recording in enumerate(recordings)
    ]


slow = pytest.mark.skipif(not MANY_SAMPLES, reason="starts programs, reads much or measures time: ADVISOR_SAMPLES=many runs it, as .ci/run does")


def slowly(parameters: Iterable[Any], quick: int = 0) -> list[Any]:
    """Parameters of which all but the first `quick` are slow."""
    return [
        each if at < quick else pytest.param(*each, marks=slow) if isinstance(each, tuple) else pytest.param(each, marks=slow)
        for at, each in enumerate(parameters)
    ]


FEW_EXAMPLES = 25


def examples(many: int) -> int:
    """How many examples of a property are drawn: a few by the README's command, all of them by .ci/run."""
    return many if MANY_SAMPLES else min(many, FEW_EXAMPLES)


needs_shared = pytest.mark.skipif(
    not (MANY_SAMPLES and SHARED.is_dir()), reason="traces of ../shared, which is not published: ADVISOR_SAMPLES=many reads them where they are"
)


def shared_files(pattern: str) -> list[Path]:
    """Shared files by a pattern below ../shared; none where that folder is missing."""
    return sorted(SHARED.glob(pattern)) if SHARED.is_dir() else []
