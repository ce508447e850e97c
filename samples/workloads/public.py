"""What programs of public models share: how a model is placed, cast, optimised and compiled, and how it is listed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, Workload, capture

BF16 = torch.bfloat16


@dataclass(frozen=True)
class How:
    """How a program is run; each fix changes one of these."""

    autocast: torch.dtype | None = None
    tf32: bool = False
    compiled: str | None = None
    """The mode of torch.compile."""
    graph: bool = False
    optimizer: str | None = None
    """fused or loop; foreach where None."""
    scaler: bool = False
    zero: bool = False
    """Gradients are filled with zeros, not dropped."""
    read_loss: bool = False
    channels_last: bool = False
    pinned: bool = False
    attention: str = "eager"
    fused_norms: bool = False
    vocabulary: int = 0
    batch: int = 0
    dtype: torch.dtype | None = None


Program = Callable[[Setup, How], Step]


def _casting(s: Setup, how: How) -> AbstractContextManager[Any]:
    return torch.autocast(s.device.type, how.autocast) if how.autocast else nullcontext()


def _precision(how: How) -> None:
    torch.set_float32_matmul_precision("high" if how.tf32 else "highest")


def _placed(s: Setup, how: How, model: nn.Module) -> nn.Module:
    model = model.to(s.device, how.dtype) if how.dtype else model.to(s.device)
    return model.to(memory_format=torch.channels_last) if how.channels_last else model


def _call(s: Setup, how: How, model: nn.Module) -> Callable[..., Any]:
    return s.compile(model, mode=how.compiled) if how.compiled else model


def _optimizer(how: How, parameters: Iterable[Tensor], kind: Callable[..., Any] = torch.optim.AdamW, **options: Any) -> Any:
    if how.optimizer:
        options |= {"fused": True} if how.optimizer == "fused" else {"foreach": False}
    return kind(parameters, lr=1e-4, **options)


def training(s: Setup, how: How, model: nn.Module, loss_of: Callable[[Any], Tensor], kind: Any = torch.optim.AdamW, **options: Any) -> Step:
    """A training step; `loss_of` gets the (compiled) model."""
    model = _placed(s, how, model).train()
    run, optimizer = _call(s, how, model), _optimizer(how, model.parameters(), kind, **options)
    scaler = torch.amp.GradScaler(s.device.type) if how.scaler and s.cuda else None

    def step() -> float:
        _precision(how)
        optimizer.zero_grad(set_to_none=not how.zero)
        with _casting(s, how):
            loss = loss_of(run)
        if scaler:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        return loss.item() if how.read_loss else 0.0

    return step


def inference(s: Setup, how: How, model: nn.Module, inputs: dict[str, Tensor] | tuple[Tensor, ...]) -> Step:
    model = _placed(s, how, model).eval()
    run = _call(s, how, model)

    @torch.no_grad()
    def step() -> object:
        _precision(how)
        with _casting(s, how):
            return run(**inputs) if isinstance(inputs, dict) else run(*inputs)

    return capture(step, s) if how.graph else step


def _tokens(s: Setup, batch: int, length: int, vocabulary: int) -> Tensor:
    return torch.randint(vocabulary, (s.size(batch, 2), s.size(length, 8)), device=s.device)


def _images(s: Setup, how: How, batch: int, side: int = 224, tiny: int = 64, dtype: torch.dtype | None = None) -> Tensor:
    images = torch.rand(s.size(batch, 2), 3, s.size(side, tiny), s.size(side, tiny), device=s.device, dtype=dtype)
    return images.contiguous(memory_format=torch.channels_last) if how.channels_last else images


def _rms(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


def _with_fused_norms(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if type(module).__name__ in ("LlamaRMSNorm", "T5LayerNorm"):
            module.forward = _rms.__get__(module)
    return model


def _vision(name: str, **options: Any) -> nn.Module:
    import torchvision

    model: nn.Module = torchvision.models.get_model(name, weights=None, **options)
    return model


def _timm(name: str, **options: Any) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(name, pretrained=False, **options)
    return model


def _graph(s: Setup, nodes: int, edges: int, features: int) -> tuple[Tensor, Tensor, Tensor]:
    count = s.size(nodes, 50)
    x = torch.randn(count, s.size(features, 16), device=s.device)
    edge = torch.randint(count, (2, s.size(edges, 200)), device=s.device)
    return x, edge, torch.randint(7, (count,), device=s.device)


def _workload(name: str, what: str, program: Program, how: How, **fixes: How) -> Workload:
    """`rule=How(...)`, and `rule__variant=How(...)` where a rule's fix comes in two sizes."""
    named = {rule.replace("__", "/").replace("_", "-"): fixed for rule, fixed in fixes.items()}
    return Workload(
        name=name, rule=None, folder="public", what=what, fix="each alone", make_slow=partial(program, how=how),
        alone={rule: partial(program, how=fixed) for rule, fixed in named.items()},
        shared={rule: float(fixed.batch) for rule, fixed in named.items() if rule == "low-arithmetic-intensity"},
    )  # fmt: skip


class _Output(nn.Module):
    """A segmentation model's own output, without the others in its dictionary."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)["out"]


COMPILED, GRAPHS = "default", "reduce-overhead"


def with_fused_rms(model: nn.Module) -> nn.Module:
    """Every RMS norm of a Llama-like model by the fused function."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = _rms.__get__(module)
    return model


def ctc(s: Setup, batch: int, frames: int, classes: int) -> Callable[[Tensor], Tensor]:
    """The loss of log-probabilities (frames, batch, classes) against sentences of a tenth as many letters."""
    letters = frames // 10
    targets = torch.randint(1, classes, (batch, letters), device=s.device)
    return lambda scores: F.ctc_loss(scores, targets, (len(scores),) * batch, (letters,) * batch)


HALF, SDPA = torch.float16, "sdpa"
Changes = Mapping[str, Any]


def _public(name: str, what: str, make: Callable[..., Step], slow: Changes, alone: Mapping[str, Changes], **more: Any) -> Workload:
    """`alone` by the changes to `slow`."""
    fixes = {fix: partial(make, **{**slow, **change}) for fix, change in alone.items()}
    return Workload(name=name, rule=None, folder="public", what=what, fix="each alone", make_slow=partial(make, **slow), alone=fixes, **more)


WORKERS: dict[str, Any] = {"num_workers": 8, "persistent_workers": True, "pin_memory": True, "multiprocessing_context": "fork"}


def _forever(s: Setup, workers: bool) -> tuple[dict[str, Any], Callable[[Any], Iterator[Any]]]:
    """The loader's options, and its batches without end."""

    def batches(loader: Any) -> Iterator[Any]:
        while True:
            yield from loader

    return (WORKERS | {"pin_memory": s.cuda} if workers else {}), batches


def _root_mean_square(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


def _gemma_norm(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, self.weight.shape, 1.0 + self.weight, self.eps)
