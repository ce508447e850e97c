"""Tests a change by measurement: before and after in turn, the gain with its interval, and the prediction if there was any."""

from __future__ import annotations

import json
import math
import re
import shlex
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from advisor.errors import AdvisorError, TraceError, UsageError, require
from advisor.knowledge.counts import PRINTED_BYTES, PRINTED_LINES, RESAMPLES, RUNS
from advisor.knowledge.devices import same_device
from advisor.knowledge.shares import NO_DIFFERENCE
from advisor.knowledge.structs import replace
from advisor.report.numbers import counted

STOPPED = tuple(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
"""Exit codes of a program that a signal stopped: `launch` passes signals on, and advisor stops too."""

Verdict = Literal["faster", "slower", "less", "more", "no-difference", "cannot-tell"]
_DECIDED: dict[str, tuple[Verdict, Verdict]] = {"us": ("faster", "slower"), "bytes": ("less", "more")}

_SEED = 0
"""The same measurements give the same interval."""


@dataclass(frozen=True)
class Gain:
    """A share of the earlier time (or memory) that the change saves; negative if it adds. low, high: 95 % interval."""

    before: float
    after: float
    low: float
    expected: float
    high: float
    unit: str = "us"

    @property
    def verdict(self) -> Verdict:
        """ "faster" or "slower" (for memory "less" or "more") if the interval is on a single side of 0 and the gain is 2 % or more. "no-difference"
        if the whole interval is within 2 %. "cannot-tell" if it includes both."""
        if (self.low > 0 or self.high < 0) and abs(self.expected) >= NO_DIFFERENCE:
            return _DECIDED[self.unit][self.expected < 0]
        return "no-difference" if self.low >= -NO_DIFFERENCE and self.high <= NO_DIFFERENCE else "cannot-tell"

    def runs_to_tell(self, runs: int) -> int:
        """About how many runs a side would narrow the interval to if it says something, after so many: it narrows as their root."""
        wanted = max(NO_DIFFERENCE, abs(self.expected))
        return max(runs + 1, math.ceil(runs * ((self.high - self.low) / 2 / wanted) ** 2))

    def __str__(self) -> str:
        scale, unit = (1e-3, "ms") if self.unit == "us" else (1e-9, "GB") if self.before >= 1e8 else (1e-6, "MB")
        sides = f"{self.before * scale:.4g} {unit} before, {self.after * scale:.4g} {unit} after"
        share = f"{abs(self.expected):.1%}"
        if self.verdict in ("no-difference", "cannot-tell"):
            return f"{self.verdict.replace('-', ' ')}: {sides} (gain {self.expected:+.1%}, 95 % interval {self.low:+.1%} to {self.high:+.1%})"
        return f"{share} {self.verdict}: {sides} (95 % interval {self.low:+.1%} to {self.high:+.1%})"


@dataclass(frozen=True)
class Prediction:
    """The prediction of a finding in a saved report: shares of the step, on the recorded devices."""

    rule: str
    finding: str
    low: float
    expected: float
    high: float
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verification:
    """The measured gain in time and, if it was measured, in peak memory; and its prediction. runs: number per side for a program, 0 for functions."""

    time: Gain
    memory: Gain | None = None
    prediction: Prediction | None = None
    steady: bool = True
    device: str = ""
    torch: str = ""
    runs: int = 0

    @property
    def predicted_for(self) -> str:
        """The devices of the prediction if this is none of them, so that neither says anything of the other; "" if that is not known."""
        made_for = self.prediction.devices if self.prediction else ()
        return ", ".join(made_for) if self.device and not any(same_device(name, self.device) for name in made_for) else ""

    @property
    def held(self) -> bool | None:
        """Whether the measured gain is within the predicted interval, or the intervals' ends meet; None without a prediction for this device."""
        p = self.prediction
        return None if p is None or self.predicted_for else p.low - NO_DIFFERENCE <= self.time.expected <= p.high + NO_DIFFERENCE

    def __str__(self) -> str:
        lines = [f"Time: {self.time}"]
        if self.time.verdict == "cannot-tell":
            again = f"some {self.time.runs_to_tell(self.runs)} runs a side would (--runs)" if self.runs else "more rounds would"
            lines.append(f"The two sides differ by less than their runs do: {again}, on a machine that does nothing else.")
        if self.memory:
            lines.append(f"Peak memory: {self.memory}")
        if self.prediction:
            p = self.prediction
            judged = "it held" if self.held else "it did not hold"
            if self.time.verdict == "cannot-tell":
                judged += ", as far as this can tell"
            if self.predicted_for:
                judged = f"not judged, as it is for {self.predicted_for} and this ran on {self.device}"
            lines.append(f"Predicted by {p.finding}: {p.expected:.1%} ({p.low:.1%} to {p.high:.1%}): {judged}")
        if not self.steady:
            lines.append("Step times did not settle in every run: take the interval with care.")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "verdict": self.time.verdict, "held": self.held}

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=1)

    def _repr_html_(self) -> str:
        """The chart of prediction and measurement, if there is a prediction for this device, and the text."""
        from advisor.lab.gain_chart import GainRow, gain_chart
        from advisor.lab.page import preformatted

        return (gain_chart([GainRow(self.prediction.finding, self.prediction, self.time)]) if self.prediction and self.held is not None else "") + preformatted(
            str(self)
        )


