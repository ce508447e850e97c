import json
import re
import signal
import sys
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import advisor  # noqa: E402
from advisor import cli  # noqa: E402
from advisor.cli import main  # noqa: E402
from advisor.errors import UsageError  # noqa: E402
from advisor.lab import bench as lab  # noqa: E402
from advisor.lab.bench_batches import Batch, bench_batches  # noqa: E402
from advisor.lab.timing import Table, Timing  # noqa: E402


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr("advisor.lab.bench.WARMUP_S", 0.0)
    monkeypatch.setattr("advisor.lab.bench.MOST", 20)


def timing(name, us, low=None, high=None, clock=None):
    low, high = low or us - 0.1, high or us + 0.1
    return Timing(name, "cuda", us, low, high, us, us, us, 100, 0, True, False, 2e6, 1e3, us / 2, "compute", clock)


def test_the_mean_is_that_of_the_timed_calls_alone():
    calls = []
    seconds = advisor.benchmark_function(lambda x: calls.append(x), (7,), warmup=3, iterations=5)
    assert calls == [7] * 8 and 0 < seconds < 0.1
    with pytest.raises(UsageError):
        advisor.benchmark_function(len, ("",), 0, 0)


def test_jax_results_are_waited_for_whatever_their_tree(monkeypatch):
    waited = []
    jax = types.ModuleType("jax")
    jax.block_until_ready = waited.append
    monkeypatch.setitem(sys.modules, "jax", jax)
    assert advisor.benchmark_fn(lambda x: {"a": x}, (1,), num_warmup=2, num_runs=3) > 0
    assert waited == [{"a": 1}] * 5


def test_a_timing_knows_its_work():
    a = torch.ones(64, 64)
    found = advisor.bench(torch.mm, a, a + 1)
    assert found.device == "cpu" and found.flops == 2 * 64**3 and found.moved_bytes == 3 * 64 * 64 * 4
    assert found.low_us <= found.device_us <= found.high_us and found.roofline_share is None
    assert found.gflops_per_s == pytest.approx(found.flops / found.device_us / 1e3)
    given = advisor.bench(torch.mm, a, a, flops=10.0, bytes=5.0)
    assert (given.flops, given.moved_bytes) == (10.0, 5.0)


def test_a_compiled_function_is_timed_compiled_and_stays_so():
    runs = []

    def backend(graph, inputs):
        return lambda *args: runs.append(graph) or graph(*args)

    a = torch.ones(8, 8)
    compiled = torch.compile(lambda x: torch.relu(x @ x), backend=backend)
    found = advisor.bench(compiled, a)
    assert found.flops == 2 * 8**3 and len(runs) > found.calls
    before = len(runs)
    compiled(a)
    assert len(runs) == before + 1


def test_the_interval_holds_the_median():
    # Of 100 values the order statistics 40 and 61 bound the median with 95 % confidence.
    assert lab._interval(np.arange(1.0, 101.0)) == (40.0, 61.0)
    rng = np.random.default_rng(0)
    inside = [low <= 0.0 <= high for low, high in (lab._interval(rng.standard_normal(50)) for _ in range(1000))]
    assert np.mean(inside) >= 0.94


def test_the_fastest_is_named_only_where_intervals_are_apart():
    assert Table((timing("a", 1.0), timing("b", 2.0))).verdict() == "a is the fastest: 2.00 times as fast as b"
    assert "overlap" in Table((timing("a", 1.0, 0.5, 2.5), timing("b", 2.0))).verdict()
    assert Table((timing("a", 1.0),)).verdict() == ""


def test_a_long_time_is_written_without_an_exponent():
    assert "23,992" in str(Table((timing("a", 23992.4),))) and "0.000683" in str(Table((timing("a", 0.000683),)))


def test_nothing_is_compared_when_the_clock_moved():
    assert "moved from 1755 to 1980 MHz" in Table((timing("a", 1.0, clock=1980.0), timing("b", 2.0, clock=1755.0))).verdict()
    assert "fastest" in Table((timing("a", 1.0, clock=1980.0), timing("b", 2.0, clock=1950.0))).verdict()


def test_a_table_has_every_form():
    table = Table((timing("a", 1.0), timing("<b>", 2.0)))
    assert str(table).splitlines()[0].split()[:2] == ["Function", "Device"]
    assert json.loads(table.to_json())["timings"][0]["roofline_share"] == 0.5
    assert list(table.to_frame()["name"]) == ["a", "<b>"]
    assert "<b>" not in table._repr_html_() and "&lt;b&gt;" in table._repr_html_()
    assert str(timing("a", 1.0)).splitlines()[1].startswith("a ")


def test_the_knee_is_where_doubling_stops_to_pay(monkeypatch):
    # Latencies of 1, 1.1, 2.1 and 4.2 ms at 1, 2, 4 and 8: from 2 on samples a second hardly grow.
    ms = {1: 1.0, 2: 1.1, 4: 2.1, 8: 4.2}
    for module in ("bench", "bench_batches"):
        monkeypatch.setattr(f"advisor.lab.{module}.host_times", lambda call, count: [ms[call()] / 1e3] * count)
    found = bench_batches(lambda batch: lambda: batch, [8, 1, 2, 4], limit_ms=2.5)
    assert (found.knee, found.largest) == (2, 4)
    assert [row.batch for row in found.rows] == [1, 2, 4, 8] and found.rows[0].samples_per_s == pytest.approx(1000)
    assert "Knee: 2" in str(found) and json.loads(found.to_json())["largest"] == 4
    assert bench_batches(lambda batch: lambda: batch, [8], limit_ms=1.0).largest is None
    assert isinstance(found.rows[0], Batch)
    # Up to 2 a doubled batch gains 82 % more, and nothing is known of what lies beyond.
    short = bench_batches(lambda batch: lambda: batch, [1, 2])
    assert short.knee is None and "No knee up to 2" in str(short)


