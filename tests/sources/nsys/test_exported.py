"""A report is exported by the nsys that is on the PATH, once, and that is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from advisor import analyze, sources
from advisor.errors import TraceError
from advisor.recordings.timeline import Timeline
from tests.paths import ROOT

EXPORT = ROOT / "samples" / "nsys" / "encoder_infer.slow.sqlite"


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report, a cache, and a PATH with nothing on it but what a test puts there."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "it's a report.nsys-rep"
    path.write_bytes(b"\1\2\3\4\0\0")
    return path


def nsys(folder: Path, script: str) -> None:
    program = folder / "bin" / "nsys"
    program.write_text(f"#!/bin/sh\necho called >> '{folder}/calls'\nwhile [ $1 != -o ]; do shift; done\n{script}\n")
    program.chmod(0o755)


def test_a_report_is_exported_once_and_that_is_said(report: Path, tmp_path: Path) -> None:
    nsys(tmp_path, f"cp '{EXPORT}' \"$2\"")
    for _ in range(2):
        (part,) = sources.read(report).parts
        assert isinstance(part, Timeline) and "exported the report into the cache" in part.source.issues[-1].detail
        assert part.source.path == str(report)
    assert (tmp_path / "calls").read_text().count("called") == 1
    assert [f.rule for f in analyze(report).findings] == [f.rule for f in analyze(EXPORT).findings]
    report.write_bytes(b"another")
    sources.read(report)
    assert (tmp_path / "calls").read_text().count("called") == 2, "a changed report is exported again"


def test_what_nsys_says_of_a_report_that_it_cannot_read_is_shown(report: Path, tmp_path: Path) -> None:
    nsys(tmp_path, "echo 'Importer error: newer version' >&2; exit 1")
    with pytest.raises(TraceError, match=r"nsys could not export .*newer version") as error:
        sources.read(report)
    assert "nsys export" in error.value.hint and not [*(tmp_path / "cache").rglob("*.sqlite")]


def test_without_nsys_the_command_is_told(report: Path) -> None:
    with pytest.raises(TraceError, match="an Nsight Systems report") as error:
        sources.read(report)
    assert str(report) in error.value.hint
