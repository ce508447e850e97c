"""The programs of the corpus, read without torch: a file each, under the program's name, of what the samples' modules hold."""

import ast
from functools import cache

import pytest

from tests.paths import ROOT

PROGRAMS = sorted((ROOT / "corpus" / "programs").glob("*.py"))
WORKLOADS = ROOT / "samples" / "workloads"


@cache
def defined(module: str) -> set[str]:
    """The names at the top of a module."""
    tree = ast.parse((WORKLOADS / f"{module}.py").read_text())
    assigned = {name.id for node in tree.body for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
    return assigned | {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def test_each_program_is_named_like_its_file_and_imports_what_there_is():
    assert PROGRAMS
    for path in PROGRAMS:
        tree = ast.parse(path.read_text())
        (made,) = (node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PROGRAM")
        assert path.stem in [part.value for part in ast.walk(made) if isinstance(part, ast.Constant)], path.name
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module.startswith("workloads."):
                missing = {name.name for name in node.names} - defined(node.module.removeprefix("workloads."))
                assert not missing, f"{path.name}: {missing}"


def test_each_trace_of_models_and_of_programs_by_hand_has_its_program():
    names = {path.stem for path in PROGRAMS}
    rows = [line.split(",") for line in (ROOT / "corpus" / "ledger.csv").read_text().splitlines()[1:]]
    here = {row[0] for row in rows if row[1] in ("public", "written", "advised") and row[-1]}
    assert here == names


def test_a_program_is_found_by_its_name():
    pytest.importorskip("torch")
    from workloads import workload

    assert workload("encoder_infer").rule == "launch-gap" and workload("copy_tape").alone
    with pytest.raises(KeyError):
        workload("no_such_program")
