"""What a rule is, and how rules are found.

A rule is one function in a module of `advisor.rules` (or of a team's own package, entry-point group `advisor.rules`).
Its parameters' annotations are the views it needs, the defaults of its keyword-only parameters are its options, and
its docstring is its page.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from advisor.errors import RuleError
from advisor.report.model import Clear, Finding, Skipped
from advisor.views.replay.edits import Edits

SECTIONS = (
    "What it is",
    "Why it costs time",
    "How it is measured",
    "How to fix it",
    "When to ignore it",
    "References",
)
_ID = re.compile(r"^([a-z0-9]+(-[a-z0-9]+)*/)?[a-z0-9]+(-[a-z0-9]+)*$")


class Found(NamedTuple):
    """A finding, and the edits that its fix would make to the step, for the replay with every fix."""

    finding: Finding
    edits: Edits


Outcome = list[Found] | Clear | Skipped
"""What a rule returns: it found something, it looked and found nothing, or it could not look."""


@dataclass(frozen=True)
class Rule:
    """A function with its id, title and options. Raises RuleError where its page lacks a section or its id is no id."""

    id: str
    function: Callable[..., Outcome]
    relies_on: tuple[str, ...] = ("host", "kernels")
    """What it reads the trace for (`Health.touches`): it abstains where a failed check touches that."""

    def __post_init__(self) -> None:
        if not _ID.match(self.id):
            raise RuleError(f"{self.id!r} is no rule id", "an id is kebab-case, a team's own is team/name")
        missing = [s for s in SECTIONS if f"\n{s}\n" not in f"\n{self.page}\n"]
        if missing:
            raise RuleError(f"the page of rule {self.id} lacks: {', '.join(missing)}", "a rule's docstring is its page")

    @property
    def page(self) -> str:
        """The rule's page: its title, then the sections, each a line above its text."""
        return inspect.getdoc(self.function) or ""

    @property
    def title(self) -> str:
        """First line of the page."""
        return self.page.split("\n", 1)[0].rstrip(".")

    @property
    def options(self) -> dict[str, Any]:
        """Thresholds by name, with their defaults."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def rule(rule_id: str, relies_on: tuple[str, ...] = ("host", "kernels")) -> Callable[[Callable[..., Outcome]], Callable[..., Outcome]]:
    """Mark a function as the rule of that id; `relies_on` as in `Rule`."""

    def mark(function: Callable[..., Outcome]) -> Callable[..., Outcome]:
        function.advisor_rule = Rule(rule_id, function, relies_on)  # type: ignore[attr-defined]
        return function

    return mark


def rules_in(module: ModuleType) -> Iterator[Rule]:
    """The rules a module defines."""
    for value in vars(module).values():
        found = getattr(value, "advisor_rule", None)
        if isinstance(found, Rule) and value.__module__ == module.__name__:
            yield found


@cache
def built_in() -> dict[str, Rule]:
    """The rules of the package by id. One a module, named like its file."""
    package = importlib.import_module("advisor.rules")
    found = {}
    for info in pkgutil.iter_modules(package.__path__):
        for item in rules_in(importlib.import_module(f"advisor.rules.{info.name}")):
            if item.id.replace("-", "_") != info.name:
                raise RuleError(f"rule {item.id} stands in {info.name}.py", "a rule's file has its name")
            found[item.id] = item
    return found


def catalog(paths: Iterable[Path] = ()) -> dict[str, Rule]:
    """Every rule by id: built in, installed by other packages, and those of the files given. Raises RuleError."""
    found = dict(built_in())
    extra = [(p.name, _loaded(p.name, p.load)) for p in importlib.metadata.entry_points(group="advisor.rules")]
    extra += [(str(path), _loaded(str(path), partial(_load_file, path))) for path in paths]
    for origin, value in extra:
        items = list(rules_in(value)) if isinstance(value, ModuleType) else [getattr(value, "advisor_rule", None)]
        for item in items:
            if not isinstance(item, Rule):
                raise RuleError(f"{origin} holds no rule", "mark a function with @advisor.rule('team/name')")
            if "/" not in item.id:
                raise RuleError(f"the rule {item.id} of {origin} has no team in its id", "name it team/name")
            found[item.id] = item
    return found


def _loaded(origin: str, load: Callable[[], Any]) -> Any:
    """What a team's own module or file holds. Whatever it raises while it is read is the team's to mend: say what."""
    try:
        return load()
    except RuleError:
        raise
    except Exception as error:
        raise RuleError(f"{origin} cannot be loaded: {type(error).__name__}: {error}", "Mend it, or leave it out.") from error


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"advisor_rules_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise RuleError(f"{path} is no Python file", "give the path of a .py file that defines rules")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(rule_id: str) -> str | None:
    """The page of a rule, None for one that is not installed."""
    found = catalog().get(rule_id)
    return found.page if found else None


def pages_as_markdown(rules: Iterable[Rule]) -> str:
    """The pages of rules as one Markdown document, with a table of contents and each rule's options."""
    rules = list(rules)
    lines = [
        "# Rules",
        "",
        "Generated from the rules' docstrings by `advisor rules --markdown > rules/README.md`.",
        "",
        "| Rule | What it finds |",
        "|---|---|",
        *(f"| [`{r.id}`](#{r.id.replace('/', '')}) | {r.title} |" for r in rules),
    ]
    for item in rules:
        lines += ["", f"## {item.id}", "", f"**{item.title}**"]
        for line in item.page.split("\n")[1:]:
            if line in SECTIONS:
                lines += [f"### {line}", ""]
            elif line.startswith("http") or (line and lines[-1].endswith("  ")):
                lines.append(f"{line}  ")
            else:
                lines.append(line)
        lines += ["", "Options: " + ", ".join(f"`{name}` = {value}" for name, value in item.options.items()) + "."]
    return "\n".join(line.rstrip() if not line.startswith("http") else line for line in lines)
