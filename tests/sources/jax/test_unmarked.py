"""Programs of JAX that mark no steps: whose thread the driver's calls are on, and what a step is."""

import numpy as np
import pytest

import advisor
from advisor.views.trace.steps import Steps
from advisor.views.workspace import Workspace
from tests.sources.jax.test_jax import PlaneOf

CALLS = 9
PERIOD = 1_000_000
MAIN, OTHER, DRIVER = 7294582533474074196, 8488723804693167876, 3958


def profile(tmp_path, *, module="jit_step", programs=1, calls=CALLS, both=False, marked=""):
    """So many calls of step() a millisecond apart. Each runs one kernel of 100 µs, launched 60 µs in, within a range of the runtime's, by
    a line that holds nothing else. both: whether another thread runs programs at the same times."""
    gpu, host = PlaneOf("/device:GPU:0"), PlaneOf("/host:CPU")
    kernels, launches, own = [], [], []
    for i in range(calls):
        at, said = i * PERIOD, {"hlo_module": module, "program_id": i % programs, "hlo_op": "fusion.1", "name": "jit(step)/mul"}
        kernels.append(("fusion_1", at + 80_000, 100_000, {"correlation_id": i + 1, "kernel_details": "regs:4 grid:1,1,1 block:64,1,1", **said}))
        launches.append(("hipModuleLaunchKernel", at + 60_000, 5_000, {"correlation_id": i + 1}))
        own += [("PjitFunction(step)", at, 100_000, {}), ("PjitFunction(step)", at + 1_000, 98_000, {})]
        own += [
            ("GpuExecutable::ExecuteThunks", at + 50_000, 40_000, {}),
            ("MakeOutputBuffers", at + 91_000, 1_000, {}),
            ("BufferFreed", at + 500_000, 1_000, {}),
        ]
        own += [(marked, at - 10_000 if at else 0, 700_000, {})] if marked else []
    gpu.line(14, "Stream #14(Compute)", 0, *kernels)
    host.line(MAIN, "python", 0, *own).line(DRIVER, f"Host Threads/{DRIVER}", 0, *launches)
    if both:
        host.line(OTHER, "pool", 0, *(("GpuExecutable::ExecuteThunks", i * PERIOD + 50_000, 40_000, {}) for i in range(calls)))
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(gpu.bytes() + host.bytes())
    return advisor.load(path)


def test_a_line_of_nothing_but_driver_s_calls_is_the_thread_that_ran_programs_around_them(tmp_path):
    assert np.unique(profile(tmp_path).api_calls["tid"]).tolist() == [MAIN]


@pytest.mark.parametrize("changed", [{"both": True}, {"calls": 7}])
def test_where_two_threads_may_be_meant_or_calls_are_few_it_stays_unknown(tmp_path, changed):
    assert np.unique(profile(tmp_path, **changed).api_calls["tid"]).tolist() == [DRIVER]


def test_calls_of_the_jitted_function_are_the_steps(tmp_path):
    steps = Workspace(profile(tmp_path)).get(Steps)
    assert (steps.basis, steps.steps, steps.step_us) == ("detected", CALLS - 1, 1000.0)
    assert "jitted function" in steps.detail


def test_the_program_s_own_range_marks_them_better_and_the_runtime_s_ranges_never_do(tmp_path):
    steps = Workspace(profile(tmp_path, marked="train")).get(Steps)
    assert (steps.basis, steps.steps) == ("nvtx", CALLS - 1)


@pytest.mark.parametrize("changed", [{"module": "jit_other"}, {"programs": 3}])
def test_another_function_s_work_or_other_programs_each_time_make_no_step_of_it(tmp_path, changed):
    assert "jitted function" not in Workspace(profile(tmp_path, **changed)).get(Steps).detail
