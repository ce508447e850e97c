"""What a report shows of a job: drawings as SVG that need no script; the tables next to them say the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from advisor.report.model import Report
from advisor.report.numbers import counted, duration, moment, percent, rate, share, size
from advisor.report.ranks import CollectiveMoment, CollectiveRow, RankRow
from advisor.reports._clean import visible
from advisor.reports.report._memory import WIDTH, _rect, _svg, _text

if TYPE_CHECKING:
    from markupsafe import Markup

COLORS = {
    "compute": "--compute",
    "copy": "--copy",
    "input": "--memset",
    "host": "--idle",
    "other": "--k-other",
    "wait": "--track",
    "transfer": "--comm",
}
"""Parts of a rank's time, in the order of legends; waiting is pale, since nothing happens."""

_KINDS = ("--k-gemm", "--k-pointwise", "--k-attention", "--k-norm", "--k-move", "--k-optimizer", "--k-comm", "--k-other")
AS_RECORDED = "Each rank's step as recorded"

_LABEL = 76
_HEAT_ROWS = 96
"""More ranks than this share rows: a row is then the rank of its group that waits or computes most."""
_MOST_STEPS = 40

Scale = Callable[[float], float]


class Drawn(NamedTuple):
    """The drawings of one job; None if there is nothing to draw."""

    compute: Markup | None
    wait: Markup | None
    moment: Markup | None
    bandwidth: Markup | None
    legend: tuple[tuple[str, str], ...]
    """Parts of the timeline and their colours."""
    colors: dict[str, str]
    kinds: tuple[tuple[str, str], ...]
    """Kinds of collectives in the chart of bandwidth, and their colours."""
    grouped: int
    """How many ranks share a row of the heat maps."""


def drawn(report: Report) -> Drawn | None:
    """The drawings of a report about a job."""
    ranks = [row for row in report.ranks if not row.failed]
    if report.kind != "job":
        return None
    grouped = max(math.ceil(len(ranks) / _HEAT_ROWS), 1)
    kinds = tuple((kind, f"var({_KINDS[at % len(_KINDS)]})") for at, kind in enumerate(dict.fromkeys(row.kind for row in _timed(report))))
    legend = tuple((part, f"var({color})") for part, color in COLORS.items())
    return Drawn(
        _heat(ranks, "compute", grouped), _heat(ranks, "wait", grouped), _moment(report.worst) if report.worst else None,
        _bandwidth(_timed(report), dict(kinds)), legend, dict(legend), kinds, grouped,
    )  # fmt: skip


def lines(report: Report) -> list[str]:
    """What a terminal says of the ranks: those that wait least, who are waited for, and those that wait most."""
    ranks = sorted((row for row in report.ranks if not row.failed), key=lambda row: -row.lateness_us)
    said = []
    for row in ranks if len(ranks) <= 8 else [*ranks[:4], *ranks[-4:]]:
        parts = [("computes", row.compute_us), ("waits", row.wait_us), ("transfers", row.transfer_us), ("input", row.input_us), ("host", row.host_us)]
        told = ", ".join(f"{name} {percent(share(us, row.step_us))}" for name, us in parts if share(us, row.step_us) >= 0.005)
        part = share(row.lateness_us, row.step_us)
        late = f"; others wait {percent(part)} for it" if part >= 0.01 else ""
        said.append(f"rank {row.rank:<4} {told}{late}")
    if len(ranks) > 8:
        said.insert(4, f"     … {counted(len(ranks) - 8, 'rank')} between")
    said[:0] = [AS_RECORDED + ":"] if said else []
    return said + [f"not read: {row.failed}" for row in report.ranks if row.failed][:4]


