"""Programs whose pattern of requests costs memory: caches that grow, sizes that change, segments given back; and controls."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Decoder, Make, MemoryWorkload, Setup, Step, mlp, tokens_of


def _cache(preallocated: bool) -> Make:
    def make(s: Setup) -> Step:
        layers, heads, size, longest = s.size(6, 2), s.size(32, 2), s.size(128, 4), s.size(4096, 8)
        start, batch = longest - s.size(40, 4), s.size(16, 2)
        shape = (batch, heads, longest if preallocated else start, size)
        caches = [[torch.zeros(shape, device=s.device, dtype=torch.bfloat16) for _ in "kv"] for _ in range(layers)]
        at = [start]

        def step() -> None:
            with torch.no_grad():
                token = torch.randn(batch, heads, 1, size, device=s.device, dtype=torch.bfloat16)
                for cache in caches:
                    if preallocated:
                        for held in cache:
                            held[:, :, at[0] : at[0] + 1] = token
                        k, v = (held[:, :, : at[0] + 1] for held in cache)
                    else:
                        k = cache[0] = torch.cat([cache[0], token], dim=2)
                        v = cache[1] = torch.cat([cache[1], token], dim=2)
                    token = F.scaled_dot_product_attention(token, k, v)
                at[0] = min(at[0] + 1, longest - 1)

        return step

    return make


def _lengths(s: Setup) -> Step:
    """Batches of growing length; the outputs of some are kept for a while and hold their segments open."""
    model = mlp(s.size(2048, 16), s.size(3, 2)).to(s.device)
    kept: list[Tensor] = []
    turn = [0]

    def step() -> None:
        turn[0] += 1
        with torch.no_grad():
            x = torch.randn(s.size(3000 * turn[0] + 20000, 4 + turn[0]), s.size(2048, 16), device=s.device)
            y = model[:-1](x)
            kept.append(y[: s.size(200, 1)].clone())
            if len(kept) > 8:
                kept.pop(0)

    return step


def _padded(s: Setup) -> Step:
    """The same batches, padded to the longest."""
    model = mlp(s.size(2048, 16), s.size(3, 2)).to(s.device)
    kept: list[Tensor] = []
    length = s.size(3000 * 24 + 20000, 28)

    def step() -> None:
        with torch.no_grad():
            x = torch.randn(length, s.size(2048, 16), device=s.device)
            kept.append(model[:-1](x)[: s.size(200, 1)].clone())
            if len(kept) > 8:
                kept.pop(0)

    return step


def _emptied(empties: bool) -> Make:
    def make(s: Setup) -> Step:
        model = mlp(s.size(2048, 16), s.size(4, 2)).to(s.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        x = torch.randn(s.size(16384, 4), s.size(2048, 16), device=s.device)

        def step() -> None:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if empties and s.device.type == "cuda":
                torch.cuda.empty_cache()

        return step

    return make


def _long_scores(materialize: bool) -> Make:
    def make(s: Setup) -> Step:
        vocabulary, width = s.size(4096, 64), s.size(512, 64)
        model = Decoder(vocabulary, width, s.size(4, 2), materialize=materialize).to(s.device, torch.bfloat16).eval()
        tokens = tokens_of(s, 1, s.size(8192, 16), vocabulary)

        @torch.no_grad()
        def step() -> None:
            model(tokens)

        return step

    return make


def _trained(s: Setup) -> Step:
    """bfloat16, checkpointed, fused: nothing to say."""
    vocabulary, width = s.size(4096, 64), s.size(512, 64)
    model = Decoder(vocabulary, width, s.size(6, 2), checkpointed=True).to(s.device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=s.device.type == "cuda")
    tokens = tokens_of(s, s.size(8, 2), s.size(1025, 17), vocabulary)

    def step() -> None:
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _served(s: Setup) -> Step:
    """Inference as a CUDA graph, whose pool is its own, fed by a stream of its own."""
    model = mlp(s.size(2048, 16), s.size(6, 2)).to(s.device).eval()
    host = torch.randn(s.size(4096, 4), s.size(2048, 16))
    if s.device.type != "cuda":
        return lambda: model(host)
    static, side = host.to(s.device), torch.cuda.Stream()
    with torch.no_grad():
        model(static)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(static)

    def step() -> None:
        with torch.cuda.stream(side):
            copied = host.to(s.device, non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        static.copy_(copied)
        copied.record_stream(torch.cuda.current_stream())
        graph.replay()

    return step


def _exhausted(s: Setup) -> Step:
    """Runs out of memory once, and goes on with half."""
    kept: list[Tensor] = []

    def step() -> None:
        if s.device.type != "cuda":
            return
        torch.cuda.set_per_process_memory_fraction(0.05)
        size = 1 << 28
        try:
            while True:
                kept.append(torch.empty(size, dtype=torch.float32, device=s.device))
        except torch.OutOfMemoryError:
            del kept[len(kept) // 2 :]

    return step


WORKLOADS = (
    MemoryWorkload(
        "grown_cache", "memory-growth", "A key-value cache of six layers grows by torch.cat, token by token.",
        "allocate the longest once and write into it", _cache(True), _cache(False), bytes="reserved", steps=30, stacks="python",
        other_rules=("memory-fragmentation",),
    ),
    MemoryWorkload(
        "growing_lengths", "memory-fragmentation", "Each batch is longer than the last; none fits what the last one left.",
        "expandable_segments:True", _lengths, _lengths, bytes="reserved", steps=24, fixed_conf="expandable_segments:True",
    ),
    MemoryWorkload(
        "padded_lengths", None, "The same batches padded to the longest: nothing to say.", "", _padded, steps=12,
    ),
    MemoryWorkload(
        "emptied_cache", "memory-churn", "torch.cuda.empty_cache() after each step: every segment is asked of the driver again.",
        "leave the cache", _emptied(False), _emptied(True), bytes="reserved", steps=6,
    ),
    MemoryWorkload(
        "long_scores", "memory-transient", "Inference with hand-written attention: N x N scores, one layer at a time.",
        "F.scaled_dot_product_attention", _long_scores(False), _long_scores(True), steps=2,
        other_rules=("memory-activations",),
    ),
    MemoryWorkload("trained_well", None, "A decoder trained as it should be.", "", _trained, steps=2),
    MemoryWorkload("trained_well_late", None, "The same, recorded from its fourth step on.", "", _trained, steps=2, late=3),
    MemoryWorkload("served_graph", None, "A CUDA graph with its private pool, inputs copied on a second stream.", "", _served),
    MemoryWorkload("out_of_memory", None, "A limit is met; the program frees half and goes on.", "", _exhausted, steps=2),
)  # fmt: skip
