"""The agent's tools: small, read-only answers about traces in a folder."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, cast

import msgspec

from advisor.errors import AdvisorError, UsageError, unknown_name
from advisor.integrations.mcp_answers import (
    DATA,
    FIRST_BYTES,
    REPLY_BYTES,
    SAVED,
    Analyzed,
    Budget,
    Changed,
    Checked,
    Detail,
    Diffed,
    EvidencePlace,
    Explained,
    FindingInFull,
    Findings,
    FixInFull,
    Kernel,
    Kernels,
    Named,
    Outcome,
    RuleChange,
    Seen,
    Served,
    ServedPhase,
    cleaned,
    fitted,
)  # fmt: skip
from advisor.integrations.mcp_arguments import located
from advisor.knowledge.counts import SHOWN
from advisor.report.brief import Quoted, brief
from advisor.report.finding import Finding
from advisor.report.model import Report

P = ParamSpec("P")


def _named_below_root(tool: Callable[Concatenate[Tools, P], str]) -> Callable[Concatenate[Tools, P], str]:
    """The same tool with file names as the agent writes them: the root's location stays hidden."""

    @wraps(tool)
    def call(self: Tools, *given: P.args, **named: P.kwargs) -> str:
        try:
            return self.below_root(tool(self, *given, **named))
        except AdvisorError as error:
            raise type(error)(self.below_root(error.message), self.below_root(error.hint)) from None

    return cast("Callable[Concatenate[Tools, P], str]", call)


