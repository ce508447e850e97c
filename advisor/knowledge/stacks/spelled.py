"""Reads the names of options out of a wheel, a source distribution or a checkout: by its syntax tree, never by importing it."""

from __future__ import annotations

import ast
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from advisor.knowledge.stacks import Owner, Pack

Names = dict[str, str]
"""Names, each with its default as it is written, "" if it has none."""

EVERY = "*"
"""In place of a class: all of a file."""


class Archive:
    """Texts of a wheel (.whl), a source distribution (.tar.gz) or a folder, by the end of their path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir():
            self._names = [str(one.relative_to(path)) for one in path.rglob("*") if one.suffix in (".py", ".yaml")]
        elif path.suffix == ".whl":
            with zipfile.ZipFile(path) as packed:
                self._names = packed.namelist()
        else:
            with tarfile.open(path) as packed:
                self._names = packed.getnames()

    def text(self, wanted: str) -> str | None:
        """The text of the file whose path ends so; None if there is none."""
        found = sorted((name for name in self._names if f"/{name}".endswith(f"/{wanted}")), key=len)
        if not found:
            return None
        coding = "latin-1" if found[0].endswith(".so") else "utf-8"
        if self.path.is_dir():
            return (self.path / found[0]).read_text(encoding=coding)
        if self.path.suffix == ".whl":
            with zipfile.ZipFile(self.path) as packed:
                return packed.read(found[0]).decode(coding)
        with tarfile.open(self.path) as packed:
            file = packed.extractfile(found[0])
            return file.read().decode(coding) if file else None


def names_in(archives: Mapping[str, Archive], pack: Pack) -> dict[str, Names]:
    """The names of every owner of a pack; an owner that its archive has not is left out. archives: by package."""
    found: dict[str, Names] = {}
    for name, owner in pack.owners.items():
        texts = [text for file in owner.files if (text := archives[owner.package or pack.package].text(file)) is not None]
        if names := {own: default for text in texts for own, default in read_names(text, owner, name).items()}:
            found[name] = names
    return found


def read_names(text: str, owner: Owner, name: str) -> Names:
    """The names that an owner has in a file of that text."""
    if owner.read == "keys":
        return dict(re.findall(r"^(\w+):[ \t]*([^#\n]*?)[ \t]*(?:#.*)?$", text, re.MULTILINE))
    if owner.read == "words":
        return {word: "" for word in owner.of if word in text}
    tree = _parsed(text)
    return {own: default for of in owner.of or (name,) for own, default in _READERS[owner.read](tree, of).items()}


_TYPE_PARAMETERS = re.compile(r"^([ \t]*)(?:type (?=\w+\b.*=)|((?:async )?(?:def|class) \w+)\[.*?\](?=[(:]))", re.MULTILINE)


def _parsed(text: str) -> ast.Module:
    """The syntax tree, without the type parameters of functions and classes and the word `type`, which Python before 3.12 cannot parse."""
    return ast.parse(_TYPE_PARAMETERS.sub(r"\1\2", text))


def _found(tree: ast.AST, dotted: str) -> ast.ClassDef | ast.FunctionDef | None:
    """A class or function by its dotted name, however deep it stands."""
    first, _, rest = dotted.partition(".")
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == first:
            return _found(node, rest) if rest else node
    return None


def _fields(tree: ast.Module, of: str) -> Names:
    if of == EVERY:
        return {name: default for node in tree.body if isinstance(node, ast.ClassDef) for name, default in _fields(tree, node.name).items()}
    node = _found(tree, of)
    if not isinstance(node, ast.ClassDef):
        return {}
    found: Names = {}
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id != of:
            found |= _fields(tree, base.id)
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            found[line.target.id] = _default(line.value)
        elif isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            found[line.targets[0].id] = _default(line.value)
    return {name: default for name, default in found.items() if not name.startswith("_")}


def _default(value: ast.expr | None) -> str:
    """A default that is a value, as it is written: that of `field(default=…)` and `Field(…)` rather than the call."""
    if isinstance(value, ast.Call):
        given = [word.value for word in value.keywords if word.arg == "default"]
        value = given[0] if given else value.args[0] if value.args and isinstance(value.args[0], ast.Constant) else None
    return ast.unparse(value) if isinstance(value, ast.Constant) else ""


def _signature(tree: ast.Module, of: str) -> Names:
    node = _found(tree, of)
    if isinstance(node, ast.ClassDef):
        node = next((line for line in node.body if isinstance(line, ast.FunctionDef) and line.name == "__init__"), None)
    if not isinstance(node, ast.FunctionDef):
        return {}
    arguments = [*node.args.posonlyargs, *node.args.args]
    defaults: list[ast.expr | None] = [*[None] * (len(arguments) - len(node.args.defaults)), *node.args.defaults]
    pairs = [*zip(arguments, defaults, strict=True), *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
    return {argument.arg: _default(default) for argument, default in pairs if argument.arg not in ("self", "cls")}


def _methods(tree: ast.Module, of: str) -> Names:
    if of == EVERY:
        return {name: "" for node in tree.body if isinstance(node, ast.ClassDef) for name in _methods(tree, node.name)}
    node = _found(tree, of)
    return {line.name: "" for line in node.body if isinstance(line, ast.FunctionDef)} if isinstance(node, ast.ClassDef) else {}


def _functions(tree: ast.Module, of: str) -> Names:
    return {line.name: "" for line in tree.body if isinstance(line, (ast.FunctionDef, ast.ClassDef))}


def _exports(tree: ast.Module, of: str) -> Names:
    handed = (alias.asname or alias.name for line in ast.walk(tree) if isinstance(line, (ast.Import, ast.ImportFrom)) for alias in line.names)
    return {of: ""} if of in handed else {}


def _calls(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
            yield node


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _arguments(tree: ast.Module, of: str) -> Names:
    found: Names = {}
    for call in _calls(tree, "add_argument"):
        default = next((_default(word.value) for word in call.keywords if word.arg == "default"), "")
        found |= {text: default for text in map(_text, call.args) if text.startswith("--")}
    return found


def _taken(tree: ast.Module, of: str) -> Names:
    node = _found(tree, of)
    if node is None:
        return {}
    asked = [one.left for one in ast.walk(node) if isinstance(one, ast.Compare) and ast.unparse(one.comparators[0]) == "kwargs"]
    return {name: "" for one in (*(call.args[0] for call in _calls(node, "pop", "get") if call.args), *asked) if (name := _text(one))}


def _literals(tree: ast.Module, of: str) -> Names:
    assigned = (line for line in tree.body if isinstance(line, ast.Assign))
    return {text: "" for line in assigned if (text := _text(line.value)) and re.fullmatch(r"\w+", text)}


def _values(tree: ast.Module, of: str) -> Names:
    node = _found(tree, of)
    return {text: "" for line in getattr(node, "body", ()) if isinstance(line, ast.Assign) and (text := _text(line.value))}


_READERS: Mapping[str, Callable[[ast.Module, str], Names]] = {
    "fields": _fields,
    "signature": _signature,
    "methods": _methods,
    "functions": _functions,
    "arguments": _arguments,
    "taken": _taken,
    "literals": _literals,
    "values": _values,
    "exports": _exports,
}
