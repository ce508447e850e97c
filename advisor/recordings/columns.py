"""Tables as named numpy columns of equal length. Sources fill them and views read them.

A column of numbers is an array; a column of text is a `Categorical`. Rows are chosen as numpy chooses them (a mask, row numbers, a slice),
and what aggregates them is numpy too. `to_pandas` gives a DataFrame to whoever wants one: nothing here imports pandas otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Rows = NDArray[np.bool_] | NDArray[np.integer[Any]] | slice
"""Which rows: a mask, their numbers, or a slice."""
Objects = NDArray[np.object_]


class Categorical:
    """A column of text: row i holds `categories[codes[i]]`, or a text that is not known where its code is -1.

    categories: the distinct texts, an array of str. codes: the narrowest signed integers that number them.
    """

    __slots__ = ("categories", "codes")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, codes: Any, categories: Sequence[str] | Objects) -> None:
        self.categories = objects(categories)
        narrow = np.int8 if len(categories) < 1 << 7 else np.int16 if len(categories) < 1 << 15 else np.int32
        self.codes: NDArray[np.signedinteger[Any]] = of_type(np.asarray(codes), narrow)

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> Categorical:
        """A column that holds these texts, its categories in order."""
        rows = list(texts)
        number = {text: code for code, text in enumerate(sorted(set(rows)))}
        return cls(np.fromiter(map(number.__getitem__, rows), np.int32, len(rows)), list(number))

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, rows: int | np.integer[Any]) -> str: ...
    @overload
    def __getitem__(self, rows: Rows) -> Categorical: ...
    def __getitem__(self, rows: Any) -> str | Categorical:
        codes = self.codes[rows]
        return Categorical(codes, self.categories) if isinstance(codes, np.ndarray) else str(self.categories[codes])

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def __eq__(self, text: object) -> NDArray[np.bool_]:  # type: ignore[override]
        """Which rows hold the text."""
        return self.isin([text])

    def __ne__(self, text: object) -> NDArray[np.bool_]:  # type: ignore[override]
        return ~self.isin([text])

    def isin(self, texts: Iterable[object]) -> NDArray[np.bool_]:
        """Which rows hold any of the texts."""
        return self.matching({*texts}.__contains__)

    def matching(self, wanted: Callable[[str], object]) -> NDArray[np.bool_]:
        """(n,) whether each row's text is wanted; each distinct text is asked for once."""
        codes = [code for code, text in enumerate(self.categories.tolist()) if wanted(text)]
        if len(codes) < 2:  # comparing all rows with a number takes a twentieth of looking each up
            return self.codes == codes[0] if codes else np.zeros(len(self), bool)
        chosen = np.zeros(len(self.categories) + 1, bool)
        chosen[codes] = True
        return chosen[self.codes]

    def without_unused(self) -> Categorical:
        """The same rows, without categories that none holds."""
        held = np.unique(self.codes[self.codes >= 0])
        return Categorical(np.where(self.codes >= 0, np.searchsorted(held, self.codes), -1), self.categories[held])

    def texts(self) -> Objects:
        """(n,) the text of each row."""
        return self.categories[self.codes]

    def tolist(self) -> list[str]:
        """The text of each row."""
        return self.texts().tolist()

    def __repr__(self) -> str:
        return f"Categorical({self.tolist()!r})" if len(self) < 10 else f"Categorical of {len(self)} rows, {len(self.categories)} texts"


Column = NDArray[Any] | Categorical


class Table:
    """Columns of equal length by name. `table["dur_us"]` is a column, `table[rows]` a table of those rows."""

    __slots__ = ("columns",)

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.columns = dict(columns)
        if len({len(column) for column in self.columns.values()}) > 1:
            raise ValueError(f"columns differ in length: { {name: len(column) for name, column in self.columns.items()} }")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    @overload
    def __getitem__(self, key: str) -> Any: ...
    @overload
    def __getitem__(self, key: Rows) -> Table: ...
    def __getitem__(self, key: Any) -> Any:
        return self.columns[key] if isinstance(key, str) else Table({name: chosen(column, key) for name, column in self.columns.items()})

    @property
    def ends(self) -> NDArray[np.float64]:
        """(n,) when each row ends, in µs."""
        return self.bounds()[1]

    def bounds(self, rows: Rows = slice(None)) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """When rows start and end, in µs: these, or all."""
        start = self["start_us"][rows]
        return start, start + self["dur_us"][rows]

    def select(self, *names: str) -> Table:
        """The columns of those names."""
        return Table({name: self.columns[name] for name in names})

    def masked(self, chosen: NDArray[np.bool_]) -> Table:
        """The rows of a mask, in the same memory if it has all of them."""
        return self if chosen.all() else self[chosen]

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        """Each row's values of some columns, of all without names."""
        return list(zip(*(self.columns[name].tolist() for name in names or self.columns), strict=True))

    def with_columns(self, **columns: Column) -> Table:
        """The table with these columns, in place of those of the same name."""
        return Table({**self.columns, **columns})

    def sorted_by(self, name: str) -> Table:
        """The rows in order of a column of numbers, ties as they are."""
        return self[np.argsort(self.columns[name], kind="stable")]  # type: ignore[arg-type]

    def to_pandas(self) -> pd.DataFrame:
        """A DataFrame of the columns, text as pandas' categoricals. Raises ImportError if pandas is not installed."""
        import pandas as pd

        def column(values: Column) -> Any:
            return pd.Categorical.from_codes(values.codes, pd.Index(values.categories, dtype=object)) if isinstance(values, Categorical) else values

        return pd.DataFrame({name: column(values) for name, values in self.columns.items()})

    def __repr__(self) -> str:
        return f"Table of {len(self)} rows: {', '.join(self.columns)}"


