"""What a clone carries."""

import subprocess

import pytest

from tests.paths import ROOT

MOST_MB, MOST_OF_SAMPLES_MB, MOST_OF_THE_CORPUS_MB = 60, 25, 25
"""Of the tree without `.git`, of samples/, and of the corpus' traces."""


@pytest.fixture(scope="module")
def sizes():
    """Bytes of each file that git tracks, by path."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no clone")
    return {path: (ROOT / path).stat().st_size for path in listed.stdout.split("\0") if path and (ROOT / path).is_file()}


def test_a_clone_stays_small(sizes):
    assert sum(sizes.values()) < MOST_MB * 1e6
    assert sum(size for path, size in sizes.items() if path.startswith("samples/")) < MOST_OF_SAMPLES_MB * 1e6
    assert sum(size for path, size in sizes.items() if path.startswith("corpus/traces/")) < MOST_OF_THE_CORPUS_MB * 1e6


MOST_LINES_OF_PATTERNS = 5295
"""Of advisor/views/patterns, to fall: a pattern that asks the dataflow replaces what scans by itself."""


def test_patterns_become_fewer_lines():
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "advisor/views/patterns").glob("*.py"))
    assert lines <= MOST_LINES_OF_PATTERNS, f"shorten a pattern that scans by itself by {lines - MOST_LINES_OF_PATTERNS} lines: the dataflow may do it"
