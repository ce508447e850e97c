"""Views are built once each, on demand, from the annotations of what they need."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from time import perf_counter
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from advisor.errors import Unavailable
from advisor.knowledge.structs import replace
from advisor.report.plan import Made

T = TypeVar("T")


@cache
def needs_of(function: Any) -> dict[str, Any]:
    """The views a function takes: its positional parameters by name, with their annotated types, `View | None` among them."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {name: annotated(function, p) for name, p in parameters_of(function).items() if p.kind in kinds}


@cache
def parameters_of(function: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function by name."""
    return inspect.signature(function).parameters


def annotated(function: Any, parameter: inspect.Parameter) -> Any:
    """The type that a function's parameter is annotated with, with its `Annotated`; raises what a text that names none does."""
    names = getattr(inspect.unwrap(function), "__globals__", {})
    if isinstance(one := names.get(parameter.annotation), type):  # as most are: nothing to evaluate
        return one
    own = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    return get_type_hints(own, names, include_extras=True)[parameter.name]


def names_a_view(need: Any) -> bool:
    """Whether an annotation is a view or a part of a recording, or `View | None`."""
    if get_origin(need) in (Union, UnionType) and sum(view is not NoneType for view in get_args(need)) != 1:
        return False
    return any(hasattr(_asked(need)[0], made) for made in ("build", "builds", "part_of"))


class Workspace:
    """The parts of a recording and the views made of them so far.

    A view is a class with a `build` that names its needs by annotation. A part says which kind of recording it is `part_of`; sources make parts. A view that
    can be made of several kinds of parts lists its ways in `builds`; the first with all its parts is used.

    given: the parts, and views that are given directly, such as the user's settings.
    """

    def __init__(self, *given: object) -> None:
        self._made: dict[type, Any] = {type(view): view for view in given}
        self._plan: list[Made] = []
        self._depth, self._within_ms = 0, 0.0

    def get(self, view: type[T]) -> T:
        """The view of that type; its needs are built first. Raises LookupError if a part that it needs is not here."""
        if view not in self._made:
            way = next((way for way in _ways(view) if self.can_build(way)), None)
            if way is None:
                raise LookupError(f"this recording gives no {view.__name__}")
            self._made[view] = self.call(way)
        return self._made[view]

    @property
    def views(self) -> tuple[object, ...]:
        """What was made so far, parts among it."""
        return tuple(self._made.values())

    def call(self, function: Any, **options: Any) -> Any:
        """Call a function with the views that its parameters name, and keyword options as given."""
        at, depth, outer_ms, began, missing = len(self._plan), self._depth, self._within_ms, perf_counter(), ""
        needs = needs_of(function)
        self._plan.append(Made(_named(function), tuple(_asked(need)[0].__name__ for need in needs.values()), depth, 0.0))
        self._depth, self._within_ms = depth + 1, 0.0
        try:
            return function(**{name: self._need(need) for name, need in needs.items()}, **options)
        except Unavailable as why:
            missing = why.message
            raise
        finally:
            took_ms = (perf_counter() - began) * 1000
            self._plan[at] = replace(self._plan[at], own_ms=took_ms - self._within_ms, missing=missing)
            self._depth, self._within_ms = depth, outer_ms + took_ms

    def plan(self) -> tuple[Made, ...]:
        """The views made, in order of requests, each with its needs below it. A missing view is tried at each request."""
        return tuple(self._plan)

    def _need(self, need: Any) -> Any:
        """A view; None for `View | None` if the recording has no data for it."""
        view, optional = _asked(need)
        if not optional:
            return self.get(view)
        try:
            return self.get(view)
        except (LookupError, Unavailable):
            return None

    def can_build(self, function: Any) -> bool:
        """Whether every view that a function names can be made of the parts that are here."""
        needs = [_asked(need) for need in needs_of(function).values()]
        return all(optional or view in self._made or any(self.can_build(way) for way in _ways(view)) for view, optional in needs)


def _named(function: Any) -> str:
    """A view's class for one of its ways, and a rule's id for its function."""
    view = getattr(function, "__self__", None)
    return view.__name__ if isinstance(view, type) else function.__name__.replace("_", "-")


def speaks_of(function: Any, part: type) -> bool:
    """Whether a function can be called where a part of that type is all that was recorded."""
    workspace = Workspace()
    workspace._made[part] = None
    return workspace.can_build(function)


@cache
def _asked(need: Any) -> tuple[type, bool]:
    """The view that an annotation names, and whether it may be None."""
    several = [view for view in get_args(need) if view is not NoneType] if get_origin(need) in (Union, UnionType) else [need]
    return several[0], len(several) < len(get_args(need))


def _ways(view: type) -> Iterable[Callable[..., Any]]:
    several: Iterable[Callable[..., Any]] | None = getattr(view, "builds", None)
    if several is not None:
        return several
    # A part says what kind of recording it is of; it may have a `build` of its own, which its source calls.
    build = None if hasattr(view, "part_of") else getattr(view, "build", None)
    return () if build is None else (build,)
