"""Training loops that hold more than they need: activations, scores, logits, gradients, optimizer state, graphs of past steps."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, set_checkpoint_early_stop

from .base import Decoder, Make, MemoryWorkload, Setup, Step, mlp, tokens_of


def _activations(checkpointed: bool) -> Make:
    def make(s: Setup) -> Step:
        vocabulary, width = s.size(8192, 64), s.size(1024, 64)
        model = Decoder(vocabulary, width, s.size(8, 2), checkpointed=checkpointed).to(s.device, torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        tokens = tokens_of(s, s.size(8, 2), s.size(2048, 16), vocabulary)

        def step() -> None:
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return make


def _convolutions(checkpointed: bool) -> Make:
    def make(s: Setup) -> Step:
        from torchvision.models import resnet50

        model = resnet50().to(s.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        images = torch.randn(s.size(96, 2), 3, s.size(224, 32), s.size(224, 32), device=s.device)
        labels = torch.randint(0, 1000, (len(images),), device=s.device)
        stem = nn.Sequential(model.conv1, model.bn1, model.relu, model.maxpool)
        blocks = nn.Sequential(*(block for stage in (model.layer1, model.layer2, model.layer3, model.layer4) for block in stage))

        def step() -> None:
            optimizer.zero_grad()
            x = stem(images)
            x = checkpoint_sequential(blocks, len(blocks), x, use_reentrant=False) if checkpointed else blocks(x)
            loss = F.cross_entropy(model.fc(model.avgpool(x).flatten(1)), labels)
            loss.backward()
            optimizer.step()

        return step

    return make


def _scores(materialize: bool) -> Make:
    def make(s: Setup) -> Step:
        vocabulary, width = s.size(4096, 64), s.size(512, 64)
        model = Decoder(vocabulary, width, s.size(4, 2), materialize=materialize).to(s.device, torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        tokens = tokens_of(s, s.size(8, 2), s.size(2049, 17), vocabulary)

        def step() -> None:
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return make


def _logits(chunked: bool) -> Make:
    def make(s: Setup) -> Step:
        vocabulary, width = s.size(50304, 64), s.size(768, 64)
        model = Decoder(vocabulary, width, s.size(4, 2), checkpointed=True).to(s.device, torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        tokens = tokens_of(s, s.size(8, 2), s.size(2049, 17), vocabulary)

        def part_loss(features: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(model.head(features).float(), labels, reduction="sum")

        def step() -> None:
            features, labels = model.features(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
            if chunked:
                parts = zip(features.chunk(16), labels.chunk(16), strict=True)
                # Stopping a recomputation early does not pass through the loss, which is one call of C++.
                with set_checkpoint_early_stop(False):
                    loss = sum(checkpoint(part_loss, f, t, use_reentrant=False) for f, t in parts) / len(labels)
            else:
                loss = part_loss(features, labels) / len(labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return make


def _gradients(set_to_none: bool) -> Make:
    def make(s: Setup) -> Step:
        model = mlp(s.size(8192, 16), s.size(5, 2)).to(s.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        x = torch.randn(s.size(8192, 4), s.size(8192, 16), device=s.device)

        def step() -> None:
            optimizer.zero_grad(set_to_none=set_to_none)
            model(x).square().mean().backward()
            optimizer.step()

        return step

    return make


def _optimizer(name: str, **options: object) -> Make:
    def make(s: Setup) -> Step:
        model = mlp(s.size(6144, 16), s.size(8, 2)).to(s.device)
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3, **options)
        x = torch.randn(s.size(512, 4), s.size(6144, 16), device=s.device)

        def step() -> None:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return make


def _losses(kept_with_graph: bool) -> Make:
    """A validation loop."""

    def make(s: Setup) -> Step:
        model = mlp(s.size(2048, 16), s.size(6, 2)).to(s.device)
        x = torch.randn(s.size(16384, 4), s.size(2048, 16), device=s.device)
        losses: list[object] = []

        def step() -> None:
            if kept_with_graph:
                losses.append(model(x).square().mean())
            else:
                with torch.no_grad():
                    losses.append(model(x).square().mean().item())

        return step

    return make


def _features(on_gpu: bool) -> Make:
    def make(s: Setup) -> Step:
        model = mlp(s.size(2048, 16), s.size(4, 2)).to(s.device)
        batches = [torch.randn(s.size(16384, 4), s.size(2048, 16)) for _ in range(2)]
        kept: list[Tensor] = []

        def step() -> None:
            with torch.no_grad():
                features = model[:-1](batches[len(kept) % 2].to(s.device))
            kept.append(features if on_gpu else features.mean(dim=0).cpu())

        return step

    return make


WORKLOADS = (
    MemoryWorkload(
        "decoder_activations", "memory-activations", "A decoder keeps the activations of all its layers for the backward pass.",
        "torch.utils.checkpoint around each block", _activations(True), _activations(False), steps=2,
    ),
    MemoryWorkload(
        "resnet_activations", "memory-activations", "ResNet-50 keeps the activations of all its blocks.",
        "checkpoint_sequential over the blocks", _convolutions(True), _convolutions(False), steps=2, stacks="python",
    ),
    MemoryWorkload(
        "attention_scores", "memory-activations", "Hand-written attention keeps its N x N scores in every layer.",
        "F.scaled_dot_product_attention", _scores(False), _scores(True), steps=2, other_rules=("memory-transient",),
    ),
    MemoryWorkload(
        "fp32_logits", "memory-transient", "The logits of all tokens at once, in float32, with the loss's copies.",
        "the loss in chunks, each recomputed", _logits(True), _logits(False), steps=2,
    ),
    MemoryWorkload(
        "kept_gradients", "memory-gradients", "zero_grad(set_to_none=False) keeps the gradients through the forward pass.",
        "zero_grad()", _gradients(True), _gradients(False),
    ),
    MemoryWorkload(
        "foreach_temporaries", "memory-optimizer-state", "Adam's foreach update makes temporaries as large as the parameters.",
        "AdamW(fused=True)", _optimizer("AdamW", fused=True), _optimizer("AdamW"),
    ),
    MemoryWorkload(
        "adam_state", "memory-optimizer-state", "Adam's two moments in float32 are two thirds of what training holds.",
        "Adafactor", _optimizer("Adafactor", foreach=False), _optimizer("AdamW", fused=True),
    ),
    MemoryWorkload(
        "kept_losses", "memory-leak", "A validation loop keeps each loss with its graph, and with it the activations of its step.",
        "torch.no_grad() and loss.item()", _losses(False), _losses(True), steps=6,
    ),
    MemoryWorkload(
        "kept_features", "memory-leak", "The features of every batch stay in a list on the GPU.",
        "keep their mean, on the host", _features(False), _features(True), steps=12,
    ),
)  # fmt: skip
