"""Measured kernels found again in a timeline: a share of each launch becomes µs of the step."""

import numpy as np
import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import analysis
from advisor.errors import UsageError
from advisor.knowledge.structs import replace
from advisor.recordings.kernel_profiles import KernelProfile, KernelProfiles
from advisor.recordings.recording import Recording, with_kernels
from advisor.report.finding import Saving
from tests.build import Trace
from tests.kernels import kernel

FEW_WARPS = {"shared_bytes": 200 << 10, "dram": 5, "l2": 7, "l1": 3, "compute": 15, "issue": 17}


def timeline() -> Recording:
    """Five steps of a GPU that a host keeps busy: a kernel of 60 µs, then one of 30."""
    trace = Trace()
    for s in range(5):
        host, gpu = 40 * s, 50 + 100 * s
        trace.step(host, 39, s + 1)
        trace.op("aten::gather", host, 15).launch(host + 5, gpu, gpu + 60, dur=4, name="void gather<int>(float const*, int)")
        trace.op("aten::other", host + 16, 15).launch(host + 20, gpu + 60, gpu + 90, dur=4, name="other")
    made = trace.timeline()
    count = len(made.gpu_ops)
    ops = made.gpu_ops.with_columns(grid_blocks=np.full(count, 4096), block_threads=np.full(count, 256, "i4"))
    return Recording("trace", "trace.json", (replace(made, gpu_ops=ops),))


def joined(*kernels: KernelProfile, trace: Recording | None = None):
    profiles = KernelProfiles("k.ncu-rep", "ncu-rep", 1, kernels, {0: "NVIDIA H200"})
    both = with_kernels(trace or timeline(), Recording("kernels", "k.ncu-rep", (profiles,)))
    return analysis(both, [built_in()["low-occupancy"]])


def test_a_kernel_s_gain_becomes_one_of_the_step():
    report = joined(kernel("void gather<int>(const float *, int)", us=777, **FEW_WARPS))
    (finding,) = report.findings
    assert isinstance(finding.saving, Saving)
    # Three quarters of 60 µs, whatever it took under ncu.
    assert finding.saving.expected_us == pytest.approx(45, abs=2)
    assert finding.evidence[0].count == 4 and finding.evidence[0].label == "gather<int>"
    check = next(c for c in report.health if c.check == "kernels-joined")
    assert check.status == "ok" and "67%" in check.detail
    row = next(r for r in report.kernels if "gather" in r.name)
    assert row.limiter == "latency" and row.counted and row.counted.checks


def test_another_grid_is_another_kernel():
    report = joined(kernel("gather<int>", grid=77, **FEW_WARPS))
    assert not report.findings and "runs in the timeline" in report.skipped[0].why
    assert next(c for c in report.health if c.check == "kernels-joined").status == "degraded"


def test_a_report_of_another_program_is_refused():
    with pytest.raises(UsageError, match=r"of another program: of its 2 kernels, looked for by name, the trace has 0\.5% of their time"):
        joined(kernel("gather<long>", us=200, **FEW_WARPS), kernel("other", us=1, **FEW_WARPS))


def test_a_report_without_template_arguments_still_joins():
    assert joined(kernel("gather", **FEW_WARPS)).findings


def test_two_timelines_do_not_join():
    with pytest.raises(UsageError):
        with_kernels(timeline(), timeline())


def twice() -> Recording:
    """Five steps that run one kernel for 60 µs, then for 30, with another of 10 between."""
    trace = Trace()
    for s in range(5):
        host, gpu = 40 * s, 50 + 100 * s
        trace.step(host, 39, s + 1)
        op = trace.op("aten::gather", host, 38)
        for start, end, name in ((0, 60, "k"), (60, 70, "between"), (70, 100, "k")):
            op.launch(host + 5 + start / 10, gpu + start, gpu + end, dur=4, name=name)
    made = trace.timeline()
    count = len(made.gpu_ops)
    ops = made.gpu_ops.with_columns(grid_blocks=np.full(count, 4096), block_threads=np.full(count, 256, "i4"))
    return Recording("trace", "trace.json", (replace(made, gpu_ops=ops),))


@pytest.mark.parametrize(
    ("order", "gained_us"),
    [(("k", "between", "k!"), 0.75 * 30), (("k!", "between", "k"), 0.75 * 60), (("between", "k", "k!"), 0.75 * 60), (("k", "k!"), 0.75 * 30)],
)
def test_launches_are_told_apart_by_their_turn_in_the_step(order, gained_us):
    # A report may start anywhere in a step; the launch with the fault (k!) is the one that gains.
    report = joined(*(kernel(name.rstrip("!"), **(FEW_WARPS if "!" in name else {})) for name in order), trace=twice())
    (finding,) = report.findings
    assert finding.saving.expected_us == pytest.approx(gained_us, abs=2)


def test_launches_in_another_order_than_the_step_s_stand_for_all():
    report = joined(*(kernel(name, **FEW_WARPS) for name in ("k", "between", "between")), trace=twice())
    (finding,) = [f for f in report.findings if f.evidence[0].label == "k"]
    assert finding.evidence[0].count == 8
