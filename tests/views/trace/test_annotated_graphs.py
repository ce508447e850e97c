"""What a program named the nodes of its graphs by is on the kernels that replay them."""

import json
import pickle
from collections import defaultdict

import numpy as np
import pytest

from advisor.errors import TraceError
from advisor.knowledge.structs import replace
from advisor.recordings.captures import GraphAnnotations, NodeAnnotation
from advisor.recordings.timeline import stacked
from advisor.sources import captures_at, read
from advisor.sources.graph_annotations import read_annotations
from advisor.views.ranks.collectives import RankCollectives
from advisor.views.trace.annotated_graphs import AnnotatedGraphs
from advisor.views.trace.origins import Origins
from advisor.views.workspace import Workspace
from tests.build import Trace
from tests.command import advisor

GRAPH = 7
MESSAGE = {"name": "all_reduce", "In msg nelems": 64, "Out msg nelems": 64, "Group size": 2, "dtype": "bfloat16", "Process Group Name": "tp", "Process Group Ranks": [0, 1], "stream": 61}  # fmt: skip
SAID = {1: [{"name": "attention"}], 2: [{"name": "attention"}, {"name": "softmax"}], 3: [MESSAGE], 4: ["mlp"]}
KERNELS = ("gemm_a", "softmax", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "gemm_b")


def node(number, graph=GRAPH):
    return graph << 32 | number


def replays(numbered=True, kernels=KERNELS, times=2):
    trace = Trace()
    for k in range(times):
        trace.correlation += 1
        trace.call("cudaGraphLaunch", 100.0 * k, 2, trace.correlation)
        for at, name in enumerate(kernels):
            number = {"graph_id": GRAPH, "graph_node_id": node(at + 1)} if numbered else {}
            trace.gpu(100.0 * k + 10 * at + 5, 100.0 * k + 10 * at + 15, name, trace.correlation, **number)
    return trace.timeline()


@pytest.fixture
def pickled(tmp_path):
    def write(said, name="kernel_annotations_rank0_fwd.pkl", protocol=4):
        (tmp_path / name).write_bytes(pickle.dumps(said, protocol))
        return str(tmp_path / name)

    return write


def said(graph=GRAPH, of=SAID):
    """As torch 2.13 keeps it."""
    return defaultdict(list, {node(number, graph): each for number, each in of.items()})


def scopes(workspace):
    rows = np.arange(len(workspace.get(AnnotatedGraphs).of))
    places, place = workspace.get(Origins).places(rows)
    return ["/".join(places[at].modules) for at in place.tolist()]


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_names_and_collectives_are_joined_by_number_or_order(numbered, protocol, pickled):
    workspace = Workspace(replays(numbered), read_annotations([pickled(said(), protocol=protocol)]))
    assert scopes(workspace) == ["attention", "softmax", "all_reduce", "mlp"] * 2
    assert workspace.get(AnnotatedGraphs).why == ""
    sent = workspace.get(RankCollectives)
    assert (sent.bytes.tolist(), sent.group, sent.known.all()) == ([128, 128], ("tp [0, 1]",) * 2, True)


def test_what_the_program_did_not_name_stays_unnamed(pickled):
    workspace = Workspace(replays(), read_annotations([pickled(said(of={2: ["mine"]}))]))
    assert scopes(workspace) == ["", "mine", "", ""] * 2 and workspace.get(AnnotatedGraphs).why == ""


def test_torch_itself_holds_what_is_read(pickled):
    annotations = pytest.importorskip("torch.cuda._graph_annotations")
    annotations.clear_kernel_annotations()
    # One scope inside another, as leaving them notes it: torch merges them.
    annotations._pending_scopes += [({"name": "inner"}, [node(1)]), ({"name": "outer", "stream": 61}, [node(1), node(2)])]
    annotations.resolve_pending_annotations()
    held = annotations.get_kernel_annotations()
    path = pickled(held if type(held) is defaultdict else dict(held))
    annotations.clear_kernel_annotations()
    assert read_annotations([path]).nodes == {node(1): NodeAnnotation("inner"), node(2): NodeAnnotation("outer")}


