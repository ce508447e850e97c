"""Options of frameworks, as their objects are made: a framework is patched once the program has imported it, and never imported for it."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from ..in_program import after_import
from .applied import Applied


def _apply_once(module: str, then: Callable[[Any], None]) -> None:
    if module in sys.modules:
        then(sys.modules[module])
    else:
        after_import(module, lambda: then(sys.modules[module]))


def _option(applied: Applied, module: str, kind: str, option: str, value: Any, already: str = "") -> None:
    """Pass an option to the constructor of a class in a module, unless the program passes it."""

    def patch(imported: Any) -> None:
        made = getattr(imported, kind)
        init = made.__init__
        signature = inspect.signature(init)
        if option not in signature.parameters:
            applied.refuse(f"{kind} of this version has no {option}")
            return

        @functools.wraps(init)
        def constructed(self: Any, *args: Any, **kwargs: Any) -> None:
            try:
                given = signature.bind(self, *args, **kwargs)
            except TypeError:
                init(self, *args, **kwargs)
                return
            if given.arguments.get(option, signature.parameters[option].default) == value:
                applied.refuse(already or f"{kind} has {option}={value} already")
            else:
                given.arguments[option] = value
                args, kwargs = given.args[1:], given.kwargs
                applied.note_line(f"{kind}({option}={value!r})")
            init(self, *args, **kwargs)

        made.__init__ = constructed

    _apply_once(module, patch)


def no_nan_filter(applied: Applied) -> None:
    """Transformers' Trainer reads each step's loss to look for NaN, which waits for the GPU."""

    def change(arguments: Any) -> str:
        if not arguments.logging_nan_inf_filter:
            return "logging_nan_inf_filter is off already"
        arguments.logging_nan_inf_filter = False
        applied.note_line("TrainingArguments(logging_nan_inf_filter=False)")
        return ""

    _arguments(applied, change)


def _arguments(applied: Applied, change: Callable[[Any], str]) -> None:
    """Change Transformers' TrainingArguments and those of its subclasses as they are made; `change` says why not if it does not."""

    def patch(imported: Any) -> None:
        kind = imported.TrainingArguments
        post_init = kind.__post_init__

        @functools.wraps(post_init)
        def made(self: Any, *args: Any) -> None:
            if why := change(self):
                applied.refuse(why)
            post_init(self, *args)

        kind.__post_init__ = made

    _apply_once("transformers.training_args", patch)


def no_anomaly_detection(applied: Applied) -> None:
    """Lightning's Trainer and torch itself run without the checks of each backward op."""
    import torch

    for module in ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"):
        _option(applied, module, "Trainer", "detect_anomaly", False, already="Lightning's detect_anomaly is off already")
    turn = torch.autograd.set_detect_anomaly

    class NoAnomalyMode(turn):  # type: ignore[misc, valid-type]
        def __init__(self, mode: bool, check_nan: bool = True) -> None:
            if mode:
                applied.note_line("no set_detect_anomaly")
            super().__init__(False, check_nan)

    torch.autograd.set_detect_anomaly = torch.autograd.anomaly_mode.set_detect_anomaly = NoAnomalyMode  # type: ignore[misc]


def attention(applied: Applied, implementation: str = "sdpa") -> None:
    """Transformers' models are made with PyTorch's fused attention, diffusers' with the processor that calls it."""

    def models(imported: Any) -> None:
        kind = imported.PreTrainedModel
        for name in ("from_pretrained", "_from_config"):
            setattr(kind, name, classmethod(_asking(applied, vars(kind)[name].__func__, implementation)))

        init = kind.__init__

        @functools.wraps(init)
        def constructed(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
            now = getattr(config, "_attn_implementation", None)
            if now == "eager":
                if getattr(type(self), "_supports_sdpa", False):
                    config._attn_implementation = implementation
                    applied.note_line(f"attn_implementation={implementation!r}")
                else:
                    applied.refuse(f"{type(self).__name__} has no {implementation} attention")
            elif now:
                applied.refuse(f"{type(self).__name__} runs {now} already")
            init(self, config, *args, **kwargs)

        kind.__init__ = constructed

    def processors(imported: Any) -> None:
        kind = imported.Attention
        set_processor, fast = kind.set_processor, imported.AttnProcessor2_0

        @functools.wraps(set_processor)
        def chosen(self: Any, processor: Any, *args: Any, **kwargs: Any) -> Any:
            if type(processor).__name__ == "AttnProcessor":
                processor = fast()
                applied.note_line("set_attn_processor(AttnProcessor2_0())")
            else:
                applied.refuse(f"{type(processor).__name__} runs already")
            return set_processor(self, processor, *args, **kwargs)

        kind.set_processor = chosen

    _apply_once("transformers.modeling_utils", models)
    _apply_once("diffusers.models.attention_processor", processors)


def _asking(applied: Applied, make: Any, implementation: str) -> Any:
    @functools.wraps(make)
    def made(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("attn_implementation") == "eager" and getattr(cls, "_supports_sdpa", True):
            kwargs["attn_implementation"] = implementation
            applied.note_line(f"attn_implementation={implementation!r}")
        return make(cls, *args, **kwargs)

    return made


def prefetch_copies(applied: Applied) -> None:
    """Dataloaders of Accelerate copy from pinned memory without waiting."""
    _option(applied, "accelerate.utils.dataclasses", "DataLoaderConfiguration", "non_blocking", True)

    def patch(imported: Any) -> None:
        kind = imported.Accelerator
        init = kind.__init__

        @functools.wraps(init)
        def constructed(self: Any, *args: Any, **kwargs: Any) -> None:
            if kwargs.get("dataloader_config") is None:
                kwargs["dataloader_config"] = sys.modules["accelerate.utils.dataclasses"].DataLoaderConfiguration()
            init(self, *args, **kwargs)

        kind.__init__ = constructed

    _apply_once("accelerate.accelerator", patch)


def fewer_micro_batches(applied: Applied) -> None:
    """Half the micro-batches with twice the samples, if the Trainer's options give their number. This is a what-if, because memory must suffice."""

    def change(arguments: Any) -> str:
        steps = arguments.gradient_accumulation_steps
        if steps % 2:
            return "the Trainer accumulates gradients over one batch, or an odd number of them"
        arguments.gradient_accumulation_steps = steps // 2
        arguments.per_device_train_batch_size *= 2
        applied.note_line(f"TrainingArguments(gradient_accumulation_steps={steps // 2}, per_device_train_batch_size={arguments.per_device_train_batch_size})")
        return ""

    _arguments(applied, change)
