"""low-arithmetic-intensity in training: found where micro-batches launch the same ops for a GPU that waits, quiet where they are no micro-batches."""

from dataclasses import dataclass

import pytest

from advisor.views.patterns.gradient_accumulation import MicroBatches
from tests.build import Trace
from tests.rules.test_rules import clear, found

EVERY = 20  # µs of the host for each op
OPS = 10  # forward, and as many backward


@dataclass
class Training:
    """Steps of micro-batches: ops forward and back, from the second on one addition to a gradient, and an optimizer's five ops behind the last."""

    parts: int = 4
    kernel: float = 4  # µs
    later: int = OPS  # ops forward, and back, of all parts but the first
    backward: int = OPS  # ops back of each
    forward: str = "aten::mm"  # what later parts go forward with
    first_adds: bool = False
    adds: bool = True
    zeros: int = 0  # gradients filled at the beginning of a step
    between: str = ""  # a range around what lies between two parts
    reads: str = ""  # where a wait lies in each part
    prefetches: bool = False  # a copy of the next batch in the midst of each backward pass
    last: tuple[str, float] = ("", 0)  # an op of the last backward pass alone
    first_op: str = "aten::mm"
    shorter: tuple[int, ...] = ()  # steps of one part
    marks: bool = True

    def trace(self, steps: int = 6) -> Trace:
        self.made, self.at, self.gpu = Trace(), 0.0, 0.0
        for number in range(steps):
            begun = self.at
            self.step(1 if number in self.shorter else self.parts)
            if self.marks:
                self.made.step(begun, self.at - begun, number + 1)
        return self.made

    def step(self, parts: int) -> None:
        for _ in range(self.zeros):
            self.op("aten::zero_", kernel="FillFunctor")
        for part in range(parts):
            ops = self.later if part else OPS
            for k in range(ops):
                self.op(self.first_op if not k else self.forward if part else "aten::mm")
            if self.reads == "inside":
                self.wait()
            for k in range(min(ops, self.backward)):
                if self.prefetches and k == 1:
                    self.made.copy(self.at - 8, 2, self.at, self.at + 1, "Pinned", stream=20)
                self.op("aten::mm", "MmBackward0")
            if self.last[0] and part == parts - 1:
                self.op(self.last[0], "torch::autograd::AccumulateGrad", us=self.last[1])
            if self.adds and (part or self.first_adds):
                self.op("aten::add_", "torch::autograd::AccumulateGrad")
            if self.reads == "behind" and part < parts - 1:
                self.wait()
            if self.between and part < parts - 1:
                self.made.note(self.between, self.at, EVERY)
                self.at += EVERY
        self.made.note("Optimizer.step#AdamW.step", self.at, 5 * EVERY - 1)
        for _ in range(5):
            self.op("aten::_fused_adamw_")

    def op(self, name: str, node: str = "", us: float = 0, kernel: str = "") -> None:
        if node:
            self.made.op(f"autograd::engine::evaluate_function: {node}", self.at, EVERY - 1)
        self.gpu = max(self.gpu, self.at + 15)
        end = self.gpu + (us or self.kernel)
        self.made.op(name, self.at + 1, EVERY - 3, [[64, 64], [64, 64]]).launch(self.at + 10, self.gpu, end, kernel or _KERNELS.get(name, name), dur=4)
        self.at, self.gpu = self.at + EVERY, end

    def wait(self) -> None:
        ended = max(self.at + EVERY, self.gpu + 2)
        self.made.op("aten::item", self.at, ended - self.at).call("cudaStreamSynchronize", self.at + 5, ended - self.at - 7)
        self.at = ended


_KERNELS = {"aten::mm": "gemm", "c10d::allreduce_": "ncclDevKernel_AllReduce", "c10d::send": "ncclDevKernel_SendRecv"}


def of(**changes):
    return found("low-arithmetic-intensity", Training(**changes).trace())


def quiet(**changes):
    return clear("low-arithmetic-intensity", Training(**changes).trace())


