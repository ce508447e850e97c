"""Pegasus of transformers, training in bf16 autocast on 8 x 160 words under AdamW(foreach=False), the loss read in each step."""

from __future__ import annotations

from typing import Any

from workloads.base import Setup, Step
from workloads.public import BF16, How, _public, _tokens, training


def pegasus(s: Setup, **how: Any) -> Step:
    """Pegasus learns headlines."""
    from transformers import PegasusConfig, PegasusForConditionalGeneration

    way = How(autocast=BF16, **how)
    wide, heads, inner, layers, words = s.size(512, 32), s.size(8, 2), s.size(2048, 64), s.size(2, 1), s.size(32_000, 101)
    config = PegasusConfig(
        vocab_size=words, d_model=wide, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads, decoder_attention_heads=heads,
        encoder_ffn_dim=inner, decoder_ffn_dim=inner, attn_implementation=way.attention, use_cache=False,
    )  # fmt: skip
    article, headline = _tokens(s, 8, 160, words), _tokens(s, 8, 32, words)
    return training(s, way, PegasusForConditionalGeneration(config), lambda model: model(input_ids=article, labels=headline).loss)


PROGRAM = _public(
    "pegasus_headlines",
    "Pegasus of transformers, training in bf16 autocast on 8 x 160 words under AdamW(foreach=False), the loss read in each step.",
    pegasus,
    {"optimizer": "loop", "read_loss": True},
    {"optimizer-foreach": {"optimizer": "fused"}, "sync-stall": {"read_loss": False}, "unfused-attention": {"attention": "sdpa"}},
)
