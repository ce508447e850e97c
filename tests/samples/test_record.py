"""The recording script at toy sizes, on the CPU."""

import json
import re
from pathlib import Path

import pytest

from advisor.knowledge.structs import replace

torch = pytest.importorskip("torch")

import record  # noqa: E402

from workloads import REGISTRY, Setup, Workload  # noqa: E402

TINY = Setup(torch.device("cpu"), tiny=True)


def test_each_rule_has_one_main_pair_and_no_two_samples_share_a_file() -> None:
    paths = [workload.path(side) for workload in REGISTRY.values() for side in workload.sides()]
    assert len(paths) == len(set(paths))
    rules = {workload.rule for workload in REGISTRY.values() if workload.rule}
    mains = [workload.rule for workload in REGISTRY.values() if workload.main]
    assert sorted(mains) == sorted(rules)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", rule) for rule in rules)


@pytest.mark.parametrize("workload", REGISTRY.values(), ids=REGISTRY)
def test_each_program_runs(workload: Workload) -> None:
    for make in workload.sides().values():
        try:
            step = make(TINY)
        except ModuleNotFoundError as error:  # public models need their libraries, which only the recording machine must have
            pytest.skip(f"a library of public models is missing: {error.name}")
        step()
        step()


@pytest.mark.parametrize("name", ["rnn_cell_loop", "offload_roundtrip", "decode_batch1", "mlp_batch2"])
def test_both_sides_return_a_result_of_the_same_kind(name: str) -> None:
    slow, fixed = (make(TINY)() for make in REGISTRY[name].sides().values())
    assert slow.shape[1:] == fixed.shape[1:] and slow.dtype == fixed.dtype


@pytest.mark.parametrize("name", ["llama_pieces", "encoder_infer", "offload_roundtrip"])
def test_the_fix_changes_no_result(name: str) -> None:
    results = []
    for make in REGISTRY[name].sides().values():
        torch.manual_seed(0)
        results.append(make(TINY)())
    torch.testing.assert_close(*results)


def test_what_slows_a_whole_round_is_taken_out_of_all_sides() -> None:
    # Three of five rounds take twice as long; one side has the machine alone for a moment in one of them: its plain median would be 5, a quarter of 20.
    sides = record.polished([[10.0, 20.0, 10.0, 20.0, 20.0], [5.0, 5.0, 5.0, 10.0, 10.0], [30.0, 60.0, 30.0, 60.0, 60.0]])
    assert sides == pytest.approx([20.0, 10.0, 60.0])
    # Alone, a side has its plain median.
    assert record.polished([[3.0, 1.0, 2.0]]) == pytest.approx([2.0])


def test_the_slow_side_of_fixes_alone_is_timed_as_two_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {"slow": 4.0, "slow again": 9.0, "sync-stall": 3.0}
    monkeypatch.setattr(record, "step_times_ms", lambda steps, counts, setup: {side: taken[side] for side in steps})
    step = REGISTRY["gemm_loop"].sides()["fixed"]
    recording = record.Recording(Workload(name="x", rule=None, what="", fix="", make_slow=step, alone={"sync-stall": step}))
    record.measure(recording, TINY)
    assert recording.times_ms == pytest.approx({"slow": 6.0, "sync-stall": 3.0}), "the geometric mean of both"


def test_masked_and_indexed_training_are_the_same_update() -> None:
    from workloads.sync_stall import PaddedTraining

    losses = []
    for positions in (lambda mask: mask, lambda mask: mask.nonzero().squeeze(1)):
        torch.manual_seed(0)
        training = PaddedTraining(TINY)
        losses.append(torch.stack([training.update(positions(training.mask))[0] for _ in range(3)]))
    torch.testing.assert_close(*losses)


def test_traces_and_manifest_are_written(tmp_path: Path) -> None:
    assert record.run(["cpu_tolist_in_loop", "print_loss_each_step", "decode_batch1", "gemm_loop"], TINY, tmp_path, budget_s=60)
    cases = json.loads((tmp_path / "manifest.json").read_text())["cases"]
    assert cases["cpu_tolist_in_loop"]["rule"] == "sync-stall" and cases["cpu_tolist_in_loop"]["saving"]
    assert cases["print_loss_each_step"]["rule"] is None and cases["print_loss_each_step"]["trap"] == "sync-stall"
    assert cases["decode_batch1"]["kineto"]["slow"] == "low-arithmetic-intensity/slow.json.gz"
    assert "slow_ms" not in cases["gemm_loop"] and cases["gemm_loop"]["kineto"] == {"fixed": "healthy/gemm_loop.json.gz"}
    assert all((tmp_path / path).stat().st_size for case in cases.values() for path in case["kineto"].values())


def test_a_program_that_raises_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_: Setup) -> None:
        raise RuntimeError("out of paper")

    monkeypatch.setitem(REGISTRY, "gemm_loop", replace(REGISTRY["gemm_loop"], make_fixed=broken))
    assert not record.run(["gemm_loop", "mlp_batch2"], TINY, tmp_path, budget_s=60)
    assert list(json.loads((tmp_path / "manifest.json").read_text())["cases"]) == ["mlp_batch2"]
    assert "out of paper" in capsys.readouterr().err


def test_a_second_run_keeps_the_cases_it_did_not_record(tmp_path: Path) -> None:
    record.run(["mlp_batch2"], TINY, tmp_path, budget_s=60)
    record.run(["gemm_loop"], TINY, tmp_path, budget_s=60)
    assert list(json.loads((tmp_path / "manifest.json").read_text())["cases"]) == ["mlp_batch2", "gemm_loop"]


def test_nothing_new_is_measured_past_the_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not record.run(["mlp_batch2"], TINY, tmp_path, budget_s=0.0)
    assert "out of time" in capsys.readouterr().err
