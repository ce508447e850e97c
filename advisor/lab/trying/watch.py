"""A program's numbers, kept on its device: losses, the first gradients and updates, outputs. Nothing here waits for the device before the end."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Iterable
from typing import Any

MOST_LOSSES = 20_000
"""Scalars that are kept: two a step, of the longest run."""

FINGERPRINTED = 4
"""Number of steps of each optimizer with sampled gradients and parameters. They come before the timed steps, and show early faults."""

SAMPLED = 4096
"""Numbers of a sample, spread over all tensors: enough for a relative norm to within a few percent."""

MOST_OPTIMIZERS = 4  # a program has one or two


class Watch:
    """Keeps scalars that `backward` is called on, and samples around the first steps of each optimizer."""

    def __init__(self) -> None:
        self.losses: list[Any] = []
        self.outputs: list[Any] = []
        self.samples: list[tuple[str, Any]] = []
        self.failed = ""
        self.half = ""
        """The coarser type that the program computes in by itself: bfloat16, float16, tf32 or ""."""
        self.parameters = 0
        """Elements that the optimizers update."""
        self._optimizers: dict[int, int] = {}
        self._stopped = False
        self._process = os.getpid()

    def begin(self) -> None:
        """From here on."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        torch.autograd.backward = self.losing(torch.autograd.backward)
        torch.autograd.grad = self.losing(torch.autograd.grad)
        register_optimizer_step_pre_hook(lambda optimizer, *_: self._tried(self._before_step, optimizer))
        register_optimizer_step_post_hook(lambda optimizer, *_: self._tried(self._after_step, optimizer))

    def stop(self) -> None:
        """Keep nothing more."""
        self._stopped = True

    def _tried(self, work: Callable[..., None], *args: Any) -> None:
        """An error here is reported, and does not affect the program."""
        if self._stopped or self.failed or os.getpid() != self._process:
            return
        try:
            work(*args)
        except Exception as error:
            self.failed = f"{type(error).__name__}: {str(error)[:200]}"

    def losing(self, backward: Any) -> Any:
        """A function that computes gradients, which also keeps the scalars that it is called with."""

        @functools.wraps(backward)
        def called(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self._tried(self._keep_scalars, tensors)
            return backward(tensors, *args, **kwargs)

        return called

    def _keep_scalars(self, tensors: Any) -> None:
        import torch

        if torch.compiler.is_compiling() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            return
        for one in (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors):
            if one.numel() == 1 and len(self.losses) < MOST_LOSSES and not _traced(one):
                self.losses.append(one.detach().clone().reshape(()))
                if torch.is_autocast_enabled(one.device.type) or one.dtype in (torch.bfloat16, torch.float16):
                    self._coarser(one.dtype if one.dtype != torch.float32 else torch.get_autocast_dtype(one.device.type))

    def _coarser(self, dtype: Any) -> None:
        self.half = self.half or str(dtype).removeprefix("torch.")

    def _optimizer_index(self, optimizer: Any) -> tuple[int, int]:
        """Which optimizer it is, in the order of first steps, and its steps so far."""
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = 0
        return list(self._optimizers).index(id(optimizer)), self._optimizers[id(optimizer)]

    def _before_step(self, optimizer: Any) -> None:
        number, steps = self._optimizer_index(optimizer)
        if number >= MOST_OPTIMIZERS or steps >= FINGERPRINTED:
            return
        params = [p for group in optimizer.param_groups for p in group["params"]]
        for p in params:
            if str(p.dtype) in ("torch.bfloat16", "torch.float16"):
                self._coarser(p.dtype)
                break
        if steps == 0:
            self.parameters += sum(p.numel() for p in params)
            self.samples.append((f"{number}/parameters/0", sample(params)))
        scale = getattr(optimizer, "grad_scale", None)
        grads = sample(p.grad for p in params if p.grad is not None)
        if grads is not None and scale is not None:  # a fused optimizer unscales by itself
            grads = grads / scale.to(grads.device)
        self.samples.append((f"{number}/gradients/{steps}", grads))

    def _after_step(self, optimizer: Any) -> None:
        number, steps = self._optimizer_index(optimizer)
        self._optimizers[id(optimizer)] = steps + 1
        if number < MOST_OPTIMIZERS and steps < FINGERPRINTED:
            self.samples.append((f"{number}/parameters/{steps + 1}", sample(p for group in optimizer.param_groups for p in group["params"])))

    def output(self, value: Any) -> None:
        """The output of an inference program's outermost module in this step."""
        if len(self.outputs) < FINGERPRINTED:
            self._tried(lambda: self.outputs.append(sample(_tensors(value))))

    def said(self) -> dict[str, Any]:
        """All of it, read now: this waits for the device."""
        self.stop()
        return {
            "losses": _numbers(self.losses),
            "outputs": [_listed(one) for one in self.outputs],
            "samples": {name: _listed(one) for name, one in self.samples if one is not None},
            "half": self.half or _tf32(),
            "watch_failed": self.failed,
        }


def sample(tensors: Iterable[Any]) -> Any:
    """Evenly spread elements of dense floating point tensors, as a float32 tensor on their device; None if there are none."""
    import torch

    dense = [_local(one.detach()) for one in tensors if one is not None]
    dense = [one for one in dense if one.layout == torch.strided and one.is_floating_point() and one.numel()]
    if not dense:
        return None
    each = max(1, SAMPLED // len(dense))
    with torch.no_grad():
        taken = [one.reshape(-1)[:: max(1, one.numel() // each)][:each].to(torch.float32, copy=True) for one in dense[:SAMPLED]]
        return torch.cat([one.to(taken[0].device) for one in taken])


def _traced(tensor: Any) -> bool:
    """Whether it stands for a tensor while a compiler or a function transform runs the program. Torch 2.11 traces gradients by this very call."""
    import torch

    return torch._C._functorch.is_functorch_wrapped_tensor(tensor) or type(tensor).__module__.startswith("torch._subclasses.")


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _tensors(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [one for inner in values for one in _tensors(inner)]


def _numbers(scalars: list[Any]) -> list[float]:
    import torch

    if not scalars:
        return []
    device = scalars[0].device
    return torch.stack([one.to(device, torch.float64 if device.type == "cpu" else torch.float32) for one in scalars]).tolist()


def _tf32() -> str:
    """ "tf32" if GEMMs or convolutions on a GPU may round so: convolutions do unless a program forbids it."""
    import torch

    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return ""
    convolves = torch.backends.cudnn.allow_tf32 and any(issubclass(type(one), torch.nn.modules.conv._ConvNd) for one in gc.get_objects())
    return "tf32" if convolves or torch.get_float32_matmul_precision() != "highest" else ""


def _listed(sampled: Any) -> list[float]:
    return [] if sampled is None else [float(f"{number:.8g}") for number in sampled.tolist()]
