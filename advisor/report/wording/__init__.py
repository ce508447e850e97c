"""Every sentence that advisor says of a recording, in one catalogue: a module a subject, a function a sentence, each with a note on if it is used.

It lies in the package and not among the formats because the JSON holds sentences too: the engine, the rules and the formats all take theirs from here,
and it knows nothing but the report's data and numbers. So arrows stay one-way: report → wording → engine, rules, formats.

How a sentence is written: at most 25 words, the subject first, the active voice, the field's own terms (docs/glossary.md). Two scales of doubt appear on a
page and are explained there: the range of a saving, and severity. All else that is unsure is one word, with its reason behind it.
"""

from __future__ import annotations

from advisor.report.wording.checks import check_name
from advisor.report.wording.compiled import compile_cost_kind, compile_cost_line, compile_cost_parts, compile_cost_price, compile_costs_listed
from advisor.report.wording.findings import (
    aside,
    belief,
    change,
    combined,
    first_fix_step,
    left_out,
    of_steps,
    place,
    rated_lower,
    remark,
    seen,
    source_line,
    taken,
    titled,
    user_line,
    wait_place,
    waits_listed,
)
from advisor.report.wording.kernels import occupancy, stalls
from advisor.report.wording.recordings import (
    Slice,
    critical_path,
    framework,
    hardware,
    link,
    measured,
    processor,
    profiler_overhead,
    slices,
    steps,
    unrecorded_us,
    unseen,
    window_basis,
)
from advisor.report.wording.savings import amount, gain, likely, per_request, per_whole, saves, saving_basis, saving_method, scales, step_noun, whole_noun
from advisor.report.wording.verdicts import (
    Trust,
    after_fixes,
    checks_passed,
    improves,
    last_line,
    nothing_found,
    read_instead,
    rules_run,
    speedup_range,
    step_now,
    to_mend,
    trust,
)

__all__ = [
    "Slice", "Trust", "after_fixes", "amount", "aside", "belief", "change", "check_name", "checks_passed", "combined",
    "compile_cost_kind", "compile_cost_line", "compile_cost_parts", "compile_cost_price", "compile_costs_listed", "critical_path", "first_fix_step", "framework", "gain",
    "hardware", "improves", "last_line", "left_out", "likely", "link", "measured", "nothing_found", "occupancy", "of_steps", "per_request", "per_whole",
    "place", "processor", "profiler_overhead", "rated_lower", "read_instead", "remark", "rules_run", "saves", "saving_basis", "saving_method", "scales", "seen", "slices",
    "source_line", "speedup_range", "stalls", "step_noun", "step_now", "steps", "taken", "titled", "to_mend", "trust", "unrecorded_us", "unseen", "user_line",
    "wait_place", "waits_listed", "whole_noun", "window_basis",
]  # fmt: skip
