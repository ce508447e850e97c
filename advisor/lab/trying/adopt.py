"""The kept fixes as a patch of the user's own files: written, never applied."""

from __future__ import annotations

import ast
import difflib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from advisor.lab.trying.result import Trial, Tried

_AT_TOP = {"matmul-precision": 'torch.set_float32_matmul_precision("high")', "cudnn-benchmark": "torch.backends.cudnn.benchmark = True"}
"""Lines that follow the import of torch."""

_BEFORE_LOOP = {
    "compile": "{model}.compile()",
    "compile-dynamic": "{model}.compile(dynamic=True)",
    "compile-reduce-overhead": '{model}.compile(mode="reduce-overhead")',
    "channels-last": "{model} = {model}.to(memory_format=torch.channels_last)",
}
"""Lines that are before the loop in which the model is called."""

_AROUND_CALL = {"autocast": 'with torch.autocast("cuda", torch.bfloat16):'}
"""Lines around the statement in which it is called."""


@dataclass
class _File:
    """The lines of a file, with replacements and insertions before them; numbers from 0."""

    path: Path
    lines: list[bytes]
    tree: ast.Module
    instead: dict[int, bytes | None] = field(default_factory=dict)
    before: dict[int, list[bytes]] = field(default_factory=dict)

    def add_before(self, number: int, line: str) -> None:
        given = self.before.setdefault(number, [])
        if (text := f"{line}\n".encode()) not in given:
            given.append(text)

    def current_line(self, number: int) -> bytes:
        return self.instead.get(number, self.lines[number]) or b""

    def changed(self) -> list[bytes]:
        made: list[bytes] = []
        for number, line in enumerate(self.lines):
            made += self.before.get(number, [])
            kept = self.instead.get(number, line)
            made += [] if kept is None else [kept]
        return made


def as_patch(tried: Tried) -> str:
    """A patch in unified form, for `git apply` or `patch -p1` in the working directory. Before it, after `#`, changes that a patch cannot hold."""
    files: dict[Path, _File] = {}
    kept = [trial for trial in tried.trials if trial.intervention in tried.kept]
    left = [f"# {trial.intervention}, by hand: {trial.advice}" for trial in kept if not _written(trial, files)]
    head = ["# What advisor try kept, as a patch: look at it, then git apply FILE, or patch -p1 < FILE.", *left]
    diffs = [line for file in files.values() for line in _diff(file)]
    return "\n".join([*head, "".join(diffs)]).rstrip("\n") + "\n"


def _diff(file: _File) -> Iterator[str]:
    name = os.path.relpath(file.path).replace(os.sep, "/")
    before, after = ([line.decode("utf-8", "surrogateescape") for line in side] for side in (file.lines, file.changed()))
    yield from difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")


def _written(trial: Trial, files: dict[Path, _File]) -> bool:
    """Write it into the files; whether all of it could be."""
    done = [_statement_at(trial, file, line - 1, what) for path, line, what in trial.reach.sites if (file := _opened(Path(path), files)) is not None]
    return bool(done) and all(done) and not trial.reach.made_by


def _opened(path: Path, files: dict[Path, _File]) -> _File | None:
    if path not in files:
        try:
            text = path.read_bytes()
            files[path] = _File(path, text.splitlines(keepends=True), ast.parse(text))
        except (OSError, SyntaxError, ValueError):
            return None
    return files[path]


def _statement_at(trial: Trial, file: _File, number: int, what: str) -> bool:
    if trial.intervention in _AT_TOP:
        return _after_import(file, _AT_TOP[trial.intervention])
    if what == "module":
        return _model(trial.intervention, file, number)
    if what.startswith("no "):
        return _remove_statement(file, number, what.removeprefix("no "))
    return _with_keywords(file, number, what)


