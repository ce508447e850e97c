"""Precision and choice of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .applied import Applied
from .outermost import wrap_outermost

AMPERE = (8, 0)
"""The first GPUs with TF32 and bfloat16 in their matrix units, Ampere."""


def _new_enough() -> bool:
    import torch

    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= AMPERE


def matmul_precision(applied: Applied) -> None:
    """TF32 in GEMMs from the first call of a model on, overriding earlier settings of the program."""
    import torch

    def set_now(module: Any, call: Any) -> None:
        if applied.count:
            return
        if torch.get_float32_matmul_precision() != "highest":
            applied.refuse(f"the program has set it to {torch.get_float32_matmul_precision()} already")
        elif not _new_enough():
            applied.refuse("this GPU has no TF32")
        elif not any(p.dtype == torch.float32 for p in module.parameters()):
            applied.refuse("no parameter is float32")
        else:
            torch.set_float32_matmul_precision("high")
            applied.note_module(module)

    wrap_outermost(set_now)


def autocast(applied: Applied) -> None:
    """bfloat16 inside the outermost modules; their outputs are cast to float32."""
    import torch

    def wrap(module: Any, call: Callable[..., Any]) -> Callable[..., Any] | None:
        parameter = next(module.parameters())
        kind = parameter.device.type
        if torch.is_autocast_enabled(kind) or _has_its_own(module):
            applied.refuse("the program runs under autocast already")
            return None
        if not any(p.dtype == torch.float32 for p in module.parameters()):
            applied.refuse(f"the parameters are {str(parameter.dtype).removeprefix('torch.')} already")
            return None
        applied.note_module(module)

        def called(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(kind, torch.bfloat16):
                result = call(*args, **kwargs)
            return _as_float32(result)

        return called

    wrap_outermost(wrap)


def _has_its_own(module: Any) -> bool:
    """Whether Accelerate has put its autocast around a forward. It marks wrapped functions by a name."""
    return hasattr(module.forward, "__wrapped__") and hasattr(module, "_original_forward")


def _as_float32(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype == torch.bfloat16 else value
    if isinstance(value, Mapping):
        return type(value)({key: _as_float32(one) for key, one in value.items()})  # type: ignore[call-arg]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_as_float32, value))
    return type(value)(map(_as_float32, value)) if type(value) in (list, tuple) else value


def cudnn_benchmark(applied: Applied) -> None:
    """cuDNN times its algorithms for each shape that comes."""
    import torch

    def set_now(module: Any, call: Any) -> None:
        if applied.count:
            return
        if torch.backends.cudnn.deterministic:
            applied.refuse("the program asks for deterministic algorithms")
        elif torch.backends.cudnn.benchmark:
            applied.refuse("cudnn.benchmark is on already")
        elif not any(isinstance(one, torch.nn.modules.conv._ConvNd) for one in module.modules()):
            applied.refuse("the model has no convolution")
        else:
            torch.backends.cudnn.benchmark = True
            applied.note_module(module)

    wrap_outermost(set_now)


def channels_last(applied: Applied) -> None:
    """Weights and images in channels_last. The model's output keeps that layout, which reading by index does not notice."""
    import torch

    def wrap(module: Any, call: Callable[..., Any]) -> Callable[..., Any] | None:
        weights = [p for p in module.parameters() if p.dim() == 4 and p.shape[2] * p.shape[3] > 1]
        if not weights:
            applied.refuse("the model has no convolution in two dimensions")
            return None
        if all(p.is_contiguous(memory_format=torch.channels_last) for p in weights):
            applied.refuse("the weights are channels_last already")
            return None
        with torch.no_grad():
            for p in module.parameters():
                if p.dim() == 4:
                    p.data = p.data.contiguous(memory_format=torch.channels_last)
        applied.note_module(module)

        def laid_out(value: Any) -> Any:
            images = isinstance(value, torch.Tensor) and value.dim() == 4
            return value.contiguous(memory_format=torch.channels_last) if images else value

        def called(*args: Any, **kwargs: Any) -> Any:
            return call(*map(laid_out, args), **{key: laid_out(one) for key, one in kwargs.items()})

        return called

    wrap_outermost(wrap)
