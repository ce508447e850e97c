"""No code takes a sentence of a report apart: what it needs to know stands in a typed field beside the sentence."""

import ast

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
    # Hints at recording better name tools of PyTorch and CUDA: a program without these gets others. To be typed.
    ("advisor/engine/terms.py", "record_with"),
    ("advisor/engine/terms.py", "lines_with"),
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


FILES = sorted(path for part in ("advisor", "rules", "reports") for path in (ROOT / part).rglob("*.py"))


def test_nothing_takes_a_sentence_apart():
    found = {(str(path.relative_to(ROOT)), name) for path in FILES for name in taken_apart(ast.parse(path.read_text()))}
    found = {(path, name) for path, name in found if not any(path.startswith(part) and name == of for part, of in OF_ANOTHER)}
    assert found - ALLOWED == set(), "say it in a typed field"
    assert ALLOWED - found == set(), "no longer needed"


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
