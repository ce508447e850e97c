"""A report as DataFrames, one a list of it, for notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pandas as pd

from advisor.report.charts import Picture


def tables(report: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Fields of a report by name: `findings`, `evidence`, `time`, `kernels`, `health`, every other list of rows (`ops`, `breakdown`, `ranks`, …), `serving` of
    a server's phases, and `at_peak` of a memory snapshot.

    Columns are the fields of the JSON report, nested fields joined by a dot; times in µs.
    """
    made = {
        "findings": _flat([{**msgspec.to_builtins(f), "evidence": len(f.evidence)} for f in report["findings"]]),
        "evidence": _flat([{"rule": f.rule, **_evidence(e)} for f in report["findings"] for e in f.evidence]),
        "time": _flat([msgspec.to_builtins(row) for row in report["time"] or ()]),
        "kernels": _flat([msgspec.to_builtins(row) for row in report["kernels"]]),
        "health": _flat([msgspec.to_builtins(row) for row in report["health"]]),
    }
    for name in ("ops", "critical_path", "breakdown", "utilization", "ranks", "collectives", "checklist", "clear", "skipped", "failed", "devices"):
        if rows := report[name]:
            made[name] = _flat([msgspec.to_builtins(row) for row in rows])
    if serving := report["serving"]:
        made["serving"] = _flat([msgspec.to_builtins(row) for row in serving.phases])
    if memory := report["memory"]:
        made["at_peak"] = _flat([msgspec.to_builtins(row) for row in memory.at_peak])
    return made


def of_picture(picture: Picture) -> dict[str, pd.DataFrame]:
    """What only the recording holds: `steps`, a row a step with its times in µs and whether it is far from the others, and `copies`."""
    times = picture.steps
    columns = ("period_us", "compute_us", "communication_us", "copy_us", "memset_us", "idle_us", "outlier")
    return {
        "steps": pd.DataFrame({name: getattr(times, name) for name in columns}),
        "copies": pd.DataFrame([msgspec.structs.asdict(row) for row in picture.copies]),
    }


def _flat(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A column a field, nested ones joined by a dot. Text stays objects: pandas' own strings refuse lone surrogates."""
    flat = [dict(_fields(row)) for row in rows]
    columns = {name: [row.get(name) for row in flat] for name in dict.fromkeys(name for row in flat for name in row)}
    return pd.DataFrame({name: pd.Series(values, dtype=object if _texts(values) else None) for name, values in columns.items()})


def _fields(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _texts(values: list[Any]) -> bool:
    return any(isinstance(value, str) for value in values)


def _evidence(evidence: msgspec.Struct) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(evidence)
    source = row.pop("source")
    return {**row, "file": source["file"] if source else "", "line": source["line"] if source else -1}
