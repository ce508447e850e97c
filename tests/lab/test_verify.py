import json
import shlex
import sys

import numpy as np
import pytest

import advisor
from advisor.cli import main
from advisor.errors import TraceError, UsageError
from advisor.knowledge.structs import replace
from advisor.lab import accuracy
from advisor.lab.verify import Gain, Prediction, Verification, _medians, append, gain, prediction, verify_commands, with_prediction, words
from tests.lab.programs import TRAIN, written
from tests.paths import MANY_SAMPLES, ROOT


def runs(rng, middle, count=3, spread=0.005, steps=30):
    """Runs whose medians differ by `spread`, their steps by 2 %."""
    return [middle * (1 + spread * rng.standard_normal()) * (1 + 0.02 * rng.standard_normal(steps)) for _ in range(count)]


TRIALS = 200 if MANY_SAMPLES else 50


@pytest.mark.parametrize("count", [1, 2, 5, 30, 201])
def test_medians_of_resamples_are_as_if_each_value_was_drawn(count):
    rng, shares = np.random.default_rng(3), (0.025, 0.2, 0.5, 0.8, 0.975)
    run = rng.gamma(9.0, 10.0, count)  # of two values a quarter of the medians are the lower: no share is near that
    drawn = np.median(rng.choice(run, (10_000, count)), axis=1)
    assert np.quantile(_medians(run, rng), shares) == pytest.approx(np.quantile(drawn, shares), rel=0.02)


def test_the_gain_is_a_share_of_the_time_before():
    found = gain([[100.0] * 5] * 3, [[60.0] * 5] * 3)
    assert (found.expected, found.low, found.high) == pytest.approx((0.4, 0.4, 0.4))
    assert found.verdict == "faster" and "40.0% faster: 0.1 ms before, 0.06 ms after" in str(found)
    assert gain([[60.0] * 5] * 3, [[90.0] * 5] * 3).verdict == "slower"


def test_the_interval_covers_the_truth_though_runs_differ():
    rng = np.random.default_rng(1)
    found = [gain(runs(rng, 100.0), runs(rng, 80.0)) for _ in range(TRIALS)]
    assert np.mean([g.low <= 0.2 <= g.high for g in found]) >= 0.85
    assert np.median([g.high - g.low for g in found]) < 0.04


def test_identical_sides_have_no_difference_or_it_cannot_be_told():
    for spread, usual in ((0.001, "no-difference"), (0.05, "cannot-tell")):
        rng = np.random.default_rng(2)
        verdicts = [gain(runs(rng, 100.0, spread=spread), runs(rng, 100.0, spread=spread)).verdict for _ in range(TRIALS)]
        assert verdicts.count("faster") + verdicts.count("slower") <= (0.01 if spread < 0.01 else 0.2) * TRIALS
        assert max(verdicts, key=verdicts.count) == usual


def test_less_than_two_percent_is_no_difference_however_sure():
    assert Gain(100.0, 98.5, 0.014, 0.015, 0.016).verdict == "no-difference"
    assert Gain(100.0, 97.5, 0.024, 0.025, 0.026).verdict == "faster"
    assert Gain(1e9, 5e8, 0.5, 0.5, 0.5, "bytes").verdict == "less"


def test_an_interval_that_holds_both_cannot_tell_and_says_what_would():
    for low, expected, high in ((-0.03, 0.0, 0.01), (-0.01, 0.05, 0.11), (0.001, 0.015, 0.03)):
        assert Gain(100.0, 100 * (1 - expected), low, expected, high).verdict == "cannot-tell"
    found = Verification(Gain(100.0, 98.0, -0.06, 0.02, 0.10), runs=3)
    # The interval narrows as the root of the runs: from eight points on each side to two.
    assert "some 48 runs a side would (--runs)" in str(found) and found.to_dict()["verdict"] == "cannot-tell"
    assert "more rounds would" in str(replace(found, runs=0))
    assert Gain(100.0, 95.0, -0.01, 0.05, 0.11).runs_to_tell(3) == 5


def test_a_side_without_steps_is_said():
    with pytest.raises(TraceError, match="no measured step"):
        gain([[]], [[1.0]])


def verification(expected):
    return Verification(Gain(100.0, 100.0 * (1 - expected), expected - 0.01, expected, expected + 0.01), device="a device", torch="2.13")


def test_a_prediction_is_held_against_the_measurement_and_kept(tmp_path):
    predicted = Prediction("launch-gap", "launch-gap-1", 0.2, 0.3, 0.4)
    held = with_prediction(verification(0.35), predicted)
    assert held.held and "Predicted by launch-gap-1: 30.0% (20.0% to 40.0%): it held" in str(held)
    assert not with_prediction(verification(0.5), predicted).held and verification(0.5).held is None
    ledger = tmp_path / "accuracy.jsonl"
    append(ledger, held)
    append(ledger, with_prediction(verification(0.5), predicted))
    assert [json.loads(line)["verdict"] for line in ledger.read_text().splitlines()] == ["faster", "faster"]
    pairs = accuracy.read_ledger(ledger)
    assert [pair.in_interval for pair in pairs] == [True, False] and pairs[0].rule == "launch-gap"
    with pytest.raises(UsageError):
        append(ledger, verification(0.1))


def test_a_prediction_for_another_device_is_not_judged(tmp_path):
    for devices, held in ((("NVIDIA H200",), None), (("NVIDIA H200", "A DEVICE"), True), ((), True)):
        found = with_prediction(verification(0.35), Prediction("launch-gap", "launch-gap-1", 0.2, 0.3, 0.4, devices))
        assert found.held is held and ("it is for NVIDIA H200 and this ran on a device" in str(found)) == (held is None)
        if held is None:
            with pytest.raises(UsageError, match="is for NVIDIA H200"):
                append(tmp_path / "accuracy.jsonl", found)