def objects(values: Sequence[Any] | Objects) -> Objects:
    """An array of Python objects, whatever they are."""
    made = np.empty(len(values), object)
    made[:] = values
    return values if isinstance(values, np.ndarray) and values.dtype == object else made


@overload
def chosen(column: NDArray[Any], rows: Rows) -> NDArray[Any]: ...
@overload
def chosen(column: Categorical, rows: Rows) -> Categorical: ...
def chosen(column: Column, rows: Rows) -> Column:
    """Rows of a column; a `constant` stays constant."""
    held = column.codes if isinstance(column, Categorical) else column
    if held.strides != (0,) or not len(held) or isinstance(rows, slice):
        return column[rows]
    at = np.asarray(rows)
    kept = np.broadcast_to(held[0], int(np.count_nonzero(at)) if at.dtype == bool else len(at))
    return Categorical(kept, column.categories) if isinstance(column, Categorical) else kept


def constant(value: str | NDArray[Any], n: int) -> Column:
    """A column of n equal rows, in the memory of a single row."""
    return Categorical(np.broadcast_to(np.int8(0), n), [value]) if isinstance(value, str) else np.broadcast_to(value, n)


def of_type(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """A column of numbers as another type; a `constant` stays constant."""
    return row_by_row(lambda each: each.astype(dtype, copy=False), values)


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The distinct values of a column of numbers, in order."""
    return np.unique(values[:1] if values.strides == (0,) else values)


def compact(values: NDArray[Any]) -> NDArray[Any]:
    """The same column, as a constant if all rows are equal."""
    first = values[:1]
    alike = len(first) and (values == first if first[0] == first[0] else np.isnan(values)).all()
    return np.broadcast_to(first[0], len(values)) if alike else values


def row_by_row(made: Callable[..., NDArray[Any]], *columns: NDArray[Any]) -> NDArray[Any]:
    """What a function makes of columns, row by row; of constants alone a constant."""
    n = len(columns[0])
    if not n or any(column.strides != (0,) for column in columns):
        return made(*columns)
    return np.broadcast_to(made(*(column[:1] for column in columns))[0], n)


def without_repeats(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Arrays in a row; equal constants stay constant."""
    repeated = all(array.strides == (0,) for array in arrays) and len({array[:1].tobytes() for array in arrays if len(array)}) == 1
    if not repeated:
        return np.concatenate(arrays)
    return np.broadcast_to(next(array[0] for array in arrays if len(array)), sum(map(len, arrays)))


def concatenated(tables: Sequence[Table]) -> Table:
    """The rows of tables in order, with the columns of the first."""
    return Table({name: joined([table[name] for table in tables]) for name in tables[0]})


def joined(columns: Sequence[Any]) -> Column:
    """Columns of the same kind, concatenated. Categories follow each other in the order in which the columns bring them."""
    if not isinstance(columns[0], Categorical):
        return without_repeats(columns)
    number: dict[str, int] = {}
    codes = []
    for column in columns:
        renumbered = np.array([*(number.setdefault(text, len(number)) for text in column.categories.tolist()), -1], np.int32)
        whole = column.codes.strides == (0,) and len(column) > 0
        codes.append(np.broadcast_to(renumbered[column.codes[0]], len(column)) if whole else renumbered[column.codes])
    return Categorical(without_repeats(codes), list(number))


def by_first_row(column: Categorical) -> tuple[NDArray[np.int64], Objects]:
    """As `numbered`, of a column of text: each distinct text is touched once."""
    codes, n = column.codes, len(column)
    first = np.full(len(column.categories), n)
    first[codes[::-1]] = np.arange(n)[::-1]  # of rows with one text the first is written last
    held = np.flatnonzero(first < n)
    order = held[np.argsort(first[held])]
    place = np.empty(len(first), np.int64)
    place[order] = np.arange(len(order))
    return place[codes], column.categories[order]


def numbered(values: Any) -> tuple[NDArray[np.int64], Any]:
    """Each value's number in the order of their first rows, (n,) integers, and the distinct values.

    values: an array of numbers or of objects.
    """
    values = np.asarray(values)
    if values.dtype == object:
        number: dict[Any, int] = {}
        codes = np.fromiter((number.setdefault(value, len(number)) for value in values.tolist()), np.int64, len(values))
        return codes, objects(list(number))
    n = len(values)
    if n and values.strides == (0,):
        return np.broadcast_to(np.int64(0), n), values[:1]
    if n and values.dtype.kind == "i" and int(values.max()) - (low := int(values.min())) < n:
        which = values - low
        first = np.full(int(which.max()) + 1, n)
        first[which[::-1]] = np.arange(n)[::-1]  # of equal rows the first is written last
        known = np.flatnonzero(first < n)
        order = known[np.argsort(first[known])]
        first[order] = np.arange(len(order))
        return first[which], (order + low).astype(values.dtype)
    known, first, which = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place[which], known[order]
