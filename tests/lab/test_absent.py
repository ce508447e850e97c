"""What the lab says where torch or JAX is not installed."""

import sys
from pathlib import Path

import pytest

import advisor
from advisor.errors import UsageError, require
from tests.lab.absent import without

CALLS = {
    "attention_session": lambda folder: advisor.attention_session([8]),
    "profile_attention_components": lambda folder: advisor.profile_attention_components(8, 8, 1),
    "optimize_attention": lambda folder: advisor.optimize_attention(None, None, None, 0),
    "bench": lambda folder: advisor.bench(int),
    "bench_all": lambda folder: advisor.bench_all({"int": int}),
    "bench_batches": lambda folder: advisor.bench_batches(lambda size: int, [1]),
    "bench_sizes": lambda folder: advisor.bench_sizes({"int": lambda size: int}, [1]),
    "benchmark_fn": lambda folder: advisor.benchmark_fn(int, ()),
    "benchmark_function": lambda folder: advisor.benchmark_function(int, (), 1, 1),
    "estimate_arithmetic_intensity": lambda folder: advisor.estimate_arithmetic_intensity("matmul", {"a": (8, 8), "b": (8, 8)}),
    "measure_memory_usage": lambda folder: advisor.measure_memory_usage(int),
    "profile_memory": lambda folder: advisor.profile_memory(),
    "full_profiling_session": lambda folder: advisor.full_profiling_session(None, [], device="cpu"),
    "record": lambda folder: advisor.record(folder / "recording"),
    "trace_handler": lambda folder: advisor.trace_handler(folder / "out"),
    "verify": lambda folder: advisor.verify(int, int),
}
"""Every function of the lab that measures, called as anybody may."""

MEASURE_NOTHING = {"identify_bottleneck", "load_ipython_extension"}


def test_every_function_of_the_lab_is_called_here():
    homes = advisor._HOMES
    assert {name for name, home in homes.items() if home.startswith("advisor.lab")} == {*CALLS, *MEASURE_NOTHING}


@pytest.mark.parametrize("name", CALLS)
def test_what_to_install_is_said(name, tmp_path):
    package, extra = ("jax", "jax") if name == "benchmark_fn" else ("torch", "lab")
    with without("torch", "jax"), pytest.raises(UsageError, match=f"needs {package}, which cannot be imported") as told:
        CALLS[name](tmp_path)
    assert f"pip install '.[{extra}]'" in told.value.hint
    assert not [*tmp_path.iterdir()], "nothing is left of what could not begin"


def test_a_package_that_does_not_load_is_no_missing_one(tmp_path, monkeypatch):
    Path(tmp_path, "broken_package.py").write_text("raise OSError('libcudart.so: cannot open shared object file')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match=r"needs broken_package, which cannot be imported: libcudart\.so"):
        require("broken_package", extra="lab")
    assert "broken_package" not in sys.modules


@pytest.mark.parametrize("package", ["mcp", "distributed"])
def test_the_other_extras_are_named_alike(package, tmp_path):
    from advisor.engine.executors import _on_dask
    from advisor.integrations.mcp_server import server

    calls = {"mcp": lambda: server(tmp_path), "distributed": lambda: next(_on_dask("dask://localhost:1", [], None))}
    with without(package), pytest.raises(UsageError, match=f"needs {package}, which cannot be imported") as told:
        calls[package]()
    assert "pip install '.[" in told.value.hint
