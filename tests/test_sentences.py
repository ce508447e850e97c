"""No code takes a sentence of a report apart: what it needs to know stands in a typed field beside the sentence."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.paths import ROOT

SENTENCES = frozenset(
    ("summary", "detail", "why", "title", "record_with", "possible_why", "judged_why", "left_out", "decide_with", "lines_with", "risk", "quiet")
)
"""Fields of a report, and of what rules return, that hold sentences."""

TAKE_APART = frozenset(
    ("startswith", "endswith", "find", "rfind", "index", "count", "partition", "rpartition", "replace", "removeprefix", "removesuffix", "search", "match",
     "fullmatch", "sub", "findall", "finditer")
)  # fmt: skip

OF_ANOTHER = frozenset((("advisor/sources", "detail"), ("advisor/lab", "why"), ("advisor/cli", "title")))
"""Attributes of the same name that are no sentence of a report."""

ALLOWED = {
    # That it is one line.
    ("advisor/report/finding.py", "summary"),
}


def taken_apart(tree: ast.AST) -> set[str]:
    """Names of fields with a sentence that code looks into."""

    def fields(node: ast.AST) -> set[str]:
        return {node.attr} & SENTENCES if isinstance(node, ast.Attribute) else set()

    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops):
            found |= {name for side in node.comparators for name in fields(side)}
        elif isinstance(node, ast.Compare) and any(isinstance(side, ast.Constant) and side.value for side in (node.left, *node.comparators)):
            found |= {name for side in (node.left, *node.comparators) for name in fields(side)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TAKE_APART:
            found |= fields(node.func.value) | {name for argument in node.args for name in fields(argument)}
    return found


PATTERN_CALLS = frozenset(("search", "match", "fullmatch", "sub", "findall", "finditer", "split"))
"""Calls of a regular expression with the text as an argument."""


def readers(trees: dict[str, ast.Module]) -> set[tuple[str, str]]:
    """Functions, by module and name, that match a pattern against a parameter, or hand it to such a function."""
    handed = {(module, node.name): list(_handed_parameters(node)) for module, tree in trees.items() for node in tree.body if isinstance(node, ast.FunctionDef)}
    found = {function for function, calls in handed.items() if PATTERN in calls}
    while True:
        known = {module: known_in(module, tree, found) for module, tree in trees.items()}
        more = found | {function for function, calls in handed.items() if known[function[0]] & {*calls}}
        if more == found:
            return found
        found = more


PATTERN = ""
"""A call of a regular expression, in place of a function's name."""


def _called(node: ast.Call) -> str | None:
    function = node.func
    if isinstance(function, ast.Attribute):
        return PATTERN if function.attr in PATTERN_CALLS else None
    return function.id if isinstance(function, ast.Name) else None


def _handed_parameters(function: ast.FunctionDef) -> Iterator[str]:
    """What a function hands one of its parameters to."""
    names = {argument.arg for argument in function.args.args}
    nodes = list(ast.walk(function))
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in names:
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in nodes:
        called = _called(node) if isinstance(node, ast.Call) and names & {getattr(argument, "id", "") for argument in node.args} else None
        if called is not None:
            yield called


def known_in(module: str, tree: ast.Module, found: set[tuple[str, str]]) -> set[str]:
    """The names by which a module calls these functions."""
    imported = {
        alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names if (node.module, alias.name) in found
    }
    return imported | {name for home, name in found if home == module}


def read_elsewhere(tree: ast.AST, known: set[str]) -> set[str]:
    """Names of fields with a sentence, or with several, that code hands to a function which matches patterns."""
    each = {
        node.target.id: node.iter.attr
        for node in ast.walk(tree)
        if isinstance(node, (ast.comprehension, ast.For)) and isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Attribute)
    }
    read = [a for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) in known for a in node.args]
    attributes = {argument.attr for argument in read if isinstance(argument, ast.Attribute)}
    return (attributes & SENTENCES) | ({each.get(argument.id, "") for argument in read if isinstance(argument, ast.Name)} & (SENTENCES | {"steps"}))


FILES = sorted(path for part in ("advisor", "rules", "reports") for path in (ROOT / part).rglob("*.py"))
DECIDES = ("advisor/engine/", "advisor/compare/", "advisor/report/", "advisor/views/", "advisor/knowledge/")
"""Code that concludes: formats and commands may match what they show, to wrap or escape it."""


@cache
def trees() -> dict[Path, ast.Module]:
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for path in FILES}


def test_nothing_takes_a_sentence_apart():
    found = {(str(path), name) for path, tree in trees().items() for name in taken_apart(tree)}
    deciding = {".".join(path.with_suffix("").parts): (path, tree) for path, tree in trees().items() if str(path).startswith(DECIDES)}
    matching = readers({module: tree for module, (_, tree) in deciding.items()})
    for module, (path, tree) in deciding.items():
        if known := known_in(module, tree, matching):
            found |= {(str(path), name) for name in read_elsewhere(tree, known)}
    found = {(path, name) for path, name in found if not any(path.startswith(part) and name == of for part, of in OF_ANOTHER)}
    assert found - ALLOWED == set(), "say it in a typed field"
    assert ALLOWED - found == set(), "no longer needed"


def test_a_function_that_matches_its_argument_takes_apart_what_it_gets():
    code = (
        "def kept(text):\n    said = text\n    return P.sub('', said)\n\ndef deep(text, n):\n    return kept(text)\n\ndef plain(text):\n    return len(text)\n"
    )
    tree = ast.parse(code + "kept(f.summary); deep(f.risk, 1); plain(f.title); [kept(step) for step in fix.steps]")
    found = readers({"m": tree})
    assert found == {("m", "kept"), ("m", "deep")}
    assert read_elsewhere(tree, known_in("m", tree, found)) == {"summary", "risk", "steps"}
    other = ast.parse("from m import deep as far\nfar(item.record_with)")
    assert read_elsewhere(other, known_in("n", other, found)) == {"record_with"}


def test_each_check_says_why_it_has_its_status():
    made = [node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Health"]
    assert made and [ast.unparse(node)[:100] for node in made if "reason" not in {keyword.arg for keyword in node.keywords}] == []


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ('any("of what" in c.why for c in clear)', {"why"}),
        ('steps.detail.startswith("a launch")', {"detail"}),
        ("PATTERN.search(item.record_with)", {"record_with"}),
        ('finding.title == "x"', {"title"}),
        ("finding.summary", set()),
        ("len(finding.summary) > 3 or not finding.why", set()),
        ("item.rule in names", set()),
    ],
)
def test_what_counts_as_taking_apart(code, names):
    assert taken_apart(ast.parse(code)) == names
