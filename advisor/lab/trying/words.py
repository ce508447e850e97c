"""What came of `advisor try`, in words: as text, Markdown and a page."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from html import escape

from advisor.knowledge.shares import MOST
from advisor.lab.gain_chart import GainRow, gain_chart
from advisor.lab.page import page, preformatted, table
from advisor.lab.trying.result import MANY_RUNS, Trial, Tried
from advisor.lab.verify import Gain
from advisor.report.numbers import duration

NOTHING = "Nothing was kept: no fix made the step shorter beyond doubt."


def as_text(tried: Tried) -> str:
    """For a terminal."""
    lines = [f"{shlex.join(tried.command)} · {tried.device} · torch {tried.torch}", base_line(tried), ""]
    for trial in tried.trials:
        lines += [f"{trial.intervention}: {trial.what}", *(f"    {line}" for line in _said(trial)), ""]
    lines += list(_end(tried))
    return "\n".join(lines).rstrip()


def base_line(tried: Tried) -> str:
    """The step as it is, and by how much two runs as they are differ."""
    runs = len([run for run in tried.base if len(run)])
    losses = (
        "they compute no loss" if tried.loss_noise is None else "their losses are equal" if tried.loss_noise == 0 else f"their losses by {tried.loss_noise:.1g}"
    )
    first, last = tried.steps
    return f"As it is: {duration(tried.step_us)} a step ({runs} runs, steps {first + 1} to {last}); two such runs differ by {tried.time_noise:.1%}, {losses}."


def headline(trial: Trial) -> str:
    """Predicted and measured gain, and the verdict."""
    verdict = trial.verdict.replace("-", " ")
    if trial.gain is None:
        said = f"{verdict}: {trial.why.splitlines()[0] if trial.why else 'no reason is known'}"
        return f"{predicted(trial)}; {said}" if trial.predicted else said
    measured = f"measured {gained(trial.gain)}" if _told(trial.gain) else TOO_FEW
    held = "" if trial.in_interval is None else ", as predicted" if trial.in_interval else ", not as predicted"
    return f"{predicted(trial)}, {measured}: {verdict}{held}" if trial.predicted else f"{measured}: {verdict}"


def predicted(trial: Trial) -> str:
    p = trial.predicted
    return f"{p.finding} predicted {p.expected:.0%} ({_range(p.low, p.high)})" if p else ""


MOST_TOLD = MOST
"""Half an interval beyond which a gain has no digit that means something."""

TOO_FEW = "too few runs to tell"


def _told(found: Gain) -> bool:
    return (found.high - found.low) / 2 <= MOST_TOLD


def gained(found: Gain) -> str:
    """A share with half its interval; without figures if there are too few runs for any."""
    half = (found.high - found.low) / 2
    if not _told(found):
        return TOO_FEW
    return f"{found.expected:.0%} ± {100 * half:.0f}" if abs(found.expected) >= 0.095 or half >= 0.095 else f"{found.expected:.1%} ± {100 * half:.1f}"


def more_runs(trial: Trial) -> str:
    """About how many runs would decide."""
    return f"more than {MANY_RUNS}" if trial.runs_to_tell > MANY_RUNS else f"about {trial.runs_to_tell}"


def _range(low: float, high: float) -> str:
    return f"{100 * low:.0f} to {100 * high:.0f}"


def losses(trial: Trial) -> str:
    """Whether it computes the same."""
    c = trial.losses
    if c.verdict == "not-checked":
        return f"losses not checked: {c.why}"
    if c.verdict == "differs":
        return f"LOSSES DIFFER: {c.why}"
    by = "" if c.difference is None else " exactly" if c.difference == 0 else f" to {c.difference:.0e}"
    first = f", the first gradients to {c.gradients:.0e}" if c.gradients else ""
    return f"losses equal{by}{first}" + (f" ({c.why})" if c.why else "")


def reached(trial: Trial) -> str:
    """The places where it applied."""
    reach = trial.reach
    parts = []
    if reach.modules:
        names = list(dict.fromkeys(reach.modules))
        share = "" if reach.share is None else f", {reach.share:.0%} of the parameters"
        parts.append(f"{', '.join(names[:4])}{' and others' if len(names) > 4 else ''}{share}")
    elif reach.sites:
        parts.append("; ".join(f"{what} at {os.path.basename(file)}:{line}" for file, line, what in reach.sites[:3]))
    if reach.made_by:
        parts.append(f"in what {', '.join(reach.made_by)} made")
    if reach.ops is not None:
        parts.append(f"{reach.ops:.0%} of the finding's ops are gone")
    return f"reached: {'; '.join(parts)}" if parts else f"reached: {reach.times} times"


def _said(trial: Trial) -> Iterator[str]:
    yield headline(trial)
    if trial.also:
        yield f"the same fix is named by {', '.join(trial.also)}"
    if trial.gain is None:
        yield from trial.why.splitlines()[1:]
        return
    if trial.what_if:
        yield "a what-if: it changes what is trained, and is not kept"
    yield losses(trial)
    yield reached(trial)
    yield from _costs(trial)
    if trial.verdict == "cannot-tell":
        yield f"{trial.why}: {more_runs(trial)} runs with it would tell"
    yield f"it cannot see {trial.unseen}"


def _costs(trial: Trial) -> Iterator[str]:
    if trial.compile_s >= 1:
        pays = f", pays after {trial.pays_after:,} steps" if trial.pays_after else ""
        yield f"{trial.compile_s:.0f} s more to begin, with empty caches{pays}"
    more = trial.more_memory_bytes
    if abs(more) >= max(0.02 * trial.peak_memory_bytes, 1e7):
        yield f"{abs(more) / 1e9:.2g} GB {'more' if more > 0 else 'less'} memory at the peak"


def _end(tried: Tried) -> Iterator[str]:
    if tried.together and tried.kept:
        expected = "" if tried.predicted_together is None else f" (the report predicts {tried.predicted_together:.0%} of all its fixes together)"
        yield f"Kept: {' + '.join(tried.kept)}: {duration(tried.together.after)} a step, {gained(tried.together)} less{expected}."
        yield "To adopt it:"
        yield from (f"    {line}" for line in to_adopt(tried))
    else:
        yield NOTHING
    for one in tried.elsewhere:
        yield f"Not from outside: {one.finding}, predicted {one.expected:.0%}: {one.title}. Change it in a copy, then: advisor verify --before … --after …"
    if tried.stopped:
        yield f"Not all was measured: {tried.stopped}."
    yield from (f"Note: {note}." for note in tried.notes)
    yield f"What was measured is this machine and these steps, in {tried.spent_s:.0f} s."


def to_adopt(tried: Tried) -> list[str]:
    """A line for each that is kept, in the program's own terms."""
    kept = [trial for trial in tried.trials if trial.intervention in tried.kept]
    return [f"{trial.advice}{_line_in_words(trial)}" for trial in kept]