def experts(report: Report) -> str:
    """How evenly the ranks share the GEMMs of experts, and which has most; "" without experts."""
    found = report.experts
    if found is None:
        return ""
    row = next(one for one in found.ranks if one.rank == found.hottest)
    mean = sum(one.us for one in found.ranks) / len(found.ranks)
    got = "" if row.received_share is None else f" and receives {percent(row.received_share)} of the exchanged elements"
    hot = f"rank {row.rank} takes {duration(row.us)}{got}, and has most in {percent(found.hottest_steps)} of the steps"
    return f"Experts' GEMMs take {duration(mean)} per step on average over {counted(len(found.ranks), 'rank')}; {hot}. Balance (mean / largest): {percent(found.balance)}."


def _heat(ranks: list[RankRow], what: str, grouped: int) -> Markup | None:
    """Ranks down, steps across, each cell as strong as what the rank spent of the job's longest step."""
    steps = min(max((len(row.by_step) for row in ranks), default=0), _MOST_STEPS)
    longest = max((step.step_us for row in ranks for step in row.by_step), default=0.0)
    if not steps or longest <= 0:
        return None
    rows = [ranks[at : at + grouped] for at in range(0, len(ranks), grouped)]
    height = min(22.0, max(480 / len(rows), 5.0))
    width = (WIDTH - _LABEL) / steps
    color = "var(--compute)" if what == "compute" else "var(--comm)"
    body = []
    for y, row in enumerate(rows):
        top = 20 + y * height
        if height >= 11 or y % math.ceil(11 / height) == 0:
            label = f"rank {row[0].rank}" if len(row) == 1 else f"{row[0].rank}–{row[-1].rank}"
            body.append(_text(_LABEL - 8, top + height / 2 + 4, label, "end", "var(--dim)"))
        for x in range(steps):
            cells = [(step.compute_us if what == "compute" else step.wait_us, step.step_us, r.rank) for r in row for step in r.by_step[x : x + 1]]
            if not cells:
                continue
            us, whole, rank = max(cells)
            told = f"rank {rank}, step {x + 1}: {'computes' if what == 'compute' else 'waits'} {duration(us)} of {duration(whole)}"
            cell = _rect(_LABEL + x * width, top, width - 1, height - (1 if height > 6 else 0), color, told)
            body.append(cell.replace("<rect ", f'<rect fill-opacity="{0.04 + 0.96 * share(us, longest):.2f}" ', 1))
            if height >= 18 and width >= 64:
                strong = us > 0.75 * longest
                body.append(_text(_LABEL + (x + 0.5) * width, top + height / 2 + 4, duration(us), "middle", "var(--on-strong)" if strong else "var(--ink)"))
    body += [_text(_LABEL + (x + 0.5) * width, 13, f"step {x + 1}", "middle", "var(--dim)") for x in range(0, steps, math.ceil(steps / 12))]
    said = "computing" if what == "compute" else "waiting for other ranks"
    return _svg(24 + height * len(rows), f"Time that each rank spends {said}, by step: ranks down, steps across; stronger is longer", body)


def _moment(worst: CollectiveMoment) -> Markup:
    """The ranks on one clock around their worst collective; the dashed line is when the last one came."""
    row, top = 26, 22

    def x(us: float) -> float:
        return _LABEL + (WIDTH - _LABEL) * share(us, worst.span_us)

    body = []
    for at, rank in enumerate(worst.ranks):
        y = top + at * row
        strong = rank.rank == worst.last
        body.append(_text(_LABEL - 8, y + 15, f"rank {rank.rank}", "end", "var(--mark)" if strong else "var(--dim)"))
        for span in rank.spans:
            left = x(span.start_us)
            told = f"rank {rank.rank}: {span.part} for {duration(span.end_us - span.start_us)}"
            body.append(_rect(left, y + 3, x(span.end_us) - left, 13, f"var({COLORS.get(span.part, '--k-other')})", told))
        if rank.arrival_us is not None and rank.end_us is not None:
            came, left = x(rank.arrival_us), x(rank.end_us)
            waits = max(worst.begin_us - rank.arrival_us, 0.0)
            told = f"rank {rank.rank} comes at {moment(rank.arrival_us)}" + (f" and waits {duration(waits)}" if waits > 0 else ", the last")
            body.append(_rect(came, y + 18, left - came, 4, "var(--mark)" if strong else "var(--ink)", told))
    height = top + row * len(worst.ranks) + 4
    line = x(worst.begin_us)
    body.append(f'<line x1="{line:.1f}" x2="{line:.1f}" y1="14" y2="{height}" stroke="var(--mark)" stroke-width="1.5" stroke-dasharray="4 3"/>')
    right = line > WIDTH * 0.6
    body.append(_text(line + (-6 if right else 6), 12, f"rank {worst.last} comes last", "end" if right else "start", "var(--mark)"))
    body.append(_text(_LABEL, 12, "0 ms", "start", "var(--dim)"))
    body.append(_text(WIDTH - 2, 12, duration(worst.span_us), "end", "var(--dim)"))
    return _svg(height, f"Ranks side by side around the {worst.kind} that they waited longest in; rank {worst.last} came last", body)