def gain(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], unit: str = "us") -> Gain:
    """1 - after/before, each side the median of its runs' medians, with a bootstrap interval.

    before, after: measurements by run. Runs are drawn with replacement, and measurements within them. Differences between two
    starts of a program (placement, clocks, neighbours) do not average out within a run. With fewer than five runs per side, their
    spread is drawn wider by sqrt(n/(n - 1)). The plain bootstrap would miss that (Davison and Hinkley 1997, section 2.3)."""
    sides = [[np.asarray(run, float) for run in side if len(run)] for side in (before, after)]
    if not all(sides):
        raise TraceError("a side has no measured step", "Let the program run longer, or measure fewer steps.")
    rng = np.random.default_rng(_SEED)
    drawn = [_resampled(side, rng) for side in sides]
    middles = [float(np.median([np.median(run) for run in side])) for side in sides]
    low, high = np.quantile(1 - drawn[1] / drawn[0], (0.025, 0.975))
    expected = 1 - middles[1] / middles[0]
    return Gain(middles[0], middles[1], float(min(low, expected)), expected, float(max(high, expected)), unit)


def _resampled(runs: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """(RESAMPLES,) bootstrap values of the median of runs' medians."""
    n = len(runs)
    medians = np.array([np.median(run) for run in runs])
    middle = np.median(medians)
    wider = np.sqrt(n / (n - 1)) if n > 1 else 1.0
    # One row a resample: which runs, and by how much each one's median moves when its steps are drawn again.
    chosen = rng.integers(0, n, (RESAMPLES, n))
    moved = np.stack([_medians(run, rng) - np.median(run) for run in runs], axis=1)
    return np.median(middle + wider * (medians[chosen] - middle) + np.take_along_axis(moved, chosen, axis=1), axis=1)


def _medians(run: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(RESAMPLES,) medians of as many values drawn with replacement.

    Only the middle of the sorted draws is drawn: of n uniform numbers the k-th smallest has a beta distribution. The next is the least of the others."""
    run, n = np.sort(run), len(run)
    k = (n + 1) // 2
    low = rng.beta(k, n - k + 1, RESAMPLES)
    high = low if n % 2 else 1 - (1 - low) * rng.random(RESAMPLES) ** (1 / (n - k))
    first, second = (run[np.minimum(n * place, n - 1).astype(int)] for place in (low, high))
    return (first + second) / 2


def verify(before: Callable[[], object], after: Callable[[], object], *, rounds: int = 10, min_s: float = 0.1) -> Verification:
    """Compare two functions on this machine: in turn, `rounds` times each, with a wait after each call, after warm-up.

    The verdict is "no difference" if the interval is within 2 %, and "cannot tell" if it is wider and includes 0. Memory is the peak of a call of each."""
    require("torch", extra="lab")
    from advisor.lab.bench import measure_calls
    from advisor.lab.clock import device_in_use, device_name
    from advisor.lab.memory import measure_memory_usage

    if rounds < 2:
        raise UsageError(f"{rounds} rounds have no spread", "Give 2 or more.")
    times: tuple[list[list[float]], list[list[float]]] = ([], [])
    measures = [measure_calls(fn) for fn in (before, after)]
    for turn in range(rounds):
        # Each side is first as often as the other: what a turn leaves behind (caches, heat) falls on both.
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            times[side].append(measures[side](min_s / rounds))
    peaks = [float(measure_memory_usage(fn).peak_bytes) for fn in (before, after)]
    memory = gain([[peaks[0]]], [[peaks[1]]], "bytes") if all(peaks) else None
    import torch

    return Verification(gain(*times), memory, device=device_name(device_in_use()), torch=torch.__version__)


def verify_commands(
    before: str, after: str, *, runs: int = RUNS, timed: int = 30, warmup: int = 10, steps: str = "auto",
    progress: Callable[[str], None] | None = None,
) -> Verification:  # fmt: skip
    """Run two commands by turns and hold their steps against each other, found as `advisor record` finds them; nothing is profiled.

    progress: called with what runs now. Raises UsageError if a command fails, TraceError if it has no steps.
    """
    if runs < 2:
        raise UsageError(f"{counted(runs, 'run')} a side {'has' if runs == 1 else 'have'} no spread", "Give 2 or more.")
    sides: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for turn in range(runs):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            if progress:
                progress(f"run {turn + 1} of {runs}, {('before', 'after')[side]}")
            sides[side].append(_timed(("before", "after")[side], (before, after)[side], timed, warmup, steps))
    memory = [[[float(run["peak_memory_bytes"])] for run in side if run.get("peak_memory_bytes")] for side in sides]
    first = sides[0][0]
    return Verification(
        gain([run["unprofiled_step_us"] for run in sides[0]], [run["unprofiled_step_us"] for run in sides[1]]),
        gain(memory[0], memory[1], "bytes") if all(memory) else None,
        steady=all(run["steady"] for side in sides for run in side),
        device=first["device"],
        torch=first["torch"],
        runs=runs,
    )


def words(command: str) -> list[str]:
    """A command split as the shell would split it. Raises UsageError if that fails, or if the shell would run more than a single program."""
    try:
        found = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"{command} is no command: {error}", "Give it as the shell would run it.") from None
    if not found:
        raise UsageError("an empty command cannot be run", "Give it as the shell would run it.")
    if operator := _OPERATOR.search(_QUOTED.sub("", command)):
        raise UsageError(f"{command} takes a shell, for its {operator[0]}, and none is started", f"Name the shell: sh -c {shlex.quote(command)}")
    return ["env", *found] if _ASSIGNMENT.match(found[0]) else found


_QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\$`])*\"""", re.DOTALL)
"""Characters that a shell takes literally; in double quotes it still expands names and commands."""
_OPERATOR = re.compile(r"[|&;<>()`]+|\$\(|[$*?]|(?<!\S)[~#]")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def _timed(side: str, command: str, timed: int, warmup: int, steps: Any) -> dict[str, Any]:
    """A run's recording: its step times and peak memory."""
    from advisor.lab.launch import launch, signal_of
    from advisor.lab.options import Options
    from advisor.lab.recorded import recordings, said

    with TemporaryDirectory(prefix="advisor-") as folder:
        options = Options(warmup=warmup, timed=timed, light=0, deep=0)
        lines: list[str] = []
        recording, log = Path(folder, "recording"), Path(folder, "log")
        program = words(command)
        try:
            code = launch(program, recording, options, steps=steps, log=log, say=lines.append)
        except AdvisorError as error:
            raise type(error)(f"{side}, {command}: {error.message}", error.hint) from None
        if code in STOPPED:
            raise SystemExit(code)
        if code:
            why = f"exit code {code}{f', which {killed} leaves' if (killed := signal_of(code)) else ''}"
            raise UsageError(f"{side}, {command}: the program ended with {why}", end_of(log) or "It printed nothing. Run it alone to see why.")
        # Of several processes the first rank, or the one whose steps took most: of ranks all take as long.
        saved = [said(path) for path in recordings(recording)]
    if not any(one.get("unprofiled_step_us") for one in saved):
        told = [*lines, *(note for one in saved for note in one.get("notes", ())), "no step of it was timed"]
        raise TraceError(f"{side}, {command}: {told[0]}", "Let the program run longer, or measure fewer steps.")
    return max(saved, key=lambda one: (one.get("world_size", 1) > 1, -one.get("rank", 0), sum(one["unprofiled_step_us"])))


def end_of(log: Path) -> str:
    """The last lines that a program printed, "" if it printed nothing."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - PRINTED_BYTES, 0))
        printed = file.read().decode("utf-8", "replace")
    return "\n  ".join(printed.strip().splitlines()[-PRINTED_LINES:])


def prediction(where: str) -> Prediction:
    """The finding that `report.json#launch-gap-1` names, or the first of rule `launch-gap` for `report.json#launch-gap`; of a trace likewise."""
    from advisor.engine.run import report_of
    from advisor.report.saved import is_report, read_report

    path, _, wanted = where.rpartition("#") if "#" in where else (where, "", "")
    report = read_report(Path(path)) if is_report(Path(path)) else report_of(path)
    found = next((f for f in report.findings if wanted in (f.id, f.rule)), None)
    if found is None or not wanted:
        raise UsageError(f"{path} has no finding {wanted!r}", f"It has: {', '.join(f.id or f.rule for f in report.findings) or 'none'}.")
    step = report.headline.step_us
    saving: Any = found.saving
    if not step or not hasattr(saving, "low_us"):
        raise UsageError(f"{wanted} predicts no part of the step's time", "Give a finding of a trace.")
    low, expected, high = (getattr(saving, f"{end}_us") / step for end in ("low", "expected", "high"))
    names = tuple(dict.fromkeys(device.name for device in report.devices if device.name))
    return Prediction(found.rule, found.id or found.rule, low, expected, high, names)


def with_prediction(verification: Verification, predicted: Prediction) -> Verification:
    """The verification with the prediction that it is held against."""
    return replace(verification, prediction=predicted)


def append(ledger: Path, verification: Verification) -> None:
    """Add a line to a ledger of predictions and measurements (`accuracy.jsonl`), which `advisor validate` reads."""
    from advisor.knowledge.release import release

    p, t = verification.prediction, verification.time
    if p is None:
        raise UsageError("there is no prediction to hold the measurement against", "Give --finding report.json#finding.")
    if verification.predicted_for:
        raise UsageError(f"the prediction is for {verification.predicted_for}, and this ran on {verification.device}", "Give a finding of this device.")
    line = {
        "rule": p.rule, "name": p.finding, "low": p.low, "expected": p.expected, "high": p.high, "measured": t.expected,
        "measured_low": t.low, "measured_high": t.high, "verdict": t.verdict, "device": verification.device, "torch": verification.torch,
        "advisor": release(), "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
    with ledger.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
