"""Archives that hold one recording are read as that recording; others are refused by what is in them."""

import gzip
import io
import sqlite3
import tarfile
import zipfile
from pathlib import Path

import pytest

from advisor.errors import TraceError
from advisor.sources import load, read
from advisor.sources.redact import redact
from advisor.sources.stream import zstd
from tests.sources.kineto.layouts import LAYOUTS

TRACE = LAYOUTS["kineto"]().encode()


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def tarred(files: dict[str, bytes], mode: str = "w") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
        folder = tarfile.TarInfo("run")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return file.getvalue()


PACKED = {
    "a.zip": lambda files: zipped(files),
    "stored.zip": lambda files: zipped(files, zipfile.ZIP_STORED),
    "b.tar": lambda files: tarred(files),
    "c.tar.gz": lambda files: tarred(files, "w:gz"),
    "d.tar.zst": lambda files: zstd.compress(tarred(files)),
}


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("inner", ["run/trace.json", "run/trace.json.gz"])
def test_an_archive_of_one_recording_is_that_recording(tmp_path: Path, name: str, inner: str) -> None:
    data = gzip.compress(TRACE) if inner.endswith(".gz") else TRACE
    (tmp_path / "alone.json").write_bytes(TRACE)
    (tmp_path / name).write_bytes(PACKED[name]({"__MACOSX/run/._trace.json": b"\0\5", inner: data, "run/log.txt": b"done"}))
    alone, found = load(tmp_path / "alone.json"), load(tmp_path / name)
    assert found.source.events == alone.source.events and found.gpu_ops.to_pandas().equals(alone.gpu_ops.to_pandas())
    assert [issue.detail for issue in found.source.issues] == [f"{inner[4:]} was read of the archive; 1 other file in it was not"]
    redact(tmp_path / name, tmp_path / "given.json")
    assert load(tmp_path / "given.json").source.events == alone.source.events


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"r0.json": TRACE, "r1.json": TRACE}, r"archive of 2 recordings \(r0.json, r1.json\)"),
        ({"archive/data.pkl": b"1", "archive/version": b"3"}, r"no recording \(archive/data.pkl, archive/version\)"),
        ({}, r"no recording \(it is empty\)"),
        ({"notes.txt": b"nothing"}, "text but not JSON"),
    ],
)
def test_another_archive_says_what_it_holds(tmp_path: Path, name: str, files: dict[str, bytes], said: str) -> None:
    (tmp_path / name).write_bytes(PACKED[name](files))
    if not files and name.endswith(".zip"):
        said = "a zip archive"  # it has no file to begin with
    with pytest.raises(TraceError, match=said):
        read(tmp_path / name)


def test_what_must_lie_by_itself_is_refused_with_the_command_that_unpacks_it(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "report.sqlite") as database:
        database.execute("create table t (a)")
    (tmp_path / "report.zip").write_bytes(zipped({"report.sqlite": (tmp_path / "report.sqlite").read_bytes()}))
    with pytest.raises(TraceError) as refused:
        read(tmp_path / "report.zip")
    assert refused.value.hint == f"Unpack it first: unzip {tmp_path / 'report.zip'}"


def test_damaged_archives_bombs_and_passwords_are_refused(tmp_path: Path) -> None:
    path, whole = tmp_path / "t.zip", zipped({"trace.json": TRACE * 50})
    for at in (40, len(whole) - 30, len(whole) // 2):
        damaged = bytearray(whole)
        damaged[at : at + 8] = b"\xff" * 8
        path.write_bytes(damaged)
        with pytest.raises(TraceError, match=r"damaged|cannot be"):
            read(path)
    path.write_bytes(zipped({"trace.json": b" " * (64 << 20)}))
    with pytest.raises(TraceError, match="as no trace does"):
        read(path)
    locked = bytearray(whole)
    locked[6] |= 1
    locked[whole.rindex(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(locked)
    with pytest.raises(TraceError, match=r"cannot be unpacked here.*password"):
        read(path)
