"""Logs of torch.compile: what is read of them, and that damaged ones cost their damaged records only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from advisor.errors import TraceError
from advisor.recordings.compile_log import LoggedBreak, LoggedCompilation
from advisor.sources import compile_log
from advisor.sources.compile_log import read_compile_logs

BREAK = """Graph break in user code at /home/me/train.py:20
Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):

Unsupported Tensor.item() call
  Explanation: Dynamo does not support tracing it.
"""


def record(payload: str = "", **said: object) -> str:
    head = f"V1129 10:31:07.951000 1872 torch/_dynamo/utils.py:2350] {json.dumps(said)}\n"
    return head + "".join(f"\t{line}\n" for line in payload.splitlines())


def at(function: int, number: int) -> dict[str, int]:
    return {"frame_id": function, "frame_compile_id": number, "attempt": 0}


def started(function: int, number: int, name: str, line: int, file: int = 1) -> str:
    return record(
        dynamo_start={"stack": [{"line": 1, "name": "<module>", "filename": 0}, {"line": line, "name": name, "filename": file}]}, **at(function, number)
    )


LOG = (
    record(str=["/home/me/train.py", 1])
    + started(0, 0, "f", 18)
    + record(BREAK, artifact={"name": "dynamo_graph_break_reason"}, **at(0, 0))
    + record('{"key": "fabcdefghijklmnop", "rest": 1}', artifact={"name": "fx_graph_cache_miss"}, **at(0, 0))
    + record(compilation_metrics={"co_name": "f", "entire_frame_compile_time_s": 2.5}, **at(0, 0))
    + started(0, 1, "f", 18)
    + record('["0/0: size mismatch at index 0", "more"]', artifact={"name": "recompile_reasons"}, **at(0, 1))
)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_breaks_recompilations_and_graphs_are_read(tmp_path: Path) -> None:
    (log,) = read_compile_logs(str(written(tmp_path / "x.log", LOG)), None)
    assert log.breaks == (LoggedBreak((0, 0), "/home/me/train.py", 20, "Unsupported Tensor.item() call: Dynamo does not support tracing it.", False),)
    assert log.compilations == (
        LoggedCompilation((0, 0), "f", "/home/me/train.py", 18, "", 2.5),
        LoggedCompilation((0, 1), "f", "/home/me/train.py", 18, "size mismatch at index 0", 0.0),
    )
    assert log.graphs == {"fabcdefghijklmnop": ((0, 0),)}


def test_a_directory_gives_the_rank_s_log(tmp_path: Path) -> None:
    for rank in (0, 1):
        written(tmp_path / f"dedicated_log_torch_trace_rank_{rank}_abcd.log", LOG)
    (mine,) = read_compile_logs(str(tmp_path), 1)
    assert "rank_1_" in mine.path
    assert len(read_compile_logs(str(tmp_path), None)) == 2


@pytest.mark.parametrize(
    "odd",
    [
        "V1129 10:31:07 1 a.py:1] {not json\n",
        "\tpayload of nothing\n",
        record(str=["x"]),
        record(str=[1, []]),
        record(dynamo_start=[], **at(0, 0)),
        record(dynamo_start={"stack": [None]}, **at(7, 0)),
        record(compilation_metrics={"entire_frame_compile_time_s": "long", "co_name": None}, **at(0, 0)),
        record("[[[[", artifact={"name": "recompile_reasons"}, **at(0, 0)),
        record("Graph break in user code at nowhere", artifact={"name": "dynamo_graph_break_reason"}, **at(0, 0)),
        record(artifact="fx_graph_cache_miss", frame_id=-1, frame_compile_id=None),
        "\x00\xff" * 30 + "\n",
    ],
)
def test_an_odd_record_costs_itself_only(odd: str, tmp_path: Path) -> None:
    (plain,) = read_compile_logs(str(written(tmp_path / "x.log", LOG)), None)
    (both,) = read_compile_logs(str(written(tmp_path / "x.log", odd + LOG + odd)), None)
    assert both.breaks == plain.breaks and set(plain.compilations) - set(both.compilations) <= {plain.compilations[0], plain.compilations[1]}


def test_long_lines_and_payloads_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_log, "LONGEST", 1000)
    long = record("x" * 5000 + "\n" + "y\n" * 5000, artifact={"name": "other"}, **at(0, 0)) + "z" * 9000 + "\n"
    (log,) = read_compile_logs(str(written(tmp_path / "x.log", long + LOG)), None)
    assert len(log.breaks) == 1 and len(log.compilations) == 2


@pytest.mark.parametrize("make", ["nothing", "no log", "no directory entry"])
def test_what_is_no_log_is_refused_with_the_command(make: str, tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    if make == "no log":
        path.write_text("{}\n" * 10)
    elif make == "no directory entry":
        path = tmp_path
    with pytest.raises(TraceError) as error:
        read_compile_logs(str(path), None)
    assert "TORCH_TRACE" in error.value.hint or "path" in error.value.hint


def test_more_compilations_than_any_program_has_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_log, "MOST_RECORDS", 3)
    with pytest.raises(TraceError, match="more than 3"):
        read_compile_logs(str(written(tmp_path / "x.log", "".join(started(k, 0, "f", k) for k in range(5)))), None)
