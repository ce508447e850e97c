"""Flight recorders' dumps: who waits in which collective, who did not come, what is not the same on all ranks, and how fast it was."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from advisor import analyze, sources
from advisor.errors import TraceError
from advisor.recordings.flight import FlightRecords
from advisor.reports import formats
from advisor.sources.redact import redact
from advisor.views.flight.rounds import Rounds, rows
from tests.paths import ROOT

SAMPLES = ROOT / "samples" / "flight"


def entry(name: str, number: int, state: str = "completed", elements: int = 1024, group: str = "0", **more: Any) -> dict[str, Any]:
    return {
        "collective_seq_id": number, "p2p_seq_id": 0, "process_group": (group, "default_pg"), "profiling_name": f"nccl:{name}", "state": state,
        "input_sizes": [[elements]], "input_dtypes": ["BFloat16"], "retired": state == "completed", "is_p2p": False,
        "frames": [{"name": "all_reduce", "filename": "/site-packages/torch/distributed/distributed_c10d.py", "line": 3}, {"name": "step", "filename": "/home/user/train.py", "line": 40 + number}],
        **more,
    }  # fmt: skip


def dump(*entries: dict[str, Any], ranks: int = 4) -> dict[str, Any]:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": json.dumps([*range(ranks)])}}
    return {"version": "2.10", "entries": [*entries], "pg_config": config, "pg_status": {}}


def job(folder: Path, *dumps: dict[str, Any], as_json: bool = False) -> Path:
    for rank, value in enumerate(dumps):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(json.dumps(value).encode() if as_json else pickle.dumps(value, 2))
    return folder


@pytest.mark.parametrize("as_json", [False, True], ids=["pickle", "json"])
def test_the_rank_that_did_not_come_is_named_with_its_last_call(as_json: bool, tmp_path: Path) -> None:
    waits = dump(entry("all_reduce", 1), entry("all_reduce", 2, "started"))
    late = dump(entry("all_reduce", 1))
    report = analyze(job(tmp_path, waits, waits, waits, late, as_json=as_json)).report
    assert (report.kind, report.headline.bottleneck, report.headline.judged) == ("collectives", "hung", "yes")
    assert report.headline.summary == (
        "Ranks 0, 1, 2 wait in nccl:all_reduce at train.py:42, no. 2 of group 0 (default_pg); rank 3 did not come to it: "
        "the last that rank 3 called there is no. 1, nccl:all_reduce at train.py:41."
    )


def test_a_collective_that_is_not_the_same_on_all_ranks_comes_first(tmp_path: Path) -> None:
    one = dump(entry("all_reduce", 1), entry("all_gather", 2, "started"), ranks=2)
    other = dump(entry("all_reduce", 1), entry("all_reduce", 2, "started"), ranks=2)
    report = analyze(job(tmp_path, one, other)).report
    assert report.headline.bottleneck == "collectives differ"
    assert "no. 2 of group 0 (default_pg) is not the same on all ranks: nccl:all_gather on rank 0; nccl:all_reduce on rank 1" in report.headline.summary
    assert {check.check: check.status for check in report.health}["collectives-alike"] == "failed"


@pytest.mark.parametrize(("name", "differs"), [("all_reduce", True), ("broadcast", False), ("all_to_all", False)])
def test_sizes_must_be_the_same_only_where_the_kind_asks_for_it(name: str, differs: bool, tmp_path: Path) -> None:
    job(tmp_path, dump(entry(name, 1), ranks=2), dump(entry(name, 1, elements=2048), ranks=2))
    assert (analyze(tmp_path).report.headline.bottleneck == "collectives differ") is differs


def test_a_rank_without_a_dump_is_said_to_be_unknown(tmp_path: Path) -> None:
    waits = dump(entry("all_reduce", 2, "started"), ranks=3)
    report = analyze(job(tmp_path, waits, waits)).report
    assert "rank 2 left none" in report.headline.summary and "none of rank 2" in report.health[0].detail


def test_a_rank_whose_buffer_begins_later_has_come(tmp_path: Path) -> None:
    """The recorder keeps the last calls alone: one that is not there any more was made."""
    waits = dump(entry("all_reduce", 5, "scheduled"), ranks=2)
    behind = dump(entry("all_reduce", 9), ranks=2)
    (part,) = sources.read(job(tmp_path, waits, behind)).parts
    assert isinstance(part, FlightRecords)
    (stuck,) = Rounds.build(part).stuck
    assert stuck.waiting == (0,) and stuck.missing == ()


def test_a_device_that_did_not_begin_is_told_from_the_links(tmp_path: Path) -> None:
    job(tmp_path, dump(entry("all_reduce", 2, "started"), ranks=2), dump(entry("all_reduce", 2, "scheduled"), ranks=2))
    assert "the devices of rank 1 did not begin it" in analyze(tmp_path).report.headline.summary
    job(tmp_path, dump(entry("all_reduce", 2, "started"), ranks=2), dump(entry("all_reduce", 2, "started"), ranks=2))
    assert "the links between them" in analyze(tmp_path).report.headline.summary


def test_a_message_that_nobody_takes_is_named(tmp_path: Path) -> None:
    send = entry("send 0->1", 7, "started", is_p2p=True, p2p_seq_id=3)
    job(tmp_path, dump(entry("all_reduce", 1), send, ranks=2), dump(entry("all_reduce", 1), ranks=2))
    assert "Rank 0 waits in nccl:send 0->1 at train.py:47 no. 3" in analyze(tmp_path).report.headline.summary


def test_the_last_rank_to_come_says_how_fast_it_was(tmp_path: Path) -> None:
    """1 GB of bfloat16 in 10 ms between 4 ranks: 2 * 3 / 4 of it crosses each link."""
    half = 500_000_000
    took = (10.0, 14.0, 10.0, 22.0)
    job(tmp_path, *(dump(entry("all_reduce", 1, elements=half, duration_ms=ms)) for ms in took))
    (part,) = sources.read(tmp_path).parts
    assert isinstance(part, FlightRecords)
    (row,) = rows(Rounds.build(part))
    assert (row.bytes, row.ranks, row.transfer_us) == (2 * half, 4, 10_000.0) and row.wait_us == pytest.approx(4000.0)
    assert row.bus_gbps == pytest.approx(1e9 * 1.5 / 0.010 / 1e9)
    assert "150 GB/s" in next(check.detail for check in analyze(tmp_path).report.health if check.check == "collectives-timed")


def test_one_dump_alone_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_3"
    path.write_bytes(pickle.dumps(dump(entry("all_reduce", 2, "started")), 2))
    report = analyze(path).report
    assert report.headline.judged == "no" and report.headline.summary.startswith("Rank 3 waits in")


def test_what_runs_code_is_refused(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (pytest.fail, ("a pickle was opened",))

    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"pg_config": {}, "pg_status": {}, "entries": [Trap()]}, 2))
    with pytest.raises(TraceError):
        sources.read(path)


def test_dumps_that_torch_wrote_are_read() -> None:
    """Two ranks of Gloo, three collectives each; Gloo marks no state."""
    report = analyze(SAMPLES).report
    assert report.headline.bottleneck == "no hang" and "All 3 collectives of 2 ranks" in report.headline.summary


@pytest.mark.parametrize("form", sorted(formats()))
def test_each_format_shows_dumps(form: str) -> None:
    assert formats()[form].render(analyze(SAMPLES))


def test_a_redacted_dump_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "shared").mkdir()
    job(tmp_path / "given", dump(entry("all_reduce", 2, "started"), ranks=2), dump(entry("all_reduce", 1), ranks=2))
    for rank in (0, 1):
        redact(tmp_path / "given" / f"nccl_trace_rank_{rank}", tmp_path / "shared" / f"nccl_trace_rank_{rank}")
    one, other = (analyze(tmp_path / name).report.headline for name in ("given", "shared"))
    assert one.bottleneck == other.bottleneck and one.summary.replace(" (default_pg)", "") == other.summary
