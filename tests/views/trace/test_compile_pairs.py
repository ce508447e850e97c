"""Six programs with and without graph breaks or recompilations: their measured difference, against the price in the trace of both.

Recorded on a CPU with PyTorch 2.13 (inductor; `aot_eager` where programs compile again), TORCH_TRACE and torch.profiler: steps of the broken and
the mended program alternate, so that both meet the same load. Of traces and logs, only the events and records that are read are kept.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

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


def test_the_report_lists_them_in_every_format(tmp_path: Path) -> None:
    given = (HERE / "item.json.gz", "--compile-log", HERE / "item.log.gz")
    outputs = [tmp_path / f"x{suffix}" for suffix in (".txt", ".md", ".json", ".html")]
    done = advisor("analyze", *given, *(part for path in outputs for part in ("-o", path)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all("pairs.py:20" in path.read_text().replace("&#58;", ":") for path in outputs if path.suffix != ".json")
    assert json.loads(outputs[2].read_text())["compile_costs"]["rows"][0]["source"] == {"file": "/home/user/pairs.py", "line": 20}


def test_a_log_of_another_program_exits_with_2(tmp_path: Path) -> None:
    done = advisor("analyze", HERE / "item.json.gz", "--compile-log", HERE / "print.log.gz", "-f", "json", cwd=tmp_path)
    assert done.returncode == 2 and b"different programs" in done.stderr