def _line_in_words(trial: Trial) -> str:
    places = list(dict.fromkeys(f"{os.path.basename(file)}:{line}" for file, line, what in trial.reach.sites if what != "module"))
    return f"    # {', '.join(places[:3])}" if places else ""


COLUMNS = ("Fix", "Finding", "Predicted", "Measured", "Verdict", "Losses", "To begin", "Memory")


def rows(tried: Tried) -> list[list[str]]:
    """The table of trials, its header first."""
    made = [list(COLUMNS)]
    for t in tried.trials:
        p = t.predicted
        made.append(
            [
                t.intervention, p.finding if p else "–", f"{p.expected:.0%} ({_range(p.low, p.high)})" if p else "–", gained(t.gain) if t.gain else "–",
                t.verdict.replace("-", " "), t.losses.verdict.replace("-", " ") if t.gain else "–", f"{t.compile_s:.0f} s" if t.gain and t.compile_s >= 1 else "–",
                f"{t.more_memory_bytes / 1e9:+.2g} GB" if t.gain else "–",
            ]
        )  # fmt: skip
    return made


def as_markdown(tried: Tried) -> str:
    """For a pull request."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows(tried)]
    head, *body = [f"| {' | '.join(row)} |" for row in cells]
    told = [f"- `{trial.intervention}`: {'; '.join(_said(trial))}" for trial in tried.trials]
    return "\n".join(
        [
            "## Fixes, measured", "", f"`{shlex.join(tried.command).replace('`', '')}` on {tried.device}, torch {tried.torch}. {base_line(tried)}", "",
            head, "|---|---|--:|--:|---|---|--:|--:|", *body, "", *told, "", *(f"    {line.strip()}" if line.startswith("    ") else f"{line}\n" for line in _end(tried)),
        ]
    )  # fmt: skip


def as_html(tried: Tried) -> str:
    """A page that opens offline."""
    title = "Fixes, measured"
    about = f"<p>{escape(shlex.join(tried.command))} · {escape(tried.device)} · torch {escape(tried.torch)}</p><p>{escape(base_line(tried))}</p>"
    told = "".join(
        f"<h2>{escape(t.intervention)}</h2><p>{escape(t.what)}</p><ul>{''.join(f'<li>{escape(line)}</li>' for line in _said(t))}</ul>" for t in tried.trials
    )
    return page(
        title,
        about,
        gain_chart([GainRow(t.intervention, t.predicted, t.gain) for t in tried.trials if t.gain]),
        table(rows(tried), "Predicted beside measured"),
        told,
        "<h2>Together</h2>",
        preformatted("\n".join(_end(tried))),
    )
