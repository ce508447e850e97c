"""What holds for every rule and every pair of samples, from what is installed and from the files alone."""

import ast
import inspect
import json
from math import isfinite

import msgspec
import pytest

from advisor.cli.rules import shown_page
from advisor.engine.fitting import fitted, holds_for
from advisor.engine.rule import built_in
from advisor.engine.rule_pages import groups
from advisor.engine.run import run
from advisor.lab.coverage import reasons
from advisor.recordings.recording import Recording
from advisor.report.finding import Advice, Code, Conditional, Fix
from advisor.sources import read
from advisor.views.trace.program import Program
from advisor.views.workspace import Workspace
from tests import paths
from tests.analysed import analysed
from tests.paths import MANY_SAMPLES, ROOT, sampled, slowly
from tests.rules.kinds import misfits

SAMPLES = ROOT / "samples"
RULES = built_in()
CASES = json.loads((SAMPLES / "manifest.json").read_text())["cases"]
BY_FILE = {path: case for case in CASES.values() for path in (*case.get("kineto", {}).values(), *case.get("nsys", {}).values())}
LEVELS = ("info", "low", "medium", "high")
LOUD = ("medium", "high")
MOST_LINES, MOST_NAMES = 150, 15
"""Of a file of rules/, with its page; and of what a rule imports from advisor beside `WORDS`."""
WORDS = {
    "advisor.engine.rule", "advisor.errors", "advisor.intervals", "advisor.report.finding", "advisor.report.numbers", "advisor.report.wording.period", "advisor.knowledge.structs",
    "advisor.views.replay.edits",
}  # fmt: skip
"""What every rule is written in: its contract, types of arrays, how numbers are said, changed copies, and edits."""
OF_A_KIND = {"advisor.rules._kernels", "advisor.rules._memory"}
"""The same of rules about kernels that were measured, and about snapshots."""
BY_HAND = {
    "communication-contention": "takes links that several jobs share",
    "dominant-resource": "speaks where no other rule does",
    "graph-breaks": "takes a log of torch.compile beside the trace",
    "loop-overhead": "speaks of JAX alone, whose recordings have a folder of their own",
    "slow-link": "takes a machine with a slow link",
}
"""Rules without samples, and why: their tests make traces by hand."""
SYMPTOMS = {"fp32_norms": "unfused-elementwise", "wavenet_norms": "launch-gap", "adapted_words": "launch-gap"}
"""The pairs whose rule is told under another, as two findings would count one gain twice: the casts of the norms are pieces of the same chains, and fusing
those takes the casts along and gains more; issuing the norms of weights, or adapters, costs the host more than their kernels the device, and a graph issues them for nothing."""


def pairs():
    """Slow and fixed trace of each pair, in the folder of the rule that it is of; the first of each rule is read by everybody."""
    for slow in sorted([*SAMPLES.glob("*/slow.*"), *SAMPLES.glob("*/*.slow.trace.zst")]):
        if slow.parent.name.replace("-", "_") + ".py" in {path.name for path in (ROOT / "rules").glob("*.py")}:
            others = () if slow.name.startswith("slow.") else paths.slow
            yield pytest.param(slow.parent.name, slow, slow.with_name(slow.name.replace("slow", "fixed")), id=str(slow.relative_to(SAMPLES)), marks=others)


PAIRS = list(pairs())


def case_of(path):
    return BY_FILE[str(path.relative_to(SAMPLES))]


def told(folders):
    """Rules that the cases of those folders of samples are of; each folder has its own tests, which run over its manifest."""
    for manifest in SAMPLES.glob(f"{folders}/manifest.json"):
        read = json.loads(manifest.read_text())
        for case in (*read.get("cases", {}).values(), *read.get("kernels", {}).values()):
            rule = case.get("rule") or case.get("fault") or ()
            yield from [rule] if isinstance(rule, str) else rule


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_tested_by_name(rule):
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "rules").glob("test_*.py"))
    assert rule in told("jobs") or f'"{rule}"' in tests, f"test {rule} on traces made by hand, in tests/rules/test_{rule.replace('-', '_')}.py"


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in {pair.values[0] for pair in PAIRS}])
def test_a_rule_has_samples_in_its_own_folder_or_in_a_manifest_or_says_why_not(rule):
    assert rule in {*told("*")} | {*BY_HAND}, f"record samples/{rule}/slow.json.gz and fixed.json.gz with samples/record.py"


@pytest.mark.parametrize(("rule", "slow", "fixed"), PAIRS)
def test_the_slow_sample_makes_its_rule_speak_and_the_fixed_one_keeps_it_quiet(rule, slow, fixed):
    case = case_of(slow)
    assert case_of(fixed) is case, f"{fixed.name} is in no manifest"
    before, after = analysed(slow), analysed(fixed)
    for report in (before, after):
        assert not report.failed
        (check,) = (h for h in report.health if h.check == "replay")
        assert check.status == "ok", check.detail
        spoke = {entry.rule for part in (report.findings, report.clear, report.skipped) for entry in part}
        assert rule in spoke
    own = [f for f in before.findings if f.rule == rule and f.folded_into in ("", SYMPTOMS.get(case_name(case)))]
    loud = [f.rule for f in before.findings if f.severity in LOUD and not f.folded_into]
    if "trap" in case:
        assert case["trap"] == rule and rule not in loud, "its fix gains nothing here"
    else:
        least = case.get("severity", "medium")
        assert own, "it is silent, or told as a symptom only"
        assert any(f.folded_into or LEVELS.index(f.severity) >= LEVELS.index(least) for f in own)
        assert not loud or loud[0] in (*case.get("top", ()), rule)
    still = [f.rule for f in after.findings if f.rule == rule and f.severity in LOUD]
    assert not still or not case.get("fixed_quiet", True) or rule in reasons(SAMPLES).get(f"{case_name(case)}.fixed", {})


