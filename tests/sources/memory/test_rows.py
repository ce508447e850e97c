"""Rows read as columns are the rows that the pickle holds."""

import pickle
import random

import numpy as np
import pytest

from advisor.errors import TraceError
from advisor.sources.memory import rows
from advisor.sources.memory.pickles import Fold, loads

KEYS = ("action", "addr", "size", "frames", "context")


def as_read(events, made=None):
    """The events as `loads` gives them back by its columns, and how many came that way."""
    fold = Fold("action", lambda dicts: None, lambda count, columns: (count, columns))
    value = loads(pickle.dumps({"traces": [events]}, 4) if made is None else made, "a pickle", fold)["traces"][0]
    out, together = [], 0
    for part in value:
        if isinstance(part, dict):
            out.append(part)
            continue
        count, columns = part
        together += count
        listed = {k: c if c is None else c.tolist() if isinstance(c, np.ndarray) else [c.values[i] for i in c.of] for k, c in columns.items()}
        out += [{k: "N/A" if column is None else column[i] for k, column in listed.items()} for i in range(count)]
    return out, together


def events_of(seed, count):
    """Events as torch writes them: numbers of all sizes, stacks that come again, a text made anew each time."""
    draw = random.Random(seed)
    stacks = [[{"name": f"f{i}", "filename": "a.py", "line": i}] for i in range(400)]
    seen = draw.sample(stacks, 300)
    for i in range(count):
        size = draw.choice([0, 1, 255, 256, 65535, 65536, -1, 2**31, -(2**31), 2**40, 2**63 - 1, -(2**63)])
        yield {
            "action": draw.choice(["alloc", "free"]),
            "addr": draw.getrandbits(47),
            "size": size,
            "frames": draw.choice(seen),
            "context": "".join(["N", "/A"]),
        }
        if i % 97 == 96:
            yield {"action": "oom", "device_free": i, "size": 1}  # of other fields


@pytest.mark.parametrize("seed", range(6))
def test_what_is_read_together_is_what_the_pickle_holds(seed):
    events = list(events_of(seed, 2500))
    made, together = as_read(events)
    assert made == events and together > 1000


def test_rows_at_the_very_end_of_the_bytes_are_read():
    events = [{"action": "alloc", "addr": i} for i in range(100)]
    data = pickle.dumps({"traces": [events]}, 4)
    assert as_read(events, data) == (events, 99)


def test_few_rows_and_rows_of_other_spellings_are_left_to_the_machine():
    few = [{"action": "alloc", "addr": i} for i in range(rows.FEWEST)]
    assert as_read(few) == (few, 0)  # the first spells its keys out
    large = [{"action": "alloc", "addr": 2**70} for _ in range(100)]
    assert as_read(large) == (large, 0)


def test_rows_that_are_declined_are_read_singly_and_asked_for_once():
    asked = []
    events = [{"action": "alloc", "addr": i} for i in range(500)]
    fold = Fold("action", lambda dicts: None, lambda count, columns: asked.append(count))
    assert loads(pickle.dumps([events], 4), "a pickle", fold) == [events] and len(asked) == 1


def test_a_row_that_would_run_code_is_refused_among_others_that_do_not():
    class Gadget:
        def __reduce__(self):
            return print, ("run",)

    events = [{"action": "alloc", "addr": i} for i in range(200)] + [{"action": Gadget(), "addr": 1}]
    with pytest.raises(TraceError, match=r"builtins\.print"):
        as_read(events)


def test_a_row_that_names_what_is_not_in_the_memo_is_damage():
    data = pickle.dumps({"traces": [[{"action": "alloc", "addr": i} for i in range(200)]]}, 4)
    assert data.count(b"h\x07K") == 199  # the key `addr`
    with pytest.raises(TraceError, match="damaged"):
        as_read([], data.replace(b"h\x07K", b"h\xeeK"))
