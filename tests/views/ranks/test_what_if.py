"""What-if analysis: two hand-made ranks, and the published traces with their published results."""

import json

import numpy as np
import pytest

from advisor.views.ranks.graph import JobGraph
from advisor.views.ranks.what_if import ChangedDurations, usual_us
from tests.paths import SHARED

ORACLE = SHARED / "public" / "stragglers"
MESSAGES = ("forward-send", "forward-recv", "backward-send", "backward-recv")
SHARED_OPS = {
    "params-all-gather": ("stage", "seq_id"), "grads-reduce-scatter": ("stage", "seq_id"),
    "embedding-grads-all-reduce": ("dp_rank", "seq_id"), "optimizer-clip-main-grad": ("seq_id",),
}  # fmt: skip
NONE = np.empty(0, np.int64)


def makespan(edges, took):
    graph = JobGraph.create(
        took, np.full(len(took), -1), (*edges, np.zeros(len(edges[0]))), (NONE, NONE, np.empty(0)), (NONE, np.empty(0)), NONE, np.empty(0), 1
    )
    return float((graph.starts_us(np.zeros(len(took))) + took).max())


def test_two_ranks_of_which_one_computes_twice_as_long():
    # Ranks compute 10 and 20, then meet in an all-reduce of 5: 25; at the mean of 15 each, 20.
    edges, took = (np.array([0, 1]), np.array([2, 2])), np.array([10.0, 20.0, 5.0])
    made = ChangedDurations(took, usual_us(took, np.array([0, 0, 1]), np.array([False, False, True])), lambda t: makespan(edges, t))
    assert made.slowdown == pytest.approx(25 / 20)
    assert made.slowdown_of(np.array([False, True, False])) == pytest.approx(25 / 20)
    assert made.slowdown_of(np.array([True, False, False])) == pytest.approx(20 / 20)
    assert made.explained_by(np.array([False, True, False])) == pytest.approx(1.0)


def read_step(ops):
    """Nodes of one step: (took, kind by name, rank and stage of each op, node of each op) and edges of each rank's order.

    A message and its like on the other rank are one node, and so are those that a rank issues at once (one batch).
    """
    ops = ops.sort_values(["rank", "start_ts", "optype"], kind="stable")
    parent = np.arange(len(ops))

    def root(i):
        while parent[i] != i:
            i = parent[i]
        return i

    first = {}
    for i, op in enumerate(ops.itertuples()):
        keys = []
        if op.optype in MESSAGES:
            forward, sends = op.optype.startswith("forward"), op.optype.endswith("send")
            lower = op.stage if sends == forward else op.stage - 1
            keys = [(forward, op.dp_rank, lower, op.seq_id), ("at once", op.rank, op.start_ts)]
        elif op.optype in SHARED_OPS:
            keys = [(op.optype, *(getattr(op, name) for name in SHARED_OPS[op.optype]))]
        for key in keys:
            parent[root(i)] = root(first.setdefault(key, i))
    _, node = np.unique([root(i) for i in range(len(ops))], return_inverse=True)
    begin, end = np.full(node.max() + 1, -np.inf), np.full(node.max() + 1, -np.inf)
    np.maximum.at(begin, node, ops.start_ts)
    np.maximum.at(end, node, (ops.start_ts + ops.duration))
    kinds = [set() for _ in begin]
    for i, optype in zip(node, ops.optype, strict=True):
        kinds[i].add(optype)
    source, target = [], []
    for rows in ops.reset_index(drop=True).groupby("rank").indices.values():
        order = node[rows]
        order = order[np.r_[True, order[1:] != order[:-1]]]
        source.append(order[:-1])
        target.append(order[1:])
    shared = np.bincount(node) > 1
    rank, stage = np.full(len(begin), -1), np.full(len(begin), -1)
    rank[node], stage[node] = ops["rank"], ops["stage"]
    rank[shared] = stage[shared] = -1
    return end - begin, ["|".join(sorted(k)) for k in kinds], rank, stage, (np.concatenate(source), np.concatenate(target))


def read_job(name):
    import pandas

    pytest.importorskip("pyarrow")
    steps = [read_step(ops) for _, ops in pandas.read_parquet(ORACLE / f"trace-{name}.parquet").groupby("step")]
    took = np.concatenate([step[0] for step in steps])
    names, kind = np.unique([kind for step in steps for kind in step[1]], return_inverse=True)
    computes = np.array([n in ("forward-compute", "backward-compute", "optimizer", "gc") for n in names])
    cuts = np.cumsum([len(step[0]) for step in steps])[:-1]

    def time_us(times):
        return float(np.mean([makespan(step[4], part) for step, part in zip(steps, np.split(times, cuts), strict=True)]))

    rank, stage = (np.concatenate([step[at] for step in steps]) for at in (2, 3))
    return ChangedDurations(took, usual_us(took, kind, ~computes[kind]), time_us), rank, stage


@pytest.mark.skipif(not ORACLE.is_dir(), reason="the published traces are not here")
@pytest.mark.parametrize("name", ["AR", "ST"])
def test_published_jobs_are_slowed_down_as_published(name):
    expected = json.loads((ORACLE / f"result-{name}.json").read_text())
    made, rank, stage = read_job(name)
    assert made.original_us == pytest.approx(np.mean(list(expected["step_t_nodelay"].values())), rel=0.005)
    assert made.slowdown == pytest.approx(expected["blocking_slowdown"], rel=0.01)
    if name == "AR":
        worst = max(set(rank) - {-1}, key=lambda r: made.slowdown_of(rank == r))
        assert made.explained_by(rank == worst) == pytest.approx(json.loads((ORACLE / "mw-AR.json").read_text())["Mw"], rel=0.02)
    else:
        assert made.explained_by(stage == stage.max()) == pytest.approx(json.loads((ORACLE / "ms-ST.json").read_text())["Ms"], rel=0.02)
