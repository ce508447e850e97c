"""Mamba of transformers without its kernels, FP32: the state goes through 48 words one by one."""

from __future__ import annotations

from typing import Any

import torch

from workloads.base import Setup, Step
from workloads.public import BF16, How, _public, inference


def mamba(s: Setup, *, batch: int = 4, **how: Any) -> Step:
    """Without mamba_ssm the state goes word by word."""
    from transformers import MambaConfig, MambaForCausalLM

    words = s.size(50280, 101)
    config = MambaConfig(vocab_size=words, hidden_size=s.size(768, 32), num_hidden_layers=s.size(4, 1), use_cache=False)
    ids = torch.randint(words, (s.size(batch, 1), s.size(48, 6)), device=s.device)
    return inference(s, How(**how), MambaForCausalLM(config), {"input_ids": ids, "use_cache": False})  # type: ignore[dict-item]


PROGRAM = _public(
    "mamba_words",
    "Mamba of transformers without its kernels, FP32: the state goes through 48 words one by one.",
    mamba,
    {},
    {"graph-candidate": {"graph": True}, "low-arithmetic-intensity": {"batch": 32}, "precision": {"dtype": BF16}, "precision/tf32": {"tf32": True}},
    shared={"low-arithmetic-intensity": 8.0},
)
