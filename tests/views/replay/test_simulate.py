"""Running a schedule in stretches, call by call and in C is the same, whatever waits, streams and dependencies it has."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.recordings.extension import EXTENSION
from advisor.views.replay import longest_path, simulate
from advisor.views.replay.schedule import EARLIER, Schedule
from advisor.views.replay.simulate import last_end_us, period_us, without_noise
from tests.paths import examples

TIMES = st.floats(0, 100)
installed = pytest.mark.skipif(EXTENSION is None, reason="trace_advisor_native is not installed")


@st.composite
def schedules(draw):
    """Calls with 0 to 3 ops each on 1 to 3 streams; waits for earlier ops, dependencies on earlier ops, ops taken out."""
    n_calls = draw(st.integers(1, 30))
    counts = draw(st.lists(st.integers(0, 3), min_size=n_calls, max_size=n_calls))
    op_call = np.repeat(np.arange(n_calls), counts)
    n_ops = len(op_call)

    def times(n):
        return np.array(draw(st.lists(TIMES, min_size=n, max_size=n)), float)

    first = np.searchsorted(op_call, np.arange(n_calls), side="right")
    waits = np.array([draw(st.sampled_from([-1, -1, -1, EARLIER, *range(max(0, k - 3), k)])) for k in first.tolist()], np.int64)
    after = np.array([draw(st.sampled_from([-1, -1, -1, *range(max(0, k - 3), k)])) for k in range(n_ops)], np.int64)
    zero = np.zeros(n_calls)
    return Schedule(
        call_row=np.arange(n_calls), host_us=times(n_calls), dispatch_us=zero, call_us=times(n_calls), waits_for=waits, tail_us=times(n_calls),
        op_row=np.arange(n_ops), op_call=op_call, stream=np.array(draw(st.lists(st.integers(0, 2), min_size=n_ops, max_size=n_ops)), np.int64),
        dur_us=times(n_ops), latency_us=times(n_ops), gap_us=times(n_ops), after=after,
        skip_op=np.array(draw(st.lists(st.sampled_from([False, False, True]), min_size=n_ops, max_size=n_ops)), bool),
        fused=np.zeros(n_ops, bool), begins=np.zeros(1, np.int64), steps=1, periodic=True,
    )  # fmt: skip


@settings(max_examples=examples(300), deadline=None)
@given(schedules(), st.integers(1, 4), st.dictionaries(st.integers(0, 2), TIMES, max_size=2))
def test_stretches_and_single_calls_end_at_the_same_times(schedule, repeats, busy):
    told = []
    for shortest in (1, 10**9):
        before, simulate.SHORTEST = simulate.SHORTEST, shortest
        try:
            finished, last = simulate.run_in_python(schedule, repeats, 5.0, busy)
        finally:
            simulate.SHORTEST = before
        told.append((finished[-1] - finished[0], finished[0], last))
    assert told[0] == pytest.approx(told[1], abs=1e-6)


@installed
@settings(max_examples=examples(300), deadline=None)
@given(schedules(), st.integers(1, 4), st.dictionaries(st.integers(0, 2), TIMES, max_size=2))
def test_c_and_python_end_at_the_same_times_call_by_call_to_the_bit(schedule, repeats, busy):
    before, simulate.SHORTEST = simulate.SHORTEST, 10**9
    try:
        in_python = simulate.run_in_python(schedule, repeats, 5.0, busy)
    finally:
        simulate.SHORTEST = before
    assert simulate.run(schedule, repeats, 5.0, busy) == in_python


@installed
@settings(max_examples=examples(300), deadline=None)
@given(schedules(), st.integers(1, 4))
def test_c_and_python_walk_the_same_longest_path(schedule, repeats):
    done_us, met = longest_path.walked(schedule, repeats)
    in_python_us, in_python = longest_path.walked_in_python(schedule, repeats, max(repeats - 2, 0))
    assert (done_us, met.tolist()) == (in_python_us, in_python.tolist())


FLOATS, INDICES = [bytes(16)] * 3 + [bytes(24)] * 3 + [bytes(8)], [[-1, -1], [0, 1, 3], [0, 0, 0], [-1, -1, -1]]


def columns(floats=FLOATS, indices=INDICES, skip=bytes(3), repeats=1):
    """Two calls that launch an op and two on one stream, all of no time, as the extension takes them."""
    return *floats, *(np.array(column, np.int64).tobytes() for column in indices), skip, repeats, 5.0, 1e-9


def changed(at, column):
    return {"indices": [*INDICES[:at], column, *INDICES[at + 1 :]]}


@installed
@pytest.mark.parametrize(
    "wrong",
    [
        *({"floats": [*FLOATS[:at], bytes(len(FLOATS[at]) + 8), *FLOATS[at + 1 :]]} for at in range(6)), {"floats": [*FLOATS[:6], b""]},
        *(changed(at, [*INDICES[at], 0]) for at in range(4)), {"skip": bytes(4)}, {"repeats": 0}, {"repeats": 10**6},
        changed(0, [-3, -1]), changed(0, [3, -1]), changed(1, [0, 4, 3]), changed(1, [-1, 1, 3]), changed(1, [2, 1, 3]),
        changed(2, [0, 0, 1]), changed(2, [0, -1, 0]), changed(3, [-1, -1, 3]), changed(3, [-2, -1, -1]),
    ],
)  # fmt: skip
def test_columns_that_are_no_schedule_are_refused(wrong):
    assert EXTENSION.replay(*columns()) == ([5.0], 5.0)
    with pytest.raises(ValueError, match=r"not a schedule|different lengths"):
        EXTENSION.replay(*columns(**wrong))
    with pytest.raises(ValueError, match=r"not a schedule|different lengths"):
        EXTENSION.longest(*columns(**wrong)[:-2], 0, 1.0)


@installed
@pytest.mark.parametrize("until", [-1, 2, float("nan")])
def test_a_path_to_no_repeat_is_refused(until):
    done_us, met = EXTENSION.longest(*columns()[:-2], 1, 1.0)
    assert (done_us, np.frombuffer(met, np.int64).tolist()) == ([0.0, 0.0], [-3, -1])
    with pytest.raises(ValueError, match="not a repeat"):
        EXTENSION.longest(*columns()[:-2], until, 1.0)


def loop(n, **changes):
    """n calls of 2 µs, 3 µs apart, each of which launches an op of 10 µs."""
    every = np.arange(n)
    columns = {
        "call_row": every, "host_us": np.full(n, 3.0), "dispatch_us": np.zeros(n), "call_us": np.full(n, 2.0), "waits_for": np.full(n, -1),
        "tail_us": np.zeros(n), "op_row": every, "op_call": every, "stream": np.zeros(n, np.int64), "dur_us": np.full(n, 10.0),
        "latency_us": np.full(n, 4.0), "gap_us": np.full(n, 1.0), "after": np.full(n, -1), "skip_op": np.zeros(n, bool), "fused": np.zeros(n, bool),
        "begins": np.zeros(1, np.int64),
    }  # fmt: skip
    return Schedule(**{**columns, **changes}, steps=1, periodic=True)


def test_a_gpu_that_is_behind_sets_the_period():
    assert period_us(loop(100)) == pytest.approx(100 * 11), "ops of 10 µs, 1 µs apart"


def test_a_host_that_is_behind_sets_the_period():
    assert period_us(loop(100, dur_us=np.full(100, 1.0))) == pytest.approx(100 * 5)


def test_a_wait_at_the_end_of_each_repeat_adds_its_tail():
    waits = np.full(100, -1)
    waits[-1] = 99
    tail = np.zeros(100)
    tail[-1] = 6
    # From the wait's end: 3 µs of host, 4 of latency, a hundred ops with 99 gaps, and the way back.
    assert period_us(loop(100, waits_for=waits, tail_us=tail)) == pytest.approx(3 + 4 + 1000 + 99 + 6)


def test_the_last_end_counts_no_op_that_is_gone():
    gone = np.zeros(100, bool)
    gone[50:] = True
    assert last_end_us(loop(100, skip_op=gone), 0.0, {}) == pytest.approx(3 + 4 + 500 + 49)
    assert last_end_us(loop(100, skip_op=np.ones(100, bool)), 7.0, {}) == 7.0


def test_an_op_that_another_stream_holds_up_begins_its_gap_after_that():
    long = np.array([30.0, 10.0])
    # 3 µs of host, 4 of latency and 30 of work on the one stream; then 1 of gap and 10 of work on the other.
    assert last_end_us(loop(2, stream=np.array([0, 1]), after=np.array([-1, 0]), dur_us=long), 0.0, {}) == pytest.approx(3 + 4 + 30 + 1 + 10)


@installed
def test_c_takes_as_many_repeats_as_is_said_and_python_any_number():
    (most,) = re.findall(r"repeats: 1 to (\d+) with the extension", simulate.run.__doc__)
    one = loop(1)
    for repeats in (0, int(most) + 1):
        with pytest.raises(ValueError):
            simulate.run(one, repeats, 0.0, {})
    assert simulate.run(one, int(most), 0.0, {}) == simulate.run_in_python(one, int(most), 0.0, {})
    assert simulate.run_in_python(one, int(most) + 1, 0.0, {})


def test_a_tie_is_one_whatever_noise_is_on_it():
    tie = 1567.23565
    assert without_noise(tie - 1e-10) == without_noise(tie + 1e-10)
    assert without_noise(tie + 1e-5) - without_noise(tie - 1e-5) > 0
