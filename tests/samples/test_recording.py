"""Public models recorded in several ways, held against the same steps timed without a profiler."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from advisor.report.model import Report
from advisor.report.numbers import duration
from tests.analysed import analysed
from tests.paths import slow

pytestmark = slow
"""Of every public model recorded: how near the true step is told is a measurement, and goldens hold what is told."""

HERE = Path(__file__).parents[2] / "samples" / "recording"
PROGRAMS = json.loads((HERE / "recordings.json").read_text())["programs"]
CASES = [(name, way) for name, program in PROGRAMS.items() for way in program["traces"]]
GPU_BOUND = 0.85
"""A step of which the GPU works for this share without a profiler is the GPU's."""


def report(name: str, way: str) -> Report:
    return analysed(HERE / f"{name}.{way}.trace.zst")


def gpu_bound(name: str) -> bool:
    return PROGRAMS[name]["gpu_busy_us"] > GPU_BOUND * PROGRAMS[name]["step_us"]


def true_steps():
    return [(name, PROGRAMS[name]["step_us"], report(name, way).window.true_step_us) for name, way in CASES]


def test_the_true_step_is_near_the_measured_one_and_the_interval_holds_it():
    off = sorted(abs(np.log(step.expected / us)) for _, us, step in true_steps())
    assert np.expm1(off[len(off) // 2]) <= 0.08
    assert np.expm1(off[int(0.9 * len(off))]) <= 0.60
    inside = [0.95 * step.low <= us <= 1.05 * step.high for _, us, step in true_steps()]
    assert np.mean(inside) >= 0.85


@pytest.mark.parametrize(("bound", "most"), [(True, 0.15), (False, 0.8)])
def test_intervals_are_narrow_enough_to_say_something(bound, most):
    widths = [(step.high - step.low) / step.expected for name, _, step in true_steps() if gpu_bound(name) is bound]
    assert np.median(widths) <= most


@pytest.mark.parametrize("name", [n for n in PROGRAMS if gpu_bound(n)])
def test_a_program_that_fills_the_gpu_is_not_called_the_hosts_however_it_was_recorded(name):
    for way in PROGRAMS[name]["traces"]:
        head = report(name, way).headline
        assert head.bottleneck not in ("launch-bound", "host-bound", "sync-bound", "profiler-bound"), (way, head.summary)
        host = [f for f in report(name, way).findings if f.rule in ("launch-gap", "host-bound", "sync-stall", "graph-candidate")]
        assert not [f for f in host if f.severity in ("high", "medium")]
        assert all(f.decide_with for f in host if f.status == "possible")


A_TIME = r"([\d.]+) (µs|ms)"
OF_A_STEP = re.compile(rf"(?:(?:µs|ms) of(?: each)?|step of) {A_TIME}|{A_TIME} step\b")


def texts(made: Report):
    for finding in made.findings:
        yield from (finding.title, finding.summary, finding.fix.title, *finding.fix.steps)
        yield from (one.label for one in finding.evidence)
    yield from (clear.why for clear in made.clear)


@pytest.mark.parametrize(("name", "way"), CASES)
def test_every_text_speaks_of_the_true_step_or_says_recorded(name, way):
    made = report(name, way)
    step, most = duration(made.window.true_step_us.expected), made.window.true_step_us.high
    for text in texts(made):
        if "recorded" in text:
            continue
        assert {"".join(found[:2]) or "".join(found[2:]) for found in OF_A_STEP.findall(text)} <= {step.replace(" ", "")}, text
        assert all(float(n) * (1e3 if unit == "ms" else 1) <= 1.01 * most for n, unit in re.findall(A_TIME, text)), text


@pytest.mark.parametrize("name", PROGRAMS)
def test_light_and_deep_recordings_of_a_program_find_the_same(name):
    def loud(way):
        made = report(name, way)
        worth = 0.1 * made.window.true_step_us.expected  # below it a finding is medium or low as its low end falls
        found = {f.rule for f in made.findings if f.severity in ("high", "medium") and f.saving.expected_us >= worth}
        # Another way to the same gain, which a recording tells only where it shows that steps can be captured as they are.
        return found - {"graph-candidate"} if "launch-gap" in found else found

    assert len({frozenset(loud(way)) for way in PROGRAMS[name]["traces"]}) == 1


@pytest.mark.parametrize("name", [n for n in PROGRAMS if "whole" in PROGRAMS[n]["traces"]])
def test_a_cold_block_around_a_loop_is_read_from_the_steps_after_its_first(name):
    window = report(name, "whole").window
    # Four iterations: between their four ends lie three steps, of which the first may be left out as start-up.
    assert window.basis == "detected" and window.steps in (2, 3)
    assert "before:" in window.detail, "the first iteration is told apart"


@pytest.mark.parametrize("name", [n for n in PROGRAMS if "once" in PROGRAMS[n]["traces"]])
def test_a_call_recorded_once_is_all_that_is_known_of_a_step(name):
    made = report(name, "once")
    assert made.window.basis == "whole" and made.source.recorded.steps == 0
    assert all(f.confidence <= 0.8 for f in made.findings), "nothing repeats: what was seen may be start-up"
