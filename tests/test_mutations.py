"""Damaged and strange traces: whatever is cut, shifted, doubled or mistyped, the report's laws hold and nothing crashes."""

import gzip
import json
import random

import pytest

from advisor import analyze
from advisor.errors import AdvisorError
from advisor.reports import formats
from tests.paths import samples, slowly

TRACES = sorted(p for p in samples("*/*.json.gz") if p.stat().st_size < 60_000)
STRANGE = [None, -1, "x", [], {}, 1e300, True, "-5", 1 << 70]


def drop(events, rng):
    share = rng.random()
    return [e for e in events if rng.random() > share]


def drop_categories(events, rng):
    categories = sorted({e.get("cat") or "" for e in events})
    kept = set(rng.sample(categories, rng.randint(1, len(categories))))
    return [e for e in events if (e.get("cat") or "") in kept]


def drop_arguments(events, rng):
    return [{k: v for k, v in e.items() if k != "args" or rng.random() > 0.3} for e in events]


def shift_times(events, rng):
    return [{**e, "ts": e["ts"] + rng.uniform(-1e5, 1e5)} if "ts" in e and rng.random() < 0.2 else e for e in events]


def double(events, rng):
    return [*events, *rng.sample(events, len(events) // 3)]


def mistype(events, rng):
    def changed(event):
        if not event.get("args") or rng.random() > 0.2:
            return event
        key = rng.choice(sorted(event["args"]))
        return {**event, "args": {**event["args"], key: rng.choice(STRANGE)}}

    return [changed(e) for e in events]


def move_threads(events, rng):
    return [{**e, "pid": rng.choice([1, "a", 0, -1]), "tid": rng.choice(["s", 3, -9])} if rng.random() < 0.3 else e for e in events]


@pytest.mark.parametrize("mutate", [drop, drop_categories, drop_arguments, shift_times, double, mistype, move_threads])
@pytest.mark.parametrize("seed", slowly(range(4), quick=1))
def test_the_laws_hold_on_a_damaged_trace(tmp_path, mutate, seed):
    rng = random.Random(f"{mutate.__name__} {seed}")
    trace = json.loads(gzip.decompress(rng.choice(TRACES).read_bytes()))
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({**trace, "traceEvents": mutate(trace["traceEvents"], rng)}))
    try:
        report = analyze(path)
    except AdvisorError as error:
        assert error.message and error.hint
        return
    assert not report.failed
    for time in report.time:
        classes = time.compute_us + time.exposed_comm_us + time.exposed_copy_us + time.exposed_memset_us + time.idle_us
        assert classes == pytest.approx(time.window_us, rel=1e-6, abs=1e-6)
        causes = [getattr(time.idle, name) for name in time.idle.__struct_fields__]
        assert sum(causes) == pytest.approx(time.idle_us, rel=1e-6, abs=1e-6) and min(causes) >= 0
    for finding in report.findings:
        assert finding.saving.high_us <= report.window.step_us * (1 + 1e-9)
    predicted = report.headline.predicted_step_us
    assert 0 <= predicted.low <= predicted.expected <= predicted.high <= report.headline.step_us * (1 + 1e-9)
    for form in formats().values():
        assert form.render(report)
