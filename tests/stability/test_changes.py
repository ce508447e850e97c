"""What changes a trace leaves its program as it is: each keeps what physics and the profiler keep."""

from collections import defaultdict
from itertools import pairwise
from random import Random

import pytest

from advisor import analyze
from advisor.lab.export import METADATA_KEY
from advisor.lab.stability.changes import CHANGES
from advisor.lab.stability.events import ON_DEVICE, ON_HOST, Recorded, arguments, begins, ends, read, spans, traces_below
from advisor.lab.stability.times import CLOCKS_NS, NOISE, STEP
from tests.paths import ROOT

BY_NAME = {change.name: change for change in CHANGES}
EAGER = ROOT / "samples" / "launch-gap" / "slow.json.gz"
STACKS = ROOT / "samples" / "recording" / "bert_infer_compiled.deep.trace.zst"


@pytest.fixture(scope="module")
def eager() -> Recorded:
    return read(EAGER)


@pytest.fixture(scope="module")
def stacks() -> Recorded:
    return read(STACKS)


def changed(name: str, trace: Recorded) -> Recorded:
    return BY_NAME[name].apply(trace, Random(1))


def kernels(trace):
    return list(spans(trace, ON_DEVICE - {"gpu_user_annotation"}))


def launches(trace):
    return {arguments(e)["correlation"]: e for e in trace.events if e.get("cat") in ("cuda_runtime", "cuda_driver")}


def by_lane(events):
    lanes = defaultdict(list)
    for event in events:
        lanes[event["pid"], event["tid"]].append(event)
    return lanes.values()


def steps(trace):
    return [e for e in trace.events if e.get("cat") == "user_annotation" and STEP.match(e["name"])]


def test_uneven_times_differ_by_as_much_and_keep_every_order(stacks):
    made = changed("durations", stacks)
    ratios = [(ends(b) - begins(b)) / (ends(a) - begins(a)) for a, b in zip(kernels(stacks), kernels(made), strict=True)]
    # A nanosecond more or less, of kernels of a microsecond.
    assert min(ratios) >= 1 - NOISE - 0.002 and max(ratios) <= 1 + NOISE + 0.002 and max(ratios) - min(ratios) > NOISE
    edges = [[(begins(e), ends(e)) for e in trace.events if "ts" in e] for trace in (stacks, made)]
    order = sorted((time, i, which) for i, pair in enumerate(edges[0]) for which, time in enumerate(pair))
    after = [edges[1][i][which] for _, i, which in order]
    assert after == sorted(after), "what came before another event still does: launches, kernels of a stream, ops that call ops"


def test_all_times_are_doubled_and_so_is_what_was_timed_without_a_profiler(eager):
    timed = Recorded({**eager.head, METADATA_KEY: {"unprofiled_step_us": [10.0, 20.0]}}, eager.events)
    made = changed("times-doubled", timed)
    assert made.head[METADATA_KEY]["unprofiled_step_us"] == [20.0, 40.0]
    first = min(begins(e) for e in eager.events if "ts" in e)
    for one, other in zip(eager.events, made.events, strict=True):
        if "ts" in one:
            assert begins(other) - first == 2 * (begins(one) - first) and ends(other) - begins(other) == 2 * (ends(one) - begins(one))


@pytest.mark.parametrize(("name", "by"), [("device-later", CLOCKS_NS), ("device-earlier", -CLOCKS_NS)])
def test_clocks_are_off_for_the_device_alone(eager, name, by):
    made = changed(name, eager)
    assert {begins(b) - begins(a) for a, b in zip(kernels(eager), kernels(made), strict=True)} == {by}
    assert list(spans(eager, ON_HOST)) == list(spans(made, ON_HOST))


def test_a_step_fewer_takes_the_calls_of_the_last_one_and_what_they_launched(eager, tmp_path):
    made, cut = changed("one-step-fewer", eager), max(map(begins, steps(eager)))
    assert len(steps(made)) == len(steps(eager)) - 1
    assert max(ends(e) for e in spans(made, ON_HOST)) <= cut
    known = launches(eager)
    kept = {arguments(e)["correlation"] for e in kernels(made)}
    assert kept == {arguments(e)["correlation"] for e in kernels(eager) if begins(known[arguments(e)["correlation"]]) < cut}
    made.write(tmp_path / "trace.json")
    assert analyze(tmp_path / "trace.json").window.steps == analyze(EAGER).window.steps - 1


