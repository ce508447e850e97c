"""`advisor try` on real programs, on a CPU: what applies, what is caught, what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from advisor.errors import TraceError, UsageError
from advisor.lab.interventions.catalogue import Intervention, intervention
from advisor.lab.module_calls import watch
from advisor.lab.trying import numerics
from advisor.lab.trying.session import tried
from advisor.lab.trying.start import Asked, Program, Runner, applied_in, not_applied_reason
from advisor.lab.trying.watch import Watch
from tests.paths import slow

torch = pytest.importorskip("torch")
pytestmark = slow

TRAIN = """
import torch
from torch import nn

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 320
    def __getitem__(self, i):
        return torch.linspace(0, 1 + i % 7, 16), i % 4

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 4)).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(Data(), batch_size=16, shuffle=True)
for epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x.to(device)), y.to(device)).backward()
        optimizer.step()
print("trained")
"""

DONE_ALREADY = """
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(64, 8))

net = torch.compile(nn.Linear(8, 8), backend="eager")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)
stream = iter(DataLoader(Stream(), batch_size=1))
for x in stream:
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        net(x).sum().backward()
    optimizer.step()
"""

SEVERAL = """
import copy, pickle, torch
from torch import nn

torch.manual_seed(3)
G, D = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
of_d, of_g = torch.optim.SGD(D.parameters(), lr=0.1), torch.optim.Adam(G.parameters())
for step in range(24):
    for optimizer, loss in ((of_d, lambda: D(torch.randn(4, 8)).mean()), (of_g, lambda: -D(G(torch.randn(4, 4))).mean())):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    if step % 8 == 7:  # as programs keep averages and checkpoints
        D.eval(), D.train()
        copy.deepcopy(D), pickle.dumps(D), G.state_dict()
