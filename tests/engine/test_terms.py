"""A report of a program of JAX speaks of JAX, whatever was found."""

import re

import msgspec
import pytest

from advisor.engine.in_words_of import in_words_of
from advisor.engine.rule import catalog
from advisor.engine.run import report_of
from advisor.engine.terms import in_terms, terms, terms_of_device
from advisor.knowledge.accelerators import XPU
from advisor.knowledge.data import load
from advisor.knowledge.stacks import packs
from advisor.report.finding import Skipped
from advisor.report.recording import Health
from advisor.report.wording.period import A_STEP, EVERY_STEP, IN_STEP, PER_STEP, THE_STEP, of_each_step, step_of, worded_for
from advisor.views.trace.stack import Framework
from tests.analysed import analysed
from tests.paths import ROOT, SHARED, needs_shared
from tests.sources.nsys.test_nsys import call, export, kernel

OF_TORCH = re.compile(
    r"torch|DataLoader|cudaProfiler|ProfilerActivity|record_shapes|with_stack|nn\.Module|autocast|aten::|prof\.step|schedule\(|empty_cache|pin_memory|non_blocking",
    re.IGNORECASE,
)


@needs_shared
@pytest.mark.parametrize("path", sorted((SHARED / "corpus" / "jax").glob("*.gz")) + sorted((SHARED / "public" / "jax").glob("*")), ids=lambda p: p.name[:40])
def test_no_report_of_jax_speaks_of_torch(path):
    said = msgspec.json.encode(report_of(path)).decode()
    assert [said[max(0, m.start() - 60) : m.end() + 40] for m in OF_TORCH.finditer(said)] == []


def test_what_is_said_in_jax_s_words_is_whole_and_speaks_of_jax():
    assert set(load("terms")["torch_only"]) <= set(catalog())
    options = [option for pack in packs().values() if pack.of == "jax" for option in pack.options]
    assert options and all(option.title and option.after for option in options)
    assert [option.option for option in options if OF_TORCH.search(str(option))] == []


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("steps", "with jax.profiler.trace('log'): run a few steps"),
        ("ranks", "record every process over the same steps: jax.profiler.trace"),
        ("shapes", ""),
        ("counters", "usual"),
        ("", "usual"),
    ],
)
def test_hints_name_jax_s_profiler_by_what_is_missing(missing, said):
    report = analysed(ROOT / "samples" / "jax" / "starved.slow.xplane.pb.gz")
    check = Health(check="some", status="degraded", detail="d", record_with="usual", missing=missing)
    made = in_terms(msgspec.structs.replace(report, health=(check,)), terms("jax", "jax")).health[0].record_with
    assert made.startswith(said) and bool(made) == bool(said)


@pytest.mark.parametrize(
    ("missing", "cuda", "rocm", "xpu"),
    [
        ("gpu-work", "", "usual", XPU.record),
        ("shapes", "", "usual", "usual"),
        ("steps", "nsys profile", "usual", "usual"),
        ("counters", "usual", "rocprofv3", ""),
        ("", "usual", "usual", "usual"),
    ],
)
def test_a_hint_names_a_tool_that_sees_the_program(missing, cuda, rocm, xpu):
    report = analysed(ROOT / "samples" / "launch-gap" / "slow.json.gz")
    report = msgspec.structs.replace(report, skipped=(Skipped(rule="memcpy", why="w", record_with="usual", missing=missing),))
    made = [in_terms(report, kind).skipped[0].record_with for kind in (terms("cuda"), terms("rocm"), terms_of_device(XPU))]
    assert all(text.startswith(start) and bool(text) == bool(start) for text, start in zip(made, (cuda, rocm, xpu), strict=True))


def test_a_job_of_jax_is_told_so_and_a_cause_has_a_fix_of_its_own(tmp_path):
    for host in ("a", "b"):
        (tmp_path / f"{host}.xplane.pb.gz").write_bytes((ROOT / "samples" / "jax" / "fp32_dots.slow.xplane.pb.gz").read_bytes())
    report = report_of(tmp_path)
    assert report.kind == "job" and not OF_TORCH.search(msgspec.json.encode(report).decode())
    slow = next(f for f in analysed(ROOT / "samples" / "launch-gap" / "slow.json.gz").findings)
    told = in_words_of(
        msgspec.structs.replace(report, findings=(msgspec.structs.replace(slow, rule="straggler", cause="data-loading"),)), [Framework("jax")], ""
    )
    assert "num_workers" in told.findings[0].fix.steps[0]


def test_words_of_a_period_are_chosen_when_a_sentence_is_made():
    def made() -> str:
        return f"62 GPU ops {PER_STEP}; it waits 1.41 ms {of_each_step(4660)}, of {step_of(42_000)}, {IN_STEP}; {A_STEP}, {EVERY_STEP} and {THE_STEP}"

    assert made() == "62 GPU ops per step; it waits 1.41 ms of each 4.66 ms step, of a step of 42.0 ms, in a step; a step, every step and the step"
    with worded_for(steps=False):
        told = "62 GPU ops in all; it waits 1.41 ms of the 4.66 ms traced, of 42.0 ms traced, in all; the recording, the traced time and the traced time"
        assert made() == told
    assert "per step" in made()


def test_a_recording_without_steps_says_nothing_of_a_step():
    report = analysed(ROOT / "samples" / "recording" / "resnet18_infer.once.trace.zst")
    gap = next(finding for finding in report.findings if finding.rule == "launch-gap")
    assert "131 GPU ops in all" in gap.summary and "of the 2.34 ms traced" in gap.summary
    assert not [text for f in report.findings for text in (f.title, f.summary) if "step" in text]


def test_no_report_of_a_program_without_a_framework_speaks_of_torch(tmp_path):
    path = tmp_path / "scale.sqlite"
    export(path, *(row for i in range(40) for row in (call(1000 * i, 1000 * i + 100, i + 1), kernel(1000 * i + 200, 1000 * i + 600, i + 1))))
    report = report_of(path)
    assert OF_TORCH.findall(msgspec.json.encode(report).decode()) == []
    assert "none shows in this program" in next(item.why for item in report.clear if item.rule == "weight-norm")


def test_batches_of_jax_are_prepared_and_what_is_dispatched_op_by_op_is_jitted():
    starved, by_op = (analysed(ROOT / "samples" / "jax" / f"{name}.slow.xplane.pb.gz") for name in ("starved", "op_by_op"))
    batches = next(f for f in starved.findings if f.cause == "batches")
    assert "Prepare" in batches.fix.title and "__getitem__" not in batches.decide_with
    fixes = [f.fix for f in by_op.findings if f.rule == "graph-candidate"]
    assert fixes and all("jax.jit" in fix.title and "XLA_FLAGS" not in fix.code.after for fix in fixes)