MODULE = """
import torch
def small(): return torch.ones(4) + 1
def large(): return torch.ones(100000) + 1
def sized(n):
    x = torch.ones(n)
    return lambda: x + 1
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
    (tmp_path / "timed_here.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["advisor", "bench", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    return run


def test_the_command_compares_functions(command, capsys, tmp_path):
    assert command("timed_here:small", "timed_here:large") == 0
    assert "timed_here:large" in capsys.readouterr().out
    assert command("timed_here:sized", "--batch", "1,64", "-o", "batch.json") == 0
    assert [row["batch"] for row in json.loads((tmp_path / "batch.json").read_text())["rows"]] == [1, 64]
    assert command("timed_here:sized", "--sizes", "4,64", "-o", "sizes.html") == 0
    assert "<svg" in (tmp_path / "sizes.html").read_text()


FAILING = """
import functools, json, operator, sys
calls = []
def bad(): raise KeyError("nope")
def inside(): json.loads("{")
def leaves(): sys.exit(7)
def later():
    calls.append(1)
    if len(calls) > 5: raise OSError("full")
class Broken:
    def __init__(self): bad()
library = functools.partial(json.loads, "{")
compiled = functools.partial(operator.truediv, 1, 0)
def make_library(n): return library
def make_compiled(n): return compiled
def make_none(n): return 3
def make_with_argument(n): return lambda x: x
def make_not(n): return [][n]
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bad", r"failed: KeyError: 'nope' \(.*fails_here.py:4\)"),
        ("inside", r"failed: JSONDecodeError: .*fails_here.py:5\)"),
        ("leaves", r"failed: SystemExit: 7 \(.*fails_here.py:6\)"),
        ("later", r"failed: OSError: full \(.*fails_here.py:9\)"),
        ("Broken", r"failed: KeyError: 'nope' \(.*fails_here.py:11\)"),
        ("library", r"failed: JSONDecodeError: .*json.__init__.py:\d+\)"),
        ("compiled", r"failed: ZeroDivisionError: division by zero$"),
        ("make_library", r"failed: JSONDecodeError: .*json.__init__.py:\d+\)"),
        ("make_compiled", r"failed: ZeroDivisionError: division by zero$"),
        ("make_none", r"the result for 1 is no function: int"),
        ("make_with_argument", r"failed: TypeError: .* missing 1 required positional argument"),
        ("make_not", r"failed: IndexError: .*fails_here.py:18\)"),
    ],
)
def test_what_is_timed_and_fails_is_the_users(command, capsys, tmp_path, name, said):
    (tmp_path / "fails_here.py").write_text(FAILING)
    sys.modules.pop("fails_here", None)
    for sizes in (("--sizes", "1,2"), ("--batch", "1,2")) if name.startswith("make") else ((),):
        assert command(f"fails_here:{name}", *sizes) == 2
        told = capsys.readouterr().err
        assert re.search(said, told, re.MULTILINE) and "advisor's own" not in told and "lab.py" not in told and "bench.py" not in told
        assert ("Traceback" in told) == ("py:" in said), "what is compiled has none"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def any(:", r"SyntaxError: .*torn_here.py:1\)"),
        ("1 // 0", r"ZeroDivisionError: .*torn_here.py:1\)"),
        ("import no_such_module", r"ModuleNotFoundError: .*torn_here.py:1\)"),
        ("raise SystemExit(0)", r"SystemExit: 0 \(.*torn_here.py:1\)"),
    ],
)
def test_so_is_a_module_that_cannot_be_imported(command, capsys, tmp_path, text, said):
    (tmp_path / "torn_here.py").write_text(text)
    assert command("torn_here:any") == 2
    assert re.search(f"torn_here:any cannot be imported: {said}", capsys.readouterr().err)


def test_an_error_of_our_own_and_a_signal_stay_what_they_are(command, capsys, monkeypatch):
    def of_ours(*_, **__):
        raise KeyError("ours")

    monkeypatch.setattr(lab, "_interval", of_ours)
    assert command("timed_here:small") == 70 and "advisor's own" in capsys.readouterr().err
    monkeypatch.setattr(torch, "ones", lambda _: cli._terminated(signal.SIGTERM, None))
    assert command("timed_here:small") == 128 + signal.SIGTERM


def test_from_python_an_error_is_as_it_was_raised():
    with pytest.raises(ZeroDivisionError):
        advisor.bench(lambda: 1 / 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("timed_here:missing",), "cannot be imported"),
        (("no_such_module:f",), "cannot be imported"),
        (("timed_here:torch",), "is no function"),
        (("timed_here:sized", "--batch", "1,x"), "is no list of sizes"),
        (("timed_here:sized", "--batch", "1", "--sizes", "1"), "for a single function"),
        (("timed_here:small", "timed_here:large", "timed_here:small"), "timed_here:small is given twice"),
        (("timed_here:small", "--limit-ms", "5"), "--limit-ms looks for a batch size"),
        (("timed_here:small", "-f", "csv"), "there is no format"),
    ],
)
def test_what_cannot_be_timed_is_said(command, capsys, arguments, said):
    assert command(*arguments) == 2
    assert said in capsys.readouterr().err


async def _coroutine():
    return 1


@pytest.mark.parametrize(("fn", "what"), [(lambda: (i for i in range(3)), "generator"), (_coroutine, "coroutine")])
def test_what_has_not_run_is_not_timed(fn, what):
    for measure in (advisor.bench, lambda f: bench_batches(lambda size: f, [1]), lambda f: advisor.verify(f, f)):
        with pytest.raises(UsageError, match=f"a {what} and has not run"):
            measure(fn)
