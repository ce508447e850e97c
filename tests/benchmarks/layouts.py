"""The layouts in which Chrome traces are found: Kineto's own, compact JSON and re-indented JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

Fields = dict[str, Any]
Constant = tuple[tuple[str, Any], ...]
"""Arguments that many events share, hashable so that their text is made once; lists stand as tuples."""


def kineto(head: Fields, times: str, args: str) -> str:
    first = f'    "ph": "{head["ph"]}", "cat": "{head["cat"]}", "name": {json.dumps(head["name"])}, '
    first += f'"pid": {json.dumps(head["pid"])}, "tid": {json.dumps(head["tid"])},'
    return f'  {{\n{first}\n    {times},\n    "args": {{\n      {args}\n    }}\n  }}'


def compact(head: Fields, times: str, args: str) -> str:
    return f'{json.dumps(head, separators=(",", ":"))[:-1]},{times},"args":{{{args}}}}}'


def indented(head: Fields, times: str, args: str) -> str:
    lines = "".join(f'      "{key}": {json.dumps(value)},\n' for key, value in head.items())
    return f'    {{\n{lines}      {times},\n      "args": {{\n        {args}\n      }}\n    }}'


FORMATS: dict[str, Callable[[Fields, str, str], str]] = {"kineto": kineto, "compact": compact, "indented": indented}
_BETWEEN_TIMES = {"kineto": ", ", "compact": ",", "indented": ",\n      "}
_BETWEEN_ARGS = {"kineto": ", ", "compact": ",", "indented": ",\n        "}
_COLON = {"kineto": ": ", "compact": ":", "indented": ": "}
SEPARATORS = {"kineto": ",\n", "compact": ",", "indented": ",\n"}


@lru_cache(maxsize=4096)
def arguments(layout: str, constant: Constant) -> str:
    """The text of arguments as they stand inside the braces."""
    colon = _COLON[layout]
    if layout == "indented":
        values = {key: json.dumps(value, indent=2).replace("\n", "\n        ") for key, value in constant}
    else:
        separators = (",", ":") if layout == "compact" else (", ", ": ")
        values = {key: json.dumps(value, separators=separators) for key, value in constant}
    return _BETWEEN_ARGS[layout].join(f'"{key}"{colon}{value}' for key, value in values.items())


class Writer:
    """Makes the text of events in one layout."""

    def __init__(self, layout: str) -> None:
        self.layout = layout
        self._format = FORMATS[layout]
        self._colon, self._args, self._times = _COLON[layout], _BETWEEN_ARGS[layout], _BETWEEN_TIMES[layout]

    def event(self, cat: str, name: str, pid: int | str, tid: int | str, ts_ns: int, dur_ns: int, ids: Fields, constant: Constant = ()) -> str:
        """One span. Times are written in microseconds with three digits, as Kineto writes them; `ids` are plain numbers."""
        colon = self._colon
        times = f'"ts"{colon}{ts_ns // 1000}.{ts_ns % 1000:03d}{self._times}"dur"{colon}{dur_ns // 1000}.{dur_ns % 1000:03d}'
        args = self._args.join([f'"{key}"{colon}{"null" if value is None else value}' for key, value in ids.items()])
        if constant:
            args += self._args + arguments(self.layout, constant)
        return self._format({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid}, times, args)

    def flow(self, ph: str, number: int, pid: int, tid: int, ts_ns: int) -> str:
        """One end of an arrow from a launch to its GPU work."""
        event = {"ph": ph, "id": number, "pid": pid, "tid": tid, "ts": ts_ns / 1000, "cat": "ac2g", "name": "ac2g"}
        if ph == "f":
            event["bp"] = "e"
        if self.layout == "kineto":
            lead, rest = json.dumps(dict(list(event.items())[:5])), json.dumps(dict(list(event.items())[5:]))
            return f"  {{\n    {lead[1:-1]},\n    {rest[1:-1]}\n  }}"
        if self.layout == "compact":
            return json.dumps(event, separators=(",", ":"))
        return "    " + json.dumps(event, indent=2).replace("\n", "\n    ")