@pytest.mark.parametrize(
    ("timeline", "told", "why"),
    [
        (replays(), said(graph=8), "another process"),
        (replays(), said(of={**SAID, **{number: ["x"] for number in range(10, 20)}}), "few of the annotated nodes"),
        (replays(numbered=False), said(of={1: ["x"]}), "no numbers of nodes"),
        (replays(), said(of={1: [MESSAGE], 2: ["mlp"]}), "do not communicate"),
    ],
)
def test_annotations_that_do_not_fit_say_so(timeline, told, why, pickled):
    joined = Workspace(timeline, read_annotations([pickled(told)])).get(AnnotatedGraphs)
    assert why in joined.why and (joined.of < 0).all()


def test_replays_in_several_orders_are_not_named_by_order():
    trace, other = replays(numbered=False, times=1), replays(numbered=False, kernels=KERNELS[::-1], times=1)
    later = other.gpu_ops.with_columns(start_us=other.gpu_ops["start_us"] + 500, correlation=other.gpu_ops["correlation"] + 1)
    calls = stacked("api_calls", [trace.api_calls, other.api_calls.with_columns(start_us=np.array([500.0]), correlation=np.array([2]))])
    both = replace(trace, gpu_ops=stacked("gpu_ops", [trace.gpu_ops, later]), api_calls=calls)
    nodes = {node(number): NodeAnnotation(str(number)) for number in range(1, 5)}
    assert "differs between replays" in Workspace(both, GraphAnnotations(nodes)).get(AnnotatedGraphs).why


@pytest.mark.parametrize("value", [{}, [1], {1: "text"}, {"1": []}, {True: []}, defaultdict(list), {"segments": []}])
def test_other_pickles_are_no_annotations(value, pickled):
    with pytest.raises(TraceError, match="holds no annotations"):
        read_annotations([pickled(value)])


def test_values_of_any_kind_are_left_out(pickled):
    odd = {**MESSAGE, "In msg nelems": -5, "Group size": "2", "Process Group Ranks": [[1]], "dtype": None}
    assert read_annotations([pickled({5: [odd, 7, None], -1: ["x"], 1 << 80: ["x"]})]).nodes.keys() == {5}


def chrome(path):
    """A trace as torch writes it, of two replays."""
    events = []
    for row in zip(*(replays().gpu_ops[name].tolist() for name in ("name", "start_us", "dur_us", "correlation", "graph_node_id")), strict=True):
        name, start, dur, correlation, number = row
        args = {"device": 0, "stream": 7, "correlation": correlation, "graph id": GRAPH, "graph node id": number, "grid": [8, 1, 1], "block": [128, 1, 1]}
        events.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": dur, "args": args})
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 1, "tid": 1, "dur": 2}
    events += [{**launch, "ts": 100.0 * k, "args": {"correlation": k + 1}} for k in range(2)]
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}))


def test_annotations_are_found_beside_a_trace_and_above_it(tmp_path, pickled):
    (tmp_path / "step_14").mkdir()
    for trace in (tmp_path / "trace.json", tmp_path / "step_14" / "trace.json"):
        chrome(trace)
        pickled(said())
        assert GraphAnnotations in map(type, read(trace).parts)
    (tmp_path / "kernel_annotations_rank1_fwd.pkl").write_bytes(b"")
    assert GraphAnnotations not in map(type, read(tmp_path / "trace.json").parts)  # whose they are is not known
    assert [type(part) for part in captures_at(str(tmp_path), 0)] == [GraphAnnotations]


def test_a_report_says_whether_annotations_fit(tmp_path, pickled):
    chrome(tmp_path / "trace.json")
    for graph, status in ((GRAPH, "ok"), (8, "degraded")):
        done = advisor("analyze", "trace.json", "--capture", pickled(said(graph)), "-f", "json", "-o", "-", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert [check["status"] for check in json.loads(done.stdout)["health"] if check["check"] == "annotations-joined"] == [status]


def test_hostile_annotations_are_refused(tmp_path, pickled):
    chrome(tmp_path / "trace.json")
    path = pickled({1: [print]})
    done = advisor("analyze", "trace.json", "--capture", path, "-f", "json", "-o", "-", cwd=tmp_path)
    assert done.returncode == 3 and b"would make or call" in done.stderr
