"""What graphs replay has the op, shapes and module that it was captured under."""

import numpy as np
import pytest

from advisor.knowledge.structs import replace
from advisor.recordings.captures import CaptureTrace, CaptureTraces
from advisor.recordings.recording import Recording, with_captures
from advisor.recordings.timeline import Timeline
from advisor.sources import captures_at, load, read
from advisor.sources.captures import captures_in, is_capture, of_rank
from advisor.views.time.breakdown import Breakdown
from advisor.views.time.op_table import OpTable
from advisor.views.time.roofline import Roofline
from advisor.views.trace.captured_graphs import CapturedGraphs
from advisor.views.trace.origins import Origins
from advisor.views.workspace import Workspace
from tests.build import Trace
from tests.paths import ROOT

CAPTURED = ROOT / "samples" / "serving" / "captured"
LAYERS = ("norm", "product", "norm", "product")


def capture(names=LAYERS, rows=4, copies=()):
    """A graph captured of an op a node, each on `rows`; products by a runtime call that makes a driver's."""
    trace = Trace().note(f"capture_{rows}_FULL", 0, 1000).call("cudaStreamBeginCapture", 1, 1)
    for at, name in enumerate(names):
        start = 10.0 + 20 * at
        trace.op(f"aten::{name}", start, 12, dims=[[rows, 8], [8, 8]]).python(f"nn.Module: {name.title()}_{at}", start - 1, 14)
        trace.call("cudaMemcpyAsync" if at in copies else "cudaLaunchKernel", start + 2, 6, 2 * at + 100).call("cuLaunchKernel", start + 3, 2, 2 * at + 101)
    return trace.call("cudaLaunchHostFunc", 900, 2).call("cudaStreamEndCapture", 950, 1).timeline()


def replays(*steps, mark="step[DECODE bs={}]"):
    """Steps of 200 µs: (requests, kernels of its graph)."""
    trace = Trace()
    for k, (requests, names) in enumerate(steps):
        trace.correlation += 1
        trace.note(mark.format(requests), 200.0 * k, 150).call("cudaGraphLaunch", 200.0 * k + 5, 2, trace.correlation)
        for at, name in enumerate(names):
            trace.gpu(200.0 * k + 10 + 10 * at, 200.0 * k + 20 + 10 * at, f"{name}_kernel", trace.correlation, kind="memcpy" if name == "copy" else "kernel")
    return trace.timeline()


def joined(timeline, *captures):
    traces = tuple(CaptureTrace(f"c{at}", one) for at, one in enumerate(captures))
    return Workspace(timeline, CaptureTraces(traces))


def told(workspace):
    """Of each GPU op the op and the dims that it comes from."""
    origins = workspace.get(Origins)
    names, shapes = (*origins.names, ""), (*origins.shapes, "")
    return [(names[op], shapes[shape]) for op, shape in zip(origins.inner.tolist(), origins.shape.tolist(), strict=True)]


def test_each_node_has_its_op_shapes_and_module():
    workspace = joined(replays((4, LAYERS), (4, LAYERS)), capture())
    assert told(workspace) == [(f"aten::{name}", "[[4, 8], [8, 8]]") for name in LAYERS * 2]
    places, place = workspace.get(Origins).places(np.arange(8))
    assert [places[at].modules for at in place.tolist()] == [(f"{name.title()}_{at}",) for at, name in enumerate(LAYERS)] * 2
    captured = workspace.get(CapturedGraphs)
    assert (captured.share, captured.why, captured.sizes) == (1, "", (4,)) and captured.shaped.all()


def test_a_step_replays_the_smallest_captured_size_that_holds_it():
    workspace = joined(replays((3, LAYERS), (5, LAYERS)), *(capture(rows=rows) for rows in (16, 8, 4)))
    assert [dims for _, dims in told(workspace)] == ["[[4, 8], [8, 8]]"] * 4 + ["[[8, 8], [8, 8]]"] * 4


def test_sizes_that_no_mark_tells_apart_are_not_guessed():
    captured = joined(replays((3, LAYERS), mark="mine {}"), capture(rows=8), capture(rows=4)).get(CapturedGraphs)
    assert captured.share == 0 and "which of the captured sizes" in captured.why
    assert joined(replays((3, LAYERS), mark="mine {}"), capture(rows=4)).get(CapturedGraphs).share == 1


@pytest.mark.parametrize(("ran", "other"), [(LAYERS, capture(LAYERS[:3])), (("norm", "copy", "norm", "product"), capture()), (LAYERS, replays((4, LAYERS)))])
def test_a_capture_of_other_nodes_does_not_fit_and_says_so(ran, other):
    captured = joined(replays((4, ran)), other).get(CapturedGraphs)
    assert captured.share == 0 and captured.why and (captured.op < 0).all()


