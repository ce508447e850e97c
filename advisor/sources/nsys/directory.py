"""An export of Nsight Systems as a directory of tables, Parquet or Arrow files (`nsys export --type parquetdir`, `arrowdir`).

The tables are those of the SQLite export, a file each. They are put into such a database, which is kept in the cache and read.
"""

from __future__ import annotations

import importlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from advisor.errors import TraceError
from advisor.sources.nsys.exported import kept

SUFFIXES = (".parquet", ".arrow")
_ONE_OF = ("StringIds", "TARGET_INFO_GPU", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "META_DATA_EXPORT")
"""Tables: each export has at least a single table of these."""
_Batch = tuple[list[tuple[str, str]], Iterator[tuple[Any, ...]]]
AGAIN = "Export the report again: nsys export --type sqlite REPORT.nsys-rep"


def database_of(path: str, max_bytes: int) -> str:
    """The path of a database with the tables of the directory `path`, made if there is none yet; "" if they are not of nsys.

    Raises TraceError if a table is damaged, if all of them hold more than `max_bytes`, or if pyarrow is not installed.
    """
    tables = [one for one in sorted(Path(path).iterdir()) if one.suffix in SUFFIXES and one.is_file()]
    if not any(map(is_table_of_nsys, tables)):
        return ""
    states = [(one.name, found.st_size, found.st_mtime_ns) for one in tables for found in (one.stat(),)]
    return kept(f"{os.path.realpath(path)}\0{states}", lambda made: _write(tables, made, path, max_bytes))


def is_table_of_nsys(path: Path) -> bool:
    """Whether a file is a table of such an export, by its name."""
    return path.suffix in SUFFIXES and path.stem in _ONE_OF


def _write(tables: list[Path], made: Path, path: str, max_bytes: int) -> None:
    try:
        arrow, parquet, ipc = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet", "pyarrow.ipc"))
    except ImportError:
        told = f"{path} is an export of Nsight Systems in Parquet or Arrow files, and pyarrow, which reads them, is not installed"
        raise TraceError(told, f"Install it: pip install 'trace-advisor[parquet]'. Or: {AGAIN[0].lower()}{AGAIN[1:]}") from None
    with closing(sqlite3.connect(made)) as database:
        for table in tables:
            for _ in _filled(database, table, _batches(table, arrow, parquet, ipc), arrow):
                if made.stat().st_size > max_bytes:
                    raise TraceError(f"the tables of {path} hold more than {max_bytes / 2**30:.3g} GiB", "Raise the limit: --max-gib")


def _filled(database: sqlite3.Connection, table: Path, batches: Iterator[_Batch], arrow: Any) -> Iterator[None]:
    """Puts a table into the database, batch by batch. Raises TraceError if it is damaged."""
    name = _quoted(table.stem)
    try:
        for number, (columns, rows) in enumerate(batches):
            if number == 0:
                database.execute(f"create table {name} ({', '.join(f'{_quoted(column)} {kind}' for column, kind in columns)})")
            database.executemany(f"insert into {name} values ({', '.join('?' * len(columns))})", rows)
            database.commit()
            yield
    except (arrow.ArrowException, OSError, sqlite3.Error, ValueError) as error:
        raise TraceError(f"{table} is damaged: {str(error)[:200]}", AGAIN) from None


def _batches(table: Path, arrow: Any, parquet: Any, ipc: Any) -> Iterator[_Batch]:
    """Names and SQLite's types of the columns, with rows; once without rows for an empty table."""
    if table.suffix == ".parquet":
        with parquet.ParquetFile(table) as file:
            yield from _rows(file.schema_arrow, file.iter_batches(), arrow)
        return
    with arrow.memory_map(str(table)) as source:
        head = source.read(6)
        source.seek(0)
        if head == b"ARROW1":
            reader = ipc.open_file(source)
            yield from _rows(reader.schema, (reader.get_batch(number) for number in range(reader.num_record_batches)), arrow)
        else:
            reader = ipc.open_stream(source)
            yield from _rows(reader.schema, reader, arrow)


def _rows(schema: Any, batches: Any, arrow: Any) -> Iterator[_Batch]:
    kept = [(number, field.name, kind) for number, field in enumerate(schema) if (kind := _kind(field.type, arrow))]
    columns = [(name, kind) for _, name, kind in kept]
    if columns:
        yield columns, iter(())
    for batch in batches if columns else ():
        yield columns, zip(*(_values(batch.column(number), arrow) for number, *_ in kept), strict=True)


def _kind(type_: Any, arrow: Any) -> str:
    """SQLite's type of a column, "" for a column that no table of nsys has."""
    is_, type_ = arrow.types, type_.value_type if arrow.types.is_dictionary(type_) else type_
    if is_.is_integer(type_) or is_.is_boolean(type_):
        return "INTEGER"
    if is_.is_floating(type_):
        return "REAL"
    if is_.is_string(type_) or is_.is_large_string(type_):
        return "TEXT"
    return "BLOB" if is_.is_binary(type_) or is_.is_large_binary(type_) else ""


def _values(column: Any, arrow: Any) -> list[Any]:
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if arrow.types.is_uint64(column.type):  # SQLite's integers are signed, and nsys puts the same bits there
        column = column.cast(arrow.int64(), safe=False)
    return column.to_pylist()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
