"""What the profiler is asked for and which exporter writes it spell a trace otherwise; the report stays as it was."""

import json
import re
from random import Random

import pytest

from advisor import analyze
from advisor.errors import AdvisorError
from advisor.lab.stability.changes import CHANGES
from advisor.lab.stability.events import Recorded, arguments, read, traces_below
from advisor.lab.stability.spelling import OVERLOAD_OF
from tests.analysed import analysed
from tests.differences import differences, rounded
from tests.paths import EACH, ROOT, sample, sampled, slow, slowly

SAMPLES = ROOT / "samples"
BY_NAME = {change.name: change for change in CHANGES}
OPTIONS = [("overload-names", "graph-lanes", "cupti-exporter"), ("overload-names", "graph-lanes", "python-exporter")]
"""Options that go together: one exporter writes a trace, whatever else is asked for."""


def written(path, options, tmp_path):
    """The trace as it is written with these options, None where none of them changes it."""
    before = trace = read(path)
    for option in options:
        trace = BY_NAME[option].apply(trace, Random(1)) or trace
    if trace is before:
        return None
    trace.write(tmp_path / "trace.json")
    return tmp_path / "trace.json"


def told(report, path, options):
    """What a report says, without what an exporter leaves out: the occupancy that Kineto estimates, which no rule asks for, and what memory is filled."""
    text = report.to_json().decode().replace(str(path), "TRACE")
    found = json.loads(re.sub(r"Memset \(\w+\)", "Memset", text) if "cupti-exporter" in options else text)
    del found["source"]
    if "cupti-exporter" in options:
        del found["rates"], found["checklist"]
        for kernel in found["kernels"]:
            del kernel["occupancy_pct"]
    return rounded(found)


def same(path, options, tmp_path):
    changed = written(path, options, tmp_path)
    if changed is None:
        pytest.skip("nothing in it is spelled otherwise")
    try:
        expected = told(analysed(path), path, options)
    except AdvisorError as error:
        with pytest.raises(type(error)):
            analyze(changed)
        return
    assert not [*differences(expected, told(analyze(changed), changed, options))]


EVERY = [*traces_below(SAMPLES)]


@pytest.mark.parametrize("number", sampled(range(len(EVERY)), 8 * EACH), ids=[str(path.relative_to(SAMPLES)) for path in EVERY])
@slow
def test_every_sample_is_told_the_same(number, tmp_path):
    """The options by turns: they differ by how work on the device is written, in which the samples are alike."""
    same(EVERY[number], OPTIONS[number // (8 * EACH) % len(OPTIONS)], tmp_path)


@pytest.mark.parametrize("options", [("overload-names",), ("graph-lanes",), ("cupti-exporter",), ("python-exporter",)], ids=" ".join)
@pytest.mark.parametrize("name", slowly(["memcpy/slow", "graph-candidate/products_behind_gpu.fixed"], quick=1))
def test_each_option_by_itself(name, options, tmp_path):
    same(sample(name), options, tmp_path)


def test_work_of_graphs_is_spread_over_lanes_and_keeps_its_stream():
    before = read(SAMPLES / "graph-candidate" / "products_behind_gpu.fixed.trace.zst")
    moved = [e for e in BY_NAME["graph-lanes"].apply(before, Random(1)).events if "original_stream" in arguments(e)]
    assert len({e["tid"] for e in moved}) > 1 and {arguments(e)["original_stream"] for e in moved} == {7}
    assert all(e["tid"] == arguments(e)["stream"] for e in moved)


def test_the_cupti_backend_says_no_ids_and_no_occupancy():
    before = read(SAMPLES / "memcpy" / "slow.json.gz")
    made = BY_NAME["cupti-exporter"].apply(before, Random(1))
    work = [e for e in made.events if e.get("cat") in ("kernel", "gpu_memcpy", "cuda_runtime")]
    assert work and not any({"External id", "est. achieved occupancy %"} & arguments(e).keys() for e in work)
    assert {e["name"] for e in work if e["cat"] == "gpu_memcpy"} == {"Memcpy"}
    assert BY_NAME["cupti-exporter"].apply(Recorded({}, []), Random(1)) is None, "nothing of CUDA"


def test_overloads_are_those_that_torch_knows():
    torch = pytest.importorskip("torch")
    for name in OVERLOAD_OF.values():
        op, overload = name.removeprefix("aten::").split(".")
        assert overload in getattr(torch.ops.aten, op).overloads(), name


@pytest.mark.parametrize("exporter", ["cupti-exporter", "python-exporter"])
def test_either_exporter_says_what_work_on_a_graphs_lane_ran_on(exporter):
    lanes = BY_NAME["graph-lanes"].apply(read(SAMPLES / "recording" / "vit_infer_graphs.light.trace.zst"), Random(1))
    kept = [[arguments(e).get("original_stream") for e in trace.events] for trace in (lanes, BY_NAME[exporter].apply(lanes, Random(1)))]
    assert kept[0] == kept[1] and set(kept[0]) != {None}
