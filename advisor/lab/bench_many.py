"""Several functions timed side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from advisor.errors import UsageError
from advisor.lab.bench import bench
from advisor.lab.measured import made
from advisor.lab.timing import Table


def bench_all(functions: Mapping[str, Callable[[], object]], *, progress: Callable[[str], None] | None = None, **options: Any) -> Table:
    """Time functions without arguments side by side; options as of `bench`. progress: called with the name of each in turn."""
    if not functions:
        raise UsageError("there is nothing to time", "Give a function.")
    timings = []
    for name, fn in functions.items():
        if progress:
            progress(name)
        timings.append(bench(fn, name=name, **options))
    return Table(tuple(timings))


def bench_sizes(makers: Mapping[str, Callable[[Any], Callable[[], object]]], sizes: Iterable[Any], **options: Any) -> dict[Any, Table]:
    """For each size, the functions that the makers make of it, side by side."""
    return {size: bench_all({name: made(make, size) for name, make in makers.items()}, **options) for size in sizes}
