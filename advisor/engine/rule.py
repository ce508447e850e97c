"""Rules, and how they are found.

A rule is a function in a module of `advisor.rules`, or of a team's own package (entry-point group `advisor.rules`).
Its positional parameters are annotated with views. Its keyword-only parameters are options with defaults. Its docstring is its page.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np

from advisor.engine.page_sections import SECTIONS, method_beside, with_current_titles
from advisor.errors import STOPS, RuleError, UsageError, unknown_name
from advisor.knowledge.installed import entry_points
from advisor.report.finding import AnySaving, Clear, Evidence, Finding, Fix, Per, Severity, Skipped
from advisor.report.recording import TOUCHES
from advisor.views.workspace import annotated, names_a_view, parameters_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_ID = re.compile(r"^([a-z0-9]+(-[a-z0-9]+)*/)?[a-z0-9]+(-[a-z0-9]+)*$")
_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


UNIT = re.compile(r"_share$")
"""An option of this name is a share, 0 to 1, unless its annotation gives another range."""

LEAST_GAIN = "min_saving_share"
"""The option that the engine itself reads: a finding that gains a smaller share than this is reported as clear."""


class Range(msgspec.Struct, frozen=True):
    """Values that an option may have, in its annotation: `Annotated[int, Range(1)]`."""

    least: float = 0.0
    most: float = np.inf


Share = Annotated[float, Range(0.0, 1.0)]
"""An option with a share as its value."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A rule's result. The engine replays the edits, grades severity and confidence, and makes a `Finding` of it.

    summary: one line, cut to `SUMMARY_CHARACTERS`. evidence: at least one place. edits: the fix's effect on the step (`Edits`) or on a job
    (`JobEdits`), replayed for the saving. removes: the removed work, in words. saving: given instead of edits if there is nothing to replay.
    """

    summary: str
    evidence: tuple[Evidence, ...]
    fix: Fix
    edits: Any = None
    removes: str = ""
    saving: AnySaving | None = None
    quiet: str = ""
    """The measured value, in words, for a fix that gains less than the option `min_saving_share`."""
    title: str = ""
    """A title sharper than the page's."""
    confidence: float = 0.9
    """The certainty of the diagnosis if steps repeat and all checks hold; the engine lowers it otherwise."""
    at_most: Severity = "high"
    """No more severe than this, whatever it gains."""
    at_least: Severity = "info"
    """No less severe than this: a large part of the step matters, even if its possible gain is unknown."""
    at_most_us: float = np.inf
    """The measured loss per step: no fix gains more, whatever a replay predicts."""
    likely_at_most_us: float = np.inf
    """The measured loss that the expected fix removes, if the fix at the high end removes more."""
    counted: bool = True
    """Whether the combined estimate includes this fix; not if it is another way to the gain of another rule."""
    least_share: float | None = None
    """The minimum reported share, if less than `min_saving_share`, for a fix of a single line."""
    instead_of: tuple[str, ...] = ()
    """Of a finding that is not counted: rules that gain the same time in another way. It replaces them if the step then gets shorter."""
    per: Per = "step"
    paces: bool = False
    """Whether the step keeps the pace of something unrecorded, such as another process: until that is faster, nothing else gains."""
    cause: str = ""
    ranks: tuple[int, ...] = ()
    status: Literal["found", "possible"] = "found"
    possible_why: str = ""
    """Why it is only possible; empty if the profiler overhead is the reason, which the engine adds."""
    decide_with: str = ""


class Judged(NamedTuple):
    """A finding of the report, the edits of its fix (None if it makes none), and whether the combined estimate counts it."""

    finding: Finding
    edits: Any
    counted: bool = True
    explains: tuple[str, ...] = ()
    """As in `Rule`."""
    part_of: tuple[str, ...] = ()
    """As in `Rule`."""
    paces: bool = False
    """As in `Found`."""
    instead_of: tuple[str, ...] = ()
    """As in `Found`; of a replaced finding, the rule that replaces it."""


Outcome = Found | list[Found] | Clear | Skipped
"""The outcome of a rule: a finding, no finding, or skipped."""


class Table(NamedTuple):
    """A table to be read: its headings and rows."""

    title: str
    rows: tuple[tuple[str, ...], ...]


