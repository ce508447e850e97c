"""The fix fits the program that it is given to: what a trace shows is in its words and its code."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from advisor.engine.run import analyze
from advisor.report.finding import Code, Fix
from advisor.report.model import Report
from advisor.rules.fixes.copying import Copied, copying
from tests.analysed import analysed
from tests.paths import ROOT, TRACES, slow

SAMPLES = ROOT / "samples"


def fix_of(report: Report, rule: str) -> Fix:
    return next(finding.fix for finding in report.findings if finding.rule == rule)


def of(program: str) -> Report:
    """The report of a program of the corpus."""
    return analysed(TRACES / f"{program}.slow.trace.zst")


def code(sample: str, rule: str) -> str:
    """What a fix shows, of a sample or of a program of the corpus."""
    found = fix_of(analysed(SAMPLES / sample) if "/" in sample else of(sample), rule).code
    return found.after if found else ""


@pytest.mark.parametrize(("sample", "masked"), [("dinov2_bf16", False), ("spellings/attention/att_where.slow.trace.zst", True)])
@slow
def test_attention_gets_a_mask_where_there_is_one(sample: str, masked: bool) -> None:
    after = code(sample, "unfused-attention")
    assert ("attn_mask=mask" in after) == masked and "is_causal" not in after


@slow
def test_a_training_step_keeps_its_optimizer() -> None:
    assert "torch.optim.SGD(model.parameters(), lr=lr, fused=True)" in code("dla_cifar", "launch-gap")
    assert "torch.optim" not in code("station_heads", "launch-gap"), "NAdam has no fused form"


def test_convolutions_have_a_switch_of_their_own_and_inference_no_backward_pass() -> None:
    fix = fix_of(analysed(SAMPLES / "precision" / "super_resolution_fp32.slow.trace.zst"), "precision")
    assert any("torch.backends.cudnn.allow_tf32" in step for step in fix.steps)
    assert fix.code and "backward" not in fix.code.after


def test_what_switches_of_pytorch_do_not_reach_is_told_none() -> None:
    report = analysed(SAMPLES / "kernels" / "pairs.ncu-rep.gz")
    own = [f for f in report.findings if f.rule == "precision" and "triton" in f.summary]
    assert own and all("autocast" not in step for f in own for step in f.fix.steps)


@slow
def test_a_program_in_fp16_is_not_told_bf16() -> None:
    fix = fix_of(of("bert_scaler"), "dtype-casts")
    assert fix.code and "bfloat16" not in fix.code.after and "BF16" not in fix.risk


@slow
def test_training_is_told_of_samples_not_of_requests() -> None:
    (finding,) = (f for f in of("species_tree").findings if f.rule == "low-arithmetic-intensity")
    assert finding.severity == "low" and "request" not in finding.fix.title + " ".join(finding.fix.steps)


def test_without_the_devices_rates_nobody_says_that_products_keep_it_busy(tmp_path: Path) -> None:
    trace = json.loads(gzip.decompress((SAMPLES / "low-arithmetic-intensity" / "slow.json.gz").read_bytes()))
    for device in trace["deviceProperties"]:
        device["name"] = "NVIDIA Foo 9000"
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    report = analyze(str(tmp_path / "trace.json"))
    (skipped,) = (s for s in report.skipped if s.rule == "low-arithmetic-intensity")
    assert "rate" in skipped.why


@slow
def test_a_loop_that_a_value_ends_is_told_how_several_passes_become_one() -> None:
    after = code("waste_belt", "launch-gap")
    assert "torch.where(converged(x), x, one_pass(x))" in after and "while not converged(x)" in after
    assert "torch.stack(items)" in code("retrieve_rerank", "launch-gap"), "sizes are asked for, which end no loop"
    sent = fix_of(of("evolution_search"), "launch-gap")
    assert "Move host-to-device copies" in sent.title and sent.code and "register_buffer" in sent.code.after and "loop" not in sent.steps[0]


@slow
def test_gradients_of_an_energy_are_no_training() -> None:
    fix = fix_of(of("poll_strata"), "launch-gap")
    assert fix.code and "torch.func.grad" in fix.code.after and "train" not in fix.title and "optimizer" not in fix.code.after


@slow
def test_sizes_that_differ_from_step_to_step_compile_once() -> None:
    assert "dynamic=True" in code("tavern_talk", "launch-gap")
    assert "dynamic=True" not in code("waste_belt", "launch-gap")
    inference = fix_of(of("tavern_talk"), "launch-gap")
    assert inference.title == "Compile the model" and not any('mode="reduce-overhead"' in step for step in inference.steps)


def test_what_comes_to_the_host_and_goes_back_is_kept() -> None:
    assert "never left the GPU" in code("memcpy/offload_roundtrip.slow.trace.zst", "memcpy")


def test_results_are_fetched_and_no_batch_sent() -> None:
    assert "buffer.copy_(out, non_blocking=True)" in fetched().after and "DataLoader" not in fetched().after
    assert "fetch(batch)" in fetched(0.4).after


def fetched(share: float = 1.0) -> Code:
    fix = copying(Copied(pageable=1.0, fetched=share))
    assert fix.code
    return fix.code
