"""What is said of a whole report: its step now and after the fixes, whether it can be trusted, what became of the rules, and what to record next."""

from __future__ import annotations

from typing import Literal

import msgspec

from advisor.report.model import Report
from advisor.report.numbers import NAMED, as_precise_as, counted, duration, interval, rough_duration, speedup, speedups
from advisor.report.recording import READ_INSTEAD
from advisor.report.wording.checks import check_name, check_subject
from advisor.report.wording.savings import WIDE


def step_now(report: Report) -> str:
    """`24.4 ms`, or `about 2.2 ms` where the profiler's overhead leaves its length open; `45.4 ms on average` if no step is typical."""
    now = f"about {rough_duration(report.step_us)}" if _is_rough(report) else duration(report.step_us)
    differ = any(check.check == "steps" and check.status == "degraded" and check.unit == "share" for check in report.health)
    return f"{now} on average" if differ else now


def _is_rough(report: Report) -> bool:
    true = report.window.true_step_us if report.window else None
    return true is not None and true.high - true.low > WIDE * report.step_us


def after_fixes(report: Report) -> str:
    """`0.9 to 1.2 ms`: the range of the step with all compatible fixes, to the last digit of `step_now`, so that differences add up."""
    after = report.headline.predicted_step_us
    write = as_precise_as(report.step_us, digits=2 if _is_rough(report) else 3)
    return interval(after.low, after.high, write) if after else ""


def speedup_range(report: Report) -> str:
    """`about 2× to 25×`: the same as a speedup; "" where the step may get no faster at all."""
    after = report.headline.predicted_step_us
    return speedups(report.step_us, after.low, after.high) if after else ""


def improves(report: Report) -> bool:
    """Whether the fixes are expected to make the step faster."""
    after = report.headline.predicted_step_us
    return after is not None and bool(speedup(report.step_us, after.expected))


def nothing_found(report: Report) -> str:
    """What no finding means: nothing to fix, or no rule that could look."""
    if not (report.findings or report.clear or report.skipped or report.failed):
        return "No rule was run"
    return {
        "yes": "Nothing to fix was found",
        "partly": "Nothing to fix was found, but only a part could be judged",
        "no": "This recording could not be judged",
    }[report.headline.judged]


class Trust(msgspec.Struct, frozen=True):
    """Whether a report can be relied on: a word, and its reason."""

    status: Literal["ok", "degraded", "failed", "unknown"]
    answer: str
    detail: str


def trust(report: Report) -> Trust:
    """Whether the report can be trusted, in one line: what could be judged and what the checks say. Used on the first screen of every format."""
    head, total = report.headline, len(report.health)
    failed = [check_name(h.check) for h in report.health if h.status == "failed"]
    degraded = [check_name(h.check) for h in report.health if h.status == "degraded"]
    broken = f"{counted(len(report.failed), 'rule')} failed with an error"
    checks = f"{len(failed)} of {counted(total, 'check')} failed: {', '.join(failed[:NAMED])}." if failed else ""
    if report.host_time and head.judged_reason == "no-gpu-work":
        return Trust("degraded", "CPU time only", "The trace holds no GPU work, so no rule about the GPU could look.")
    if head.judged == "no":
        return Trust("failed", "No", _sentence(head.judged_why) or checks)
    if failed or head.judged == "partly":
        return Trust("failed" if failed else "degraded", "Partly", _sentence(head.judged_why) or checks)
    if report.failed:
        return Trust("degraded", "Partly", f"{broken}.")
    if not total:
        return Trust("unknown", "Unknown", "No check was run.")
    if degraded:
        return Trust(
            "degraded", "Mostly", f"{len(degraded)} of {counted(total, 'check')} {'is' if len(degraded) == 1 else 'are'} weak: {', '.join(degraded[:NAMED])}."
        )
    return Trust(
        "ok",
        "Yes",
        "The only check of the recording passed."
        if total == 1
        else f"{'Both' if total == 2 else f'All {total}'} checks passed: the recording is complete and consistent.",
    )


def checks_passed(report: Report) -> list[str]:
    """The checks that passed, in words: behind the count that `trust` gives."""
    return [check_subject(check.check) for check in report.health if check.status == "ok"]


def _sentence(text: str) -> str:
    """A reason as a sentence of its own."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def rules_run(report: Report) -> str:
    """How many rules looked, and what became of them."""
    with_findings = len({finding.rule for finding in report.findings})
    parts = [
        counted(with_findings, "rule") + " found something" if with_findings else "",
        f"{len(report.clear)} clear" if report.clear else "",
        f"{len(report.skipped)} skipped" if report.skipped else "",
        f"{len(report.failed)} failed" if report.failed else "",
    ]
    return ", ".join(part for part in parts if part) or "no rule was run"


def to_mend(report: Report) -> dict[str, str]:
    """How to record again so that failed checks pass, and which they are. Used among the next commands."""
    found: dict[str, list[str]] = {}
    for check in report.health:
        if check.status == "failed" and check.record_with:
            found.setdefault(check.record_with, []).append(check_name(check.check))
    return {how: f"because the check for {' and '.join(checks)} failed" for how, checks in found.items()}


def read_instead(report: Report) -> list[str]:
    """Which file was read in place of others, a sentence each."""
    return [". ".join(filter(None, (check.detail, check.record_with))) + "." for check in report.health if check.check in READ_INSTEAD]


def last_line(error: str) -> str:
    """Of a traceback, what was raised."""
    return error.strip().rpartition("\n")[2]
