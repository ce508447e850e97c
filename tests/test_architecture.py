"""The laws of the layout: who may import whom, who may print, what is installed."""

import ast
import importlib
import re
import shutil
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest

import advisor
from advisor.errors import UsageError
from advisor.lab.interventions.catalogue import interventions
from tests.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOMES = {"sources": ROOT / "advisor" / "sources", "views": ROOT / "advisor" / "views", "reports": ROOT / "reports"}
COMMAND_LINE = ROOT / "advisor" / "cli"
LAB = ROOT / "advisor" / "lab"
PACKAGE = sorted((ROOT / "advisor").rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imported(path: Path) -> set[str]:
    found = set()
    package = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = ".".join([*package[: -node.level], *filter(None, [node.module])]) if node.level else str(node.module)
            found |= {module} | {f"{module}.{name.name}" for name in node.names}
    return found


@pytest.mark.parametrize("home", HOMES)
def test_sources_views_and_reports_never_import_each_other(home):
    others = tuple(f"advisor.{other}" for other in HOMES if other != home)
    for path in HOMES[home].rglob("*.py"):
        assert not [name for name in imported(path) if name.startswith(others)], path


FLOORS = ("trace", "replay", "time", "patterns")
"""Of the views of one timeline, each seeing only those before it."""


@pytest.mark.parametrize("floor", FLOORS)
def test_views_see_only_the_floors_below(floor):
    above = tuple(f"advisor.views.{other}." for other in FLOORS[FLOORS.index(floor) + 1 :])
    for path in (ROOT / "advisor" / "views" / floor).glob("*.py"):
        assert not [name for name in imported(path) if name.startswith(above)], path


def test_a_report_is_data_that_knows_nothing_above_it():
    """What a report is made of and written with is below it: numbers, names of devices, secrets that it must not show."""
    below = ("report", "knowledge", "errors", "files", "intervals", "units")
    for path in (ROOT / "advisor" / "report").glob("*.py"):
        names = [name for name in imported(path) if name.split(".")[0] == "advisor"]
        assert not [name for name in names if name == "advisor" or not name.startswith(tuple(f"advisor.{part}" for part in below))], path


def test_no_two_modules_import_each_other_not_even_for_types_or_late():
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): imported(path) for path in PACKAGE if path.name != "__init__.py"}
    assert not [(one, other) for one, names in modules.items() for other in names & modules.keys() if one < other and one in modules[other]]


def test_nothing_in_the_package_imports_a_rule_or_a_format_by_name():
    for path in PACKAGE:
        names = [n for n in imported(path) if n.startswith(("advisor.rules.", "advisor.reports."))]
        allowed = ("advisor.reports.",) if path.is_relative_to(COMMAND_LINE) else ()
        assert not [name for name in names if not name.startswith(allowed)], path


PRINTING = {"memory.profile_memory", "profiling_session.full_profiling_session", "levels.optimize_attention"}
"""Functions of the lab whose purpose is to print."""


def test_only_the_command_line_prints_or_exits():
    for path in [*PACKAGE, *(ROOT / "rules").glob("*.py"), *(ROOT / "reports").rglob("*.py")]:
        if path.is_relative_to(COMMAND_LINE) or path.name == "__main__.py":  # a command of its own, for who works on the project
            continue
        tree = parsed(path)
        if path.is_relative_to(LAB):
            tree = ast.Module([n for n in tree.body if not isinstance(n, ast.FunctionDef) or f"{path.stem}.{n.name}" not in PRINTING], [])
        calls = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)]
        assert not [c.id for c in calls if isinstance(c, ast.Name) and c.id in ("print", "exit", "quit")], path
        assert not [c for c in calls if isinstance(c, ast.Attribute) and ast.unparse(c) == "sys.exit"], path


def test_only_the_lab_imports_torch_and_only_when_it_is_asked_to_measure():
    for path in PACKAGE:
        tree = parsed(path)
        inside = [n for f in ast.walk(tree) if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef)) for n in ast.walk(f)]
        checked = [n for f in tree.body if isinstance(f, ast.If) and ast.unparse(f.test) == "TYPE_CHECKING" for n in ast.walk(f)]
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] in ("torch", "jax") for name in names):
                assert path.is_relative_to(LAB) and (node in inside or node in checked), path


