"""Links that lead back to where they began, of every kind that a file records: cut, counted, said, and no analysis that never ends."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.engine.rule import catalog
from advisor.engine.run import run
from advisor.errors import TraceError
from advisor.recordings.links import DEEPEST, forest
from advisor.sources import read
from tests.command import advisor
from tests.fuzz.laws import report_is_sound
from tests.fuzz.shapes import SHAPES, Kineto

LEFT_OUT = "left out"


@given(st.lists(st.integers(-2, 12), min_size=1, max_size=12), st.sampled_from((1, 2, 3, 100)))
def test_every_row_reaches_a_root_and_no_more_is_cut_than_counted(to, deepest):
    found = forest(np.array(to, np.int64), deepest)
    for row in range(len(to)):
        passed = [row]
        while found.to[passed[-1]] >= 0:
            passed.append(int(found.to[passed[-1]]))
        assert len(passed) - 1 <= deepest
    kept = [int(one) for one in found.to]
    recorded = [one if 0 <= one < len(to) else -1 for one in to]
    assert all(one in (-1, other) for one, other in zip(kept, recorded, strict=True))
    assert sum(one != other for one, other in zip(kept, recorded, strict=True)) == found.cut


def test_a_ring_is_cut_at_its_earliest_row_alone():
    assert forest(np.array([0])).to.tolist() == [-1] and forest(np.array([0])).rings == 1
    found = forest(np.array([-1, 3, 1, 2, 1, 0]))
    assert found.to.tolist() == [-1, -1, 1, 2, 1, 0] and (found.rings, found.deep) == (1, 0)


def test_a_tree_stays_as_it_is_and_a_chain_is_cut_where_it_is_too_deep():
    tree = np.array([-1, 0, 0, 1, 1])
    assert forest(tree).to.tolist() == tree.tolist() and not forest(tree).cut
    chain = forest(np.arange(2 * DEEPEST + 3) - 1)
    assert (chain.rings, chain.deep) == (0, 2) and np.flatnonzero(chain.to < 0).tolist() == [0, DEEPEST + 1, 2 * DEEPEST + 2]


def own_parent() -> bytes:
    """Three events; the frame's name is no line of the program, so that its caller is asked for."""
    made = Kineto()
    made.add("python_function", "torch/nn/modules/module.py(3): f", 0, 100, **{"Python id": 1, "Python parent id": 1})
    made.now = 10
    made.launch()
    return made.text()


def ring_under_a_line() -> bytes:
    """The program's frame calls one of two that call each other."""
    made = Kineto()
    for name, own, parent in (("train.py(3): step", 1, 9), ("torch/x.py(1): a", 2, 3), ("torch/x.py(2): b", 3, 2)):
        made.add("python_function", name, own, 100 - 2 * own, **{"Python id": own, "Python parent id": parent})
    made.now = 10
    made.launch()
    return made.text()


RINGS = {
    "a frame that is its own caller": own_parent,
    "two frames that call each other": ring_under_a_line,
    "a long ring of frames": lambda: SHAPES["frames in a ring"](50),
    "one correlation": lambda: SHAPES["one correlation"](6),
    "one sequence number": lambda: SHAPES["one sequence number"](6),
    "waits in a ring": lambda: SHAPES["waits in a ring"](6),
    "one node of a graph": lambda: SHAPES["one graph"](6).replace(b'"graph node id":3', b'"graph node id":2'),
    "JAX: computations that call each other": lambda: SHAPES["JAX: computations that call each other"](6),
    "JAX: bitcasts of each other": lambda: SHAPES["JAX: bitcasts of each other"](6),
    "JAX: frames in a ring": lambda: SHAPES["JAX: frames of libraries"](6),
}
SAID = (
    "a frame that is its own caller",
    "two frames that call each other",
    "a long ring of frames",
    "JAX: computations that call each other",
    "JAX: frames in a ring",
)
"""Those that are followed from row to row; the others join two tables, and lead no further."""


