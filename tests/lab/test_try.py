"""What `advisor try` concludes, without running a program."""

import json
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from advisor.errors import UsageError
from advisor.lab import accuracy
from advisor.lab.interventions.catalogue import intervention, interventions
from advisor.lab.trying import numerics, session, words
from advisor.lab.trying.adopt import as_patch
from advisor.lab.trying.numerics import Compared, compare
from advisor.lab.trying.plan import Candidate, candidates, unfit
from advisor.lab.trying.result import Elsewhere, Predicted, Reach, Trial, Tried, append
from advisor.lab.trying.start import Program, Ran
from advisor.lab.trying.statistics import _t, held, tight
from advisor.lab.verify import Gain
from tests.analysed import analysed
from tests.command import advisor
from tests.paths import MANY_SAMPLES, ROOT, sample

LOSSES = [2.0, 1.5, 1.2, 1.0, 0.9, 0.8]
START, FIRST = [1.0, -2.0, 3.0], [0.9, -1.9, 2.9]


def ran(losses=LOSSES, gradients=(0.1, -0.2, 0.3), end=FIRST, outputs=(), half="", **more):
    samples = {"0/parameters/0": START, "0/gradients/0": list(gradients), "0/parameters/1": list(end)} if gradients else {}
    said = {
        "losses": list(losses), "samples": samples, "outputs": [list(one) for one in outputs], "half": half, "watch_failed": "", "device_kind": "cpu",
        "trains": True, "world_size": 1, "frameworks": {}, "capability": [],
    }  # fmt: skip
    return Ran(1.0, {**said, **more})


def moved(by, losses=LOSSES):
    return [loss * (1 + by) for loss in losses]


@pytest.mark.parametrize(
    ("name", "trial", "verdict"),
    [
        ("exact", ran(), "equal"),
        ("exact", ran(moved(1e-4)), "differs"),
        ("rounding", ran(moved(1e-6)), "equal"),
        ("rounding", ran(moved(1e-3)), "differs"),
        ("tf32", ran(moved(1e-3)), "equal"),
        ("bf16", ran(moved(1e-2)), "equal"),
        ("bf16", ran(moved(0.2)), "differs"),
        ("bf16", ran(gradients=(0.1, 0.2, 0.3)), "differs"),
        ("rounding", ran(gradients=(0.1, -0.2, 0.3003)), "differs"),
        ("rounding", ran(end=START), "differs"),
        ("bf16", ran(end=START), "differs"),
        ("exact", ran([*LOSSES[:-1], float("nan")]), "differs"),
        ("exact", ran(moved(0.0)[:3]), "equal"),
        ("other", ran(), "not-checked"),
        ("exact", ran((), ()), "not-checked"),
    ],
)
def test_a_run_computes_the_same_within_what_its_arithmetic_may_change(name, trial, verdict):
    found = compare(ran(), ran(), trial, name)
    assert found.verdict == verdict and (verdict == "equal" or found.why)


def test_two_runs_as_they_are_say_how_far_equal_may_be_apart():
    noisy = ran(moved(1e-3), gradients=(0.1, -0.2, 0.301))
    assert compare(ran(), ran(), noisy, "exact").verdict == "differs"
    assert compare(ran(), noisy, ran(moved(2e-3), gradients=(0.1, -0.2, 0.302)), "exact").verdict == "equal"
    both = ran([1.0, float("nan")])
    assert compare(both, both, both, "exact").verdict == "equal"


def test_a_program_in_half_precision_may_round_so_by_itself():
    rounded = ran(moved(3e-3), half="bfloat16")
    assert compare(ran(half="bfloat16"), ran(half="bfloat16"), rounded, "rounding").verdict == "equal"
    assert compare(ran(half="bfloat16"), ran(half="bfloat16"), rounded, "exact").verdict == "differs"


def test_what_amplifies_rounding_is_judged_by_how_far_a_nudge_moves_it():
    chaotic = [*LOSSES[:3], 1.3, 0.5, 1.1]
    alone = compare(ran(), ran(), ran(chaotic), "rounding")
    assert alone.verdict == "differs" and alone.needs_nudge
    nudged = ran([*LOSSES[:3], 0.8, 1.2, 0.6])
    judged = compare(ran(), ran(), ran(chaotic), "rounding", nudged)
    assert judged.verdict == "equal" and "nudge" in judged.why
    # The same difference from the first loss on is none that grew.
    assert compare(ran(), ran(), ran([2.4, *chaotic[1:]]), "rounding", nudged).verdict == "differs"


