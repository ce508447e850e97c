"""Output of `ncu --csv`, of ncu 2020 to 2026: the raw page with a column per metric, and the details page with a row per metric.

Lines of text may come before the table (`==PROF==` and the program's output). Numbers may be grouped, with a comma
or a point for the decimal, by the locale of the recording. Units are base units or scaled units."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from advisor.errors import TraceError
from advisor.knowledge.structs import replace
from advisor.recordings.kernel_profiles import Dim, KernelProfile, KernelProfiles, counted
from advisor.sources.ncu.details import from_remark, raw_name
from advisor.sources.stream import Stream

_NAME = "Kernel Name"
_LONGEST_FIELD = 1 << 20  # characters: the longest name of a kernel has some thousands
_LONGEST_PREAMBLE = 100_000
"""Lines. A program may print much before ncu's table begins."""


def read(stream: Stream, path: str) -> KernelProfiles:
    """The kernels of a CSV page. Raises TraceError if there is no table or it holds none."""
    taken: list[str] = []
    rows = csv.reader(_kept(lines_of(stream), taken))
    csv.field_size_limit(_LONGEST_FIELD)
    try:
        header = find_header(rows)
        taken.clear()
        if header is None:
            raise TraceError(f"{path} has lines of Nsight Compute but no table", "Export again: ncu --import REPORT --page raw --csv")
        table, first, last = [], "", ""
        for row in rows:
            if len(row) > 1:
                table.append(row)
                last = "".join(taken)
                first = first or last
            taken.clear()
    except csv.Error as error:
        raise TraceError(f"{path} is no CSV that can be read: {error}", "Export again: ncu --import REPORT --page raw --csv") from None
    damage = stream.truncated
    open_ended = bool(table) and not last.endswith("\n")
    # What a program prints after the table begins without the quote that rows of the table begin with.
    of_table = last.startswith('"') or not first.startswith('"')
    if open_ended and of_table and (last.count('"') % 2 or len(table[-1]) < min(map(len, table[:-1]), default=len(header))):
        damage = damage or f"it ends inside row {len(table):,} of its table"
    if damage and open_ended:  # what of the last row is there may be half a number
        table.pop()
    narrow = "Metric Name" in header
    comma = _decimal_comma(table, header)
    kernels = list((_narrow if narrow else _wide)(header, table, comma))
    devices = {k.device: name for k, name in kernels if name}
    return KernelProfiles(path, "ncu-csv", stream.packed, tuple(k for k, _ in kernels), devices, damage)


def _kept(lines: Iterable[str], taken: list[str]) -> Iterator[str]:
    """The lines, each added to the consumed text."""
    for line in lines:
        taken.append(line)
        yield line


def lines_of(stream: Stream) -> Iterator[str]:
    """The lines of a stream, as UTF-8 with invalid bytes replaced."""
    rest = b""
    while block := stream.read(1 << 18):
        *whole, rest = (rest + block).replace(b"\0", b"").split(b"\n")
        if len(rest) > 16 * _LONGEST_FIELD:
            raise TraceError("a line of the table does not end", "Export again: ncu --import REPORT --page raw --csv")
        yield from (line.decode("utf-8", "replace") + "\n" for line in whole)
    if rest:
        yield rest.decode("utf-8", "replace")


def find_header(rows: Iterable[Sequence[str]]) -> list[str] | None:
    """The table's header, after any other output; None if there is none."""
    for i, row in enumerate(rows):
        if _NAME in row and ("ID" in row or "Process ID" in row or "Metric Name" in row):
            return [cell.strip() for cell in row]
        if i > _LONGEST_PREAMBLE:
            break
    return None


_METRIC = re.compile(r"^(?=.[^_]*_.)[\w.]+$")
"""A column that is a metric; the others say which launch it was, in words with blanks, or `ID`."""


def _wide(header: Sequence[str], table: Sequence[Sequence[str]], comma: bool) -> Iterator[tuple[KernelProfile, str]]:
    """The raw page: a row of units, then a row per launch. A row with the same ID is a further pass of the same launch."""
    units: Sequence[str] = [""] * len(header)
    if table and _value(table[0], header, "ID") == "" and _value(table[0], header, _NAME) == "":
        units, table = table[0], table[1:]
    for launch in _launches(header, table):
        metrics: dict[str, float] = {}
        device = ""
        for row in launch:
            for name, unit, cell in zip(header, units, row, strict=False):
                if name == "device__attribute_display_name":
                    device = cell or device
                elif _METRIC.match(name) and cell and (number := _number(cell, unit, comma)) is not None:
                    metrics[name] = number
        yield _profile(dict(zip(header, launch[0], strict=False)), metrics), device


