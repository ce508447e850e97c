"""A fix in the words of the framework: its own switch in place of the first step and the code, in the spelling of the version that was recorded."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import advisor
from advisor.engine.in_words_of import in_words_of, switched
from advisor.engine.run import run
from advisor.engine.settings import framework_named
from advisor.errors import UsageError
from advisor.knowledge.stacks import Asked, Pack, Phrase, packs, pinned
from advisor.knowledge.stacks.page import explained
from advisor.knowledge.structs import replace
from advisor.report.finding import Code, Fix, StackOption
from advisor.report.model import Report
from advisor.reports import formats
from advisor.rules.fixes import of_server
from advisor.rules.fixes.optimizers import update_together
from advisor.rules.fixes.tensor_cores import in_16_bits
from advisor.rules.optimizer_foreach import optimizer_foreach
from advisor.views.patterns.optimizer import OptimizerStep
from advisor.views.trace.program import Program
from advisor.views.trace.stack import Framework
from tests.paths import ROOT, sample

LOOP = [optimizer_foreach.advisor_rule]  # type: ignore[attr-defined]


def said(framework: str | None = None, versions: dict[str, str] | None = None, *loops: str) -> Report:
    """What is said of a sample whose optimizer updates one parameter after the other."""
    timeline = advisor.load(sample("optimizer-foreach/slow"))
    timeline = replace(timeline, source=replace(timeline.source, frameworks=versions or {}, loops=loops))
    return run(timeline, LOOP, framework=framework_named(framework) if framework else None)


def test_the_switch_of_the_framework_takes_the_place_of_the_first_step_and_the_code() -> None:
    plain, lightning = said(), said("lightning")
    assert plain.framework is None and plain.findings[0].fix.stack is None
    assert lightning.framework and lightning.framework.name == "Lightning" and lightning.framework.sure == 1.0
    was, now = plain.findings[0], lightning.findings[0]
    assert now.fix.stack and now.fix.stack.framework == "Lightning" and "configure_optimizers" in now.fix.steps[0]
    assert now.fix.code and "configure_optimizers" in now.fix.code.after
    there = "tensors; the Trainer moves them to the GPU before it calls configure_optimizers"
    assert now.fix.steps[1:] == tuple(step.replace("tensors on the GPU", there) for step in was.fix.steps[1:])
    assert (now.saving, now.severity, now.summary, now.evidence) == (was.saving, was.severity, was.summary, was.evidence)


def test_what_was_recorded_tells_the_framework_and_its_version() -> None:
    fix = said(None, {"transformers": "4.57.1"}, "transformers.Trainer").findings[0].fix
    assert fix.stack and (fix.stack.framework, fix.stack.version, fix.stack.option) == ("Transformers", "4.57.1", 'optim="adamw_torch_fused"')


def test_a_framework_without_a_switch_for_it_leaves_the_fix_as_it_is() -> None:
    report = said("ultralytics")
    assert report.framework and report.framework.name == "Ultralytics"
    assert report.findings[0].fix == said().findings[0].fix


def test_a_fix_that_has_the_switch_with_its_own_figures_keeps_them() -> None:
    sglang = packs()["sglang"]
    fix = Fix(title="Capture", steps=("Capture 96.",), code=Code("serve", "serve --cuda-graph-max-bs-decode 96"))
    newest = sglang.option_for(Asked("graph-coverage", code=fix.code.after if fix.code else "", version="0.5.23"))
    assert newest and switched(fix, sglang, "0.5.23", newest) == msgspec.structs.replace(
        fix, steps=("Capture 96. Since SGLang 0.5.14.",), stack=StackOption("SGLang", "0.5.23", "--cuda-graph-max-bs-decode")
    )
    older = sglang.option_for(Asked("graph-coverage", code=fix.code.after if fix.code else "", version="0.5.5"))
    assert older and "--cuda-graph-max-bs 64" in str(switched(fix, sglang, "0.5.5", older).code)


def test_a_default_that_is_a_cause_stands_before_what_mends_the_others() -> None:
    pack = packs()["transformers"]
    named = pack.option_for(Asked("sync-stall", kind="training", loops=("Trainer",), defaults=frozenset({"logging_nan_inf_filter=False"})))
    assert named
    made = switched(Fix(title="Let the host run ahead", steps=("Keep the value on the GPU.",)), pack, "5.24.0", named)
    assert "logging_nan_inf_filter" in made.steps[0] and made.steps[-1] == "Keep the value on the GPU."


def test_a_server_is_told_its_flag_once_and_since_when() -> None:
    fix = of_server(Program(False, False, server="SGLang"))
    assert fix and fix.stack and "Since SGLang 0.5.14." in fix.steps[0]
    option = packs()["sglang"].option_for(Asked("launch-gap", kind="server"))
    assert option and switched(fix, packs()["sglang"], "0.5.23", option).steps[0].count("Since") == 1


def test_a_framework_that_was_only_imported_says_nothing() -> None:
    assert said(None, {"lightning": "2.6.6"}).framework is None


PLAIN = [
    *(("precision", in_16_bits("bf16", training=True, tf32=True, tf32_first=first)) for first in (False, True)),
    *(("optimizer-foreach", update_together(OptimizerStep("AdamW", kind, np.zeros(0, int), (np.zeros(0), np.zeros(0)), 1))) for kind in ("loop", "foreach")),
]
"""Plain fixes with each part of a step for which a framework may have its own words."""


@pytest.mark.parametrize(("pack", "phrase"), [(pack, phrase) for pack in packs().values() for phrase in pack.phrases], ids=lambda one: getattr(one, "rule", ""))
def test_own_words_of_a_framework_stand_for_a_part_of_a_plain_step(pack: Pack, phrase: Phrase) -> None:
    assert any(phrase.plain in step for rule, fix in PLAIN if rule == phrase.rule for step in fix.steps)
    assert not phrase.loop or phrase.loop in pack.loops
    held = pinned()[pack.package]
    for version in (version for version in held.versions if phrase.suits(Asked(phrase.rule, kind=phrase.when, loops=pack.loops, version=version))):
        assert all(held.has_name(name, version) for name in phrase.names), version


def worded(rule: str, fix: Fix, framework: Framework, kind: str = "training") -> Fix:
    """The fix of a finding as that framework words it."""
    finding = msgspec.structs.replace(said().findings[0], rule=rule, fix=fix)
    return in_words_of(msgspec.structs.replace(said(), findings=(finding,)), [framework], kind).findings[0].fix


@pytest.mark.parametrize(
    ("package", "loop", "first", "half"),
    [
        ("transformers", "Trainer", "Pass tf32=True to TrainingArguments", "pass bf16=True too"),
        ("accelerate", "Accelerator", "at the start of the program", 'pass mixed_precision="bf16" to the Accelerator'),
        ("lightning", "Trainer", "at the start of the program", 'pass precision="bf16-mixed" to the Trainer'),
        ("deepspeed", "DeepSpeedEngine", "at the start of the program", '"bf16": {"enabled": true}'),
    ],
)
def test_both_variants_of_fewer_bits_are_said_in_the_framework_s_words(package: str, loop: str, first: str, half: str) -> None:
    tf32, bf16 = (worded("precision", fix, Framework(package, "", loops=(loop,))) for _, fix in PLAIN[1::-1])
    assert first in tf32.steps[0] and half in tf32.steps[1] and "TF32 comes first, since" in tf32.steps[1]
    assert not any("torch.autocast" in step for step in (*tf32.steps, *bf16.steps))
    assert tf32.code and "loss" not in tf32.code.after and "Compare" in tf32.steps[-1]
    explained_first = explained(packs()[package], "precision").partition(" (")[0]
    assert bf16.stack and bf16.stack.option == explained_first
    if tf32.stack:
        assert f"{tf32.stack.option} (" in explained(packs()[package], "precision")


def test_parameters_that_the_framework_moves_later_need_not_be_on_the_gpu() -> None:
    for package, loop in (("accelerate", "Accelerator"), ("lightning", "Trainer"), ("transformers", "Trainer")):
        steps = worded("optimizer-foreach", PLAIN[-1][1], Framework(package, "", loops=(loop,))).steps
        assert not any("tensors on the GPU" in step for step in steps), package
    assert "tensors on the GPU" in PLAIN[-1][1].steps[1]


@pytest.mark.parametrize("text", ["pytorch lightening", "hf=new"])
def test_a_framework_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        framework_named(text)


def test_the_page_of_frameworks_is_that_of_the_packs() -> None:
    from advisor.knowledge.stacks.page import as_markdown

    path = ROOT / "docs" / "frameworks.md"
    assert path.read_text(encoding="utf-8") == as_markdown(), "python -m advisor.knowledge.stacks --page > docs/frameworks.md"


def test_a_report_says_in_whose_words_it_speaks() -> None:
    report = said("lightning=2.5.5")
    for form in ("text", "markdown", "html"):
        assert "Lightning 2.5.5" in formats()[form].render(report), form


@pytest.mark.parametrize(
    ("version", "flag"), [("", "--cuda-graph-max-bs-decode"), ("0.5.14", "--cuda-graph-max-bs-decode"), ("0.5.5", "--cuda-graph-max-bs 64")]
)
def test_a_server_s_flag_is_spelled_as_its_version_spells_it(version: str, flag: str) -> None:
    fix = of_server(Program(False, False, server="SGLang"))
    plain = said().findings[0]
    assert fix
    report = msgspec.structs.replace(said(), findings=(msgspec.structs.replace(plain, rule="launch-gap", fix=fix),))
    made = in_words_of(report, [Framework("sglang", version, loops=("Scheduler",))], "server").findings[0].fix
    assert made.code and flag in made.code.after and made.stack and made.stack.version == version