def test_inference_is_judged_by_what_the_outermost_module_returns():
    base = ran((), (), outputs=[[1.0, 2.0]])
    assert compare(base, base, ran((), (), outputs=[[1.0, 2.000001]]), "rounding").verdict == "equal"
    assert compare(base, base, ran((), (), outputs=[[1.0, 2.1]]), "rounding").verdict == "differs"
    assert compare(base, base, ran((), (), outputs=[[1.0, 2.0, 3.0]]), "bf16").verdict == "differs"


SIMULATED = 400 if MANY_SAMPLES else 100


@pytest.mark.parametrize("spread", [0.002, 0.01, 0.05])
def test_the_same_program_on_both_sides_gains_nothing(spread):
    rng = np.random.default_rng(0)

    def runs(count):
        return [100 * np.exp(spread * rng.standard_normal()) * (1 + 0.02 * rng.standard_normal(30)) for _ in range(count)]

    verdicts = [held(runs(4), runs(3)).verdict for _ in range(SIMULATED)]
    assert (verdicts.count("faster") + verdicts.count("slower")) / SIMULATED <= 0.03


def test_a_gain_is_found_where_runs_repeat_and_is_tight_then():
    found = held([[100.0] * 30, [100.5] * 30, [99.8] * 30], [[80.0] * 30, [80.3] * 30, [79.9] * 30])
    assert found.verdict == "faster" and tight(found) and found.low < 0.2 < found.high
    assert not tight(held([[100.0] * 9, [130.0] * 9], [[90.0] * 9, [70.0] * 9]))
    assert held([[100.0]], [[50.0]]).verdict == "cannot-tell"


class Noisy:
    """A runner on a clock of its own: each run takes ten seconds, and the steps of runs lie 5 % apart."""

    def __init__(self):
        self.now_s = 0.0
        self.applied = []
        self._rng = np.random.default_rng(0)

    def run(self, asked):
        self.now_s += 10
        names = [one.name for one in asked.apply]
        self.applied += names
        took = [float(100 * np.exp(0.05 * self._rng.standard_normal()))] * 30
        said = {
            "step_us": took, "ended_s": [0.0] * 30, "warmup": 10, "last": 30, "steps": 30, "kernels": {}, "parameters": 1, "peak_memory_bytes": 0, "failed_to": {},
            "applied": [{"name": name, "count": 1, "refused": {}, "sites": [], "modules": [], "made_by": [], "parameters": 0} for name in names],
        }  # fmt: skip
        return replace(ran(**said), wall_s=10.0)


@pytest.mark.parametrize(("budget_s", "with_usual_runs"), [(60, 1), (110, 2), (3600, 3)])
def test_a_small_budget_tells_of_the_first_fixes_and_not_a_little_of_all(budget_s, with_usual_runs, tmp_path, monkeypatch):
    runner = Noisy()
    monkeypatch.setattr(session.time, "monotonic", lambda: runner.now_s)
    trials = session.Session(Program(["true"]), tmp_path, 20 + budget_s, print)
    trials._runner = runner
    trials.begin()
    names = ["compile", "autocast", "fused-optimizer"]
    trials.measure([Candidate(intervention(name)) for name in names])
    runs = [runner.applied.count(name) for name in names]
    assert [count >= session.USUAL_RUNS for count in runs] == [number < with_usual_runs for number in range(3)], runs


def test_each_intervention_names_what_exists():
    for name, one in interventions().items():
        module, _, function = one.code.partition(":")
        assert hasattr(__import__(f"advisor.lab.interventions.{module}", fromlist=[function]), function), name
        assert one.unseen and one.advice and set(one.instead) <= set(interventions())


def test_every_intervention_that_a_fix_names_exists():
    named = set()
    for path in [*(ROOT / "rules").rglob("*.py"), *(ROOT / "rules" / "fixes").glob("*.toml"), *(ROOT / "advisor" / "knowledge").rglob("*.toml")]:
        lines = [line for line in path.read_text().splitlines() if line.lstrip().startswith("intervention")]
        named |= {part for line in lines for part in line.split('"')[1::2]} - {"bf16"}
    assert named and named <= set(interventions())


