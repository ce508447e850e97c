"""Mamba-2 of transformers in FP32 reads 2 x 512 words by chunks, without the authors' kernels."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import COMPILED, How, _public, _root_mean_square, _tokens, inference


def _gated_norm(self: Any, x: Tensor, gate: Tensor | None = None) -> Tensor:
    """One group alone, as in the model below."""
    wide = x.float() if gate is None else x.float() * F.silu(gate.float())
    return F.rms_norm(wide, self.weight.shape, None, self.variance_epsilon).to(x.dtype) * self.weight


def mamba2(s: Setup, *, norms: bool = False, **how: Any) -> Step:
    """State space duality in chunks of 256 words, without the authors' kernels."""
    from transformers import Mamba2Config, Mamba2ForCausalLM

    words, dim = s.size(50_288, 101), s.size(768, 32)
    config = Mamba2Config(
        vocab_size=words, hidden_size=dim, head_dim=s.size(64, 16), num_heads=2 * dim // s.size(64, 16), state_size=s.size(128, 8), n_groups=1,
        num_hidden_layers=s.size(3, 1), chunk_size=s.size(256, 8), use_cache=False,
    )  # fmt: skip
    model = Mamba2ForCausalLM(config)
    for module in model.modules():
        if norms and type(module).__name__ in ("Mamba2RMSNorm", "MambaRMSNormGated"):
            module.forward = MethodType(_root_mean_square if type(module).__name__ == "Mamba2RMSNorm" else _gated_norm, module)
    return inference(s, How(**how), model, {"input_ids": _tokens(s, 2, 512, words), "use_cache": False, "logits_to_keep": 1})  # type: ignore[dict-item]


PROGRAM = _public(
    "mamba2_prefill",
    "Mamba-2 of transformers in FP32 reads 2 x 512 words by chunks, without the authors' kernels.",
    mamba2,
    {},
    {"unfused-elementwise": {"compiled": COMPILED}, "unfused-norm": {"norms": True}, "graph-candidate": {"graph": True}},
)
