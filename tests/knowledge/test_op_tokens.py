"""One table spells what ops and kernels are called; views, rules and the engine ask it."""

import ast
import re
from functools import cache

import pytest

from advisor.knowledge.data import read as read_table
from advisor.knowledge.op_tokens import elementary, elementary_kernel, has_token, names_of, plain, split_overload
from advisor.recordings.timeline import Timeline
from advisor.sources import read
from tests.paths import ROOT, sample

TABLE = read_table(ROOT / "advisor" / "knowledge" / "op_tokens" / "table.toml")
ASKING = sorted([*(ROOT / "advisor" / "views").rglob("*.py"), *(ROOT / "advisor" / "engine").rglob("*.py"), *(ROOT / "rules").rglob("*.py")])
RECORDED = ("launch-gap", "unfused-attention", "memory-layout", "optimizer-foreach", "unfused-norm")


@cache
def recorded_names() -> frozenset[str]:
    """Of ops in some of the samples, with and without their namespace, and of kernels: their functions and functors."""
    found = set[str]()
    for rule in RECORDED:
        (timeline,) = (part for part in read(sample(f"{rule}/slow")).parts if isinstance(part, Timeline))
        ops, kernels = timeline.cpu_ops["name"].categories, timeline.gpu_ops["name"].categories
        found |= {*ops, *map(plain, ops), *(word for name in kernels for word in re.findall(r"\w*(?:[Ff]unctor|kernel|gemm|nvjet|cudnn|triton)\w*", name))}
    return frozenset(found)


def texts(path):
    """What a module spells, its docstrings aside."""
    tree = ast.parse(path.read_text())
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told]


def patterns(path):
    """Regular expressions that a module writes out, numbers and signs aside."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.") and node.args]
    written = [node.args[0].value for node in calls if isinstance(node.args[0], ast.Constant)]
    return [pattern for pattern in written if re.search(r"[A-Za-z]{2}", re.sub(r"\\.|\[[^]]*\]", "", pattern))]


@pytest.mark.parametrize("path", ASKING, ids=lambda path: str(path.relative_to(ROOT)))
def test_views_rules_and_the_engine_ask_the_table(path):
    assert not [text for text in texts(path) if "aten::" in text]
    assert not [(pattern, name) for pattern in patterns(path) for name in recorded_names() if (found := re.search(pattern, name)) and found[0]]


def test_the_samples_hold_names_to_try():
    assert {"aten::mm", "mm", "aten::copy_", "aten::_softmax"} <= recorded_names() and len(recorded_names()) > 150


def test_each_token_is_asked_for_and_compiles():
    tokens = {*TABLE["ops"], *TABLE["names"]}
    asked = {text for folder in ("advisor", "rules") for path in (ROOT / folder).rglob("*.py") for text in texts(path)}
    assert len(tokens) == len(TABLE["ops"]) + len(TABLE["names"])
    assert tokens <= asked
    assert all(names_of(token).pattern for token in tokens)


def test_a_token_of_ops_is_their_whole_name_and_none_of_another_namespace():
    assert has_token("aten::mul", "mul") and has_token("aten::mul_", "mul")
    assert not has_token("aten::mul_out", "mul") and not has_token("aten::addmul", "mul") and not has_token("mine::mul", "mul")
    with pytest.raises(KeyError):
        names_of("no such token")


def test_one_pass_over_a_tensor_is_known_by_op_and_else_by_kernel():
    assert [elementary(name) for name in ("aten::add_", "aten::_to_copy", "aten::linalg_vector_norm", "aten::mm", "mine::add")] == [
        "add",
        "cast",
        "norm",
        "",
        "",
    ]
    assert elementary_kernel("void at::native::vectorized_elementwise_kernel<4, at::native::rsqrt_kernel_cuda(at::TensorIteratorBase&)>") == "rsqrt"
    assert elementary_kernel("ampere_sgemm_128x64_tn") == ""


def test_an_overload_is_parted_from_its_op_and_a_range_is_left_whole():
    assert split_overload("aten::add.Tensor") == ("aten::add", "Tensor")
    assert split_overload("Optimizer.step#SGD.step") == ("Optimizer.step#SGD.step", "")
