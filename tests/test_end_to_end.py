"""Real traces, end to end: our samples, the shared corpus and everybody else's traces."""

import gzip
import json
import os
import subprocess
import sys

import pytest

from advisor import load
from advisor.errors import TraceError
from advisor.report.finding import SEVERITIES
from tests.analysed import analysed
from tests.paths import MANY_SAMPLES, ROOT, SHARED, TRACES, needs_shared, slow

SAMPLES = json.loads((ROOT / "samples" / "manifest.json").read_text())["cases"]
CORPUS = json.loads((SHARED / "corpus" / "manifest.json").read_text())["cases"] if SHARED.is_dir() else {}
RULES = {"allocator", "unfused-attention", "launch-gap", "sync-stall", "memcpy", "unfused-elementwise", "low-arithmetic-intensity"}
LOUD = ("high", "medium")


def loud(report):
    return [f.rule for f in report.findings if f.severity in LOUD]


def cases(manifest, side):
    for name, case in manifest.items():
        rule = case.get("trap") or case["rule"]
        quiet = side == "slow" or case.get("fixed_quiet", True)  # some programs truly still have the bottleneck when fixed
        if quiet and side in case.get("kineto", {}) and (rule is None or rule in RULES):
            yield pytest.param(case, id=f"{name}.{side}")


def check_slow(root, case):
    report = analysed(root / case["kineto"]["slow"])
    if "trap" in case:
        assert case["trap"] not in loud(report)
        return
    floor = ("info", "low", "medium", "high").index(case.get("severity", "medium"))
    named = {f.rule for f in report.findings if ("info", "low", "medium", "high").index(f.severity) >= floor}
    assert case["rule"] in named
    assert loud(report)[0] in case.get("top", [case["rule"]])


def check_fixed(root, case):
    report = analysed(root / case["kineto"]["fixed"])
    assert case["rule"] not in loud(report) if case["rule"] else not loud(report)


@pytest.mark.parametrize("case", [*cases(CORPUS, "slow")])
@needs_shared
def test_corpus_is_found(case):
    check_slow(SHARED / "corpus", case)


@pytest.mark.parametrize("case", [*cases(CORPUS, "fixed")])
@needs_shared
def test_fixed_corpus_is_quiet(case):
    check_fixed(SHARED / "corpus", case)


@pytest.mark.parametrize("case", [param for side in ("slow", "fixed") for param in cases(SAMPLES, side) if param.values[0]["step"]])
@slow
def test_step_time_of_gpu_bound_samples_is_the_unprofiled_one(case, request):
    side = request.node.callspec.id.rsplit(".", 1)[1]
    report = analysed(ROOT / "samples" / case["kineto"][side])
    assert report.window.step_us / 1000 == pytest.approx(case[f"{side}_ms"], rel=0.25)


def public():
    found = sorted((SHARED / "public" / "kineto").rglob("*.gz")) if SHARED.is_dir() else []
    return [pytest.param(p, id=p.name.removesuffix(".json.gz")[:60]) for p in found]


def union_us(spans, start, end):
    """Covered length of [start, end), by walking sorted spans."""
    covered, reach = 0.0, start
    for s, e in sorted(spans):
        s, e = max(s, reach), min(e, end)
        if e > s:
            covered += e - s
            reach = e
    return covered


@needs_shared
@pytest.mark.parametrize("path", public())
def test_public_trace_is_analysed_or_refused_with_a_reason(path):
    try:
        report = analysed(path)
    except TraceError as error:
        assert error.message and error.hint
        return
    assert not report.failed
    raw = json.loads(gzip.decompress(path.read_bytes()), strict=False) if report.source.events < 60_000 else None
    ops = load(path).gpu_ops
    for time in report.time:
        mine = ops[ops["device"] == time.device]
        spans = list(zip(mine["start_us"], mine["start_us"] + mine["dur_us"], strict=True))
        busy = union_us(spans, report.window.start_us, report.window.end_us)
        assert time.window_us - time.idle_us == pytest.approx(busy, rel=1e-6, abs=1e-3)
        parts = time.compute_us + time.exposed_comm_us + time.exposed_copy_us + time.exposed_memset_us + time.idle_us
        assert parts == pytest.approx(time.window_us, rel=1e-6)
    if raw is not None:
        events = raw["traceEvents"] if isinstance(raw, dict) else raw
        kinds = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
        engines = [e for e in events if e.get("cat") in kinds or (e.get("cat") == "mtia_ccp_events" and e["name"] not in ("event_wait", "event_record"))]
        assert len(ops) == sum(e.get("ph") == "X" for e in engines)


@needs_shared
def test_a_copy_bound_run_is_not_called_idle():
    report = analysed(SHARED / "corpus" / "kineto" / "pageable_h2d.slow.json.gz")
    assert report.headline.bottleneck == "copy-bound"


@needs_shared
def test_removing_item_from_a_launch_bound_loop_gains_nothing():
    report = analysed(SHARED / "corpus" / "kineto" / "item_every_microstep.slow.json.gz")
    item = next(f for f in report.findings if f.rule == "sync-stall")
    assert item.saving.expected_us < 0.05 * report.window.step_us and "limits the step" in item.summary
    assert report.findings[0].rule == "launch-gap"


@needs_shared
def test_backlog_before_the_first_step_is_not_idle():
    for name in ("healthy_gpt_compiled.fixed", "fp32_matmul.slow"):
        report = analysed(SHARED / "corpus" / "kineto" / f"{name}.json.gz")
        assert report.time[0].idle_us < 0.03 * report.time[0].window_us


def test_findings_are_ordered_and_the_headline_is_no_sum():
    report = analysed(TRACES / "dla_cifar.slow.trace.zst")
    ranked = [(SEVERITIES.index(f.severity), -f.saving.expected_us) for f in report.findings]
    assert ranked == sorted(ranked) and len(ranked) > 1
    gained = report.headline.step_us - report.headline.predicted_step_us.expected
    told = [f.saving.expected_us for f in report.findings if f.severity != "info"]  # a graph is another way to what launch-gap gains
    assert max(told) <= gained < report.headline.step_us  # one replay: fixes may help or hinder each other


def test_the_same_trace_gives_the_same_report_in_every_process():
    """Sets of strings come in another order in each process."""
    paths = [ROOT / "samples" / rule / "slow.json.gz" for rule in (("memory-layout", "small-grid", "sync-stall") if MANY_SAMPLES else ("small-grid",))]
    code = "import sys, advisor; [sys.stdout.buffer.write(advisor.analyze(p).to_json()) for p in sys.argv[1:]]"
    said = {
        subprocess.run([sys.executable, "-c", code, *paths], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
