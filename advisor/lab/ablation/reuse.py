"""Reuses an analysis for another without a mechanism: all results that the mechanism's modules cannot have changed."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any

from advisor.engine import evaluate
from advisor.engine.rule import Rule, catalog
from advisor.lab.ablation.switch import Switched, attribute, home, replace_attribute
from advisor.recordings.recording import Recording
from advisor.views.workspace import Workspace


class Kept:
    """The views and the rules' outcomes of an analysis."""

    def __init__(self) -> None:
        self.views: dict[type, Any] = {}
        self.outcomes: dict[str, Any] = {}

    @contextmanager
    def filled(self) -> Iterator[None]:
        """Keeps the results of the analysis in a block."""
        made: list[Workspace] = []

        class Noted(Workspace):
            def __init__(self, *given: object) -> None:
                super().__init__(*given)
                made.append(self)

        def noted(rule: Rule) -> Callable[..., Any]:
            function = rule.function

            @wraps(function)
            def called(*views: Any, **options: Any) -> Any:
                self.outcomes[rule.id] = function(*views, **options)
                return self.outcomes[rule.id]

            return called

        with _put(evaluate, "Workspace", Noted), _functions(noted):
            yield
        self.views = {view: value for view, value in made[0]._made.items() if hasattr(view, "build") or hasattr(view, "builds")}

    def unchanged_views(self, switched: Switched, recording: Recording) -> Recording:
        """The recording, with those views that the mechanism cannot have changed."""
        changed = {home(switch).__name__ for switch in switched.switches}
        views = [value for view, value in self.views.items() if not changed & reached(view.__module__)]
        return Recording(recording.kind, recording.path, (*recording.parts, *(one for one in views if type(one) not in map(type, recording.parts))))

    @contextmanager
    def reused(self, switched: Switched) -> Iterator[None]:
        """Rules that the mechanism cannot have changed return their kept outcomes in a block."""
        changed = {home(switch).__name__ for switch in switched.switches}

        def said(rule: Rule) -> Callable[..., Any]:
            if rule.id not in self.outcomes or changed & reached(rule.function.__module__):
                return rule.function
            return wraps(rule.function)(lambda *_, **__: self.outcomes[rule.id])

        with _functions(said):
            yield


@contextmanager
def _functions(made: Callable[[Rule], Callable[..., Any]]) -> Iterator[None]:
    with ExitStack() as stack:
        for rule in catalog().values():
            stack.enter_context(_put(rule, "function", made(rule)))
        yield


@contextmanager
def _put(owner: Any, name: str, value: Any) -> Iterator[None]:
    kept = attribute(owner, name)
    replace_attribute(owner, name, value)
    try:
        yield
    finally:
        replace_attribute(owner, name, kept)


@cache
def reached(module: str) -> frozenset[str]:
    """All modules of the package that a module imports, directly or not, and the module itself."""
    found, waiting = set[str](), [module]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += _imported(one)
    return frozenset(found)


@cache
def _imported(module: str) -> frozenset[str]:
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return frozenset()
    found = set[str]()
    for package, names in _IMPORT.findall(Path(file).read_text(encoding="utf-8")):
        found |= {package, *(f"{package}.{name}" for name in _NAME.findall(names))}
    return frozenset(name for name in found if name in sys.modules)


# Read as text: parsing all of the package takes seconds.
_IMPORT = re.compile(r"^[ \t]*from (advisor[\w.]*) import (\([^)]*\)|[^\n]+)", re.MULTILINE)
_NAME = re.compile(r"\w+")
