"""What CONTRIBUTING.md says of the tests, and the architecture's page of the folders."""

import ast
import re

from advisor.cli import app
from tests.golden.readme import current
from tests.paths import ROOT

README = (ROOT / "README.md").read_text()


def reasons():
    """Modules without which tests skip, and the reasons that are given by hand."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            said = [word.value for word in node.keywords if word.arg == "reason"]
            if node.func.attr == "importorskip":
                yield path, node.args[0].value.split(".")[0]
            elif node.func.attr in ("skip", "skipif"):
                yield path, ast.unparse((said or node.args)[0])


def test_all_that_tests_skip_for_is_listed():
    table = (ROOT / "CONTRIBUTING.md").read_text().split("| Missing | What is not tested |", 1)[1].split("\n\n", 1)[0]
    for path, reason in reasons():
        words = set(re.findall(r"[\w/.-]{3,}", reason))
        assert any(word in table for word in words), f"{path.relative_to(ROOT)} skips for {reason!r}: say so in the table of CONTRIBUTING.md"


def test_the_page_of_the_architecture_names_files_that_are_there():
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = {name for name in re.findall(r"`([\w./]+)`", text) if "/" in name and not name.startswith("team/")}
    homes = (ROOT, ROOT / "advisor", ROOT / "advisor" / "views")
    assert not {name for name in named if not any((home / name.rstrip("/")).exists() for home in homes)}
    folders = {f"advisor/{path.name}/" for path in (ROOT / "advisor").iterdir() if (path / "__init__.py").exists()}
    assert folders - {"advisor/cli/"} <= named, "say what the new folder is for"


def test_texts_name_only_commands_that_there_are():
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    for path in (path for folder in ("advisor", "reports", "rules") for path in (ROOT / folder).rglob("*.py")):
        texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        named = {name for text in texts for name in re.findall(r"(?:: |`|^|with )advisor ([a-z]+)\b", text)}
        assert named <= known, f"{path.relative_to(ROOT)}: no such command"


def test_what_the_readme_shows_is_what_is_printed():
    assert current(README) == README, "python -m tests.golden writes it anew"