def test_a_plan_takes_the_fixes_of_the_report_and_says_what_does_not_fit():
    report = analysed(sample("launch-gap/slow"))
    gpu = ran(device_kind="cuda", capability=[9, 0])
    chosen = {one.intervention.name: one for one in candidates(report, gpu, (), None)}
    assert "compile" in chosen or "compile-reduce-overhead" in chosen
    assert all(one.predicted and 0 <= one.predicted.low <= one.predicted.expected <= one.predicted.high <= 1 for one in chosen.values())
    (one,) = candidates(report, ran(), ["autocast"], None)
    assert "8.0" in one.unfit
    assert "one rank" in unfit(intervention("ddp-bucket-view"), gpu) and "transformers" in unfit(intervention("no-nan-filter"), gpu)
    assert not unfit(intervention("no-nan-filter"), ran(frameworks={"transformers": "5"}))
    on_cpu = {one.intervention.name for one in candidates(None, ran(), (), None)}
    assert {"fused-optimizer", "loader-workers"} <= on_cpu and not on_cpu & {"larger-batch", "autocast", "no-synchronize"}


GAIN = Gain(100.0, 63.0, 0.35, 0.37, 0.39)


def trial(name="loader-workers", verdict="faster", gain=GAIN, **more):
    chosen = intervention(name)
    return Trial(
        name, chosen.what, verdict, Predicted("launch-gap-1", "launch-gap", 0.31, 0.40, 0.52), gain=gain, runs=3, losses=Compared("equal", 1e-7, 1e-5, 2e-6),
        unseen=chosen.unseen, advice=chosen.advice, **more,
    )  # fmt: skip


def result(*trials, kept=(), together=None):
    return Tried(
        ["python", "train.py"], "A device", "2.13", [[100.0] * 5, [101.0] * 5], trials, kept, together, Compared("equal"), 0.5,
        [Elsewhere("sync-stall-1", "sync-stall", "Let the host run ahead", 0.1)], 0.01, 0.0, steps=(10, 30), spent_s=60.0,
    )  # fmt: skip


def test_predicted_stands_beside_measured_in_every_form():
    compiled = trial("compile", compile_s=41.0, peak_memory_bytes=1e9, more_memory_bytes=0.3e9, reach=Reach(1, ("GPT",), 1.0, ops=1.0))
    found = result(compiled, trial("fused-optimizer", "did-not-apply", None, why="Trainer passes fused already"), kept=("compile",), together=compiled.gain)
    for said in (words.as_text(found), words.as_markdown(found), words.as_html(found)):
        for part in ("launch-gap-1 predicted 40% (31 to 52)", "measured 37% ± 2", "losses equal to 1e-07", "41 s more to begin", "pays after 1,108,109 steps",
                     "GPT, 100% of the parameters", "0.3 GB more memory", "did not apply: Trainer passes fused already", "sync-stall-1", "advisor verify"):  # fmt: skip
            assert part in said, (part, said)
    data = json.loads(found.to_json())
    assert data["kind"] == "try" and data["kept"] == ["compile"] and data["base"]["runs"] == 2
    first, second = data["trials"]
    assert first["verdict"] == "faster" and first["measured_us"]["expected"] == pytest.approx(37.0) and first["predicted_us"]["high"] == pytest.approx(52.0)
    assert (first["losses"], first["inside"], first["applied"]) == ("equal", True, 1)
    assert second["verdict"] == "did-not-apply" and second["measured_us"] is None


@pytest.mark.parametrize(("freedom", "t"), [(1, 63.657), (2, 9.9248), (4, 4.6041), (10, 3.1693), (120, 2.6174)])
def test_students_t_is_that_of_the_tables(freedom, t):
    assert _t(freedom) == pytest.approx(t, abs=5e-4)


def test_few_runs_have_no_digits():
    found = result(trial(verdict="cannot-tell", gain=held([[100.0], [60.0]], [[58.0]]), runs_to_tell=480878833521937, why="it had too few runs"))
    said = words.as_text(found)
    assert "too few runs to tell: cannot tell" in said and "more than 40 runs with it would tell" in said and "±" not in said
    assert json.loads(found.to_json())["trials"][0]["measured"]["low"] >= -10


def test_without_a_report_what_takes_longest_comes_first_and_what_cannot_matter_is_left_out():
    def order(loader, optimizer):
        ran_ = ran(parts_us={"loader": loader, "optimizer": optimizer, "step": 100.0})
        return [one.intervention.name for one in candidates(None, ran_, (), None)]

    waits = order(80.0, 1.0)
    assert waits[0] == "loader-workers" and not {"fused-optimizer", "foreach-optimizer", "compile-dynamic"} & set(waits)
    assert waits.index("compile") == len(waits) - 1, "a run with it takes as long as several without"
    computes = order(0.5, 40.0)
    assert "loader-workers" not in computes and computes.index("fused-optimizer") < computes.index("compile")


def test_names_of_a_program_cannot_leave_their_place():
    found = result(trial(reach=Reach(1, ("<script>alert(1)</script>",), 1.0)))
    assert "<script>alert" not in words.as_html(found)