def _narrow(header: Sequence[str], table: Sequence[Sequence[str]], comma: bool) -> Iterator[tuple[KernelProfile, str]]:
    """The details page, or `--metrics` without a page: a row a metric, and on the details page a row a remark."""
    for launch in _launches(header, table):
        metrics: dict[str, float] = {}
        for row in launch:
            cells = dict(zip(header, row, strict=False))
            value = cells.get("Metric Value") or cells.get("Average") or ""
            if (number := _number(value, cells.get("Metric Unit", ""), comma)) is not None:
                metrics.setdefault(raw_name(cells.get("Section Name", ""), cells.get("Metric Name", "")), number)
            if cells.get("Rule Name"):
                for name, said in from_remark(cells["Rule Name"], cells.get("Rule Description", "")).items():
                    if counted(said) is not None:
                        metrics.setdefault(name, said)
        yield replace(_profile(dict(zip(header, launch[0], strict=False)), metrics), page="details" if "Section Name" in header else ""), ""


def _launches(header: Sequence[str], table: Sequence[Sequence[str]]) -> list[list[Sequence[str]]]:
    """Rows by launch, in order. Summaries have no ID: there a kernel of a process counts as a launch."""
    key = [i for i, name in enumerate(header) if name in ("ID", "Process ID", _NAME)]
    found: dict[tuple[str, ...], list[Sequence[str]]] = {}
    for row in table:
        if len(row) > max(key) and row[header.index(_NAME)] not in ("", _NAME):
            found.setdefault(tuple(row[i] for i in key), []).append(row)
    return list(found.values())


def _value(row: Sequence[str], header: Sequence[str], name: str) -> str | None:
    at = header.index(name) if name in header else -1
    return row[at] if 0 <= at < len(row) else None


def _profile(cells: Mapping[str, str], metrics: Mapping[str, float]) -> KernelProfile:
    def whole(name: str) -> int:
        digits = re.sub(r"\D", "", cells.get(name, ""))
        return int(digits[:18]) if digits else 0

    major, _, minor = cells.get("CC", "").partition(".")
    grid, block = _dim(cells.get("Grid Size", "")), _dim(cells.get("Block Size", ""))
    return KernelProfile(
        name=cells[_NAME],
        grid=grid if any(grid) else _dims(metrics, "launch__grid_dim_", "launch__grid_size"),
        block=block if any(block) else _dims(metrics, "launch__block_dim_", "launch__block_size"),
        device=whole("Device"),
        capability=(int(major), int(minor)) if re.fullmatch(r"\d{1,3}\.\d{1,3}", cells.get("CC", "")) else (0, 0),
        stream=whole("Stream"),
        process=whole("Process ID"),
        metrics=metrics,
    )


def _dim(cell: str) -> Dim:
    """`(256, 1, 1)`; a number alone is a size along x."""
    found = [int(digits[:12]) for digits in re.findall(r"\d+", cell)[:3]]
    return (*found, *(1,) * (3 - len(found))) if found else (0, 0, 0)  # type: ignore[return-value]


def _dims(metrics: Mapping[str, float], by_axis: str, total: str) -> Dim:
    x, y, z = (int(metrics.get(f"{by_axis}{axis}", 0)) for axis in "xyz")
    return (x, y, z) if x and y and z else (int(metrics[total]), 1, 1) if metrics.get(total) else (0, 0, 0)


_GROUPED = re.compile(r"[\s'’]")


def _number(cell: str, unit: str, comma: bool) -> float | None:
    """A number as ncu prints it in base units; None for a text, an empty cell or a value without a counter."""
    plain = _GROUPED.sub("", cell)
    plain = plain.replace(".", "").replace(",", ".") if comma else plain.replace(",", "")
    try:
        return counted(float(plain) * _scale(unit)) if plain[:1].isdigit() or plain[:1] in "-+." else None
    except ValueError:
        return None


_POINT, _COMMA = re.compile(r"\d\.(\d{1,2}|\d{4,})$|,\d{3}\."), re.compile(r"\d,(\d{1,2}|\d{4,})$|\.\d{3},")


def _decimal_comma(table: Sequence[Sequence[str]], header: Sequence[str]) -> bool:
    """Whether the comma is the decimal point, from the cells that can be read in a single way only."""
    skip = {header.index(name) for name in ("CC", _NAME, "Rule Description", "Estimated Speedup") if name in header}
    votes = 0
    for row in table[:2000]:
        for i, cell in enumerate(row):
            if i not in skip and cell[:1].isdigit():
                votes += bool(_COMMA.search(cell)) - bool(_POINT.search(cell))
    return votes > 0


# What a unit is of a byte, hertz or item, and of a nanosecond.
_PREFIX = {prefix: 1000.0**k for k, prefix in enumerate(("", "k", "m", "g", "t", "p"))}
_TIMES = {name: 1000.0**k for k, names in enumerate(("ns nsecond", "us µs usecond", "ms msecond", "s second")) for name in names.split()}
_SCALED = re.compile(r"^([kmgtp]?)(byte|hz|bit|flop|sector|inst|request|cycle|thread|warp|block)s?(?=$|[/ ])", re.IGNORECASE)


def _scale(unit: str) -> float:
    """Factor of a value in this unit: times become ns, rates become per second, all other values plain."""
    unit = unit.strip()
    if unit in _TIMES:
        return _TIMES[unit]
    amount, _, per = unit.partition("/")
    found = _SCALED.match(amount)
    scale = _PREFIX[found[1].lower()] if found else 1.0
    return scale * 1e9 / _TIMES[per] if per in _TIMES else scale
