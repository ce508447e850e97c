"""A memory snapshot in a few lines: what a program allocated and gave back, as torch would have recorded it."""

from __future__ import annotations

from typing import Any

from advisor.sources.memory.snapshot import from_value

MIB = 1 << 20
USER = "train.py"


def frame(name: str, file: str = "??", line: int = 0) -> dict[str, Any]:
    return {"name": name, "filename": file, "line": line}


def at(line: int, op: str = "", name: str = "step") -> list[dict[str, Any]]:
    """The stack of a line of the program, with the op that it called."""
    native = [frame(f"at::_ops::{op}::call(at::Tensor const&)")] if op else []
    return [*native, frame(name, USER, line), frame("<module>", USER, 1)]


def backward(node: str = "AddmmBackward0", op: str = "mm") -> list[dict[str, Any]]:
    """The stack of a node of the backward pass, which has no line of the program."""
    return [
        frame(f"at::_ops::{op}::call(at::Tensor const&)"),
        frame(f"torch::autograd::generated::{node}::apply(std::vector<at::Tensor>)"),
        frame("torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)"),
    ]


def parameter() -> list[dict[str, Any]]:
    return [frame("convert", "torch/nn/modules/module.py", 10), frame("_apply", "torch/nn/modules/module.py", 9), *at(2)]


def optimizer(op: str = "zeros_like") -> list[dict[str, Any]]:
    return [frame(f"at::_ops::{op}::call(at::Tensor const&)"), frame("step", "torch/optim/adamw.py", 5), *at(9)]


class Memory:
    """Each allocation lies in a segment of its own, as large as it is: nothing is split, and sizes are exact in MiB."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.segments: dict[int, dict[str, Any]] = {}
        self.notes: list[dict[str, Any]] = []
        self.next = 1 << 40

    def event(self, action: str, addr: int, size: int, frames: Any = (), stream: int = 0) -> None:
        self.events.append({"action": action, "addr": addr, "size": size, "stream": stream, "time_us": 10 * (len(self.events) + 1), "frames": list(frames)})

    def alloc(self, mib: float, frames: Any = (), stream: int = 0) -> int:
        """Allocate; its address."""
        size, address = int(mib * MIB), self.next
        self.next += 1 << 34
        self.event("segment_alloc", address, size, frames, stream)
        self.event("alloc", address, size, frames, stream)
        block = {"address": address, "size": size, "requested_size": size, "state": "active_allocated", "frames": list(frames)}
        self.segments[address] = self._segment(address, size, stream, block)
        return address

    def older(self, mib: float, frames: Any = ()) -> int:
        """Hold something since before the first event."""
        size, address = int(mib * MIB), self.next
        self.next += 1 << 34
        block = {"address": address, "size": size, "requested_size": size, "state": "active_allocated", "frames": list(frames)}
        self.segments[address] = self._segment(address, size, 0, block)
        return address

    def free(self, *addresses: int) -> None:
        """Give back, to the allocator and from there to the driver."""
        for address in addresses:
            segment = self.segments.pop(address)
            for action in ("free_requested", "free_completed", "segment_free"):
                self.event(action, address, segment["total_size"], stream=segment["stream"])

    def mark(self, name: str) -> None:
        now = 10 * (len(self.events) + 1) - 5
        self.notes += [{"stage": stage, "name": name, "device": 0, "time_us": now} for stage in ("START", "END")]

    def value(self, **settings: Any) -> dict[str, Any]:
        return {
            "segments": list(self.segments.values()), "device_traces": [self.events], "allocator_settings": settings,
            "external_annotations": self.notes,
        }  # fmt: skip

    def snapshot(self, **settings: Any) -> Any:
        return from_value(self.value(**settings), "snapshot.pickle", 1000)

    @staticmethod
    def _segment(address: int, size: int, stream: int, block: dict[str, Any]) -> dict[str, Any]:
        return {
            "device": 0, "address": address, "total_size": size, "stream": stream, "segment_type": "large", "segment_pool_id": (0, 0),
            "is_expandable": False, "blocks": [block],
        }  # fmt: skip


def trained(steps: int = 3, layers: int = 4, activation: float = 512, keep: bool = False, zeros: bool = False) -> Memory:
    """Training of `layers` equal layers of a 64 MiB parameter each: two activations a layer, the second an eighth of the first.

    keep: each step's activations stay. zeros: gradients are never given back, and each backward pass makes them again beside.
    """
    m = Memory()
    for _ in range(layers):
        m.alloc(64, parameter())
    gradients: list[int] = []
    for _ in range(steps):
        kept = [m.alloc(part, at(5 + i, "addmm", "forward")) for _ in range(layers) for i, part in enumerate((activation, activation / 8))]
        made = []
        for layer in reversed(range(layers)):
            passing = m.alloc(activation / 8, backward("GeluBackward0", "gelu_backward"))
            made.append(m.alloc(64, backward()))
            m.free(passing, *(() if keep else kept[2 * layer : 2 * layer + 2]))
        if zeros and gradients:
            m.free(*made)
        else:
            gradients = made
        m.mark("Optimizer.step#SGD.step")
        if not zeros:
            m.free(*gradients)
    return m
