"""Tables of Nsight Systems in a directory say what the SQLite export says."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from advisor import analyze, sources
from advisor.engine.redact_job import redact
from advisor.errors import TraceError
from tests.paths import ROOT

EXPORT = ROOT / "samples" / "nsys" / "serial_pinned.slow.sqlite"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def written(folder: Path, kind: str) -> Path:
    """The tables of an export as `nsys export --type parquetdir` or `arrowdir` writes them: a file each."""
    arrow = pytest.importorskip("pyarrow")
    parquet, ipc = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow.ipc")
    types = {"INTEGER": arrow.int64(), "INT": arrow.int64(), "REAL": arrow.float64(), "TEXT": arrow.string()}
    place = folder / f"report_{kind}"
    place.mkdir()
    with closing(sqlite3.connect(EXPORT)) as database:
        for (name,) in database.execute("select name from sqlite_master where type = 'table'").fetchall():
            columns = [(column, types.get(type_.upper(), arrow.int64())) for _, column, type_, *_ in database.execute(f'pragma table_info("{name}")')]
            rows = database.execute(f'select * from "{name}"').fetchall()
            values = zip(*rows, strict=True) if rows else ([] for _ in columns)
            table = arrow.table([arrow.array(list(v), t) for v, (_, t) in zip(values, columns, strict=True)], names=[c for c, _ in columns])
            if kind == "parquet":
                parquet.write_table(table, place / f"{name}.parquet")
            else:
                with arrow.OSFile(str(place / f"{name}.arrow"), "wb") as sink, (ipc.new_file if kind == "arrow" else ipc.new_stream)(sink, table.schema) as to:
                    to.write_table(table)
    return place


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream"])
def test_the_report_is_that_of_the_sqlite_export(kind: str, tmp_path: Path) -> None:
    """But for the name, and the size of the file."""
    said = []
    for path in (written(tmp_path, kind), EXPORT):
        told = msgspec.json.decode(msgspec.json.encode(analyze(path).report))
        told["source"] = {key: value for key, value in told["source"].items() if key not in ("path", "bytes")}
        said.append({key: value for key, value in told.items() if key not in ("trace", "path")})
    assert said[0] == said[1]


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    place = written(tmp_path, "parquet")
    table = place / "StringIds.parquet"
    table.write_bytes(table.read_bytes()[:-20])
    with pytest.raises(TraceError, match=r"StringIds\.parquet is damaged") as error:
        sources.read(place)
    assert "--type sqlite" in error.value.hint


def test_tables_that_hold_too_much_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="hold more than"):
        sources.read(written(tmp_path, "parquet"), max_bytes=20_000)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "StringIds.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(TraceError, match="pyarrow") as error:
        sources.read(tmp_path)
    assert "pip install 'trace-advisor[parquet]'" in error.value.hint and "nsys export --type sqlite" in error.value.hint


def test_redaction_names_the_way_by_sqlite(tmp_path: Path) -> None:
    folder = tmp_path / "report_pqtdir"
    folder.mkdir()
    (folder / "StringIds.parquet").write_bytes(b"PAR1")
    with pytest.raises(TraceError, match="tables") as error:
        redact(folder, tmp_path / "given")
    assert error.value.hint.endswith(f"nsys export --type sqlite -o report.sqlite REPORT.nsys-rep; advisor redact report.sqlite {tmp_path / 'given'}.sqlite")
    assert not (tmp_path / "given").exists()