class Tools:
    """Answers about the files of one folder. Paths that lead out of it, links followed, are refused."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise UsageError(f"there is no directory {root}", "Give --root the folder of your traces.")
        self.root = root.resolve()
        as_json = msgspec.json.encode(str(self.root)).decode()[1:-1] if self.root != Path("/") else ""
        self._root_in_text = re.compile(rf"(?<![\w./-])(?:{re.escape(str(self.root))}|{re.escape(as_json)})(?:/|(?![\w.-]))") if as_json else None
        self._analyzed = lru_cache(maxsize=8)(self._analyze)

    @_named_below_root
    def analyze(self, trace: str) -> str:
        """What bounds the traced program, how long a step takes now and with the fixes, and the three things to do, in 2 kB.

        Look at headline.judged first. findings(trace) has every finding in full.

        trace: the path of a PyTorch profiler trace, an nsys export, a memory snapshot, an ncu report or a saved report, below the root; or the
        directory of a recording or of a job's ranks.
        """
        marked = b',"note":' + msgspec.json.encode(self._note(trace)) + b"}"
        return (brief(self._report(trace), FIRST_BYTES - len(marked)).rstrip()[:-1] + marked).decode()

    @_named_below_root
    def findings(self, trace: str, rule: str = "", skip: int = 0) -> str:
        """Findings in full: saving with its interval, steps of the fix, code before and after, and where in the program it was seen.

        rule: only of this rule. skip: leave out so many, which an answer before held.
        """
        report = self._report(trace)
        found = tuple(_finding(f, report.evidence_steps) for f in report.findings if not rule or f.rule == rule)
        steps = report.evidence_steps if report.window else 1
        if rule and not found:
            outcome = self._outcome(report, rule)
            return fitted(Findings(count=0, evidence_is_the_mean_of_steps=steps, outcome=outcome), "outcome", REPLY_BYTES, note=self._note(trace))
        return fitted(
            Findings(count=len(found), evidence_is_the_mean_of_steps=steps, findings=found[skip:]),
            "findings", REPLY_BYTES, f"findings(trace, skip={skip} + those shown)", self._note(trace),
        )  # fmt: skip

    @_named_below_root
    def explain(self, rule: str, trace: str = "") -> str:
        """A rule's page: what it finds, why that costs time, how to fix it, when to ignore it, how it is measured. Of a trace: what the rule saw there,
        and why it is quiet if it is.

        trace: as of analyze; without it, the page.
        """
        from advisor.engine.rule import catalog

        if not trace:
            page = catalog()[self._known(rule)].page
            fits = REPLY_BYTES - 500 - len(rule)  # line breaks and quotes take two bytes each
            while len(msgspec.json.encode(page)) > fits:
                page = page[: len(page) * 19 // 20]
            return msgspec.json.encode(Explained(note=DATA, rule=rule, page=page)).decode()
        return fitted(
            Explained(rule=rule, outcome=self._outcome(self._report(trace), self._known(rule))),
            "outcome",
            FIRST_BYTES,
            "findings(trace, rule)",
            self._note(trace),
        )

    @_named_below_root
    def kernels(self, trace: str, containing: str = "", skip: int = 0) -> str:
        """GPU kernels by name, most time first: calls, time, share of busy time, achieved rates, occupancy.

        containing: only those whose name or op holds this text.
        """
        report = self._report(trace)
        rows = tuple(
            Kernel(
                calls=row.calls, total_us=round(row.total_us, 1), share=round(row.share, 4), family=row.family, precision=row.precision,
                gbps=round(row.gbps), tflops=round(row.tflops, 1), from_trace=Named(cleaned(row.name), cleaned(row.op)),
            )
            for row in report.kernels
            if containing.lower() in f"{row.name} {row.op}".lower()
        )  # fmt: skip
        none = (
            "this is a job: its ranks have kernels, give one rank's trace"
            if report.kind == "job"
            else f"a recording of kind {report.kind} that holds no GPU kernels"
        )
        made = Kernels(count=len(rows), why="" if report.kernels else none, kernels=rows[skip:])
        return fitted(made, "kernels", REPLY_BYTES, f"kernels(trace, skip={skip} + those shown)", self._note(trace))

    @_named_below_root
    def diff(self, before: str, after: str, by: str = "class", skip: int = 0) -> str:
        """What changed from one trace to another: the step, where the time went, and what became of the findings. Of two memory snapshots: the
        peak and what holds it.

        before, after: a trace, a saved report, the directory of a job's ranks, or a directory of captures of one program; several tell the noise.
        by: what the rows divide the change by: class, module and op, family or kernel. skip: leave out so many rows, which an answer before held.
        """
        from advisor.compare import compare

        old, new = self._captures(before), self._captures(after)
        if {report.kind for report in (*old, *new)} == {"memory"}:
            return _of_memory(old, new, skip)
        found = compare(old, new)
        tables = {str(table.by): table for table in found.tables}
        if by not in tables:
            raise unknown_name("division", by, tables, where="diff: ")
        serious = [d for d in found.differences if d.serious]
        moved = [RuleChange(f.rule, f.status) for f in found.findings if f.status != "same"]
        return fitted(
            Diffed(
                kind=found.kind,
                comparable=not serious,
                verdict="none: these are not comparable" if serious else found.verdict,
                captures=(len(old), len(new)),
                before=round(found.before.step_us, 1),
                after=round(found.after.step_us, 1),
                unit="us",
                noise=found.noise,
                findings=tuple(moved[:SHOWN]),
                by=by,
                rows=tuple(_changed(row.name, row.before_us, row.after_us, row.change_us, "us") for row in tables[by].rows[skip:]),
                from_trace=tuple(cleaned(f"{d.what}: {d.before} before, {d.after} after", 120) for d in found.differences[:4]),
            ),
            "rows", FIRST_BYTES, f"diff(before, after, by, skip={skip} + those shown)", self._note(before, after),
        )  # fmt: skip

    @_named_below_root
    def check(self, trace: str, baseline: str = "", config: str = "pyproject.toml", skip: int = 0) -> str:
        """Hold a trace against the budgets that a team set. One that cannot be told is no success.

        trace: as of diff. baseline: what the step is held against, the same. config: a TOML file below the root with budgets, as pyproject.toml.
        skip: leave out so many budgets, which an answer before held.
        """
        from advisor.compare import budgets, compare
        from advisor.engine import settings
        from advisor.engine.rule import catalog
        from advisor.report.saved import names
        from advisor.sources import is_one_capture

        chosen = settings.load(located(self.root, config))
        limits = budgets.parse(chosen.budgets, catalog().keys(), chosen.path)
        if baseline and budgets.REGRESSION not in limits:
            raise UsageError(f"{config} sets no {budgets.REGRESSION}, so there is nothing to hold against the baseline", "Leave baseline out.")
        reports = self._captures(trace)
        against = compare(self._captures(baseline), reports) if baseline else None
        if against and any(difference.serious for difference in against.differences):
            raise UsageError("baseline and trace are not comparable", "Ask diff why, and give another baseline.")
        path, _ = self._held(trace)
        verdicts = budgets.check_all(limits, dict(zip(names(path, is_one_capture), reports, strict=True)), against)
        worst = max(reports, key=lambda report: ("yes", "partly", "no").index(report.headline.judged)).headline
        made = Checked(
            passes=all(verdict.passes for verdict in verdicts) and worst.judged == "yes",
            judged=worst.judged,
            judged_why=worst.judged_why,
            budgets=tuple(Budget(v.budget, v.status, Detail(cleaned(v.detail, 160))) for v in sorted(verdicts, key=lambda v: v.passes)[skip:]),
        )
        return fitted(made, "budgets", FIRST_BYTES, f"check(trace, baseline, config, skip={skip} + those shown)", self._note(trace, baseline))

    @_named_below_root
    def serving(self, trace: str, skip: int = 0) -> str:
        """Of an inference server's trace (vLLM, SGLang, TensorRT-LLM): its steps by phase and batch, tokens a second, share in CUDA graphs,
        padding, and what holds most of a step.

        skip: leave out so many rows, which an answer before held.
        """
        found = self._report(trace).serving
        if found is None:
            return fitted(Served(engine=""), "phases", note=self._note(trace))
        rows = tuple(
            ServedPhase(
                phase=row.phase, requests=row.requests, steps=row.steps, step_us=round(row.step_us, 1), tokens_per_s=row.tokens_per_s,
                graph_coverage=row.graph_coverage, padded_to=row.padded_to, eager_launches=round(row.eager_launches, 1),
                most=row.parts.largest if row.parts else "",
            )
            for row in found.phases
        )  # fmt: skip
        return fitted(
            Served(engine=found.engine, version=found.version, phases=rows[skip:]), "phases", FIRST_BYTES, f"serving(trace, skip={skip} + those shown)"
        )

    @staticmethod
    def _known(rule: str) -> str:
        """The rule's id. Raises UsageError if no rule has it."""
        from advisor.engine.rule import catalog

        if rule not in (known := catalog()):
            raise unknown_name("rule", rule, known)
        return rule

    def _outcome(self, report: Report, rule: str) -> tuple[Outcome, ...]:
        """What became of a rule."""
        found = [Outcome(rule, "found", from_trace=Quoted(cleaned(f.id), cleaned(f.summary))) for f in report.findings if f.rule == rule]
        quiet = [Outcome(rule, "clear", c.why) for c in report.clear if c.rule == rule]
        quiet += [Outcome(rule, "skipped", s.why, s.record_with) for s in report.skipped if s.rule == rule]
        quiet += [Outcome(rule, "failed", from_trace=Quoted(summary=cleaned(f.error))) for f in report.failed if f.rule == rule]
        not_run = f"it is turned off, or not for a recording of kind {report.kind}"
        return (*found, *quiet) or (Outcome(self._known(rule), "not run", not_run),)

    def _note(self, *given: str) -> str:
        """The notice of an answer's text: nothing in a saved report is advisor's own text."""
        from advisor.report.saved import is_report

        read = [path for one in given if one for held in [self._held(one)] for path in (held[0], *held[1])]
        return SAVED if any(map(is_report, read)) else DATA

    def _captures(self, side: str) -> list[Report]:
        """A report of each capture of a side, as the command `diff` takes them."""
        from advisor.report.saved import captures
        from advisor.sources import is_one_capture

        path, _ = self._held(side)
        return [self._report(str(one)) for one in captures(path, is_one_capture)]

    def _report(self, trace: str) -> Report:
        path, inside = self._held(trace)
        return self._analyzed(path, tuple(_written_ns(one) for one in (path, *inside)))

    def below_root(self, text: str) -> str:
        """A text without the root's own path."""
        return self._root_in_text.sub("", text) if self._root_in_text else text

    def _held(self, trace: str) -> tuple[Path, list[Path]]:
        """A trace's location, and the files read of a directory. Raises UsageError if any is outside of the root."""
        from advisor.sources.jax.directory import newest_run

        path = located(self.root, trace)
        # What of a directory is read: its own files, and those of a run of JAX below it.
        inside = sorted({one for one in (*path.iterdir(), *map(Path, newest_run(path))) if one.is_file()}) if path.is_dir() else []
        if outer := [one for one in inside if not one.resolve().is_relative_to(self.root)]:
            raise UsageError(f"{outer[0].relative_to(self.root)} leads out of the folder that this server may read", "Give a trace, or a directory without it.")
        return path, inside

    @staticmethod
    def _analyze(path: Path, _: tuple[int, ...]) -> Report:
        from advisor.engine.run import report_of
        from advisor.report.saved import is_report, read_report

        return read_report(path) if is_report(path) else report_of(path)