def test_micro_batches_that_wait_for_the_host_are_found():
    finding = of()
    # Of 4 x 20 ops, 3 additions and 5 of the optimizer, of 20 µs each, 20 and 5 are left: the host is the bound still.
    assert finding.saving.expected_us == pytest.approx(20 * (4 * 20 + 3 - 20), rel=0.05)
    assert finding.saving.low_us == 0 and finding.status == "possible" and "memory" in finding.possible_why
    assert "4 micro-batches of a step launch the same ops: 83 GPU ops, 332 µs of GPU time" in finding.summary
    assert finding.severity == "low" and finding.saving.per == "step"


def test_kernels_of_all_micro_batches_take_as_long_in_one():
    """17 µs a kernel: 20 of them, four times over, then 5 of the optimizer, on a GPU that is busy but for the 3 µs between two kernels."""
    step, left = 20 * (4 * 20 + 3 + 5), 17 * (4 * 20 + 5) + 3 * (20 + 5)
    assert of(kernel=17).saving.expected_us == pytest.approx(step - left, rel=0.02)


def test_a_busy_gpu_gains_nothing():
    """But that three additions are not made: of 88 kernels of a step."""
    busy = Training(kernel=25).trace()
    assert found("low-arithmetic-intensity", busy).saving.expected_us == pytest.approx(3 * 25, rel=0.05)
    assert "adds up the gradients of 4 micro-batches. The fix would gain" in clear("low-arithmetic-intensity", busy, min_saving_share=0.05)


@pytest.mark.parametrize("reads", ["inside", "behind"])
def test_waits_but_for_those_of_the_first_and_behind_the_last_go(reads):
    step = 20 * (4 * 20 + 3 + 5) + {"inside": 4, "behind": 3}[reads] * EVERY
    left = 20 * (20 + 5) + {"inside": EVERY, "behind": 0}[reads]
    assert of(reads=reads).saving.expected_us == pytest.approx(step - left, rel=0.05)


def test_what_only_the_last_part_launches_stays():
    """Gradients are exchanged behind the last backward pass, for 600 µs of a GPU that is busy by it."""
    micro = Training(last=("c10d::allreduce_", 600)).trace().get(MicroBatches)
    assert len(micro.gone) == (3 * 20 + 3) * 5 and len(micro.kept) == 20 * 5, "of five steps, the last one closing the window"


def test_gradients_that_each_part_exchanges_are_exchanged_once():
    micro = Training(first_op="c10d::allreduce_", kernel=5).trace().get(MicroBatches)
    assert sorted(micro.together_us)[0] == pytest.approx(5) and sorted(micro.together_us)[-1] == pytest.approx(4 * 5)


def test_copies_of_another_thread_are_no_turn():
    assert "4 micro-batches" in of(prefetches=True).summary
    quiet(parts=1, prefetches=True, first_adds=True, zeros=1)


def test_gradients_that_were_filled_with_zeros_are_added_to_by_all():
    assert "4 micro-batches" in of(first_adds=True, zeros=1).summary
    assert "micro-batch" not in quiet(first_adds=True, zeros=4), "each part may be a network of its own"
    assert "micro-batch" not in quiet(first_adds=True), "no evidence shows that these were the first part's"


def test_a_step_of_one_part_does_not_hide_the_others():
    assert "4 micro-batches" in of(shorter=(3,)).summary
    assert "micro-batch" not in quiet(shorter=(0, 1, 2))


@pytest.mark.parametrize("later", [OPS - 1, OPS + 1])
def test_parts_may_differ_a_little(later):
    assert "4 micro-batches" in of(later=later).summary


@pytest.mark.parametrize(
    "other",
    [
        {"parts": 1},
        {"adds": False},
        {"later": OPS - 2},
        {"later": OPS + 3},
        {"backward": 0},
        {"forward": "aten::add"},
        {"between": "Optimizer.step#SGD.step"},
        {"between": "Optimizer.zero_grad#LBFGS.zero_grad"},
        {"first_op": "c10d::send"},
    ],
    ids=[
        "one backward pass", "nothing is added up", "a smaller network", "a larger network", "no backward pass", "one forward pass, several losses",
        "an optimizer between", "an optimizer that evaluates several times", "a stage of a pipeline",
    ],
)  # fmt: skip
def test_what_is_no_micro_batch_is_quiet(other):
    assert "micro-batch" not in quiet(**other)
