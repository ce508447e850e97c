"""What changed between two sides: rows sum to the change, and noise is said, found, or not made up."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import advisor
from advisor.compare import compare
from advisor.compare.budgets import REGRESSION, check
from advisor.compare.tables import Draws, kernel_time
from advisor.engine.run import run
from advisor.errors import UsageError
from advisor.report.recording import Prediction
from advisor.report.saved import captures
from advisor.report.step import Part
from advisor.reports.comparison._phrases import differences
from advisor.reports.comparison._phrases import side as side_of
from advisor.sources import nsys
from tests.analysed import analysed
from tests.build import Trace
from tests.paths import ROOT, SHARED, needs_shared, shared_files

PAIRS = [
    (slow, fixed)
    for slow in shared_files("corpus/kineto/*.slow.*") + shared_files("corpus/nsys/*.slow.*")
    for fixed in shared_files(f"corpus/{slow.parent.name}/{slow.name.replace('.slow.', '.fixed.')}")
]


def sample(path):
    return analysed(ROOT / "samples" / path)


def changed(report, **families):
    """The same report, the kernels of a family that much slower; the step grows with them."""
    parts = tuple(msgspec.structs.replace(p, us=p.us * families.get(p.family, 1.0)) for p in report.breakdown)
    return msgspec.structs.replace(report, breakdown=parts)


def noisy(report, seed, spread=0.01):
    """Another capture of the same program: each part a little longer or shorter."""
    random = np.random.default_rng(seed)
    parts = tuple(msgspec.structs.replace(p, us=p.us * max(0.0, random.normal(1, spread))) for p in report.breakdown)
    return msgspec.structs.replace(report, breakdown=parts)


def off(comparison):
    return max(abs(sum(row.change_us for row in table.rows) - comparison.change_us) for table in comparison.tables)


def test_parts_of_a_step_are_exclusive_and_worked_out_by_hand():
    # Two streams: the copy is hidden for 10 of its 20 µs; of two kernels that overlap, the first keeps the common time.
    trace = Trace()
    for s in range(3):
        at = 100.0 * s
        trace.step(at, 99, s + 1).launch(at + 1, at + 10, at + 40, "a").launch(at + 3, at + 30, at + 50, "b", stream=8)
        trace.copy(at + 5, 1, at + 40, at + 60, stream=9)
    report = run(trace.timeline(), [])
    us = {p.name: p.us for p in report.breakdown}
    assert (us["a"], us["b"], us["Memcpy HtoD (Pageable)"]) == (30, 10, 10)
    assert sum(us.values()) == pytest.approx(100) and report.work.kernel_us == 50, "which counts overlaps"


def test_what_is_left_over_of_each_family_stays_with_its_family():
    report = sample("memcpy/slow.json.gz")
    rest = tuple(Part("compute", "(smaller)", family, us=us) for family, us in (("gemm", 10.0), ("norm", 20.0)))
    slower = tuple(msgspec.structs.replace(p, us=p.us + (5 if p.family == "norm" else 0)) for p in rest)
    comparison = compare(*([msgspec.structs.replace(report, breakdown=parts)] for parts in (rest, slower)))
    assert {r.name: (r.before_us, r.change_us) for r in comparison.tables[2].rows} == {"gemm": (10, 0), "norm": (20, 5)}


def test_a_trace_compared_with_itself_did_not_change():
    report = sample("sync-stall/slow.json.gz")
    comparison = compare([report], [report])
    assert (comparison.change_us, comparison.verdict) == (0, "unchanged")
    assert not [row for table in comparison.tables for row in table.rows if row.change_us]
    assert {f.status for f in comparison.findings} == {"same"} and not comparison.applied and not comparison.differences


@needs_shared
@pytest.mark.parametrize(("slow", "fixed"), PAIRS, ids=[f"{slow.parent.name}-{slow.name}" for slow, _ in PAIRS])
def test_rows_sum_to_the_change_on_every_pair(slow, fixed):
    before, after = analysed(slow), analysed(fixed)
    comparison = compare([before], [after])
    assert off(comparison) <= 1e-6 * comparison.before.step_us
    assert comparison.change_us == pytest.approx(after.step_us - before.step_us)
    assert comparison.before.step_us == pytest.approx(before.step_us)
    assert not [d for d in comparison.differences if d.serious or d.what == "work"], "the same work on the same device"


TOUCHED = {
    "naive_attention_infer": "computing", "elementwise_chain": "computing", "fp32_matmul": "computing", "conv_nchw_amp": "computing",
    "pageable_h2d": "copies that nothing hides", "dataloader_starved": "idle: waiting for a batch",
    "launch_bound_mlp_infer": "idle: waiting for launches", "launch_bound_train": "idle: waiting for launches",
    "optimizer_for_loop": "idle: waiting for launches", "empty_cache_in_loop": "idle: allocating memory",
}  # fmt: skip


@needs_shared
@pytest.mark.parametrize("name", TOUCHED)
def test_the_class_that_the_fix_touched_is_named_first(name):
    slow, fixed = (analysed(SHARED / "corpus" / "kineto" / f"{name}.{side}.json.gz") for side in ("slow", "fixed"))
    comparison = compare([slow], [fixed])
    assert comparison.tables[0].rows[0].name == TOUCHED[name]
    assert TOUCHED[name].replace("idle: ", "mostly idle time (") in comparison.summary


def test_a_slower_family_is_found_and_named_beyond_noise():
    report = sample("low-arithmetic-intensity/slow.json.gz")
    before = [noisy(report, seed, 0.002) for seed in range(5)]
    after = [noisy(changed(report, gemm=1.05), seed, 0.002) for seed in range(5, 10)]
    comparison = compare(before, after)
    families = next(t for t in comparison.tables if t.by == "family").rows
    assert families[0].name == "gemm" and families[0].noise.beyond_noise and families[0].change_us > 0
    assert [r.name for r in families if r.noise.beyond_noise and abs(r.change_us) > 0.01 * comparison.before.step_us] == ["gemm"]
    assert comparison.verdict == "slower" and comparison.noise.low_us > 0


@pytest.mark.parametrize("seed", range(5))
def test_noise_alone_is_no_change(seed):
    report = sample("unfused-elementwise/slow.json.gz")
    sides = [[noisy(report, 100 * seed + 10 * side + n) for n in range(5)] for side in (0, 1)]
    comparison = compare(*sides)
    assert comparison.verdict == "within noise" or abs(comparison.change_share) < 0.01
    assert comparison.noise is not None and off(comparison) <= 1e-6 * comparison.before.step_us


def test_noise_is_not_made_up_from_two_captures():
    report = sample("memcpy/slow.json.gz")
    comparison = compare([report, noisy(report, 1)], [noisy(report, 2)] * 5)
    assert comparison.noise is None and "the noise is not known" in comparison.summary
    assert not [row for table in comparison.tables for row in table.rows if row.noise]


def test_what_a_fix_was_said_to_gain_stands_beside_what_it_gained():
    comparison = compare([sample("memcpy/slow.json.gz")], [sample("memcpy/fixed.json.gz")])
    (applied,) = [a for a in comparison.applied if a.rule == "memcpy"]
    assert applied.predicted.low_us * 0.9 <= -comparison.change_us <= applied.predicted.high_us * 1.1
    assert next(f.status for f in comparison.findings if f.rule == "memcpy") == "gone"


def with_device(report, name):
    return msgspec.structs.replace(report, devices=tuple(msgspec.structs.replace(d, name=name) for d in report.devices))


@pytest.mark.parametrize(
    ("change", "what", "serious"),
    [
        (lambda r: with_device(r, "NVIDIA A100"), "device", True),
        (lambda r: msgspec.structs.replace(r, devices=r.devices * 2), "number of devices", True),
        (lambda r: msgspec.structs.replace(r, window=msgspec.structs.replace(r.window, basis="whole")), "what marks a step", True),
        (lambda r: msgspec.structs.replace(r, window=msgspec.structs.replace(r.window, basis="nvtx")), "what marks a step", False),
        (lambda r: msgspec.structs.replace(r, source=msgspec.structs.replace(r.source, format="nsys")), "profiler", False),
        (lambda r: msgspec.structs.replace(r, work=msgspec.structs.replace(r.work, flops=2 * r.work.flops)), "work", False),
    ],
)
def test_sides_that_differ_are_told_apart(change, what, serious):
    report = sample("low-arithmetic-intensity/slow.json.gz")
    assert [(d.what, d.serious) for d in compare([report], [change(report)]).differences] == [(what, serious)]


def test_captures_of_one_side_are_held_against_each_other():
    report, other = sample("low-arithmetic-intensity/slow.json.gz"), sample("memcpy/slow.json.gz")
    (found,) = (d for d in compare([report, report, other], [report]).differences if d.what == "program")
    assert found.serious and " to " in found.before and " to " not in found.after
    unknown = msgspec.structs.replace(report, work=msgspec.structs.replace(report.work, flops=0.0))
    assert "program" in {d.what for d in compare([report, other], [unknown]).differences}
    less, more = (msgspec.structs.replace(r, work=msgspec.structs.replace(r.work, flops=n)) for r, n in ((report, 0.7), (other, 1.4)))
    first = msgspec.structs.replace(report, work=msgspec.structs.replace(report.work, flops=1.0))
    assert "program" in {d.what for d in compare([first, less], [more]).differences}, "the first is near to both, they are far from each other"
    mixed = [report, with_device(report, "NVIDIA A100")]
    assert ("device", "NVIDIA H200 or NVIDIA A100", "NVIDIA H200", True) in {
        (d.what, d.before, d.after, d.serious) for d in compare(mixed, [report]).differences
    }
    assert [d.what for d in compare([report], mixed[::-1]).differences if d.serious] == ["device"]
    pages = [msgspec.structs.replace(with_device(report, name), kind="kernels") for name in ("", "NVIDIA H200", "NVIDIA A100")]
    assert [d.what for d in compare(pages[:2], pages[2:]).differences if d.serious] == ["device"], "one without a name hides no other"
    assert not [d for d in compare(pages[:2], pages[1:2]).differences if d.serious]
    with pytest.raises(UsageError, match="kind job and trace"):
        compare([report, msgspec.structs.replace(report, kind="job")], [report])


def test_a_snapshot_of_memory_has_no_step_to_compare():
    snapshot = sample("memory/kept_features.slow.pickle.gz")
    with pytest.raises(UsageError, match="no step to compare"):
        compare([snapshot], [snapshot])


def test_a_side_is_a_report_or_several_and_nothing_else():
    one = sample("low-arithmetic-intensity/slow.json.gz")
    assert compare(one, [one]) == compare([one], [one])
    for side in (3, "saved.json", ["saved.json"], [one, None]):
        with pytest.raises(UsageError, match="no report"):
            compare(one, side)


def test_a_side_without_captures_or_without_a_breakdown_is_refused():
    report = sample("memcpy/slow.json.gz")
    with pytest.raises(UsageError, match="no capture after"):
        compare([report], [])
    with pytest.raises(UsageError, match="without a breakdown"):
        compare([report], [msgspec.structs.replace(report, breakdown=())])


parts = st.lists(
    st.builds(
        Part, st.sampled_from(["compute", "communication", "copy", "memset"]), st.sampled_from("abcdef"), st.sampled_from(["gemm", "other"]),
        st.sampled_from(["", "x", "y"]), st.sampled_from(["", "m"]), st.sampled_from(["", "[1]", "[2]"]), st.floats(0, 100), st.floats(0, 1e6),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@given(parts, parts)
def test_rows_sum_to_the_change_whatever_the_parts(before, after):
    report = sample("memcpy/slow.json.gz")
    sides = [[msgspec.structs.replace(report, breakdown=tuple(side))] for side in (before, after)]
    comparison = compare(*sides)
    assert off(comparison) <= 1e-6 * max(comparison.before.step_us, comparison.after.step_us, 1)
    assert sum(r.before_us for r in comparison.tables[3].rows) == pytest.approx(comparison.before.step_us)


@needs_shared
def test_two_exports_of_another_ring_size():
    before, after = (advisor.analyze(nsys.read(str(SHARED / "public" / "nsys" / f"nsysai_mfu_2gpu_{side}.sqlite"))) for side in ("before", "after"))
    comparison = compare([before], [after])
    # Of one block, of which 15 and 14 whole ones are in the exports: kernels take 535.20 and 488.84 ms in all, sending 25.40 and 33.74.
    assert comparison.before.kernel_us == pytest.approx(31_566, abs=1) and comparison.after.kernel_us == pytest.approx(32_596, abs=1)
    sent = next(r for r in comparison.kernel_time if "SendRecv" in r.name)
    assert (sent.before_us, sent.after_us) == (pytest.approx(1_407, abs=1), pytest.approx(2_326, abs=1))
    assert comparison.change_share == pytest.approx(0.15, abs=0.005)


def test_a_recording_is_one_capture_though_it_holds_two_traces(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for file in ("recording.json", "light.json.gz", "deep.json.gz"):
            (tmp_path / name / file).touch()
    assert captures(tmp_path / "a") == [tmp_path / "a"]
    assert captures(tmp_path) == [tmp_path / "a", tmp_path / "b"]


def with_true_step(report, low, expected, high, **source):
    window = msgspec.structs.replace(report.window, true_step_us=Prediction(low, expected, high))
    return msgspec.structs.replace(report, window=window, source=msgspec.structs.replace(report.source, **source))


def test_estimates_of_two_recorders_have_to_be_apart_to_tell_a_change():
    report = sample("memcpy/slow.json.gz")
    faster = changed(report, copy=0.5)
    slow = with_true_step(report, 80, 100, 120)
    for ends, verdict in (((70, 75, 81), "unknown"), ((70, 75, 79), "faster")):
        found = compare([slow], [with_true_step(faster, *ends, format="nsys")])
        assert found.verdict == verdict and ("overlap" in found.summary) == (verdict == "unknown")
    assert compare([slow], [with_true_step(faster, 70, 75, 81)]).verdict == "faster", "one recorder slows both alike"


@needs_shared
def test_one_program_of_two_profilers_runs_the_same_kernels():
    kineto, nsys_export = (analysed(SHARED / "corpus" / name) for name in ("kineto/launch_bound_train.slow.json.gz", "nsys/launch_bound_train.slow.sqlite"))
    found = compare([kineto], [nsys_export])
    assert found.verdict == "unknown" and not found.applied
    assert {row.relation for row in found.tables[3].rows if not row.name.startswith("idle")} == {"same"}
    assert all(row.before_us and row.after_us for row in found.kernel_time)


def judged(report, how, why):
    return msgspec.structs.replace(report, headline=msgspec.structs.replace(report.headline, judged=how, judged_why=why))


def test_a_side_that_could_not_be_judged_is_named():
    report = sample("memcpy/slow.json.gz")
    faster = changed(report, copy=0.5)
    part = compare([judged(report, "partly", "the file was cut")], [faster])
    assert part.verdict == "faster" and [(d.what, d.before, d.after) for d in part.differences] == [
        ("what could be judged", "a part (the file was cut)", "everything")
    ]
    none = compare([report], [faster, judged(faster, "no", "the trace fails replay")])
    assert none.verdict == "unknown" and none.summary == "The recording after could not be judged, so no change can be told."
    assert [v.status for v in check({REGRESSION: 5}, faster, none)] == ["unknown"]


def test_a_spelling_that_two_kernels_share_names_neither():
    report = sample("memcpy/slow.json.gz")
    before, after = (
        msgspec.structs.replace(report, kernels=tuple(msgspec.structs.replace(report.kernels[0], name=f"void {space}::k<{size}>(int)") for space in "ab"))
        for size in ("4", "(int)4")
    )
    assert all(0.0 in (row.before_us, row.after_us) for row in kernel_time([before], [after], Draws.create(1, 1)))


@pytest.mark.parametrize(("factor", "verdict"), [(1.019, "within noise"), (1.021, "slower")])
def test_one_capture_a_side_tells_no_change_within_what_steps_repeat_in(factor, verdict):
    report = sample("memcpy/slow.json.gz")
    slower = msgspec.structs.replace(report, breakdown=tuple(msgspec.structs.replace(p, us=factor * p.us) for p in report.breakdown))
    found = compare([report], [slower])
    assert found.verdict == verdict and ("about 2%" in found.summary) == (verdict == "within noise")


def test_what_does_not_differ_is_no_difference():
    report = sample("memcpy/slow.json.gz")
    whole = msgspec.structs.replace(report, window=msgspec.structs.replace(report.window, basis="whole"), work=msgspec.structs.replace(report.work, kernels=1))
    assert not compare([whole], [whole]).differences
    more = msgspec.structs.replace(whole, work=msgspec.structs.replace(whole.work, kernels=2))
    assert [(d.before, d.after) for d in compare([whole], [more]).differences] == [("1 kernel", "2 kernels")]
    assert side_of(compare([whole, whole], [whole]).before).endswith(" and 1 more capture")
    cut = judged(whole, "partly", "the file was cut")
    assert differences(compare([cut], [cut]))[0].startswith("note: what could be judged: a part (the file was cut) on both sides.")
