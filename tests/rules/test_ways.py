"""A fix speaks of the program that was traced: of the server that it is, of CUDA itself, of what it writes out by hand."""

import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.knowledge.host_waits import table
from advisor.report.finding import Fix
from advisor.rules.fixes import for_program, of_server
from advisor.rules.fixes.waits import fix_of_waits
from advisor.rules.fixes.written_out import spelt
from advisor.views.trace.program import Program
from advisor.views.trace.spellings import Spellings
from tests.analysed import analysed
from tests.build import Trace
from tests.paths import ROOT
from tests.rules.test_rules import small_kernels

GENERAL = Fix(title="Compile the model", steps=("Compile it.",))


def test_vllm_and_sglang_are_told_their_own_switches():
    told = {name: of_server(Program(False, False, server=name)) for name in ("vLLM", "SGLang")}
    assert "enforce_eager" in told["vLLM"].steps[0] and "--cuda-graph-max-bs-decode" in told["SGLang"].code.after


@pytest.mark.parametrize("rule", ["memcpy", "memcpy of pinned memory", "sync-stall", "sync-stall of copies", "launch-gap"])
def test_a_program_without_a_framework_is_told_of_no_framework(rule):
    fix = for_program(Program(False, False, "cuda"), rule, GENERAL)
    text = f"{fix.title} {' '.join(fix.steps)} {fix.code}"
    assert "cuda" in text.lower() and not any(word in text for word in ("DataLoader", "torch", "non_blocking"))


@pytest.mark.parametrize(
    ("seen", "wanted", "call"),
    [
        (Spellings(cell="lstm", cells=64), "cell", "nn.LSTM"),
        (Spellings(grows=(17, 40)), "grows", "static"),
        (Spellings(picked=1), "picked", "cross_entropy"),
    ],
)
def test_what_is_written_out_is_told_the_one_call(seen, wanted, call):
    fix = spelt(GENERAL, seen, wanted)
    assert call in f"{fix.title} {' '.join(fix.steps)} {fix.code}" and fix.steps[-1] == GENERAL.steps[0]
    assert spelt(GENERAL, Spellings(), wanted) == GENERAL


def test_what_little_of_the_gain_is_of_leads_no_fix():
    fix = spelt(GENERAL, Spellings(picked=1), "picked", leads=False)
    assert fix.title == GENERAL.title and fix.code == GENERAL.code and "cross_entropy" in fix.steps[-1]


def test_evidence_without_source_lines_says_what_would_record_them():
    trace = Trace(recorder="kineto")
    for s in range(5):
        trace.step(100.0 * s, 99, s + 1)
        small_kernels(trace, 100.0 * s)
    (finding,) = run(trace.timeline(), [built_in()["launch-gap"]]).findings
    assert not any(e.source for e in finding.evidence) and "with_stack=True" in finding.lines_with


def test_code_to_copy_holds_lines_and_no_backslashes_for_them():
    code = next(f.fix.code for f in analysed(ROOT / "samples" / "precision" / "slow.json.gz").findings if f.rule == "precision")
    assert code and "\\n" not in code.before + code.after


def test_where_nothing_is_trained_no_gradient_is_spoken_of():
    other = [row for row in table().wait if not row.call.startswith(("GradScaler", "clip_grad", "detect_anomaly"))]  # those only training calls
    told = [fix.code for row in other if (fix := fix_of_waits([row], ["op"], training=False)).code]
    assert len(told) > 20
    assert not [code for code in told if any(word in f"{code.before}{code.after}" for word in ("grad", "backward", "optimizer"))]