KINDS = {
    "inference": Program(training=False, compiled=False),
    "server": Program(training=False, compiled=False, server="vLLM"),
    "simulation": Program(training=False, compiled=False, framework="cuda"),
}
"""Kinds of program that neither train nor have a loader."""


@pytest.mark.parametrize("kind", slowly(KINDS, quick=1))
@pytest.mark.parametrize(("rule", "slow"), sampled([*{pair.values[0]: pair.values[:2] for pair in reversed(PAIRS)}.values()], 1 if MANY_SAMPLES else 3))
def test_no_fix_asks_for_what_such_a_program_is_without(rule, slow, kind):
    """Whatever the sample's own program is: the same trace, told to be of each kind."""
    (timeline,), program = read(slow).parts, KINDS[kind]
    assert program.kind == kind
    report = run(Recording("trace", "", (timeline, program)), [RULES[rule]])
    assert not report.failed and not misfits(report, Workspace(timeline, program))


def test_a_training_fix_is_for_programs_that_train():
    fix = Fix(
        title="Send less",
        steps=(
            Advice(Conditional("training", "Average gradients in buckets."), "Send 16 bits."),
            Advice(Conditional("training", "Call loss.backward() once.")),
        ),
        code=Code("loss.backward()", "step()"),
        risk=Advice("Fewer bits.", Conditional("training", "An optimizer may need more.")),
    )
    less, kept = fitted(fix, frozenset({"training", "loader"})), fitted(fix, frozenset())
    assert (less.steps, less.code, less.risk) == (("Send 16 bits.",), None, "Fewer bits.")
    assert kept.steps == ("Average gradients in buckets. Send 16 bits.", "Call loss.backward() once.") and {type(step) for step in kept.steps} == {str}
    assert kept.holds_for == ("training",) and holds_for(less) == ()
    assert holds_for(msgspec.structs.replace(fix, steps=("Send 16 bits.",))) == ("training",), "its code trains"
    assert fitted(msgspec.structs.replace(fix, holds_for=("training",)), frozenset({"training"})) is None


def case_name(case):
    return next(name for name, other in CASES.items() if other is case)


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_a_page_prints_the_defaults_of_the_options_and_copies_none(rule):
    written = inspect.getdoc(rule.function)
    assert not [name for name in rule.options if f"{{{name}}}" not in written], "name each option in the page, its default as {option}"
    assert not [name for name in rule.options if f"{{{name}}}" in rule.page]


def test_a_rule_fits_on_a_few_screens():
    """What it looks at is a view, shared by others that look at the same; the rule says what it means and what to do."""
    lines = {path.name: len(path.read_text().splitlines()) for path in (ROOT / "rules").rglob("*.py")}
    assert not {name: n for name, n in lines.items() if n > MOST_LINES}, f"longer than {MOST_LINES} lines: move what it derives into advisor/views"


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_knows_few_names(rule):
    """What needs more is a view with a name, or a module whose functions belong together."""
    tree = ast.parse((ROOT / "rules" / f"{rule.replace('-', '_')}.py").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and str(node.module).startswith("advisor")]
    names = [name.name for node in imports if node.module not in WORDS | OF_A_KIND for name in node.names]
    assert len(names) <= MOST_NAMES, names


ENDS = ("allocator/slow.json.gz", "amp-scaler-sync/slow.json.gz", "dtype-casts/slow.json.gz", "memory/adam_state.slow.pickle.gz", "memory/attention_scores.slow.pickle.gz")  # fmt: skip


@pytest.mark.parametrize("end", ["least", "most"])
@pytest.mark.parametrize("sample", slowly(ENDS, quick=1))
def test_no_rule_fails_at_the_ends_of_its_options(sample, end):
    """A threshold of nothing asks for what is not there."""
    given = {name: {option: at_end(rule, option, end) for option in rule.ranges} for name, rule in RULES.items() if rule.ranges}
    assert run(read(SAMPLES / sample), RULES.values(), given).failed == ()


def at_end(rule, option, end):
    limit = getattr(rule.ranges[option], end)
    return type(rule.options[option])(limit if isfinite(limit) else 1 << 40)


def test_rules_that_another_explains_exist():
    assert {named for rule in RULES.values() for named in rule.explains} <= {*RULES}


MEASURED_WORDS, SCREEN_LINES, COLUMNS = 120, 50, 120
"""Of the section on measuring, without its table; of a page as `advisor explain` prints it."""


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_a_page_fits_a_screen(rule):
    shown = shown_page(rule, rule.options).splitlines()
    assert len(shown) <= SCREEN_LINES and max(map(len, shown)) <= COLUMNS, "move details to rules/methods/"
    measured = rule.page.split("\nHow it is measured\n", 1)[1].split("\nReferences\n", 1)[0]
    prose = [line for line in measured.splitlines() if not line.startswith("|")]
    assert len(" ".join(prose).split()) <= MEASURED_WORDS
    assert "\n    " in rule.page.split("\nHow to fix\n", 1)[1].split("\nWhen to ignore\n", 1)[0], "show the fix as code"


def test_each_rule_is_in_one_group_of_the_list():
    grouped = [rule for ids in groups(ROOT / "rules").values() for rule in ids]
    assert sorted(grouped) == sorted(RULES)


def test_each_method_belongs_to_a_rule():
    files = {path.stem for path in (ROOT / "rules" / "methods").iterdir()}
    assert files == {rule.id.replace("-", "_") for rule in RULES.values() if rule.method}
    assert not [name for rule in RULES.values() for name in rule.options if f"{{{name}}}" in rule.method]