class Rule(msgspec.Struct, frozen=True, dict=True):
    """A function with its id, title and options. Raises RuleError for a wrong page, id or `relies_on`."""

    id: str
    function: Callable[..., Outcome]
    relies_on: tuple[str, ...] = ("host", "kernels")
    """Parts of the recording that it reads (`Health.touches`): it abstains if a failed check touches them."""
    min_saving_share: float | None = None
    """The default of the engine's own option of that name."""
    explains: tuple[str, ...] = ()
    """Rules that describe the same problem less exactly: their findings are folded into this rule's."""
    part_of: tuple[str, ...] = ()
    """Rules with a larger fix that includes this rule's. It is not folded into them, because its own fix is less work."""
    table: Callable[[], Table] | None = None
    """Makes its reference table, for the end of its page."""

    def __post_init__(self) -> None:
        if not _ID.match(self.id):
            raise RuleError(f"{self.id!r} is no rule id", "an id is kebab-case, a team's own is team/name")
        if not isinstance(self.relies_on, tuple) or not self.relies_on or {*self.relies_on} - {*TOUCHES}:
            raise RuleError(f"the rule {self.id} relies on {self.relies_on!r}", f"name any of {', '.join(TOUCHES)}, in a tuple")
        page = f"\n{self.page}\n"
        missing = [s for s in SECTIONS if f"\n{s}\n" not in page]
        if missing:
            raise RuleError(f"the page of rule {self.id} lacks: {', '.join(missing)}", "a rule's docstring is its page")

    @property
    def page(self) -> str:
        """The rule's page: its title, then the sections, each a line above its text; `{option}` is replaced by its default."""
        return self._filled(with_current_titles(inspect.getdoc(self.function) or ""))

    @property
    def method(self) -> str:
        """Details of the measurement, from `methods/<file>.md` next to the rule's file; "" if the page has all of them."""
        return self._filled(method_beside(inspect.unwrap(self.function)))

    def _filled(self, text: str) -> str:
        """A text with each `{option}` replaced by its default."""
        return re.sub(r"\{(\w+)\}", lambda match: _said(match[1], self.options[match[1]]) if match[1] in self.options else match[0], text)

    @property
    def title(self) -> str:
        """First line of the page."""
        return self.page.split("\n", 1)[0].rstrip(".")

    @cached_property
    def options(self) -> dict[str, Any]:
        """Thresholds by name, with their defaults."""
        parameters = parameters_of(self.function).values()
        own = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
        return own if self.min_saving_share is None else {**own, LEAST_GAIN: self.min_saving_share}

    @cached_property
    def ranges(self) -> dict[str, Range]:
        """The allowed values of each option, by name: by its annotation, else 0 to 1 for a share and 0 or more for a number."""
        parameters = parameters_of(self.function)
        found = {}
        for name, default in self.options.items():
            hint = annotated(self.function, parameters[name]) if name in parameters else None
            declared = next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Range)), None)
            if declared or isinstance(default, (int, float)):
                found[name] = declared or Range(most=1.0 if UNIT.search(name) else np.inf)
        return found

    def check(self) -> None:
        """Raises RuleError for a parameter that is neither a view nor an option. Called once the rule's module is loaded, because annotations may name
        later definitions.
        """
        for name, parameter in parameters_of(self.function).items():
            try:
                need = annotated(self.function, parameter)
            except STOPS:
                raise
            except BaseException:  # whatever a text in place of a type raises
                need = None
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                if parameter.default is inspect.Parameter.empty:
                    raise RuleError(f"option {name} of rule {self.id} has no default", f"give it a default: {name}=…")
                if need is None:
                    raise RuleError(f"the annotation of option {name} of rule {self.id} names no type", "import the type, or leave it out")
            elif need is None or parameter.kind in _REST or not names_a_view(need):
                raise RuleError(f"parameter {name} of rule {self.id} names no view", "annotate it with a class of advisor.views; options follow a *")

    def settled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Every option, the defaults if none is given. Raises UsageError for an option that is unknown, of another type or out of range."""
        for name, value in given.items():
            if name not in self.options:
                raise unknown_name("option", name, self.options, where=f"rule {self.id}: ")
            default = self.options[name]
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if number != (name in self.ranges) or not (number or isinstance(value, type(default))):
                raise UsageError(f"{self.id}.{name} = {value!r} is not like its default {default!r}", "Give a value of the same kind.")
            if number and not self.ranges[name].least <= value <= self.ranges[name].most:
                allowed = self.ranges[name]
                most = f" to {allowed.most:g}" if np.isfinite(allowed.most) else " or more"
                raise UsageError(f"{self.id}.{name} = {value!r} is out of range", f"It may be {allowed.least:g}{most}.")
        return {**self.options, **given}


def _said(name: str, value: Any) -> str:
    """An option's value as a page says it: bytes in the largest unit that divides them."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if name.endswith("_bytes") and value and value % size == 0:
            return f"{value // size} {unit}"
    return str(value)