@pytest.mark.parametrize("kind", RINGS)
def test_a_ring_of_any_kind_of_link_leaves_a_sound_report_that_says_so(kind, tmp_path):
    path = tmp_path / "trace"
    path.write_bytes(RINGS[kind]())
    report = run(read(path), catalog().values())
    report_is_sound(report)
    said = [check for check in report.health if check.check == "recorded-links"]
    assert [check.status for check in said] == ["degraded"] * (kind in SAID)
    assert all(LEFT_OUT in check.detail and not check.touches for check in said)


def test_frames_nested_as_deep_as_programs_do_are_all_linked(tmp_path):
    path = tmp_path / "trace"
    path.write_bytes(SHAPES["frames of libraries"](300))
    assert not [check for check in run(read(path), catalog().values()).health if check.check == "recorded-links"]


@pytest.mark.parametrize(
    "line",
    [
        ("analyze", "{}", "-o", "report.html"),
        ("check", "{}"),
        ("diff", "{}", "{}"),
        ("history", "kept", "--add", "{}"),
        ("explain", "launch-gap", "{}"),
        ("redact", "{}", "given.json"),
    ],
    ids=lambda line: line[0],
)
def test_every_command_that_reads_ends_on_a_frame_that_is_its_own_caller(line, tmp_path):
    (tmp_path / "trace.json").write_bytes(own_parent())
    (tmp_path / "pyproject.toml").write_text("[tool.advisor.budgets]\nstep_ms = 1000.0\n")
    (tmp_path / "kept").mkdir()
    done = advisor(*(part.format("trace.json") for part in line), cwd=tmp_path)
    assert done.returncode in (0, 1, 2), done.stderr
    if line[0] == "redact":
        again = advisor("analyze", "given.json", "-f", "json", "-o", "-", cwd=tmp_path)
        assert again.returncode == 0 and "recorded-links" in {check["check"] for check in json.loads(again.stdout)["health"]}


def _holds_itself() -> list:
    made: list = []
    made.append(made)
    return made


def _shared(depth: int) -> tuple:
    """A tuple of two that are one, so deep: as large as its depth, and walked as two to its power."""
    made: tuple = ()
    for _ in range(depth):
        made = (made, made)
    return made


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["segments"].append(s["segments"]),
        lambda s: s["segments"][0]["blocks"].append(_holds_itself()),
        lambda s: s["segments"][0]["blocks"][0].update(frames=_holds_itself()),
        lambda s: s["segments"][0]["blocks"][0].update(frames=[{"name": _shared(60), "filename": "x.py", "line": 1}]),
        lambda s: s["device_traces"][0].append({"action": _shared(60), "addr": 1, "size": 1, "stream": 0, "time_us": 1, "frames": []}),
        lambda s: s.update(external_annotations=[{"name": _shared(60), "stage": "START", "time_us": 1}]),
        lambda s: s.update(allocator_settings={"x": _shared(60), "y": _holds_itself()}),
    ],
    ids=["segments", "blocks", "frames", "a shared name", "a shared action", "a shared mark", "settings"],
)
def test_a_snapshot_that_holds_itself_is_read_or_refused(change, tmp_path):
    block = {"size": 512, "requested_size": 512, "state": "active_allocated", "frames": [{"name": "f", "filename": "m.py", "line": 3}]}
    segment = {"device": 0, "address": 1 << 40, "total_size": 512, "stream": 0, "blocks": [block]}
    snapshot = {"segments": [segment], "device_traces": [[]]}
    change(snapshot)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot, 4))
    try:
        report_is_sound(run(read(path), catalog().values()))
    except TraceError as error:
        assert "damaged" in error.message and error.hint


def test_a_pickle_with_a_key_that_is_no_text_or_number_is_refused(tmp_path):
    """A tuple hashes all that it holds: shared inside of itself sixty times, that never ends."""
    pushed = b"\x80\x04}\x94)" + b"\x94h\x01h\x01\x86" * 60 + b"K\x01s."
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pushed)
    with pytest.raises(TraceError, match="key"):
        read(path)