def test_public_names_work_whatever_was_imported_before():
    """A package of the same name takes a function's place."""
    code = "import advisor, advisor.cli; print(*(n for n in advisor.__all__ if n[0].islower() and not callable(getattr(advisor, n))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done
    clash = {path.name for path in (ROOT / "advisor").iterdir()} & {*advisor.__all__}
    for name in clash:
        module = importlib.import_module(f"advisor.{name}")
        with pytest.raises(UsageError, match="there is no capture"):
            module([], [])
    assert clash == {"compare"}


def test_no_rule_looks_at_the_name_of_the_file_or_its_format():
    for path in (ROOT / "rules").glob("*.py"):
        text = path.read_text()
        assert "source.path" not in text and "source.format" not in text, path


def test_the_package_is_seen_at_a_glance():
    entries = {path.name for path in (ROOT / "advisor").iterdir()} - {"__init__.py", "__pycache__", "py.typed"}
    assert len(entries) <= 14, sorted(entries)


def test_documents_that_the_code_cites_are_here():
    here = {path.name for folder in (ROOT, ROOT / "docs", ROOT / "rules", ROOT / "samples", ROOT / "skills" / "advisor") for path in folder.glob("*.md")}
    for path in [*PACKAGE, *(ROOT / "rules").glob("*.py"), *(ROOT / "reports").rglob("*.py")]:
        cited = re.findall(r"(?<![\w/.-])(?:[a-z]+/)?([A-Z]{4,}\.md)\b", path.read_text())
        assert {*cited} <= here, path


def test_every_package_is_listed_for_the_wheel():
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {ROOT / "advisor", ROOT / "rules", ROOT / "reports", ROOT / "skills"}
    found = {"advisor" + (f".{p.name}" if p.name != "advisor" else "") for p in folders}
    for folder in folders:
        base = "advisor" if folder.name == "advisor" else f"advisor.{folder.name}"
        found |= {".".join([base, *init.parent.relative_to(folder).parts]) for init in folder.rglob("*/__init__.py")}
    assert set(tables["packages"]) == found


def test_a_checkout_that_is_not_installed_finds_its_own_rules_and_reports(tmp_path):
    for name in ("advisor", "rules", "reports"):
        shutil.copytree(ROOT / name, tmp_path / name)
    code = "import sys, advisor, advisor.rules, advisor.reports; print(advisor.rules.__file__, advisor.reports.__file__, len(advisor.analyze(sys.argv[1]).findings))"
    trace = ROOT / "samples" / "sync-stall" / "slow.json.gz"
    done = subprocess.run([sys.executable, "-c", code, trace], capture_output=True, text=True, cwd=tmp_path, check=False)
    rules, reports, found = done.stdout.split()
    assert Path(rules).is_relative_to(tmp_path) and Path(reports).is_relative_to(tmp_path) and int(found) > 0, done.stderr


def test_analysis_loads_neither_torch_nor_pandas(tmp_path):
    # A torch that cannot be imported without notice stands first on the path.
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    code = textwrap.dedent("""
        import sys
        import advisor
        from advisor.reports import formats
        report = advisor.analyze(sys.argv[1])
        assert report.findings
        for form in formats().values():
            form.render(report)
        assert "torch" not in sys.modules and "pandas" not in sys.modules
        print("analysed")
    """)
    trace = ROOT / "samples" / "sync-stall" / "slow.json.gz"
    done = subprocess.run([sys.executable, "-c", code, trace], capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)}, check=False)
    assert done.stdout.strip() == "analysed", done.stderr


def test_what_runs_inside_a_users_program_finds_its_own_by_relative_names_alone():
    """It is loaded as part of a private package: `import advisor` would be the user's own module, or fail."""
    package, seen = ROOT / "advisor", set()
    waiting = [
        LAB / "in_program.py",
        LAB / "find_steps.py",
        LAB / "trying" / "inside.py",
        *(LAB / "interventions" / f"{one.code.partition(':')[0]}.py" for one in interventions().values()),
    ]
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        for node in at_run_time(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.level:
                folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                waiting += [folder.with_suffix(".py"), folder / "__init__.py", *(folder / f"{one.name}.py" for one in node.names)]
            else:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
                assert not any(name.partition(".")[0] == "advisor" for name in names), f"{path.relative_to(ROOT)}:{node.lineno}"
    assert package / "report" / "numbers.py" in seen


def at_run_time(node: ast.AST):
    """Imports, but for those that only a type checker sees."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from at_run_time(child)
