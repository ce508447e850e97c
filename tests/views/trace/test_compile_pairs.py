"""Six programs with and without graph breaks or recompilations: their measured difference, against the price in the trace of both.

Recorded on a CPU with PyTorch 2.13 (inductor; `aot_eager` where programs compile again), TORCH_TRACE and torch.profiler: steps of the broken and
the mended program alternate, so that both meet the same load. Of traces and logs, only the events and records that are read are kept.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from advisor.engine.run import analyze
from advisor.knowledge.structs import replace
from advisor.recordings.recording import with_compile_logs
from advisor.recordings.timeline import Timeline
from advisor.report.compile_log import CompileCost
from advisor.sources import read
from advisor.sources.compile_log import read_compile_logs
from advisor.views.trace.compile_costs import CompileCostTable
from advisor.views.workspace import Workspace
from tests.command import advisor

HERE = Path(__file__).parent / "compile_logs"
BREAKS = {"print": 2, "item": 1, "branch": 1, "unsupported": 3}
AGAIN = ("module", "sizes")


def priced(name: str) -> tuple[float, tuple[CompileCost, ...], float]:
    """What a broken step costs more than a mended one, in µs: as measured, the rows, and their sum."""
    recording = with_compile_logs(read(str(HERE / f"{name}.json.gz")), read_compile_logs(str(HERE / f"{name}.log.gz"), None))
    workspace = Workspace(*recording.parts)
    rows = workspace.get(CompileCostTable).costs.rows
    share = sum(row.count_a_step for row in rows) / len(rows)
    marks = workspace.get(Timeline).annotations
    steps = [(int(text.removeprefix("ProfilerStep#")), us) for text, us in marks.rows("name", "dur_us") if text.startswith("ProfilerStep#")]
    whole = sorted(steps)[1:-1]
    broken, mended = ([us for number, us in whole if number % 2 == parity] for parity in (0, 1))
    measure = np.mean if name in AGAIN else np.median
    return float(measure(broken) - measure(mended)), rows, sum(row.us or 0.0 for row in rows) / share


@pytest.mark.parametrize("name", (*BREAKS, *AGAIN))
def test_a_price_is_what_mending_gains(name: str) -> None:
    measured, rows, price = priced(name)
    assert len(rows) == BREAKS.get(name, 1) and {row.kind for row in rows} == {"graph-break" if name in BREAKS else "recompilation"}
    assert price == pytest.approx(measured, rel=0.2)


def test_in_sum_the_prices_of_breaks_are_within_a_tenth() -> None:
    found = [priced(name) for name in BREAKS]
    assert sum(price for *_, price in found) == pytest.approx(sum(measured for measured, *_ in found), rel=0.1)


def on_a_gpu(name: str, folder: Path) -> Path:
    """The recording as if each compiled graph had launched a short kernel, which the host holds up."""
    data = json.loads(gzip.decompress((HERE / f"{name}.json.gz").read_bytes()))
    graphs = [one for one in data["traceEvents"] if str(one.get("name")).startswith("## Call CompiledFxGraph")]
    for number, one in enumerate(graphs, 1):
        at = one["ts"] + one["dur"] / 2
        by = {"ph": "X", "dur": 0.1, "args": {"correlation": number, "stream": 7, "device": 0}}
        launch = {**by, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": one["pid"], "tid": one["tid"], "ts": at}
        data["traceEvents"] += [launch, {**by, "cat": "kernel", "name": "triton_poi_fused_add_0", "pid": 0, "tid": 7, "ts": at + 0.2}]
    path = folder / f"{name}.json"
    path.write_text(json.dumps(data))
    return path


def test_without_the_profiler_a_price_is_what_the_pairs_say(tmp_path: Path) -> None:
    """Steps of these pairs took 1.3 to 1.7 times as long under the profiler."""
    recorded, unprofiled = 0.0, 0.0
    for name in BREAKS:
        recording = with_compile_logs(read(str(on_a_gpu(name, tmp_path))), read_compile_logs(str(HERE / f"{name}.log.gz"), None))
        report = analyze(recording, options={"graph-breaks": {"min_saving_share": 0.005}})
        assert report.compile_costs is not None
        rows = report.compile_costs.rows
        measured, *_ = priced(name)
        recorded += measured * sum(row.count_a_step for row in rows) / len(rows)
        unprofiled += sum(row.unprofiled_us or 0.0 for row in rows)
        (finding,) = (one for one in report.findings if one.rule == "graph-breaks")
        assert finding.saving.low < sum(row.unprofiled_us or 0.0 for row in rows) < finding.saving.high
        assert "pairs.py:" in finding.summary and finding.evidence[0].source
    assert 1.3 < recorded / unprofiled < 1.7


def test_the_report_lists_them_in_every_format(tmp_path: Path) -> None:
    given = (HERE / "item.json.gz", "--compile-log", HERE / "item.log.gz")
    outputs = [tmp_path / f"x{suffix}" for suffix in (".txt", ".md", ".json", ".html")]
    done = advisor("analyze", *given, *(part for path in outputs for part in ("-o", path)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all("pairs.py:20" in path.read_text().replace("&#58;", ":") for path in outputs if path.suffix != ".json")
    assert json.loads(outputs[2].read_text())["compile_costs"]["rows"][0]["source"] == {"file": "/home/user/pairs.py", "line": 20}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("item", "1 graph break takes 1.9% of the step as recorded, at /home/user/pairs.py:20."),
        ("print", "2 graph breaks take 2.8% of the step as recorded, most at /home/user/pairs.py:13."),
        ("sizes", "1 recompilation takes 94% of the step as recorded, at /home/user/pairs.py:42."),
    ],
)
def test_the_headline_of_a_program_without_a_gpu_names_the_worst_line(name: str, said: str) -> None:
    report = analyze(with_compile_logs(read(str(HERE / f"{name}.json.gz")), read_compile_logs(str(HERE / f"{name}.log.gz"), None)))
    assert report.headline.bottleneck == "cpu-only" and report.headline.summary.endswith(said)


def test_the_headline_is_silent_about_breaks_without_a_price() -> None:
    recording = read(str(HERE / "item.json.gz"))
    (log,) = read_compile_logs(str(HERE / "item.log.gz"), None)
    unpriced = replace(log, breaks=tuple(replace(one, compile_id=(99, 0)) for one in log.breaks))
    report = analyze(with_compile_logs(recording, [unpriced]))
    assert report.compile_costs is not None and report.compile_costs.rows[0].us is None
    assert "graph break" not in report.headline.summary


def test_a_log_of_another_program_exits_with_2(tmp_path: Path) -> None:
    done = advisor("analyze", HERE / "item.json.gz", "--compile-log", HERE / "print.log.gz", "-f", "json", cwd=tmp_path)
    assert done.returncode == 2 and b"different programs" in done.stderr