assert list(D.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
"""

CLOSURE = """
import torch
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
x = torch.randn(16, 4)
def closure():
    optimizer.zero_grad()
    loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    return loss
for _ in range(20):
    optimizer.step(closure)
"""

INFER = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).eval()
with torch.no_grad():
    for _ in range(400):
        net(torch.ones(4, 64))
"""


def runner(folder: Path, text: str, **options) -> Runner:
    (folder / "train.py").write_text(text)
    (folder / "runs").mkdir()
    return Runner(Program([sys.executable, str(folder / "train.py")], **options), folder / "runs")


def fault(name: str, claims: str = "rounding") -> Intervention:
    return Intervention("a fault", f"{Path(__file__).with_name('try_faults.py')}:{name}", "itself", "none", claims, name=name)


STEPS = {"warmup": 10, "timed": 20}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A program, and two runs of it as it is."""
    here = runner(tmp_path_factory.mktemp("trained"), TRAIN)
    return here, here.run(Asked(**STEPS, kernels=True)), here.run(Asked(**STEPS))


@pytest.fixture(scope="module")
def checked(trained):
    """Two more, for their numbers: without dropout."""
    here, _, _ = trained
    return here, here.run(Asked(**STEPS, check=True)), here.run(Asked(**STEPS, check=True))


def judged(trained, applied, claims, **more):
    here, base, twin = trained
    trial = here.run(Asked((applied,), **STEPS, **more))
    assert not not_applied_reason(trial, applied.name), not_applied_reason(trial, applied.name)
    found = numerics.compare(base, twin, trial, claims)
    if found.needs_nudge:
        found = numerics.compare(base, twin, trial, claims, here.run(Asked(**STEPS, nudge=numerics.nudge_of(base, claims))))
    return found


def test_two_runs_as_they_are_compute_the_same_and_step_by_number(trained):
    _, base, twin = trained
    assert not base.failed and len(base.said["losses"]) >= 30 and numerics.loss_noise(base, twin) == 0
    assert len(base.times(10, 30)) == len(twin.times(10, 30)) == 20 and min(base.times(10, 30)) > 0
    assert base.said["kernels"] and "0/gradients/0" in base.said["samples"] and base.said["parameters"] == 676


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        ("wrong_dtype", "rounding"), ("dropped_step", "exact"), ("dropped_step", "bf16"), ("stale_buffer", "rounding"), ("gradients_kept", "rounding"), ("no_dropout", "bf16"),
        ("slower_learning", "rounding"), ("late_fault", "rounding"),
    ],
)  # fmt: skip
def test_a_planted_fault_of_numerics_is_caught(trained, name, claims):
    found = judged(trained, fault(name, claims), claims)
    assert found.verdict == "differs" and found.why


@pytest.mark.parametrize("name", ["fused-optimizer", "no-collection", "cpu-threads"])
def test_what_changes_no_result_raises_no_alarm(trained, name):
    if name == "cpu-threads" and (os.cpu_count() or 1) == 1:
        pytest.skip("one core")
    here, base, twin = trained
    trial = here.run(Asked((intervention(name),), **STEPS))
    if name != "cpu-threads":  # which a machine may have set already
        assert not not_applied_reason(trial, name)
    assert numerics.compare(base, twin, trial, intervention(name).numerics).verdict == "equal"


def test_workers_shuffle_as_the_program_does_where_numbers_are_compared(checked):
    assert judged(checked, intervention("loader-workers"), "exact", check=True).verdict == "equal"


def test_bfloat16_differs_as_it_may(trained, checked):
    found = judged(checked, intervention("autocast"), "bf16", check=True)
    assert found.verdict == "equal" and found.difference and found.difference > 1e-5
    assert judged(trained, intervention("autocast"), "rounding").verdict == "differs"


def test_what_the_program_does_already_did_not_apply_and_says_why(tmp_path):
    names = ("fused-optimizer", "loader-workers", "autocast", "drop-gradients", "compile", "channels-last")
    ran = runner(tmp_path, DONE_ALREADY).run(Asked(tuple(map(intervention, names)), **STEPS))
    assert not ran.failed, ran.failed
    why = {name: not_applied_reason(ran, name) for name in names}
    assert why["fused-optimizer"] == "SGD is fused already" and "iterable" in why["loader-workers"]
    assert "autocast already" in why["autocast"] and "compiled it already" in why["compile"]
    assert why["drop-gradients"] == "the program does nothing that it would change" and "no convolution" in why["channels-last"]


def test_several_optimizers_are_all_compared_and_modules_stay_what_they_were(tmp_path):
    here = runner(tmp_path, SEVERAL)
    asked = tuple(map(intervention, ("autocast", "fused-optimizer")))
    base, twin, trial = (here.run(Asked(applied, **STEPS)) for applied in ((), (), asked))
    assert not trial.failed, trial.failed
    assert {name[:2] for name in base.said["samples"]} == {"0/", "1/"} and len(base.said["losses"]) > base.said["steps"]
    assert applied_in(trial, "fused-optimizer")["count"] == 2 and sorted(set(applied_in(trial, "autocast")["modules"])) == ["Linear", "Sequential"]
    assert numerics.compare(base, twin, trial, "bf16").verdict == "equal"


def test_closures_count_as_the_steps_that_they_are_of(tmp_path):
    here = runner(tmp_path, CLOSURE)
    base, twin = here.run(Asked(**STEPS)), here.run(Asked((intervention("no-collection"),), **STEPS))
    assert base.said["steps"] == 20 and len(base.said["losses"]) > 20
    assert numerics.compare(base, base, twin, "exact").verdict == "equal"


def test_inference_is_timed_by_the_outermost_module_and_judged_by_what_it_returns(tmp_path):
    here = runner(tmp_path, INFER)
    base, twin = here.run(Asked(**STEPS)), here.run(Asked(**STEPS))
    assert not base.said["trains"] and len(base.said["outputs"]) == 4
    assert numerics.compare(base, twin, here.run(Asked((intervention("autocast"),), **STEPS)), "bf16").verdict == "equal"
    assert numerics.compare(base, twin, here.run(Asked((fault("wrong_dtype"),), **STEPS)), "rounding").verdict == "differs"


def test_tensors_that_a_compiler_traces_with_are_no_losses():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    watch = Watch()
    backward = watch.losing(lambda tensors: None)
    with FakeTensorMode():
        backward(torch.ones(()))
    with FunctionalTensorMode():
        backward(FunctionalTensor.to_functional(torch.ones(())))
    backward(torch.full((), 3.0))
    assert watch.said()["losses"] == [3.0]


def test_calls_are_watched_on_after_one_that_failed_and_are_torch_s_own_at_the_end():
    call, seen = torch.nn.Module.__call__, []

    def entered(module):
        seen.append(module)
        if len(seen) == 1:
            raise ValueError("the first")

    stop, net = watch(entered), torch.nn.Sequential(torch.nn.ReLU())
    with pytest.raises(ValueError, match="the first"):
        net(torch.ones(1))
    net(torch.ones(1))
    stop()
    assert seen == [net, net] and torch.nn.Module.__call__ is call


COMPILED = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(64, 8)
    def forward(self, x):
        return self.inner(x).relu()
net = Net().eval()
MADE
with torch.no_grad():
    for _ in range(200):
        net(torch.ones(4, 64))
"""


@pytest.mark.parametrize("made", ["net.compile(backend='eager')", "net = torch.compile(net, backend='eager')"])
def test_inference_that_the_program_compiles_is_timed_and_nothing_of_ours_compiled(tmp_path, made):
    ran = runner(tmp_path, COMPILED.replace("MADE", made)).run(Asked(**STEPS))
    assert not ran.failed and len(ran.said["outputs"]) == 4
    assert ran.said["graphs"][-1] == 1


def test_compiled_code_computes_the_same_where_dropout_is_left_out(checked):
    here, base, twin = checked
    trial = here.run(Asked((intervention("compile"),), **STEPS, check=True))
    if "InvalidCxxCompiler" in trial.failed or "No working C++ compiler" in trial.failed:
        pytest.skip("no C++ compiler")
    assert not not_applied_reason(trial, "compile"), not_applied_reason(trial, "compile")
    assert trial.said["graphs"][-1] >= 1 and applied_in(trial, "compile")["parameters"] == 676
    assert numerics.compare(base, twin, trial, "rounding").verdict == "equal"


def command(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    (folder / "tmp").mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "advisor", "try", *arguments], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "TMPDIR": str(folder / "tmp"), **environment},
    )  # fmt: skip