def _after_import(file: _File, line: str) -> bool:
    found = [node for node in file.tree.body if isinstance(node, ast.Import) and any(name.name == "torch" and name.asname is None for name in node.names)]
    if not found:
        return False
    later = [node for node in file.tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    file.add_before((later[-1].end_lineno or later[-1].lineno), line)
    return True


def _calls(file: _File, number: int, name: str = "") -> list[ast.Call]:
    """Calls that are on that line, of that function or method ("" is any), the innermost last."""
    found = [n for n in ast.walk(file.tree) if isinstance(n, ast.Call) and n.lineno - 1 <= number <= (n.end_lineno or n.lineno) - 1]
    return [one for one in found if name in ("", _named(one.func))]


def _named(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""


def _with_keywords(file: _File, number: int, what: str) -> bool:
    """Give the call on that line the keywords of `what`: `DataLoader(num_workers=8)`, or keywords alone for the methods that copy."""
    alone = "(" not in what
    asked = ast.parse(f"f({what})" if alone else what, mode="eval").body
    if not isinstance(asked, ast.Call):
        return False
    names = ("to", "cuda") if alone else (_named(asked.func),)
    chosen = [one for name in names for one in _calls(file, number, name)]
    if not chosen and len(rest := [one for one in _calls(file, number) if not alone and any(k.arg == "params" for k in one.keywords)]) == 1:
        chosen = rest
    done = [_one_call(file, call, asked.keywords) for call in chosen]
    return bool(done) and all(done)


def _one_call(file: _File, call: ast.Call, keywords: Sequence[ast.keyword]) -> bool:
    end = (call.end_lineno or call.lineno) - 1
    if any(one.arg is None for one in call.keywords) or end in file.instead:  # **options may hold them already
        return end in file.instead and all(f"{one.arg}=".encode() in file.current_line(end) for one in keywords)
    has = {one.arg: one.value for one in call.keywords}
    line = file.lines[end]
    for one in keywords:
        value = has.get(one.arg)
        if value is not None and not (value.lineno - 1 == (value.end_lineno or value.lineno) - 1 == end):
            return False
    new = [one for one in keywords if one.arg not in has]
    at = (call.end_col_offset or 0) - 1
    before = line[:at].rstrip()
    comma = b"" if before.endswith((b"(", b",")) or not before else b", "
    text = ", ".join(f"{one.arg}={ast.unparse(one.value)}" for one in new)
    line = line[:at].rstrip() + (comma + text.encode() if new else b"") + line[at:] if before else line[:at] + text.encode() + line[at:]
    for one in sorted((k for k in keywords if k.arg in has), key=lambda k: -has[k.arg].col_offset):
        old = has[one.arg]
        line = line[: old.col_offset] + ast.unparse(one.value).encode() + line[old.end_col_offset :]
    file.instead[end] = line
    return True


def _remove_statement(file: _File, number: int, name: str) -> bool:
    """Take a statement out that is nothing but that call, and is not all that its block holds."""
    for parent in ast.walk(file.tree):
        for block in (getattr(parent, "body", None), getattr(parent, "orelse", None)):
            if not isinstance(block, list):
                continue
            for one in block:
                if (
                    isinstance(one, ast.Expr)
                    and isinstance(one.value, ast.Call)
                    and one.lineno - 1 == number
                    and _named(one.value.func) == name
                    and len(block) > 1
                ):
                    for line in range(number, one.end_lineno or one.lineno):
                        file.instead[line] = None
                    return True
    return False


def _model(intervention: str, file: _File, number: int) -> bool:
    """The call of the model, by a name that does not belong to an enclosing module."""
    calls = [one for one in _calls(file, number) if isinstance(one.func, ast.Name) and not one.func.id.startswith(("print", "len", "enumerate", "zip"))]
    if intervention in _AROUND_CALL:
        return _wrap_statement(file, number, _AROUND_CALL[intervention])
    loops = [n for n in ast.walk(file.tree) if isinstance(n, (ast.For, ast.While)) and n.lineno - 1 <= number <= (n.end_lineno or n.lineno) - 1]
    scopes = [
        n for n in ast.walk(file.tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.lineno - 1 <= number <= (n.end_lineno or n.lineno) - 1
    ]
    inner = scopes[-1] if scopes else None
    loops = [n for n in loops if inner is None or n.lineno >= inner.lineno]
    assigned = _assigned(inner or file.tree)
    named = [one.func.id for one in calls if isinstance(one.func, ast.Name) and one.func.id in assigned]
    if not loops or not named or intervention not in _BEFORE_LOOP:
        return False
    first = min(loops, key=lambda n: n.lineno)
    indent = " " * first.col_offset
    file.add_before(first.lineno - 1, indent + _BEFORE_LOOP[intervention].format(model=named[-1]))
    return True


def _assigned(scope: ast.AST) -> set[str]:
    """Names that a function is given or assigns; of a file, that it assigns."""
    stored = {n.id for n in ast.walk(scope) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    given = {a.arg for a in scope.args.args} if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) else set()
    return stored | given


def _wrap_statement(file: _File, number: int, line: str) -> bool:
    """Put a block around the simple statement on that line."""
    found = [
        n for n in ast.walk(file.tree)
        if isinstance(n, (ast.Assign, ast.AnnAssign, ast.Expr)) and n.lineno - 1 <= number <= (n.end_lineno or n.lineno) - 1
    ]  # fmt: skip
    if not found:
        return False
    inner = max(found, key=lambda n: n.lineno)
    file.add_before(inner.lineno - 1, " " * inner.col_offset + line)
    for one in range(inner.lineno - 1, inner.end_lineno or inner.lineno):
        file.instead[one] = b"    " + file.current_line(one)
    return True
