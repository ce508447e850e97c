"""Two reports of Nsight Compute held against each other, kernel by kernel."""

from advisor.compare import compare
from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.recordings.kernel_profiles import KernelProfiles
from advisor.recordings.recording import Recording
from advisor.reports.comparison import formats
from tests.kernels import kernel

APART = {"threads": 8, "compute": 98, "dram": 7, "l2": 9, "l1": 3}


def report(*kernels):
    profiles = KernelProfiles("k.ncu-rep", "ncu-rep", 1, kernels, {0: "NVIDIA H200"})
    return run(Recording("kernels", "k.ncu-rep", (profiles,)), [built_in()["divergence"]])


def test_kernels_are_compared_by_name_and_findings_by_kernel():
    found = compare(
        [report(kernel("sorted", us=400, **APART), kernel("same"))],
        [report(kernel("sorted", us=100), kernel("same"), kernel("more", us=10))],
    )
    changes = {row.name: row.change_us for row in found.kernel_time}
    assert changes == {"sorted": -300, "same": 0, "more": 10}
    assert found.change_us == -290 and found.verdict == "faster"
    assert [(f.rule, f.status) for f in found.findings] == [("divergence: sorted", "gone")]
    for form in formats().values():
        assert form.render(found)
    for said in (formats()["text"].render(found), formats()["markdown"].render(found)):
        assert "step" not in said.lower() and "Launches" in said


def test_a_page_that_does_not_name_its_device_is_compared():
    named, unnamed = (
        run(Recording("kernels", "k", (KernelProfiles("k", "ncu-csv", 1, (kernel(),), devices),)), [built_in()["divergence"]])
        for devices in ({0: "NVIDIA H200"}, {})
    )
    assert not compare([named], [unnamed]).differences