def _timed(report: Report) -> list[CollectiveRow]:
    return [row for row in report.collectives if row.bytes > 0 and row.bus_gbps > 0]


def _bandwidth(rows: list[CollectiveRow], color: dict[str, str]) -> Markup | None:
    """Bus bandwidth over size, both on scales of powers; a dot is as large as the time it takes, the dashed line is the link."""
    from markupsafe import escape

    if not rows:
        return None
    height, foot = 300, 276
    sizes = [math.log10(row.bytes) for row in rows]
    low, high = math.floor(min(sizes)), max(math.ceil(max(sizes)), math.floor(min(sizes)) + 1)
    link = max(row.link_gbps for row in rows)
    rates = [math.log10(row.bus_gbps) for row in rows] + ([math.log10(link)] if link > 0 else [])
    floor, top = math.floor(min(rates)), max(math.ceil(max(rates)), math.floor(min(rates)) + 1)

    def x(power: float) -> float:
        return _LABEL + (WIDTH - _LABEL - 16) * (power - low) / (high - low)

    def y(power: float) -> float:
        return 12 + (foot - 12) * (top - power) / (top - floor)

    body = list(_grid(low, high, floor, top, x, y, foot))
    if link > 0:
        at = y(math.log10(link))
        body.append(f'<line x1="{_LABEL}" x2="{WIDTH}" y1="{at:.1f}" y2="{at:.1f}" stroke="var(--mark)" stroke-dasharray="4 3"/>')
        body.append(_text(WIDTH - 4, at + (14 if at < 24 else -5), f"link {rate(link)} GB/s", "end", "var(--mark)"))
    most = max(row.transfer_us for row in rows) or 1.0
    for row, power in zip(rows, sizes, strict=True):
        told = f"{row.kind} of {size(row.bytes)} on {counted(row.ranks, 'rank')}: {rate(row.bus_gbps)} GB/s, {duration(row.transfer_us)} a step"
        radius = 4 + 8 * math.sqrt(share(row.transfer_us, most))
        body.append(
            f'<circle cx="{x(power):.1f}" cy="{y(math.log10(row.bus_gbps)):.1f}" r="{radius:.1f}" fill="{color[row.kind]}" fill-opacity="0.75">'
            f"<title>{escape(visible(told))}</title></circle>"
        )
    return _svg(height, "Bus bandwidth of collectives over their size; the dashed line is the link's limit", body)


def _grid(low: int, high: int, floor: int, top: int, x: Scale, y: Scale, foot: float) -> Iterable[str]:
    for power in range(low, high + 1):
        yield f'<line x1="{x(power):.1f}" x2="{x(power):.1f}" y1="12" y2="{foot}" stroke="var(--line)"/>'
        yield _text(x(power), foot + 16, size(10.0**power), "end" if power == high else "middle", "var(--dim)")
    for power in range(floor, top + 1):
        yield f'<line x1="{_LABEL}" x2="{WIDTH}" y1="{y(power):.1f}" y2="{y(power):.1f}" stroke="var(--line)"/>'
        yield _text(_LABEL - 6, y(power) + 4, f"{10.0**power:g} GB/s", "end", "var(--dim)")