def test_a_difference_of_losses_is_loud_and_is_never_kept():
    found = result(
        trial(**{}), Trial("autocast", "x", "faster", losses=Compared("differs", 0.3, 0.1, None, "loss 3 differs"), gain=Gain(100.0, 50.0, 0.4, 0.5, 0.6))
    )
    assert "LOSSES DIFFER: loss 3 differs" in words.as_text(found)


def test_measured_trials_are_lines_of_a_ledger(tmp_path):
    path = tmp_path / "accuracy.jsonl"
    rows = (trial(), trial("compile", "cannot-tell"), trial("larger-batch", what_if=True), trial("autocast", "did-not-apply", None))
    assert append(path, result(*rows)) == 1
    (pair,) = accuracy.read_ledger(path)
    assert (pair.rule, pair.expected, pair.measured) == ("launch-gap", 0.40, 0.37) and pair.in_interval
    done = advisor("validate", path, cwd=tmp_path)
    assert done.returncode == 0 and b"launch-gap" in done.stdout


PROGRAM = """import torch
from torch.utils.data import DataLoader

net = make()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=False)
loader = DataLoader(
    dataset,
    batch_size=8,
)
for x, y in loader:
    out = net(x.to("cuda"))
    out.sum().backward()
    torch.cuda.synchronize()
    optimizer.step()
"""


def test_what_is_kept_is_a_patch_that_git_applies_and_no_source_is_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    sites = {
        "fused-optimizer": (5, "AdamW(fused=True)"), "loader-workers": (6, "DataLoader(num_workers=4, persistent_workers=True)"), "compile": (11, "module"),
        "no-synchronize": (13, "no synchronize"), "matmul-precision": (11, "module"), "non-blocking-copies": (11, "non_blocking=True"), "autocast": (11, "module"),
    }  # fmt: skip
    trials = [trial(name, reach=Reach(1, sites=((str(program), line, what),))) for name, (line, what) in sites.items()]
    patch = as_patch(result(*trials, trial("expandable-segments"), kept=(*sites, "expandable-segments")))
    assert program.read_text() == PROGRAM and "# expandable-segments, by hand: PYTORCH_CUDA_ALLOC_CONF" in patch
    (tmp_path / "kept.patch").write_text(patch)
    done = subprocess.run(["git", "apply", "kept.patch"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stderr, patch)
    changed = program.read_text()
    for line in ("fused=True)", "num_workers=4, persistent_workers=True", "net.compile()\nfor x, y", 'set_float32_matmul_precision("high")',
                 'with torch.autocast("cuda", torch.bfloat16):\n        out = net(x.to("cuda", non_blocking=True))'):  # fmt: skip
        assert line in changed, changed
    assert "synchronize" not in changed and "fused=False" not in changed
    compile(changed, "train.py", "exec")


@pytest.mark.parametrize(("budget", "wanted"), [("90s", 90.0), ("10m", 600.0), ("1h", 3600.0), ("45", 45.0), ("1.5m", 90.0)])
def test_a_budget_is_a_time(budget, wanted):
    from advisor.cli.trying import seconds

    assert seconds(budget) == wanted


@pytest.mark.parametrize("budget", ["", "10x", "-1m", "0s", "nan", "m", "1" * 50])
def test_what_is_no_time_is_refused(budget):
    from advisor.cli.trying import seconds

    with pytest.raises(UsageError, match="no time"):
        seconds(budget)


def test_the_command_lists_what_it_can_apply_and_refuses_what_it_cannot(tmp_path):
    listed = advisor("try", "--list", cwd=tmp_path)
    assert listed.returncode == 0 and all(name.encode() in listed.stdout for name in interventions())
    for arguments, said in (
        ((), b"no program"),
        (("--only", "compil", "--", "true"), b"Did you mean compile"),
        (("--workdir", "x", "--", "true"), b"--workdir"),
        (("--steps", "x", "--", "true"), b"--steps"),
        (("--", "/no/such/program"), b"no such command"),
    ):
        done = advisor("try", *arguments, cwd=tmp_path)
        assert done.returncode == 2 and said in done.stderr, (arguments, done)
    assert not list(tmp_path.iterdir())


def test_units_of_rounding_are_ordered():
    assert sorted(numerics.UNIT, key=lambda name: numerics.UNIT[name]) == ["exact", "rounding", "tf32", "bf16"]


def test_the_page_has_the_catalogues_table():
    import importlib.util

    spec = importlib.util.spec_from_file_location("try_page", ROOT / "docs" / "try_page.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    assert page.PAGE.read_text() == page.written(page.PAGE.read_text()), "python docs/try_page.py"
