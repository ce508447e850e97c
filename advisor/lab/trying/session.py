"""`advisor try` from the first run to the last: the program as it is, its report, each fix by turns with it, then what goes together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from advisor.engine.run import report_of
from advisor.errors import AdvisorError, Terminated, TraceError, UsageError
from advisor.knowledge.counts import RUNS, SHOWN
from advisor.knowledge.shares import HARDLY_ANY
from advisor.knowledge.structs import replace
from advisor.lab.interventions.catalogue import Intervention, Numerics, intervention, interventions
from advisor.lab.launch import launch
from advisor.lab.options import Options
from advisor.lab.recorded import recordings, said
from advisor.lab.trying import numerics
from advisor.lab.trying.plan import Candidate, candidates, elsewhere
from advisor.lab.trying.result import MANY_RUNS, Reach, Trial, Tried
from advisor.lab.trying.start import Asked, Program, Ran, Runner, applied_in, not_applied_reason
from advisor.lab.trying.statistics import held, tight
from advisor.lab.verify import Gain
from advisor.report.model import Report
from advisor.report.numbers import counted, duration

BUDGET_S = 600.0  # the default of --budget
LEAST_RUNS, USUAL_RUNS, MOST_RUNS = 2, RUNS, 8
"""Runs with each fix. Two suffice if the gain is far beyond the noise, three have their own spread, and more than eight narrow it little."""
STACK_RUNS = LEAST_RUNS
"""Runs of each side as a fix is added to the kept fixes. Its own gain is known by then, and these are pooled with earlier runs."""
NUMBERS = 60
"""Steps after the warm-up with compared numbers, in a run of their own: enough to show drift, and soon over."""
NOISY, SEEN = HARDLY_ANY, 2.2
"""Two runs that differ by more than a twentieth are worth a note. A gain of this multiple of their difference is significant for three runs against
four, by Student's interval of 99 %."""
CUT = 60
"""Characters from which a label of evidence may be the beginning of a name."""


@dataclass
class _Side:
    """The runs of a set of interventions."""

    applied: tuple[Intervention, ...]
    runs: list[Ran] = field(default_factory=list)
    failed: str = ""

    @property
    def wall_s(self) -> float:
        return median(run.wall_s for run in self.runs) if self.runs else 0.0


class OutOfTime(Exception):
    """The next run would not fit the budget."""


