"""Tables of a corpus: CSV files with a frozen dataclass per row."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from advisor.errors import TraceError

T = TypeVar("T")

DIGITS = 7
"""Digits of each number: a timing has three or four, and a difference of two shares keeps its digits."""


def read(path: Path, of: type[T]) -> list[T]:
    """The rows of a file. Raises TraceError if it cannot be read, or is another table."""
    missing = {field.name for field in fields(of) if "None" in str(field.type)}  # type: ignore[arg-type]
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [{name: None if text == "" and name in missing else text for name, text in row.items()} for row in csv.DictReader(file)]
            return msgspec.convert(rows, list[of], strict=False)  # type: ignore[valid-type]
    except (OSError, csv.Error, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise TraceError(f"{path} is no table of {of.__name__}s: {error}", "See corpus/README.md for its columns.") from None


def as_csv(rows: Sequence[Any], of: type) -> str:
    """The rows under the names of their fields."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(of)]
    writer.writerow(names)
    writer.writerows([_written(getattr(row, name)) for name in names] for row in rows)
    return text.getvalue()


def _written(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)
