"""Views are built once each, on demand, from the annotations of what they need."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar, get_type_hints

from advisor.timeline import Timeline

T = TypeVar("T")


def needs_of(function: Any) -> dict[str, type]:
    """The views a function takes: its positional parameters by name, with their annotated types."""
    hints = get_type_hints(function)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {name: hints[name] for name, p in inspect.signature(function).parameters.items() if p.kind in kinds}


class Workspace:
    """One timeline and the views made of it so far. A view is a class whose `build` names its needs by annotation.

    given: views that are not built from the timeline, as what the user said.
    """

    def __init__(self, timeline: Timeline, *given: object) -> None:
        self._made: dict[type, Any] = {Timeline: timeline, **{type(view): view for view in given}}

    def get(self, view: type[T]) -> T:
        """The view of that type; its needs are built first."""
        if view not in self._made:
            self._made[view] = self.call(view.build)  # type: ignore[attr-defined]
        made: T = self._made[view]
        return made

    def call(self, function: Any, **options: Any) -> Any:
        """Call a function with the views that its parameters name, and keyword options as given."""
        return function(**{name: self.get(view) for name, view in needs_of(function).items()}, **options)
