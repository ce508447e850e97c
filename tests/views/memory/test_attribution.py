"""What each allocation is for, told by where it was made and how long it lived."""

import pytest

from advisor.views.memory.attribution import CATEGORIES, Attribution, Category
from advisor.views.memory.edits import layers_of
from advisor.views.memory.health import MemoryHealth
from advisor.views.memory.steps import MemorySteps
from advisor.views.workspace import Workspace
from tests.memory_build import MIB, Memory, at, backward, frame, optimizer, parameter, trained


def held(memory):
    """MiB at the peak by category."""
    attribution = Workspace(memory.snapshot()).get(Attribution)
    size = attribution.device.allocations.size
    found = {c.value: int(size[attribution.in_categories(c) & attribution.device.at_peak].sum()) // MIB for c in CATEGORIES}
    return {name: mib for name, mib in found.items() if mib}


def test_a_training_step_by_category():
    # Four layers of 512 + 64, the last one's gradient and what it passes on beside them.
    assert held(trained()) == {"parameters": 256, "activations": 2304, "temporaries": 64, "gradients": 64}


def begun_before() -> Memory:
    """Two steps of a program whose parameters, state and 500 MiB of something else are older than the history."""
    m = Memory()
    for size in (64, 64, 64, 32, 32, 32, 500):
        m.older(size)
    for _ in range(2):
        activation = m.alloc(40, at(5, "addmm"))
        made = [m.alloc(64, backward()), m.alloc(32, backward())]
        m.free(activation)
        m.alloc(1, optimizer("mul"))
        m.free(*made)
    return m


def test_parameters_and_state_older_than_the_window_are_told_by_the_sizes_of_gradients():
    # A parameter of each gradient's size, and two of state; the first step made 1 MiB more of it.
    assert held(begun_before()) == {"parameters": 96, "optimizer state": 193, "older than the history": 500, "activations": 40, "gradients": 96}


def test_adam_state_is_what_its_step_makes_and_keeps():
    m = Memory()
    m.alloc(64, parameter())
    for first in (True, False):
        activation = m.alloc(16, at(5, "addmm"))
        gradient = m.alloc(64, backward())
        m.free(activation)
        if first:
            m.alloc(64, optimizer())
            m.alloc(64, optimizer())
        m.free(m.alloc(64, optimizer("sqrt")))
        m.free(gradient)
    assert held(m) == {"parameters": 64, "gradients": 64, "optimizer state": 128, "temporaries": 64}


def test_without_native_frames_what_has_no_stack_belongs_to_the_backward_pass():
    m = Memory()
    activation = m.alloc(16, [frame("forward", "model.py", 3)])
    m.alloc(64)
    m.free(activation)
    m.alloc(1, [frame("step", "train.py", 8)])
    assert held(m)["gradients"] == 64


def test_steps_come_from_marks_backward_passes_or_what_repeats():
    assert Workspace(trained(steps=3).snapshot()).get(MemorySteps).basis == "optimizer"
    unmarked = trained(steps=3)
    unmarked.notes.clear()
    steps = Workspace(unmarked.snapshot()).get(MemorySteps)
    assert steps.basis == "backward" and len(steps) == 3
    served = Memory()
    for _ in range(5):
        served.free(served.alloc(10, at(3, "relu")), served.alloc(10, at(4, "addmm")))
    steps = Workspace(served.snapshot()).get(MemorySteps)
    assert steps.basis == "repeats" and len(steps) == 5


def test_layers_of_one_forward_pass_are_no_steps():
    m = Memory()
    for _ in range(12):
        m.alloc(10, at(5, "addmm", "forward"))
        m.free(m.alloc(10, at(6, "relu", "forward")))
    assert Workspace(m.snapshot()).get(MemorySteps).basis == "whole"


@pytest.mark.parametrize("layers", [2, 4, 9])
def test_layers_are_what_repeats_and_pass_on_their_smallest(layers):
    attribution = Workspace(trained(layers=layers).snapshot()).get(Attribution)
    found = layers_of(attribution)
    assert found.alike and found.per_pass == layers
    assert set((attribution.device.allocations.size[found.row[found.boundary]] // MIB).tolist()) == {64}


def test_history_that_begins_late_is_said():
    m = trained()
    m.older(9000)
    health = {h.check: h for h in Workspace(m.snapshot()).get(MemoryHealth).results}
    assert health["memory-history"].status == "degraded" and health["memory-balance"].status == "ok"
    good = Workspace(trained().snapshot()).get(MemoryHealth).results
    assert {h.status for h in good} == {"ok"} and not any(h.record_with for h in good), "nothing to mend"


def test_of_what_is_older_than_the_history_it_is_said_how_much_is_of_a_known_kind():
    """As many blocks as the window shows gradients of that size are parameters and state: 288 MiB of the 788 that are older, at a peak of 924 MiB."""
    m = begun_before()
    health = next(h for h in Workspace(m.snapshot()).get(MemoryHealth).results if h.check == "memory-history")
    assert health.detail.startswith("85% of the peak is older than the history (31% of a kind known from stacks or sizes)")


def test_unknown_is_said_where_nothing_was_recorded():
    m = Memory()
    m.free(m.alloc(10))
    assert held(m) == {Category.UNKNOWN.value: 10}


def between_c(*python):
    """Frames of the program with the interpreter's around each, as a recording of both has them."""
    c = [frame("method_vectorcall", "/build/Python/Include/cpython/abstract.h", 114), frame("_PyEval_EvalFrameDefault", "/build/Python/ceval.c", 4213)]
    allocator = [frame("at::_ops::empty::call(at::Tensor const&)"), frame("cfunction_call", "/build/Python/Objects/methodobject.c", 543)]
    main = [frame("__libc_start_call_main", "../sysdeps/nptl/libc_start_call_main.h", 58), frame("_start", "../sysdeps/x86_64/start.S", 115)]
    return [*allocator, *(one for f in python for one in (f, *c)), *main]


def origins(*stacks):
    m = Memory()
    for stack in stacks:
        m.alloc(64, stack)
    return Workspace(m.snapshot()).get(Attribution).origins.of


def test_a_place_is_pythons_though_frames_of_the_interpreter_lie_between():
    torch = frame("forward", "/env/site-packages/torch/nn/modules/linear.py", 134)
    stack = between_c(torch, frame("attend", "/home/me/model.py", 12), frame("<module>", "/home/me/train.py", 3))
    assert origins(stack)[0].source == "model.py:12"
    # Where only the interpreter's lines are known, there is no place.
    assert not origins(between_c(torch))[0].source
    # A script needs no suffix.
    assert origins(between_c(torch, frame("<module>", "/home/me/bin/train", 3)))[0].source == "train:3"


def test_an_installed_package_that_was_started_is_the_program():
    runpy = [frame("_run_code", "/usr/lib/python3.10/runpy.py", 86), frame("_run_module_as_main", "/usr/lib/python3.10/runpy.py", 196)]
    torch = frame("forward", "/env/site-packages/torch/nn/modules/linear.py", 134)
    model = frame("forward", "/env/site-packages/trainer/model.py", 340)
    assert origins(between_c(torch, model, frame("<module>", "/env/site-packages/trainer/train.py", 7), *runpy))[0].source == "model.py:340"
    assert not origins(between_c(torch, frame("<module>", "/env/site-packages/torch/distributed/run.py", 7), *runpy))[0].source