def test_numbers_are_others_and_name_the_same_things(eager):
    made = changed("renumbered", eager)
    for key in ("pid", "tid"):
        pairs = {
            (a.get("cat") in ON_DEVICE, a[key], b[key])
            for a, b in zip(eager.events, made.events, strict=True)
            if type(a.get(key)) is int and a.get("ph") == "X"
        }
        assert len({(side, a) for side, a, _ in pairs}) == len({(side, b) for side, _, b in pairs}) == len(pairs)
    streams = {(arguments(a)["stream"], arguments(b)["stream"]) for a, b in zip(kernels(eager), kernels(made), strict=True)}
    assert streams and all(a != b for a, b in streams)


@pytest.mark.parametrize("name", ["side-stream", "one-tf32-convolution"])
def test_what_is_added_fits_between_what_was_there(eager, name):
    made = changed(name, eager)
    added = made.events[len(eager.events) :]
    launched = [e for e in added if e["cat"] == "kernel"]
    assert len(launched) == len(steps(eager)), "one a step"
    for lane in by_lane(kernels(made)):
        lane.sort(key=begins)
        assert all(ends(a) <= begins(b) for a, b in pairwise(lane)), "one after the other on a stream"
    known = launches(made)
    for lane in by_lane(kernels(made)):
        at = [begins(known[arguments(e)["correlation"]]) for e in sorted(lane, key=begins)]
        assert at == sorted(at), "in the order in which they were launched"
    for one in (e for e in added if e["cat"] != "kernel"):
        held = [e for e in spans(eager, ON_HOST) if (e["pid"], e["tid"]) == (one["pid"], one["tid"]) and e["cat"] != "user_annotation"]
        assert all(ends(e) <= begins(one) or ends(one) <= begins(e) for e in held), "while the thread does nothing else"
    streams = {arguments(e)["stream"] for e in launched}
    assert (streams & {arguments(e)["stream"] for e in kernels(eager)} == set()) == (name == "side-stream")


def test_a_watching_thread_has_frames_of_its_own(eager):
    made = changed("python-thread", eager)
    frames = list(spans(made, frozenset(("python_function",))))
    assert {e["tid"] for e in frames}.isdisjoint({e["tid"] for e in spans(eager, ON_HOST)})
    ids = {arguments(e)["Python id"] for e in frames}
    assert len(ids) == len(frames) and {arguments(e)["Python parent id"] for e in frames} <= ids | {None}


def test_what_is_left_out_is_gone_and_nothing_else(stacks):
    shapes, frames, links = (changed(name, stacks) for name in ("no-shapes", "no-stacks", "no-external-id"))
    assert len(shapes.events) == len(stacks.events) and not any("Input Dims" in arguments(e) for e in shapes.events)
    assert {e.get("cat") for e in stacks.events} - {e.get("cat") for e in frames.events} == {"python_function"}
    assert not any("External id" in arguments(e) for e in links.events) and len(links.events) == len(stacks.events)


def test_names_are_spelled_otherwise(eager, stacks):
    names = {
        name: {e["name"] for e in changed(name, eager).events if e.get("ph") == "X"} for name in ("overload-names", "call-names", "kernel-names", "step-names")
    }
    assert "aten::add.Tensor" in names["overload-names"] and "aten::addmm" in names["overload-names"], "an op without overloads keeps its name"
    assert "cudaLaunchKernel_ptsz" in names["call-names"]
    assert any(n.startswith("at::native::vectorized_elementwise_kernel<") and n.endswith(">") for n in names["kernel-names"])
    assert "training step 3" in names["step-names"] and "ProfilerStep#3" not in names["step-names"]
    order = [e.get("name") for e in changed("event-order", stacks).events]
    assert sorted(map(str, order)) == sorted(str(e.get("name")) for e in stacks.events) and order != [e.get("name") for e in stacks.events]


def test_what_does_not_apply_is_not_counted(eager):
    assert changed("no-stacks", eager) is None
    assert changed("one-step-fewer", Recorded({}, [e for e in eager.events if not STEP.match(str(e.get("name", "")))])) is None


def test_changes_are_the_same_each_time(eager):
    for change in CHANGES:
        one, other = (change.apply(eager, Random(5)) for _ in range(2))
        assert one == other, change.name


def test_columns_are_changed_as_the_trace_that_they_hold(tmp_path):
    columns = ROOT / "samples" / "columns"
    paths = traces_below(columns)
    assert paths and all(path.name.endswith(".trace.zst") for path in paths)
    trace = read(paths[0])
    assert kernels(trace) and changed("renumbered", trace) != trace
