"""A small StarCoder of 49,153 words in training, bf16 autocast, attention written out; AdamW by a loop; the loss is read in each step."""

from __future__ import annotations

from itertools import count as counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16


def star_coder(s: Setup, *, attention: str = "eager", padded: bool = False, fused: bool = False, read: bool = True) -> Step:
    """The files lie on the GPU as tokens; one token was added to the tokenizer's 49,152."""
    from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

    words, width, longest, count, files = s.size(49_153, 41), s.size(1024, 16), s.size(1024, 8), s.size(6, 2), s.size(256, 4)
    config = GPTBigCodeConfig(
        vocab_size=-(-words // 64) * 64 if padded else words, n_positions=longest, n_embd=width, n_layer=s.size(6, 1), n_head=s.size(16, 2),
        n_inner=4 * width, multi_query=True, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, use_cache=False, attn_implementation=attention,
        bos_token_id=0, eos_token_id=0, pad_token_id=None,
    )  # fmt: skip
    with s.device:
        model = GPTBigCodeForCausalLM(config).train()
        text, mean = torch.randint(words, (files, longest)), torch.zeros(())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=False, fused=fused or None)
    losses, turn = [0.0], counter()

    def step() -> Tensor:
        first = next(turn) * count % (files - count + 1)
        these = text[first : first + count]
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            logits = model(input_ids=these, use_cache=False).logits
        loss = F.cross_entropy(logits[:, :-1, :words].float().flatten(0, 1), these[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean.lerp_(loss.detach(), 0.01)
        if read:
            losses[0] = loss.item()
        return mean

    return step


PROGRAM = written(
    "star_coder",
    "A small StarCoder of 49,153 words in training, bf16 autocast, attention written out; AdamW by a loop; the loss is read in each step.",
    "F.scaled_dot_product_attention; 49,216 words; AdamW(fused=True); the loss not read",
    star_coder,
    {
        "unfused-attention": {"attention": "sdpa"},
        "gemm-alignment": {"padded": True},
        "optimizer-foreach": {"fused": True},
        "sync-stall": {"read": False},
    },
    gpu_bound=True,
)
