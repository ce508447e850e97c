"""XLM-RoBERTa of transformers in fp16 scores 48 passages for a question; a tokenizer of the library runs in each step."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import COMPILED, HALF, How, _call, _placed, _precision, _public


def _passages(count: int, most: int) -> list[tuple[str, str]]:
    """One question with passages of different lengths, in made-up words."""
    draw = random.Random(7)
    words = ["".join(draw.choices("aeioubdfgklmnprstvz", k=draw.randint(2, 11))) for _ in range(4000)]
    question = " ".join(draw.choices(words, k=min(12, most)))
    return [(question, " ".join(draw.choices(words, k=draw.randint(most // 3, most)))) for _ in range(count)]


def _tokenizer(pairs: list[tuple[str, str]], size: int) -> Any:
    """A tokenizer of the library, learned from these texts, as nothing is fetched."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], show_progress=False)
    made.train_from_iterator((text for pair in pairs for text in pair), trainer)
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def reranker(s: Setup, *, prepared: bool = False, pinned: bool = False, multiple: int | None = None, **how: Any) -> Step:
    """A cross-encoder on XLM-RoBERTa base says how well each of 48 passages answers the question; the scores are fetched."""
    from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification

    way, pairs = How(**how), _passages(s.size(48, 3), s.size(170, 9))
    config = XLMRobertaConfig(
        vocab_size=s.size(250_002, 801), hidden_size=s.size(768, 32), num_hidden_layers=s.size(12, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), max_position_embeddings=514, type_vocab_size=1, num_labels=1,
    )  # fmt: skip
    tokenizer = _tokenizer(pairs, s.size(6000, 300))
    with s.device:
        model = XLMRobertaForSequenceClassification(config)
    run = _call(s, way, _placed(s, way, model).eval())

    def tokens() -> dict[str, Tensor]:
        return dict(tokenizer(pairs, padding=True, truncation=True, max_length=512, pad_to_multiple_of=multiple, return_tensors="pt"))

    names = ("input_ids", "attention_mask")
    once = tokens() if prepared else None

    @torch.no_grad()
    def step() -> list[float]:
        _precision(way)
        batch = once or tokens()
        inputs = {name: (s.pin(batch[name]) if pinned else batch[name]).to(s.device, non_blocking=pinned) for name in names}
        scores: list[float] = run(**inputs).logits.view(-1).float().cpu().tolist()
        return scores

    return step


PROGRAM = _public(
    "xlmr_reranker",
    "XLM-RoBERTa of transformers in fp16 scores 48 passages for a question; a tokenizer of the library runs in each step.",
    reranker,
    {"dtype": HALF},
    {"host-bound": {"prepared": True}, "unfused-elementwise": {"compiled": COMPILED}, "memcpy": {"pinned": True}, "gemm-alignment": {"multiple": 8}},
)