ANSWERS: dict[str, type[msgspec.Struct]] = {
    "analyze": Analyzed, "findings": Findings, "explain": Explained, "kernels": Kernels, "diff": Diffed, "check": Checked, "serving": Served,
}  # fmt: skip
"""What each tool answers."""


def tools_of(root: Path) -> list[Callable[..., str]]:
    """The tools that read, each with a name, typed parameters and a docstring that says what it is for."""
    tools = Tools(root)
    return [getattr(tools, name) for name in ANSWERS]


def _changed(name: str, before: float, after: float, change: float, unit: str) -> Changed:
    return Changed(before=round(before, 1), after=round(after, 1), change=round(change, 1), unit=unit, from_trace=Named(cleaned(name, 120), ""))


def _of_memory(before: list[Report], after: list[Report], skip: int) -> str:
    """What changed of the peak from one snapshot to another."""
    from advisor.compare.memory import compare_memory

    found = compare_memory(before, after)
    change = found.after.peak_allocated_bytes - found.before.peak_allocated_bytes
    return fitted(
        Diffed(
            kind="memory",
            comparable=True,
            verdict="less" if change < 0 else "more" if change > 0 else "unchanged",
            captures=(len(before), len(after)),
            before=found.before.peak_allocated_bytes,
            after=found.after.peak_allocated_bytes,
            unit="bytes",
            reserved_bytes=(found.before.peak_reserved_bytes, found.after.peak_reserved_bytes) if found.reserved_known else None,
            findings=tuple(RuleChange(f.rule, f.status) for f in found.findings if f.status != "same")[:SHOWN],
            by="category",
            rows=tuple(_changed(row.name, row.before, row.after, row.change, "bytes") for row in found.tables[0].rows[skip:]),
        ),
        "rows", FIRST_BYTES, f"diff(before, after, skip={skip} + those shown)",
    )  # fmt: skip


def _written_ns(path: Path) -> int:
    """When a file was last written, 0 if it has gone meanwhile."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _finding(found: Finding, steps: int) -> FindingInFull:
    """steps: how many recorded ones the evidence is of."""
    evidence = tuple(
        EvidencePlace(
            cleaned(e.label), round(e.count / steps, 2), round(e.dur_us / steps, 1), cleaned(f"{e.source.file}:{e.source.line}") if e.source else "",
        )
        for e in found.evidence[:4]
    )  # fmt: skip
    return FindingInFull(
        id=found.id,
        rule=found.rule,
        severity=found.severity,
        confidence=found.confidence,
        status=found.status,
        title=found.title,
        saves=found.saving,
        fix=FixInFull(found.fix.title, found.fix.steps, found.fix.code, found.fix.risk),
        explained_by=found.folded_into,
        left_out_of_every_fix=found.left_out,
        decide_with=found.decide_with,
        from_trace=Seen(cleaned(found.summary), evidence),
    )
