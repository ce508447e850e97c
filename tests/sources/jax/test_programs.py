"""What XLA compiled, from an HLO module of a few instructions built by hand."""

import pytest

from advisor.sources.jax.programs import Programs
from advisor.sources.jax.scopes import scopes_of
from tests.sources.jax.test_jax import field

F32, BF16 = 11, 16


def shape(element, *sizes):
    return field(2, element) + field(3, bytes(sizes))


def instruction(number, name, opcode, array, *, operands=(), called=(), path="", frame=0, parameter=None, more=b""):
    metadata = (field(2, path) if path else b"") + (field(15, frame) if frame else b"")
    body = field(1, name) + field(2, opcode) + field(3, array) + (field(7, metadata) if metadata else b"") + field(35, number)
    body += (field(36, bytes(operands)) if operands else b"") + (field(38, bytes(called)) if called else b"")
    return field(2, body + (field(9, parameter) if parameter is not None else b"") + more)


def module(*computations, frames=b"", entry=1):
    return memoryview(field(1, field(1, "jit_step") + b"".join(field(3, c) for c in computations) + field(6, entry) + field(17, frames)))


def computation(number, root, *instructions):
    return field(1, f"c{number}") + b"".join(instructions) + field(5, number) + field(6, root)


FRAMES = (
    field(1, "/home/me/model.py") + field(1, "/usr/lib/python3.11/site-packages/flax/linen.py")
    + field(3, field(1, 1) + field(3, 12)) + field(3, field(1, 2) + field(3, 900))
    + field(4, field(1, 1)) + field(4, field(1, 2) + field(2, 1))
)  # fmt: skip

DOT = computation(
    2, 3,
    instruction(1, "p0", "parameter", shape(BF16, 8, 16)), instruction(2, "p1", "parameter", shape(BF16, 16, 4)),
    instruction(3, "dot.1", "dot", shape(BF16, 8, 4), operands=(1, 2), path="jit(step)/transpose(jvp(mlp))/layer1/dot_general", frame=2),
)  # fmt: skip
STEP = computation(
    1, 5,
    instruction(1, "x.1", "parameter", shape(BF16, 8, 16), path="x", parameter=1), instruction(2, "w.1", "parameter", shape(BF16, 16, 4), path="w", parameter=0),
    instruction(4, "gemm_fusion_dot.7", "fusion", shape(BF16, 8, 4), operands=(1, 2), called=(2,)),
    instruction(5, "all-reduce.1", "all-reduce", shape(F32, 32), operands=(4,), more=field(49, field(1, bytes([0, 1, 2, 3])))),
)  # fmt: skip


@pytest.fixture
def programs():
    made = Programs()
    made.add({"jit_step(9)": module(STEP, DOT, frames=FRAMES)})
    return made


def test_a_fusion_is_where_and_what_it_computes_last(programs):
    row = programs.row("jit_step", 9, "gemm_fusion_dot.7", "", "gemm_fusion_dot_7")
    found = programs.found[row]
    assert (found.scope, found.backward, found.file, found.line) == ("step/mlp/layer1", True, "/home/me/model.py", 12)
    assert found.precision == "bf16" and [str(a) for a in found.operands] == ["bfloat16[8,16]", "bfloat16[16,4]"]


def test_a_kernel_of_a_command_buffer_is_found_by_its_name(programs):
    by_name = programs.row("jit_step", 9, "command_buffer_1", "", "gemm_fusion_dot_7")
    assert by_name == programs.row("jit_step", 9, "gemm_fusion_dot.7", "", "anything")
    assert programs.row("jit_step", 9, "command_buffer_1", "", "nvjet_sm90") == programs.row("jit_other", 9, "x", "", "x") == -1


def test_a_collective_says_who_takes_part(programs):
    found = programs.found[programs.row("jit_step", 9, "all-reduce.1", "", "ncclDevKernel_AllReduce")]
    assert (found.collective, found.ranks, str(found.operands[0])) == ("all-reduce", 4, "bfloat16[8,4]")


def test_what_a_program_takes_is_told_where_it_was_compiled_again(programs):
    programs.add({"jit_step(10)": module(STEP, DOT, frames=FRAMES)})
    programs.row("jit_step", 9, "all-reduce.1", "", "")
    assert not len(programs.compiled_again())
    programs.row("jit_step", 10, "all-reduce.1", "", "")
    assert programs.compiled_again()["parameters"].tolist() == ["w: bfloat16[16,4]; x: bfloat16[8,16]"] * 2


@pytest.mark.parametrize(
    ("path", "scope", "backward"),
    [
        ("jit(step)/mlp/layer1/dot_general", "step/mlp/layer1", False),
        ("jit(step)/jit(main)/transpose(jvp(mlp))/layer1/dot_general", "step/mlp/layer1", True),
        ("jit(<lambda>)/jvp(jit(step))/mlp/while/body/tanh", "<lambda>/mlp", False),
        ("jit(f)/jvp(bsd,de->bse)/dot_general", "f/bsd,de->bse", False),
        ("jit(f)/vmap(jvp(a/b))/add", "f/a/b", False),
        ("jit(relu)", "", False),
        ("", "", False),
    ],
)
def test_scopes_are_what_the_program_named(path, scope, backward):
    assert scopes_of(path) == (scope, backward)
