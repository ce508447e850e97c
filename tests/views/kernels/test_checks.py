"""What is asked of each measured kernel, on both sides of what makes it a concern."""

import pytest

from advisor.knowledge.structs import replace
from advisor.recordings.kernel_profiles import Flags
from tests.kernels import judged, kernel

LOADS = {
    "launch__shared_mem_per_block_static": 0.0, "dram__bytes_read.sum": 3200.0,
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 32.0, "loads": 200.0,
}  # fmt: skip
"""No shared memory; 200 sectors of 32 bytes are loaded, twice what DRAM sends."""
CACHED = {"l1": 90, "dram": 20, "l2": 30}
WAITING = {"dram": 20, "l2": 20, "l1": 10, "compute": 10}
FEW = {
    "launch__occupancy_limit_registers": 2,
    "launch__occupancy_limit_shared_mem": 9,
    "launch__occupancy_limit_warps": 8,
    "launch__occupancy_limit_blocks": 32,
}


def check(name, **metrics):
    """The status of a check, and what it says."""
    measured = metrics.pop("profile", None) or kernel(**metrics)
    (row,) = judged("divergence", measured).kernels
    return next((c.status, c.detail) for c in row.counted.checks if c.check == name)


def test_what_is_read_again_could_be_kept_in_shared_memory_where_a_cache_is_the_limit():
    status, told = check("shared memory", **LOADS, **CACHED)
    assert status == "concern" and told == "none is used; each byte that DRAM sends is loaded 2.0 times, and L1 limits the kernel"
    for quiet in (
        {**LOADS, **CACHED, "loads": 140.0},  # loaded 1.4 times
        {**LOADS, "dram": 90},  # DRAM is the limit
        {**LOADS, **CACHED, "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 4.0},  # sectors, not data, are loaded again
        {**LOADS, **CACHED, "shared_bytes": 4096.0},
    ):
        assert check("shared memory", **quiet)[0] == "ok", quiet
    assert check("shared memory", **LOADS, **CACHED, shared_bytes=4096.0)[1] == "4.10 kB of it a block"
    assert check("shared memory", **CACHED)[0] == "not collected"


@pytest.mark.parametrize(("threads", "status"), [(32, "ok"), (256, "ok"), (100, "concern"), (31, "concern")])
def test_blocks_are_whole_warps(threads, status):
    assert check("warp size", block=threads)[0] == status
    assert "of the last of which 28 lanes are empty" in check("warp size", block=100)[1]


def test_what_holds_the_blocks_back_is_a_concern_where_the_kernel_waits():
    # 2 blocks of 256 threads are a quarter of the 64 warps.
    held = {**FEW, "sm__maximum_warps_per_active_cycle_pct": 25.0}
    status, told = check("limits", **held, **WAITING)
    assert status == "concern" and told.startswith("an SM takes 2 blocks by registers, 9 blocks by shared memory, 8 blocks by threads, 32 at most")
    assert "32 registers a thread" in told
    assert check("limits", **held)[0] == "ok", "DRAM is busy"
    assert check("limits", **{**held, "sm__maximum_warps_per_active_cycle_pct": 50.0}, **WAITING)[0] == "ok"
    by_threads = {**held, "launch__occupancy_limit_registers": 9, "launch__occupancy_limit_warps": 2}
    assert check("limits", **by_threads, **WAITING)[0] == "ok", "larger blocks are no matter of registers"


def test_occupancy_is_what_fits_and_what_is_there():
    assert check("occupancy", **WAITING)[0] == "ok"
    status, told = check("occupancy", **WAITING, **{"sm__warps_active.avg.pct_of_peak_sustained_active": 49.0})
    assert status == "concern" and told == "100% theoretical, limited by threads, 49% achieved"
    status, told = check("occupancy", **{"sm__warps_active.avg.pct_of_peak_sustained_active": 12.0})
    assert status == "ok" and told.endswith("which keeps a unit busy all the same")


@pytest.mark.parametrize(
    ("flags", "status", "told"),
    [
        (Flags("sm_90", lines=True), "ok", "ptxas compiled it with -O3 for sm_90, with line numbers"),
        (Flags("sm_90", level=1), "concern", "with -O1 for sm_90, without line numbers"),
        (Flags("sm_80", level=0, debug=True, lines=True), "concern", "for a debugger (-G) for sm_80"),
        (Flags(max_registers=32), "ok", "with -O3, at most 32 registers a thread"),
    ],
)
def test_a_kernel_that_was_not_optimised_is_told(flags, status, told):
    found, detail = check("flags", profile=replace(kernel(), flags=flags))
    assert found == status and told in detail and "--use_fast_math" in detail
    assert check("flags")[0] == "not collected"


def test_a_product_that_leaves_tensor_cores_idle():
    for name, tensor, status in (("sgemm_128x64_nn", 4.0, "concern"), ("sgemm_128x64_nn", 6.0, "ok"), ("copy", 0.0, "ok")):
        assert check("Tensor Cores", profile=kernel(name, tensor=tensor))[0] == status
