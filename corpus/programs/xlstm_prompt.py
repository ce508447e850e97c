"""xLSTM of transformers, FP32, reads 1024 words in pieces of 64, norms written out."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import COMPILED, How, _public, inference


def _layer_norm_of_heads(self: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=self.eps).flatten(-2) * self.weight  # type: ignore[no-any-return]


def _rms_norm_of_xlstm(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


def xlstm(s: Setup, *, norms: bool = False, **how: Any) -> Step:
    """xLSTM reads a prompt of 1024 words in sixteen pieces: a loop carries the matrix memory from one to the next in each layer."""
    from transformers import xLSTMConfig, xLSTMForCausalLM

    way, words = How(**how), s.size(50_304, 101)
    config = xLSTMConfig(
        vocab_size=words, hidden_size=s.size(1024, 64), num_hidden_layers=s.size(6, 1), num_heads=s.size(4, 2), chunk_size=s.size(64, 16), use_cache=False,
    )  # fmt: skip
    with s.device:
        model: Any = xLSTMForCausalLM(config)
    fused = {"xLSTMRMSNorm": _rms_norm_of_xlstm, "xLSTMMultiHeadLayerNorm": _layer_norm_of_heads} if norms else {}
    for module in model.modules():
        if type(module).__name__ in fused:
            module.forward = MethodType(fused[type(module).__name__], module)
    for block in model.backbone.blocks:
        if way.compiled:
            block.forward = s.compile(block.forward, mode=way.compiled)
    ids = torch.randint(words, (1, s.size(1024, 32)), device=s.device)
    return inference(s, How(tf32=way.tf32, graph=way.graph), model, {"input_ids": ids, "use_cache": False})  # type: ignore[dict-item]


PROGRAM = _public(
    "xlstm_prompt",
    "xLSTM of transformers, FP32, reads 1024 words in pieces of 64, norms written out.",
    xlstm,
    {},
    {"graph-candidate": {"graph": True}, "launch-gap": {"compiled": COMPILED}, "unfused-norm": {"norms": True}, "precision": {"tf32": True}},
)
