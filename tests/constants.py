"""Counts the numbers that modules of `advisor/` and `rules/` give a name, and finds those without a reason. `python -m tests.constants` prints both."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.paths import ROOT

FOLDERS = "advisor", "rules"


@dataclass(frozen=True)
class Constant:
    """One assignment of a module. numbers: how many it holds; reason: whether a comment or a docstring stands beside it."""

    path: str
    line: int
    names: str
    numbers: int
    reason: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.names}"


def numbers(value: ast.expr) -> int:
    """How many numbers a value is made of, 0 where it is made of anything else: `3 << 20` is one, `(1.0, 0.5)` two, as `{"a": 1.0, "b": 0.5}` is.

    What is made of names was counted elsewhere: `(MOST, 2 * MOST, 3.0)` is one. A row with a text in it belongs to a table.
    """
    if isinstance(value, (ast.Tuple, ast.List, ast.Set)):
        return _all(value.elts)
    if isinstance(value, ast.Dict):
        return _all(value.values)
    return int(_number(value))


def _all(values: Iterable[ast.expr]) -> int:
    values = [*values]
    texts = any(isinstance(value, ast.Constant) and isinstance(value.value, (str, bytes)) for value in values)
    return 0 if texts else sum(map(numbers, values))


def _number(value: ast.expr) -> bool:
    if isinstance(value, ast.UnaryOp):
        return _number(value.operand)
    if isinstance(value, ast.BinOp):
        return _number(value.left) and _number(value.right)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def constants(text: str, path: str) -> Iterator[Constant]:
    """Those of one module. A comment gives the reason of the lines right below it as well."""
    lines, explained = text.splitlines(), -1
    body = ast.parse(text).body
    for statement, after in zip(body, [*body[1:], None], strict=False):
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
            continue
        target, value = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target, statement.value
        several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        count = sum(map(numbers, value.elts)) if several else numbers(value)
        if isinstance(target, ast.Subscript) or not count:
            continue
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        described = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
        if (first > 1 and lines[first - 2].startswith("#")) or explained == first - 1:
            explained = last
        yield Constant(path, first, ast.unparse(target), count, described or explained == last or "# " in lines[last - 1])


def everywhere() -> list[Constant]:
    """Those of all modules."""
    files = sorted(file for folder in FOLDERS for file in Path(ROOT, folder).rglob("*.py"))
    return [found for file in files for found in constants(file.read_text(encoding="utf-8"), file.relative_to(ROOT).as_posix())]


if __name__ == "__main__":
    found = everywhere()
    rooms = Counter[str]()
    for one in found:
        rooms["/".join(one.path.split("/")[: 3 if one.path.startswith("advisor/views/") else 2 if one.path.startswith("advisor/") else 1])] += one.numbers
    for room, count in rooms.most_common():
        print(f"{count:5} {room}")
    print(f"{sum(rooms.values()):5} in {len(found)} assignments, without a reason: {', '.join(str(one) for one in found if not one.reason) or 'none'}")