def test_a_copy_may_run_as_a_kernel_but_no_kernel_as_a_copy():
    assert joined(replays((4, LAYERS)), capture(copies=(1,))).get(CapturedGraphs).share == 1


def test_kernels_in_another_order_than_they_were_captured_in_are_not_named():
    captured = joined(replays((4, LAYERS), (4, ("norm", "norm", "product", "product"))), capture()).get(CapturedGraphs)
    assert captured.share == 0 and "order" in captured.why


def test_without_captures_nothing_changes():
    timeline = replays((4, LAYERS))
    assert told(Workspace(timeline)) == [("", "")] * 4
    assert [row.op for row in Workspace(timeline).get(Breakdown).parts if row.kind == "compute"] == ["", ""]


def test_captures_go_with_one_timeline():
    with pytest.raises(Exception, match="no trace of a single process"):
        with_captures(Recording("job", "j", ()), CaptureTraces(()))


@pytest.mark.parametrize("name", ["full", "piecewise"])
def test_graphs_on_a_gpu_are_named_as_the_same_work_without_graphs(name):
    """The eager run has 16 rows, and the graphs have 12 requests in 16."""
    eager = load(CAPTURED / "eager" / "trace.trace.zst")
    recording = read(CAPTURED / name / "trace.trace.zst")
    workspace = Workspace(*recording.parts)
    captured, timeline = workspace.get(CapturedGraphs), workspace.get(Timeline)
    assert (captured.share, captured.sizes) == (1, (16,))
    rows = np.flatnonzero((captured.replay >= 0) & [name.startswith("nvjet") for name in timeline.gpu_ops["name"]])

    def of_products(workspace, rows):
        origins, names = workspace.get(Origins), workspace.get(Timeline).gpu_ops["name"].texts()
        places, place = origins.places(rows)
        modules = [places[at].modules[-1].rpartition("_")[0] for at in place.tolist()]
        return [
            (names[row], origins.names[origins.inner[row]], origins.shapes[origins.shape[row]], module)
            for row, module in zip(rows.tolist(), modules, strict=True)
        ]

    truth = of_products(Workspace(eager), np.flatnonzero([name.startswith("nvjet") for name in eager.gpu_ops["name"]]))
    assert of_products(workspace, rows) == truth and len(truth) == 3 * (4 * 4 + 1)
    assert not np.isnan(workspace.get(Roofline).flops[rows]).any()
    products = next(row for row in workspace.get(OpTable).rows if row.name == "aten::mm")
    assert products.gpu_self_us > 0 and products.host_self_us == 0 and products.tflops > 0


def test_files_are_known_by_the_names_that_servers_give_them(tmp_path):
    folder = tmp_path / "graph_capture_profile"
    folder.mkdir()
    names = (
        "cuda_graph_capture-DecodeCudaGraphRunner-TP-3.json.gz", "DecodeCudaGraphRunner_bs_32_rank0.json.gz", "graph_capture_rank_0.17737.pt.trace.json.gz",
        "graph_capture_rank_0_encoder.17737.pt.trace.json.gz", "bs_32_q_4_rank7.json.gz", "notes.txt", "execution_details.json",
    )  # fmt: skip
    for name in names:
        (folder / name).write_text('[{"file": "notes", "batch_size": 1}]')
    assert all(is_capture(name) for name in names[:5]) and not any(is_capture(name) for name in ("rank0.pt.trace.json.gz", "1758-TP-0-DECODE.trace.json.gz"))
    found = captures_in(str(tmp_path))
    assert {(file.rank, file.rows) for file in found} == {(3, -1), (0, 32), (0, -1), (7, 32)} and len(found) == 5
    assert {file.rank for file in of_rank(found, 3)} == {3} and {file.rank for file in of_rank(found, 5)} == {0}


def test_a_directory_is_read_and_one_without_captures_refused(tmp_path):
    traces = captures_at(str(CAPTURED / "full" / "capture_traces"))[0].traces
    assert [(trace.name, trace.rows) for trace in traces] == [("bs_16_rank0.trace.zst", 16), ("bs_8_rank0.trace.zst", 8)]
    with pytest.raises(Exception, match="holds no trace of a capture"):
        captures_at(str(tmp_path))


def test_captures_of_several_files_stand_one_behind_the_other():
    both = joined(replays((3, LAYERS), (5, LAYERS)), capture(rows=4), replace(capture(rows=8)))
    captured = both.get(CapturedGraphs)
    assert captured.sizes == (4, 8) and len(captured.timeline.cpu_ops) == 2 * len(LAYERS)
    dims = captured.timeline.cpu_ops["dims"][captured.op]
    assert dims.tolist() == [text for _, text in told(both)]
