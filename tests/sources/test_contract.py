"""What every source keeps to, whoever adds it: it is registered, has a sample, and what is damaged is a TraceError or a recording."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from advisor import sources
from advisor.errors import TraceError
from advisor.recordings.recording import Recording
from advisor.sources.sniff import SNIFF_BYTES, SOURCES, source_of
from advisor.sources.stream import DEFAULT_MAX_BYTES, Stream
from tests.paths import samples

PACKAGES = [
    importlib.import_module(f"advisor.sources.{found.name}") for found in pkgutil.iter_modules(sources.__path__) if found.ispkg and found.name != "redact"
]
NAMES = [source.__name__.rpartition(".")[2] for source in PACKAGES]
LARGEST_BYTES = 2_000_000


@pytest.mark.parametrize("package", PACKAGES, ids=NAMES)
def test_a_source_is_registered(package: ModuleType) -> None:
    name = package.__name__.rpartition(".")[2]
    assert name in SOURCES, f"add {name} to SOURCES in advisor/sources/sniff.py"
    assert sources.source(name) is package and callable(package.record)


@cache
def smallest() -> dict[str, Path]:
    """The smallest sample that each source is the first to recognise."""
    found: dict[str, Path] = {}
    files = [path for path in samples("**/*") if path.suffix not in (".py", ".pyc", ".cu", ".md") and path.name != "manifest.json"]
    for path in sorted(files, key=lambda path: (path.stat().st_size, path)):
        with path.open("rb") as file:
            source = source_of(Stream(file, None, DEFAULT_MAX_BYTES).peek(SNIFF_BYTES))
        if source:
            found.setdefault(source, path)
        if len(found) == len(SOURCES):
            break
    return found


def example(package: ModuleType) -> bytearray:
    name = package.__name__.rpartition(".")[2]
    assert name in smallest(), f"put a file that {package.__name__} reads into samples/"
    with smallest()[name].open("rb") as file:
        return bytearray(Stream(file, None, DEFAULT_MAX_BYTES).read(LARGEST_BYTES))


@pytest.mark.parametrize("package", PACKAGES, ids=NAMES)
@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("flipped", [False, True], ids=["cut", "cut-and-flipped"])
def test_a_damaged_file_is_a_trace_error_or_what_is_left_of_it(package: ModuleType, keep: float, flipped: bool, tmp_path: Path) -> None:
    data = example(package)
    del data[max(SNIFF_BYTES, int(keep * len(data))) :]
    if flipped:
        for at in range(SNIFF_BYTES, len(data), max(len(data) // 50, 1)):
            data[at] ^= 0xA5
    path = tmp_path / "damaged"
    path.write_bytes(data)
    try:
        assert isinstance(sources.read(path), Recording)
    except TraceError as error:
        assert error.args
