"""What kind of program was traced, as its ops, ranges, frames and kernels tell."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from typing import Literal

import msgspec
import numpy as np

from advisor.knowledge.accelerators import CUDA, OTHER, Accelerator, accelerator
from advisor.knowledge.expressions import expression
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.server_marks import engine_of
from advisor.knowledge.shares import MOST
from advisor.recordings.timeline import GpuKind, Timeline
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.table_filters import matches, spans_of

_BACKWARD = names_of("backward_or_update")
# Where neither ops nor optimizer ranges were recorded, kernels tell; but for `dgrad`, which a transposed convolution runs forward, and
# `unfold_backward`, by which an inverse STFT adds its windows up.
_TRAINING_KERNEL = names_of("training_kernel")
_TRAINING_FRAME = expression(r"\bzero_grad\b|\btorch[/\\]optim[/\\]")
_UPDATE = names_of("parameter_update")
_ENGINE = names_of("autograd_engine")
_KEPT = names_of("accumulate_grad_node")
_TURNED = names_of("move_axis")
_TURNING = names_of("move_axis_or_linalg")
_LOADER = expression(r"DataLoader|torch[/\\]utils[/\\]data[/\\]")
_COMPILED = names_of("compiled_graph")
_GENERATED = names_of("generated_by_triton")
_JAX = expression(r"PjitFunction\(|PjRt\w*Executable::|GpuExecutable::ExecuteThunks|XlaModule:")
NAMED_BY_TORCH = names_of("by_torch")
_SERVERS = {
    "vLLM": ("vllm", expression(r"(^|[/\\(])vllm/|^(void )?vllm::")),
    "SGLang": ("sgl", expression(r"(^|[/\\(])sglang/|^sglang::|^sgl_kernel::")),
    "TensorRT-LLM": ("llm", expression(r"(^|[/\\(])tensorrt_llm/|^trtllm::|tensorrt_llm::kernels")),
}
"""Names of servers, by what all matches hold, which is looked for first in all names together, and the expression."""

# Names of devices, calls and kernels that only ROCm has.
_AMD = names_of("by_amd")

MOSTLY = MOST
"""A program is compiled if the compiler made more than half of its launched kernels."""

FEWEST_BATCHED = 4
"""Ops that move an axis inside, before a program counts as mapped: a single one may belong to a composite."""

Framework = Literal["torch", "jax", "cuda"]
Kind = Literal["training", "inference", "server", "simulation"]
Maker = Literal["nvidia", "amd", "other"]


class Program(msgspec.Struct, frozen=True):
    """training: computes gradients or updates parameters. compiled: torch.compile made most launched kernels. framework: launches the work and words the
    fixes; "cuda" without a framework. functional: torch.func takes gradients inside functions under vmap, and no optimizer uses them. handed_back:
    torch.autograd.grad takes them, as of an energy, and no parameter keeps any. loader: batches come from PyTorch's DataLoader. server: the inference
    server, or "". maker: of the devices, which decides the tools. accelerator: the kind of device, which decides how to record.
    """

    training: bool
    compiled: bool
    framework: Framework = "torch"
    server: str = ""
    maker: Maker = "nvidia"
    functional: bool = False
    handed_back: bool = False
    accelerator: Accelerator = CUDA
    loader: bool = False

    @property
    def kind(self) -> Kind:
        """The program's kind, as far as it decides the fixes. A JAX program may train too: its profile does not show it."""
        if self.training:
            return "training"
        return "server" if self.server else "simulation" if self.framework == "cuda" else "inference"

    @property
    def compiles_whole(self) -> bool:
        """Whether a compiler can get all of a step as one function: nothing is trained, or gradients are taken inside of it."""
        return not self.training or self.functional or self.handed_back

    @property
    def eager(self) -> bool:
        """Whether this is inference in PyTorch's eager mode."""
        return not self.training and self.framework == "torch" and not self.compiled

    @classmethod
    def build(cls, timeline: Timeline, ops: Ops, launches: Launches) -> Program:
        ranges = timeline.annotations["name"].categories.tolist()
        gpu = timeline.gpu_ops["name"].categories.tolist()
        host = (*ops.categories, *ranges)
        frames = timeline.python_calls["name"].categories.tolist()
        training = (
            _any_name(_BACKWARD, host)
            or _any_name(_TRAINING_KERNEL, gpu)
            or _any_name(_TRAINING_FRAME, frames)
            or bool((timeline.compiled_ops["backward"] > 0).any())
        )
        maker, accelerator = _maker(timeline, gpu)
        without_update = training and not _any_name(_UPDATE, host)
        return cls(
            training=training,
            compiled=_compiled_share(timeline, launches) > MOSTLY,
            framework=_framework(timeline, host, gpu),
            # One server may launch another's kernels: its marks, then what else its host did tell first.
            server=engine_of(ranges) or _server(chain(host, frames)) or _server(gpu),
            maker=maker,
            accelerator=accelerator,
            functional=without_update and _batched(ops) >= FEWEST_BATCHED,
            loader=_any_name(_LOADER, chain(host, frames)),
            handed_back=without_update and _any_name(_ENGINE, host) and not _any_name(_KEPT, host),
        )


def _batched(ops: Ops) -> int:
    """How many ops move an axis inside another op, which is what vmap's rules do with the one that it maps over."""
    turned = np.flatnonzero(ops.named(_TURNED))
    parent = ops.parent[turned]
    return int(np.count_nonzero((parent >= 0) & ~ops.named(_TURNING)[parent]))


def _any_name(pattern: re.Pattern[str], names: Iterable[str]) -> bool:
    return any(pattern.search(name) for name in names)


def _server(names: Iterable[str]) -> str:
    texts = list(names)
    together = "\n".join(texts)
    return next((name for name, (part, pattern) in _SERVERS.items() if part in together and _any_name(pattern, texts)), "")


def _maker(timeline: Timeline, gpu: Iterable[str]) -> tuple[Maker, Accelerator]:
    """By features that only one maker has; NVIDIA if nothing shows it."""
    calls = list(timeline.api_calls["name"].categories)
    if _any_name(_AMD, chain((d.name for d in timeline.devices), calls, gpu)):
        return "amd", CUDA
    told = accelerator(calls) or accelerator(left.what for left in timeline.source.left_out)
    if timeline.source.format != "kineto" or not (told or any(calls)) or told == CUDA:
        return "nvidia", CUDA
    return "other", told or OTHER


def _framework(timeline: Timeline, host: Iterable[str], gpu: Iterable[str]) -> Framework:
    """PyTorch's own profiler records PyTorch; an export of nsys may be of any program."""
    if timeline.source.format == "jax" or any(_JAX.match(name) for name in host):
        return "jax"
    foreign = timeline.source.format in ("nsys", "rocprof") and not len(timeline.cpu_ops)
    return "cuda" if foreign and not (_any_name(NAMED_BY_TORCH, gpu) or _any_name(NAMED_BY_TORCH, host)) else "torch"


def _compiled_share(timeline: Timeline, launches: Launches) -> float:
    """Of the kernels, those that a compiler generated or that were launched from compiled code."""
    ops, notes = timeline.gpu_ops, timeline.annotations
    if not len(ops):
        return 0.0
    starts, ends = spans_of(notes, matches(notes, _COMPILED))
    at = np.searchsorted(starts, launches.start_us, side="right") - 1
    within = (at >= 0) & (launches.start_us < np.r_[ends, 0.0][at])
    kernels = ops["kind"].isin((GpuKind.KERNEL.value, GpuKind.GRAPH.value))
    return float((matches(ops, _GENERATED) | within)[kernels].mean()) if kernels.any() else 0.0