def rule(
    rule_id: str,
    relies_on: tuple[str, ...] = ("host", "kernels"),
    min_saving_share: float | None = None,
    explains: tuple[str, ...] = (),
    part_of: tuple[str, ...] = (),
    table: Callable[[], Table] | None = None,
) -> Callable[[Callable[..., Outcome]], Callable[..., Outcome]]:
    """Mark a function as the rule of that id; the rest as in `Rule`."""

    def mark(function: Callable[..., Outcome]) -> Callable[..., Outcome]:
        function.advisor_rule = Rule(rule_id, function, relies_on, min_saving_share, explains, part_of, table)  # type: ignore[attr-defined]
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
    """The rules of the package by id: a rule per module, named like its file."""
    package = importlib.import_module("advisor.rules")
    found = {}
    for info in pkgutil.iter_modules(package.__path__):
        for item in rules_in(importlib.import_module(f"advisor.rules.{info.name}")):
            if item.id.replace("-", "_") != info.name:
                raise RuleError(f"rule {item.id} is in {info.name}.py", "a rule's file has its name")
            found[item.id] = item
    return found


def catalog(paths: Iterable[Path] = ()) -> dict[str, Rule]:
    """Every rule by id: built in, installed by other packages, and those of the given files, which replace installed rules.
    Raises RuleError, and UsageError if there is no such file."""
    found = dict(built_in())
    own: dict[str, Rule] = {}
    extra = [(p.name, _loaded(p.name, p.load), False) for p in _installed()]
    extra += [(str(path), _loaded(str(path), partial(_load_file, path)), True) for path in paths]
    for origin, value, of_file in extra:
        items = list(rules_in(value)) if isinstance(value, ModuleType) else [getattr(value, "advisor_rule", None)]
        for item in items:
            if not isinstance(item, Rule):
                raise RuleError(f"{origin} holds no rule", "mark a function with @advisor.rule('team/name')")
            if "/" not in item.id:
                raise RuleError(f"the rule {item.id} of {origin} has no team in its id", "name it team/name")
            if item.id in own and _place(item) != _place(own[item.id]):
                raise RuleError(
                    f"{origin} holds a second rule {item.id}: the first is at {':'.join(map(str, _place(own[item.id])))}", "give each a different id"
                )
            item.check()
            found[item.id] = item
            if of_file:
                own[item.id] = item
    return found


def _place(rule: Rule) -> tuple[str, int]:
    """File and line of a rule's function: equal for a module that was loaded twice, as installed and by its path."""
    code = inspect.unwrap(rule.function).__code__
    return os.path.realpath(code.co_filename), code.co_firstlineno


@cache
def _installed() -> tuple[EntryPoint, ...]:
    """What other packages install. Asked once: finding out reads a file of every package in the environment."""
    return entry_points("advisor.rules")


def _loaded(origin: str, load: Callable[[], Any]) -> Any:
    """The contents of a team's own module or file. Its errors while it is read are the team's to fix: the message names them."""
    try:
        return load()
    except (RuleError, UsageError, *STOPS):
        raise
    except BaseException as error:
        raise RuleError(f"{origin} cannot be loaded: {type(error).__name__}: {error}", "Mend it, or leave it out.") from error


def _load_file(path: Path) -> ModuleType:
    if not path.exists():
        raise UsageError(f"there is no file {path}", "Give the path of a .py file that defines rules.")
    spec = importlib.util.spec_from_file_location(f"advisor_rules_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise RuleError(f"{path} is no Python file", "give the path of a .py file that defines rules")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not any(rules_in(module)):
        raise RuleError(f"{path} holds no rule", "mark a function of it with @advisor.rule('team/name')")
    return module


def page(rule_id: str) -> str | None:
    """The page of a rule, None if it is not installed."""
    found = catalog().get(rule_id)
    return found.page if found else None
