"""Pauses: the program's own, or what comes over it now and then; by hand."""

import numpy as np

from advisor.recordings.columns import Categorical, Table
from advisor.views.replay.pauses import Pauses


def pauses(*starts: float, names: str = "", steps: int = 3) -> Pauses:
    """Of events of 10 µs that begin then, each called by a letter, `a` unless said otherwise."""
    name = Categorical.of_texts(list(names or "a" * len(starts)))
    return Pauses.create([Table({"name": name, "start_us": np.array(starts, float), "dur_us": np.full(len(starts), 10.0)})], steps)


def test_one_long_pause_at_a_place_that_is_passed_often_is_odd():
    made = pauses(0, 20, 40, 60, 80, 200, 220)
    assert made.odd == (np.array([140.0]), np.array([200.0])), "from 50 µs after the fifth event's end"
    assert not len(made.own[0])


def test_a_pause_in_each_step_is_the_programs():
    made = pauses(*(200.0 * s + 15 * k for s in range(3) for k in range(8)), steps=2)
    assert not len(made.odd[0]) and len(made.own[0]) == 2


def test_a_place_that_is_passed_seldom_tells_nothing():
    made = pauses(0, 20, 40, 60, 80, 200, 220, names="aaaaabb")
    assert not len(made.odd[0]) and made.own[0].tolist() == [140.0]


def test_short_pauses_are_none():
    made = pauses(0, 60, 120)
    assert not len(made.own[0]) and made.edges_us.tolist() == [0, 10, 60, 70, 120, 130]


def test_a_pause_while_the_host_waits_for_a_batch_is_the_programs_however_seldom():
    starts = (0, 20, 40, 60, 80, 200, 220)
    events = Table({"name": Categorical.of_texts(list("a" * len(starts))), "start_us": np.array(starts, float), "dur_us": np.full(len(starts), 10.0)})
    waiting = Pauses.create([events], 3, (np.array([85.0]), np.array([205.0])))
    assert not len(waiting.odd[0]) and waiting.own[0].tolist() == [140.0]
    elsewhere = Pauses.create([events], 3, (np.array([300.0]), np.array([400.0])))
    assert elsewhere.odd[0].tolist() == [140.0]


def test_a_pause_that_no_recorder_makes_is_the_programs_however_seldom():
    # 9.9 ms at a place that is passed six times may be the recorder's, 10.1 ms not.
    for length, odd in ((9_900.0, True), (10_100.0, False)):
        made = pauses(0, 20, 40, 60, 80, 90 + length, 110 + length)
        assert (len(made.odd[0]), len(made.own[0])) == (odd, not odd)


def test_long_pauses_that_come_more_often_than_steps_are_the_programs_wherever_they_are():
    # Three steps of 24 events with different names, each name a place that is passed nine times: a pause of 1 ms behind another one each time.
    def at(places: tuple[int, ...], length: float) -> Pauses:
        starts, time = [], 0.0
        for k in range(9 * 8):
            starts.append(time)
            time += 20 + (length if k in places else 0.0)
        return pauses(*starts, names="abcdefgh" * 9)

    few, many = at((10, 35, 60), 1000.0), at((10, 29, 35, 60), 1000.0)
    assert (len(few.odd[0]), len(few.own[0])) == (3, 0), "one in each step"
    assert (len(many.odd[0]), len(many.own[0])) == (0, 4), "four in three steps"
    short = at((10, 29, 35, 60), 300.0)
    assert (len(short.odd[0]), len(short.own[0])) == (4, 0), "the recorder takes memory as often"