class Session:
    """A program under trial."""

    def __init__(self, program: Program, folder: Path, budget_s: float, progress: Callable[[str], None], runs: int = MOST_RUNS) -> None:
        self._runner = Runner(program, folder)
        self._folder = folder
        self._program = program
        self._ends = time.monotonic() + budget_s
        self._most_runs = runs
        self._progress = progress
        self._base = _Side(())
        self._warmup = self._last = 0
        self._nudged: dict[tuple[float, bool], Ran] = {}
        self._reseeded: Ran | None = None
        self._checked: list[Ran] = []
        """Two runs as it is for comparing numbers: without dropout."""
        self._sides: dict[str, _Side] = {}
        """Of each intervention alone."""
        self.notes: list[str] = []

    # The program as it is.

    def begin(self) -> None:
        """Two runs as it is. Raises UsageError if the program fails, TraceError if it has no steps."""
        self._progress("as it is")
        first = self._runner.run(Asked(timed=self._program.timed, kernels=True))
        _expect(first)
        self._warmup, self._last = first.warmup, max(first.last, first.warmup)
        self._base.runs.append(first)
        self._progress("as it is, again")
        second = self._runner.run(Asked((), self._warmup, self._last - self._warmup))
        _expect(second)
        self._base.runs.append(second)
        medians = [median(run.times(self._warmup, self._last)) for run in self._base.runs]
        if (apart := abs(medians[1] / medians[0] - 1)) > NOISY:
            seen = f"only gains above {SEEN * apart:.0%} can be seen" if SEEN * apart < 1 else "no gain can be seen"
            self.notes.append(
                f"two runs as they are differ by {apart:.0%}: {seen} with {USUAL_RUNS} runs of a fix. Let the machine do nothing else, or give more --runs and --budget"
            )
        if first.said["watch_failed"]:
            self.notes.append(f"losses are not checked: {first.said['watch_failed']}")

    @property
    def first(self) -> Ran:
        return self._base.runs[0]

    def report(self) -> Report | None:
        """The report of a recording of it, None if there is no advice."""
        if self.first.device == "cpu":
            return None
        self._need(2 * self.first.wall_s)
        self._progress("recorded")
        folder, stopped = self._folder / "recording", list[int]()
        code = launch(
            list(self._program.command), folder, Options(), steps=self._program.steps, log=self._folder / "log",
            base=self._runner.environment(Asked()), told=stopped.append,
        )  # fmt: skip
        if stopped:
            raise Terminated(128 + stopped[0])
        if code:
            self.notes.append(f"the program ended with exit code {code} while it was recorded, and nothing is predicted")
            return None
        kept = sorted(recordings(folder), key=lambda path: said(path).get("rank", 0))
        try:
            return report_of(folder if len(kept) > 1 else kept[0].parent)
        except (AdvisorError, IndexError) as error:
            self.notes.append(f"nothing is predicted: {getattr(error, 'message', 'nothing was recorded')}")
            return None

    # Each fix by turns with it.

    def measure(self, chosen: Sequence[Candidate]) -> tuple[list[Trial], str]:
        """Every candidate's trial, and why not all runs were made ("" if they were)."""
        sides = self._sides = {one.intervention.name: _Side((one.intervention,)) for one in chosen if not one.unfit}
        stopped, turn = "", 0
        try:
            while open_ := [side for side in sides.values() if not side.failed and len(side.runs) < self._most_runs and not self._told(side)]:
                order = self._affordable(open_)
                for number, side in enumerate(order if turn % 2 == 0 else order[::-1]):
                    self._run(side, f"{side.applied[0].name}, run {len(side.runs) + 1}", kernels=not side.runs)
                    if number == len(order) // 2 or len(order) == 1:
                        self._run(self._base, "as it is")
                turn += 1
        except OutOfTime:
            stopped = "the budget ended (--budget)"
        return [self._trial(one, sides.get(one.intervention.name)) for one in chosen], stopped

    def _affordable(self, open_: list[_Side]) -> list[_Side]:
        """The first fixes that the rest of the budget can run as often as usual, in turn with as many unchanged runs: a few conclusive fixes are
        better than many begun."""
        starts = (self._ends - time.monotonic()) / self.first.wall_s
        missing = [max(1, USUAL_RUNS - len(side.runs)) for side in open_]
        fits = [sum(missing[:count]) + max(missing[:count]) <= starts for count in range(1, len(open_) + 1)]
        return open_[: max(1, sum(fits))]

    def _told(self, side: _Side) -> bool:
        """Whether more runs of it would say nothing more."""
        if len(side.runs) < LEAST_RUNS:
            return False
        found = self._gain(side)
        return tight(found) or (len(side.runs) > USUAL_RUNS and found.runs_to_tell(len(side.runs)) > MANY_RUNS)

    def _gain(self, side: _Side, against: _Side | None = None) -> Gain:
        """By the same steps on both sides: if a side had to warm up for longer, the other side's later steps count."""
        against = against or self._base
        warmup = max(self._warmup, *(run.warmup for run in side.runs))
        before = [times for run in against.runs if len(times := run.times(warmup, self._last)) >= 3]
        if not before:  # no run of the base went so far: it is steady, and its steps are as good
            before = [run.times(self._warmup, self._last) for run in against.runs]
        after = [run.times(run.warmup, run.last) for run in side.runs]
        found = held(before, after)
        batch = 1.0
        for one in side.applied:
            batch *= one.batch
        return found if batch == 1.0 else held(before, [[us / batch for us in run] for run in after])

    def _run(self, side: _Side, what: str, kernels: bool = False) -> None:
        self._need(max(side.wall_s, self._base.wall_s))
        self._progress(what)
        ran = self._runner.run(Asked(side.applied, self._warmup, self._last - self._warmup, kernels=kernels))
        if not ran.failed and side is not self._base:
            self._last = max(self._last, ran.last)
        if not side.runs:
            names = [one.name for one in side.applied]
            side.failed = next((why for name in names if (why := not_applied_reason(ran, name))), "")
            if not ran.failed:
                side.runs.append(ran)
        elif not ran.failed:
            side.runs.append(ran)
        elif side is not self._base:
            side.failed = ran.failed

    def _need(self, seconds: float) -> None:
        if time.monotonic() + seconds > self._ends:
            raise OutOfTime

    def _trial(self, one: Candidate, side: _Side | None) -> Trial:
        chosen = one.intervention
        known = Trial(
            chosen.name, chosen.what, "did-not-apply", one.predicted, one.also, one.unfit, what_if=chosen.what_if, unseen=chosen.unseen, advice=chosen.advice,
        )  # fmt: skip
        if side is None:
            return known
        if side.failed:
            return replace(known, why=side.failed)
        if not side.runs:
            return replace(known, verdict="cannot-tell", why="the budget ended before it was run (--budget)")
        found = self._gain(side)
        first = side.runs[0]
        verdict = found.verdict if len(side.runs) >= LEAST_RUNS or found.verdict == "no-difference" else "cannot-tell"
        assert verdict != "less" and verdict != "more"
        return replace(
            known, verdict=verdict, gain=found, runs=len(side.runs), losses=self.losses(side), reach=self._reach(first, one),
            compile_s=max(0.0, first.ended_s(first.warmup) - self.first.ended_s(first.warmup) - _rest_s(self.first, first)),
            peak_memory_bytes=median(run.said["peak_memory_bytes"] for run in side.runs),
            more_memory_bytes=median(run.said["peak_memory_bytes"] for run in side.runs) - median(run.said["peak_memory_bytes"] for run in self._base.runs),
            why="" if verdict != "cannot-tell" else "the two sides differ by less than their runs do" if len(side.runs) >= LEAST_RUNS else "it had too few runs (--budget, --runs)",
            runs_to_tell=found.runs_to_tell(len(side.runs)) if verdict == "cannot-tell" else 0,
        )  # fmt: skip

    def _reach(self, ran: Ran, one: Candidate) -> Reach:
        did = applied_in(ran, one.intervention.name)
        base, now = self.first.said["kernels"], ran.said["kernels"]
        before, after = (sum(count for name, count in counts.items() if _is_labelled(name, one.labels)) for counts in (base, now))
        new = {name: count for name, count in now.items() if name not in base}
        whole = self.first.said["parameters"] or ran.said["parameters"]
        return Reach(
            did["count"], tuple(did["modules"]), min(did["parameters"] / whole, 1.0) if did["modules"] and whole else None,
            tuple((file, line, what) for file, line, what in did["sites"]), tuple(did["made_by"]),
            max(0.0, 1 - after / before) if before and now else None,
            dict(sorted(new.items(), key=lambda item: -item[1])[:SHOWN]),
        )  # fmt: skip

    # Numbers.

    def losses(self, side: _Side) -> numerics.Compared:
        """Whether it computes the same, with as many further runs as needed."""
        coarsest = max((one.numerics for one in side.applied), key=_coarse)
        found = numerics.compare(self.first, self._base.runs[1], side.runs[0], coarsest)
        try:
            if found.needs_nudge:
                nudge = self._nudge(numerics.nudge_of(self.first, coarsest))
                found = numerics.compare(self.first, self._base.runs[1], side.runs[0], coarsest, nudge)
            if found.verdict != "equal" and any(one.apart for one in side.applied):
                found = self._compare_arithmetic(side, coarsest, found)
            if found.verdict == "differs" and any(one.draws for one in side.applied):
                found = self._drawn(side, coarsest, found)
        except OutOfTime:
            return replace(found, verdict="not-checked", why=f"{found.why}; the budget ended before it could be told why")
        return found

    def _compare_arithmetic(self, side: _Side, coarsest: Numerics, found: numerics.Compared) -> numerics.Compared:
        """Compared in runs without dropout, in which only the arithmetic differs and not which random numbers are drawn."""
        while len(self._checked) < 2:
            self._checked.append(self._only_numbers(self._asked(check=True), "as it is, for its numbers"))
        ran = self._only_numbers(self._asked(side.applied, check=True), "its numbers")
        if ran.failed or any(one.failed for one in self._checked):
            return found
        base, twin = self._checked
        again = numerics.compare(base, twin, ran, coarsest)
        if again.needs_nudge:
            again = numerics.compare(base, twin, ran, coarsest, self._nudge(numerics.nudge_of(self.first, coarsest), check=True))
        return replace(again, why=again.why or "compared without dropout, whose random numbers are drawn otherwise") if again.verdict == "equal" else again

    def _drawn(self, side: _Side, coarsest: Numerics, found: numerics.Compared) -> numerics.Compared:
        """Other random numbers in the dataset are another draw, and no fault. The losses then differ as with another seed, and nothing more is known."""
        if self._program.seed is None:
            return replace(found, verdict="not-checked", why="no seed is set, and what workers draw cannot be told from a fault")
        if self._reseeded is None:
            self._reseeded = self._only_numbers(self._asked(seed_shift=1), "as it is, with another seed")
        other = numerics.compare(self.first, self._base.runs[1], self._reseeded, coarsest) if not self._reseeded.failed else None
        if other is None or other.gradients is None or found.gradients is None or not found.gradients <= 1.5 * other.gradients:
            return found
        return replace(found, verdict="not-checked", why="each worker draws random numbers of its own: the losses differ as those of another seed do")

    def _nudge(self, size: float, check: bool = False) -> Ran | None:
        if (size, check) not in self._nudged:
            self._nudged[size, check] = self._only_numbers(self._asked(nudge=size, check=check), "as it is, nudged")
        ran = self._nudged[size, check]
        return None if ran.failed else ran

    def _asked(self, applied: tuple[Intervention, ...] = (), *, check: bool = False, nudge: float = 0.0, seed_shift: int = 0) -> Asked:
        """A run for its numbers only."""
        timed = min(self._last - self._warmup, NUMBERS)
        return Asked(applied, self._warmup, timed, check=check, nudge=nudge, seed_shift=seed_shift)

    def _only_numbers(self, asked: Asked, what: str) -> Ran:
        self._need(self.first.wall_s)
        self._progress(what)
        return self._runner.run(asked)

    # What goes together.

    def stack(self, trials: Sequence[Trial]) -> tuple[list[str], Gain | None, numerics.Compared | None, str]:
        """The best fix, and with it each next fix that gains more and is compatible with the kept fixes; their gain together."""
        good = sorted(
            (t for t in trials if t.verdict == "faster" and t.losses.verdict != "differs" and not t.what_if),
            key=lambda t: -(t.gain.expected if t.gain else 0.0),
        )
        if not good:
            return [], None, None, ""
        side = self._sides[good[0].intervention]
        kept = [*side.applied]
        try:
            for trial in good[1:]:
                (more,) = self._sides[trial.intervention].applied
                if any(more.excludes(one) for one in kept):
                    continue
                wider = _Side(_in_order([*kept, more]))
                for _ in range(MOST_RUNS // STACK_RUNS):
                    for _ in range(STACK_RUNS):
                        self._run(wider, " + ".join(one.name for one in wider.applied))
                        self._run(side, " + ".join(one.name for one in side.applied))
                    if wider.failed or tight(self._gain(wider, side)):
                        break
                if not wider.failed and self._gain(wider, side).verdict == "faster" and self.losses(wider).verdict != "differs":
                    kept, side = [*kept, more], wider
        except OutOfTime:
            return [one.name for one in kept], self._gain(side), self.losses(side), "the budget ended before all that goes together was measured (--budget)"
        return [one.name for one in kept], self._gain(side), self.losses(side), ""

    def result(
        self,
        trials: Sequence[Trial],
        report: Report | None,
        kept: Sequence[str],
        together: Gain | None,
        losses: numerics.Compared | None,
        stopped: str,
        spent_s: float,
    ) -> Tried:
        """All of it."""
        times = [run.times(self._warmup, self._last) for run in self._base.runs]
        medians = [median(run) for run in times if run]
        step, expected = (report.headline.step_us, report.headline.together) if report else (None, None)
        return Tried(
            command=tuple(self._program.command), device=self.first.said["device"], torch=self.first.said["torch"], base=times, trials=trials, kept=kept,
            together=together, together_losses=losses, predicted_together=1 - expected.step_us.expected / step if expected and step else None,
            elsewhere=elsewhere(report), time_noise=abs(medians[1] / medians[0] - 1), loss_noise=numerics.loss_noise(self.first, self._base.runs[1]),
            seed=self._program.seed, steps=(self._warmup, self._last), spent_s=spent_s, stopped=stopped, notes=self.notes,
        )  # fmt: skip


def tried(
    program: Program, *, only: Sequence[str] = (), finding: str | None = None, budget_s: float = BUDGET_S, runs: int = MOST_RUNS, extra: Mapping[str, Intervention] | None = None,
    say: Callable[[str], None] = lambda line: None, progress: Callable[[str], None] = lambda what: None,
) -> Tried:  # fmt: skip
    """Try the fixes that the program's report names, or `only` these interventions.

    finding: only the fix of this finding. runs: maximum per fix. extra: interventions in addition to the catalogue's, which are tried too.

    say: takes a line that the user has to know. progress: takes the present run.

    Raises UsageError if the program fails or there is no such intervention or finding, TraceError if it has no steps."""
    for name in only:
        intervention(name)
    began = time.monotonic()
    for line in announced(program, budget_s):
        say(line)
    with TemporaryDirectory(prefix="advisor-") as folder:
        session = Session(program, Path(folder), budget_s, progress, runs)
        session.begin()
        say(
            f"as it is, {counted(session.first.last - session.first.warmup, 'step')} of {duration(median(session.first.times(session.first.warmup, session.first.last)))} after {session.first.warmup}; a run takes {session.first.wall_s:.0f} s"
        )
        for note in session.notes:
            say(note)
        stopped = ""
        try:
            report = session.report()
        except OutOfTime:
            report, stopped = None, "the budget ended before the program was recorded (--budget)"
        if finding and not (report and any(finding in (one.id, one.rule) for one in report.findings)):
            raise UsageError(
                f"the report has no finding {finding!r}",
                f"It has: {', '.join(one.id for one in report.findings) if report else 'none, as nothing could be recorded'}.",
            )
        chosen = candidates(report, session.first, only, finding) if not stopped else []
        chosen += [Candidate(one) for one in (extra or {}).values()]
        nothing = f"nothing, as {stopped or 'no fix of the report can be applied from outside'}"
        say(f"tried: {', '.join(one.intervention.name for one in chosen if not one.unfit) or nothing}")
        trials, late = session.measure(chosen)
        kept, together, losses, later = session.stack(trials)
        return session.result(trials, report, kept, together, losses, stopped or late or later, time.monotonic() - began)


def announced(program: Program, budget_s: float) -> list[str]:
    """The planned runs, for the user to know before the first run."""
    lines = [
        f"runs the program twice as it is, once recorded, and some {USUAL_RUNS} times with each fix, by turns with more as it is, for {budget_s / 60:.0f} min at most (--budget). Each run ends after some tens of steps.",
        "checkpoints and logs go where the program writes them (--workdir copy gives each run a copy of the working directory)."
        if not program.copies
        else "each run gets a copy of the working directory, which is thrown away.",
        "trackers of experiments are off (WANDB_MODE=disabled and the like)"
        + ("." if program.online else ", hubs are read from their caches alone (--online)."),
    ]
    if program.seed is not None:
        lines.append(f"random numbers of Python, numpy and torch start from seed {program.seed}, before the program's own (--no-seed).")
    return lines


def _in_order(applied: Sequence[Intervention]) -> tuple[Intervention, ...]:
    """As they are applied: the order of the catalogue, in which a model's innermost wrapper comes first."""
    order = list(interventions())
    return tuple(sorted(applied, key=lambda one: order.index(one.name) if one.name in order else -1))


def _is_labelled(kernel: str, labels: Sequence[str]) -> bool:
    """Whether a finding's evidence is about that kernel. The evidence may have a shortened name."""
    return any(kernel == label or (len(label) >= CUT and kernel.startswith(label)) for label in labels)


def _coarse(name: Numerics) -> float:
    return float("inf") if name == "other" else numerics.UNIT[name]


def _rest_s(base: Ran, trial: Ran) -> float:
    """Time that the base ran between its first settled step and the trial's first settled step. The trial's own steps are not to be blamed for it."""
    return 0.0 if base.said["steps"] >= trial.warmup else (trial.warmup - base.said["steps"]) * median(base.times(base.warmup, base.last)) * 1e-6


def _expect(ran: Ran) -> None:
    if not ran.failed:
        return
    message, _, hint = ran.failed.partition("\n")
    kind = UsageError if "exit code" in message else TraceError
    raise kind(message, hint.strip() or "Run it alone to see why.")