def left_in(folder: Path) -> list[Path]:
    """What is left in the temporary directory, but for the folder that torch makes in any program with an optimizer."""
    return [path for path in (folder / "tmp").iterdir() if not path.name.startswith("torchinductor")]


def test_the_whole_command_from_the_first_run_to_the_page(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    only = [part for name in ("fused-optimizer", "drop-gradients", "matmul-precision") for part in ("--only", name)]
    done = command(
        tmp_path, *only, "--budget", "1h", "--runs", "1", "--warmup", "5", "-o", "try.json", "--apply", "kept.patch", "--", sys.executable, "train.py"
    )
    assert done.returncode == 0, done.stderr
    for said in ("runs the program twice as it is", "seed 0", "WANDB_MODE=disabled", "--workdir copy"):
        assert said in done.stderr.partition("run: as it is")[0], "told before the first run"
    data = json.loads((tmp_path / "try.json").read_text())
    assert data["kind"] == "try" and data["base"]["loss_noise"] == 0 and data["base"]["runs"] >= 3
    trials = {one["intervention"]: one for one in data["trials"]}
    assert trials["fused-optimizer"]["applied"] == 1 and trials["fused-optimizer"]["losses"] == "equal"
    assert trials["drop-gradients"]["verdict"] == trials["matmul-precision"]["verdict"] == "did-not-apply"
    assert trials["fused-optimizer"]["reach"]["sites"][0]["line"] == 13
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.patch", "tmp", "train.py", "try.json"] and not left_in(tmp_path)


def test_a_program_that_fails_is_told_with_its_exit_code_and_last_words(tmp_path):
    with pytest.raises(UsageError, match="exit code 3") as error:
        (tmp_path / "train.py").write_text("import sys, torch\nprint('no such file')\nsys.exit(3)")
        tried(Program([sys.executable, str(tmp_path / "train.py")]))
    assert "no such file" in error.value.hint
    with pytest.raises(TraceError, match="no step"):
        (tmp_path / "train.py").write_text("import torch")
        tried(Program([sys.executable, str(tmp_path / "train.py")]))


def test_a_run_that_cannot_be_timed_says_what_failed(tmp_path):
    ran = runner(tmp_path, f"import time, torch\ntime.perf_counter = None\n{TRAIN}").run(Asked(**STEPS))
    assert "'NoneType' object is not callable" in ran.failed and "no step" not in ran.failed


def test_a_trial_that_fails_did_not_apply_and_says_what_the_program_said(tmp_path):
    here = runner(tmp_path, TRAIN)
    broken = Intervention("x", f"{tmp_path / 'broken.py'}:fails", "x", "x", "exact", name="broken")
    (tmp_path / "broken.py").write_text("def fails(applied):\n    raise RuntimeError('not here')")
    assert "not here" in not_applied_reason(here.run(Asked((broken,), **STEPS)), "broken")
    (tmp_path / "broken.py").write_text("def fails(applied):\n    import torch\n    torch.optim.AdamW.__init__ = None")
    assert "exit code 1" in not_applied_reason(here.run(Asked((broken,), **STEPS)), "broken")


def test_an_interrupt_ends_the_program_and_leaves_nothing(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN.replace("optimizer.step()", "optimizer.step(); print('step', flush=True); __import__('time').sleep(0.5)"))
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "advisor", "try", "--", sys.executable, "train.py"], cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    )  # fmt: skip
    until = time.monotonic() + 60
    while time.monotonic() < until and not any(b"step" in log.read_bytes() for log in (tmp_path / "tmp").glob("*/run1/log")):
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    alive = subprocess.run(["pgrep", "-s", str(process.pid)], capture_output=True, text=True, check=False).stdout.split()
    assert not alive and not left_in(tmp_path) and sorted(path.name for path in tmp_path.iterdir()) == ["tmp", "train.py"]


def test_a_copy_of_the_working_directory_keeps_what_the_program_writes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.txt").write_text("3")
    (tmp_path / "train.py").write_text(
        TRAIN.replace("print(", "open('checkpoint', 'w').write(open('data.txt').read())\nprint(").replace("range(4)", "range(1)")
    )
    (tmp_path / "runs").mkdir()
    ran = Runner(Program([sys.executable, "train.py"], copies=True), tmp_path / "runs").run(Asked(warmup=5, timed=100))
    assert not ran.failed and ran.said["steps"] == 20 and not (tmp_path / "checkpoint").exists()