@pytest.mark.parametrize("text", ["", "{}", "nothing"])
def test_a_ledger_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "l.jsonl").write_text(text)
    with pytest.raises(TraceError):
        accuracy.read_ledger(tmp_path / "l.jsonl")


def test_a_finding_of_a_saved_report_is_found_by_id_or_rule(tmp_path):
    report = advisor.analyze(ROOT / "samples" / "sync-stall" / "slow.json.gz")
    (tmp_path / "report.json").write_bytes(report.to_json())
    first = report.findings[0]
    share = first.saving.expected_us / report.headline.step_us
    for name in (first.id, first.rule):
        found = prediction(f"{tmp_path}/report.json#{name}")
        assert found.expected == pytest.approx(share) and found.devices == ("NVIDIA H200",)
    with pytest.raises(UsageError, match="has no finding"):
        prediction(f"{tmp_path}/report.json#no-such-rule")


def test_functions_are_held_against_each_other(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr("advisor.lab.bench.WARMUP_S", 0.0)
    x = torch.ones(64, 64)
    found = advisor.verify(lambda: [x @ x for _ in range(50)], lambda: x @ x, rounds=6, min_s=0.3)  # of many calls a busy machine holds up few
    assert found.time.expected > 0.5 and found.memory.expected > 0.5
    assert json.loads(found.to_json())["time"]["unit"] == "us" and "<pre>" in found._repr_html_()
    with pytest.raises(UsageError):
        advisor.verify(lambda: x, lambda: x, rounds=1)


def test_the_command_runs_both_programs_by_turns(tmp_path, monkeypatch, capfd):
    pytest.importorskip("torch")
    order = tmp_path / "order"
    program = written(tmp_path, TRAIN.replace("import sys, torch", f"import sys, torch; open({str(order)!r}, 'a').write(sys.argv[3])"))
    before, after = (f"{sys.executable} {program} 100000 0 {side}" for side in "ba")
    arguments = ["--before", before, "--after", after, "--runs", "2", "--timed", "5", "--warmup", "1", "-o", str(tmp_path / "v.json")]
    monkeypatch.setattr(sys, "argv", ["advisor", "verify", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0 and order.read_text() == "baab"
    saved = json.loads((tmp_path / "v.json").read_text())
    assert saved["time"]["before"] > 0 and saved["memory"]["unit"] == "bytes" and saved["verdict"]
    assert "trained" not in capfd.readouterr().out


def test_the_command_keeps_no_prediction_for_another_device(tmp_path, monkeypatch, capsys):
    (tmp_path / "report.json").write_bytes(advisor.analyze(ROOT / "samples" / "sync-stall" / "slow.json.gz").to_json())
    monkeypatch.setattr("advisor.lab.verify.verify_commands", lambda *args, **options: verification(0.35))
    ledger = tmp_path / "accuracy.jsonl"
    finding = f"{tmp_path}/report.json#sync-stall"
    monkeypatch.setattr(sys, "argv", ["advisor", "verify", "--before", "a", "--after", "b", "--finding", finding, "--ledger", str(ledger)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0 and "not judged" in capsys.readouterr().out and not ledger.exists()


@pytest.mark.parametrize(("code", "raised"), [(130, SystemExit), (143, SystemExit), (1, UsageError), (139, UsageError)])
def test_who_is_told_to_stop_stops_and_a_program_that_breaks_is_named(monkeypatch, code, raised):
    monkeypatch.setattr("advisor.lab.launch.launch", lambda *args, **options: code)
    with pytest.raises(raised, match=str(code)):
        verify_commands("before", "after")


def test_a_program_that_breaks_shows_its_error_and_which_side_it_is(tmp_path):
    pytest.importorskip("torch")
    fine, broken, empty = (f"{sys.executable} -c {shlex.quote(text)}" for text in (TRAIN.replace("sys.argv", "[0, '999']"), "1 / 0", "pass"))
    with pytest.raises(UsageError, match=r"^before, .* exit code 1") as error:
        verify_commands(broken, fine, runs=2)
    assert "ZeroDivisionError" in error.value.hint
    with pytest.raises(TraceError, match=r"^before, .* no step was found"):
        verify_commands(empty, fine, runs=2)


def test_what_only_a_shell_does_is_said_and_an_environment_is_given():
    assert words("FOO=1 python a.py") == ["env", "FOO=1", "python", "a.py"]
    assert words("python a.py --sep '|' \"a;b\" c\\&d")[-3:] == ["|", "a;b", "c&d"]
    with pytest.raises(UsageError, match="takes a shell") as error:
        words("python a.py | cat")
    assert error.value.hint == "Name the shell: sh -c 'python a.py | cat'"


@pytest.mark.parametrize("command", ["python a.py $HOME", 'python a.py "$(date)"', "python a.py *.txt", "python ~/a.py", "python a.py  # fast"])
def test_what_only_a_shell_puts_in_place_is_said_to_take_one(command):
    with pytest.raises(UsageError, match="takes a shell"):
        words(command)
    assert words(f"sh -c {shlex.quote(command)}") == ["sh", "-c", command]


@pytest.mark.parametrize(("number", "said"), [(0, "0 runs a side have no spread"), (1, "1 run a side has no spread")])
def test_fewer_than_two_runs_are_refused_in_a_sentence(number, said):
    with pytest.raises(UsageError, match=said):
        verify_commands("true", "true", runs=number)
