"""Programs by an author who has not read the rules, the third set: half on public architectures from a config, half from scratch.

Each fix is what its rule's advice says, alone; about a third are what people try first and gain nothing there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .base import Prefetcher, Setup, Step, capture, written_pair
from .public_models import BF16, COMPILED, GRAPHS, How, _casting, _images, _placed, _precision, _timm, _tokens, inference, training
from .public_models_4 import _public

WORKERS: dict[str, Any] = {"num_workers": 8, "persistent_workers": True, "multiprocessing_context": "fork"}


def _without_end(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def _loaded(s: Setup, data: Dataset[Any], batch: int, workers: bool) -> Iterator[Any]:
    options = WORKERS | {"pin_memory": s.cuda} if workers and s.cuda else {}
    return _without_end(DataLoader(data, batch_size=batch, shuffle=True, drop_last=True, **options))


# Public architectures.


def _root_mean_square(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


def qwen3(s: Setup, *, norms: bool = False, **how: Any) -> Step:
    """Qwen3 scores answers: queries and keys have an RMSNorm of their own."""
    from transformers import Qwen3Config, Qwen3Model

    way = How(dtype=BF16, **how)
    config = Qwen3Config(
        vocab_size=s.size(32_000, 101), hidden_size=s.size(1024, 32), intermediate_size=s.size(3072, 64), num_hidden_layers=s.size(6, 1),
        num_attention_heads=s.size(16, 2), num_key_value_heads=s.size(8, 2), head_dim=s.size(128, 16), attn_implementation=way.attention, use_cache=False,
    )  # fmt: skip
    model = Qwen3Model(config)
    for module in model.modules():
        if norms and type(module).__name__ == "Qwen3RMSNorm":
            module.forward = MethodType(_root_mean_square, module)
    return inference(s, way, model, {"input_ids": _tokens(s, 8, 1024, s.size(32_000, 101))})


def clip_pairs(s: Setup, **how: Any) -> Step:
    """Pictures and captions come from pageable memory, as a DataLoader without pin_memory gives them."""
    from transformers import CLIPConfig, CLIPModel

    way = How(autocast=BF16, **how)
    wide, heads, side, words = s.size(512, 32), s.size(8, 2), s.size(224, 32), s.size(49_408, 101)
    tower = {"hidden_size": wide, "intermediate_size": 4 * wide, "num_hidden_layers": s.size(4, 1), "num_attention_heads": heads}
    config = CLIPConfig(
        text_config=tower | {"vocab_size": words, "max_position_embeddings": 77, "eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 1},
        vision_config=tower | {"image_size": side, "patch_size": 16}, projection_dim=s.size(256, 16), attn_implementation=way.attention,
    )  # fmt: skip
    model = CLIPModel(config)
    batch = s.size(128, 2)
    host = [(torch.rand(batch, 3, side, side), torch.randint(3, words, (batch, s.size(77, 8)))) for _ in range(2)]
    ahead = Prefetcher([tuple(s.pin(part) for part in pair) for pair in host], s) if way.pinned else None
    turn = [0]

    def loss(model: Any) -> Tensor:
        if ahead:
            pixels, ids = ahead.next()
        else:
            turn[0] += 1
            pixels, ids = (part.to(s.device) for part in host[turn[0] % 2])
        return model(input_ids=ids, pixel_values=pixels, return_loss=True).loss  # type: ignore[no-any-return]

    return training(s, way, model, loss)


def mpnet(s: Setup, **how: Any) -> Step:
    """The embedding of one question for a search, mean over words."""
    from transformers import MPNetConfig, MPNetModel

    words = s.size(30_527, 101)
    config = MPNetConfig(
        vocab_size=words, hidden_size=s.size(768, 32), num_hidden_layers=s.size(12, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64),
    )  # fmt: skip
    ids = torch.randint(2, words, (1, s.size(24, 8)), device=s.device)
    return inference(s, How(**how), MPNetModel(config, add_pooling_layer=False), {"input_ids": ids, "attention_mask": torch.ones_like(ids)})


def cspdarknet(s: Setup, *, log: bool = True, **how: Any) -> Step:
    """Training in bf16 autocast, NCHW; loss and share of right answers are read in each step."""
    way = How(autocast=BF16, **how)
    images = _images(s, way, 64, 224, 64)
    labels = torch.randint(1000, (len(images),), device=s.device)
    model = _placed(s, way, _timm("cspdarknet53")).train()
    options: dict[str, Any] = {"fused": True} if way.optimizer == "fused" else {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, **options)
    losses, right = [], []

    def step() -> None:
        _precision(way)
        optimizer.zero_grad()
        with _casting(s, way):
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        if log:
            losses.append(loss.item())
            right.append((logits.argmax(1) == labels).float().mean().item())

    return step


def dla_cifar(s: Setup, *, log: bool = True, **how: Any) -> Step:
    """DLA-34 on small pictures, as in a course: SGD goes tensor by tensor, the loss is added up on the host."""
    way = How(**how)
    images, labels = _images(s, way, 64, 32, 32), torch.randint(10, (s.size(64, 2),), device=s.device)
    model = _placed(s, way, _timm("dla34", num_classes=10)).train()
    options: dict[str, Any] = {"fused": True} if way.optimizer == "fused" else {"foreach": False}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, **options)
    total = [0.0, 0.0]

    def step() -> None:
        _precision(way)
        optimizer.zero_grad()
        with _casting(s, way):
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        if log:
            total[0] += loss.item()
            total[1] += logits.max(1)[1].eq(labels).sum().item()

    return step


def appnp(s: Setup, *, cached: bool = False, **how: Any) -> Step:
    """A citation graph: ten rounds of a personalised PageRank; loops are added and degrees counted in each forward."""
    from torch_geometric.nn import APPNP

    class Net(nn.Module):
        def __init__(self, inner: int, outer: int) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(inner, 64), nn.Linear(64, outer)
            self.spread = APPNP(K=s.size(10, 2), alpha=0.1, dropout=0.5, cached=False)

        def forward(self, x: Tensor, edges: Tensor, weights: Tensor | None) -> Tensor:
            x = F.dropout(x, training=self.training)
            x = F.dropout(F.relu(self.first(x)), training=self.training)
            return self.spread(self.second(x), edges, weights)  # type: ignore[no-any-return]

    nodes, features = s.size(19_717, 40), s.size(500, 16)
    x, y = torch.rand(nodes, features, device=s.device), torch.randint(3, (nodes,), device=s.device)
    edges, weights = torch.randint(nodes, (2, s.size(88_648, 120)), device=s.device), None
    known = torch.zeros(nodes, dtype=torch.bool, device=s.device)
    known[: min(60, nodes)] = True
    model = Net(features, 3)
    if cached:
        from torch_geometric.nn.conv.gcn_conv import gcn_norm

        edges, weights = gcn_norm(edges, None, nodes, add_self_loops=True)
        model.spread.normalize = False
    rows = torch.arange(min(60, nodes), device=s.device) if cached else known
    return training(s, How(**how), model, lambda model: F.cross_entropy(model(x, edges, weights)[rows], y[rows]), torch.optim.Adam, weight_decay=5e-4)


class Calls(Dataset[tuple[Tensor, int]]):
    """Recordings cut anywhere, in noise and with another speed, all by numpy."""

    def __init__(self, s: Setup) -> None:
        self.length, rng = s.size(24_000, 1600), np.random.default_rng(0)
        self.sound, self.noise = (rng.standard_normal((s.size(128, 8), 2 * self.length)).astype(np.float32) for _ in range(2))

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        rng = np.random.default_rng(index)
        speed, at = rng.uniform(0.9, 1.1), int(rng.integers(self.length // 2))
        where = at + speed * np.arange(self.length)
        wave = np.interp(where, np.arange(2 * self.length), self.sound[index % len(self.sound)])
        noise = self.noise[rng.integers(len(self.noise)), at : at + self.length]
        wave = wave + noise * (wave.std() / noise.std() * 10 ** (-rng.uniform(5, 20) / 20))
        return torch.from_numpy(((wave - wave.mean()) / wave.std()).astype(np.float32)), index % 12


def hubert_calls(s: Setup, *, workers: bool = False, **how: Any) -> Step:
    """HuBERT learns twelve birds' calls."""
    from transformers import HubertConfig, HubertForSequenceClassification

    way = How(**how)
    config = HubertConfig(
        hidden_size=s.size(512, 32), num_hidden_layers=s.size(4, 1), num_attention_heads=s.size(8, 2), intermediate_size=s.size(2048, 64), num_labels=12,
        attn_implementation=way.attention, apply_spec_augment=False, layerdrop=0.0, num_conv_pos_embedding_groups=s.size(16, 2),
        num_conv_pos_embeddings=s.size(128, 8), conv_dim=(s.size(512, 32),) * 7,
    )  # fmt: skip
    batches = _loaded(s, Calls(s), s.size(16, 2), workers)

    def loss(model: Any) -> Tensor:
        wave, labels = (part.to(s.device, non_blocking=workers) for part in next(batches))
        return model(input_values=wave, labels=labels).loss  # type: ignore[no-any-return]

    return training(s, way, HubertForSequenceClassification(config), loss)


def convnextv2(s: Setup, **how: Any) -> Step:
    way = How(**how)
    return inference(s, way, _timm("convnextv2_nano"), (_images(s, way, 64, 224, 64),))


# Cellular automata that learn to grow a picture.


class Rules(nn.Module):
    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.see = nn.Conv2d(channels, 3 * channels, 3, padding=1, groups=channels, bias=False)
        self.think, self.act = nn.Conv2d(3 * channels, hidden, 1), nn.Conv2d(hidden, channels, 1, bias=False)

    def forward(self, grid: Tensor) -> Tensor:
        alive = F.max_pool2d(grid[:, 3:4], 3, 1, 1) > 0.1
        change = self.act(F.relu(self.think(self.see(grid))))
        grid = grid + change * (torch.rand_like(grid[:, :1]) < 0.5)
        return grid * (alive & (F.max_pool2d(grid[:, 3:4], 3, 1, 1) > 0.1))


def growing_cells(s: Setup, *, graphed: bool = False, autocast: bool = False, last: bool = False) -> Step:
    channels, side = 16, s.size(40, 8)
    layout = torch.channels_last if last else torch.contiguous_format
    rules = Rules(channels, s.size(128, 8)).to(s.device, memory_format=layout)
    optimizer = torch.optim.Adam(rules.parameters(), lr=2e-3, capturable=s.cuda)
    seed, picture = torch.zeros(8, channels, side, side, device=s.device), torch.rand(4, side, side, device=s.device)
    seed[:, 3:, side // 2, side // 2] = 1.0
    seed = seed.to(memory_format=layout)

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        optimizer.zero_grad()
        grid = seed
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            for _ in range(s.size(40, 3)):
                grid = rules(grid)
        F.mse_loss(grid[:, :4].float(), picture.expand(8, -1, -1, -1)).backward()
        for parameter in rules.parameters():
            if parameter.grad is not None:
                parameter.grad /= parameter.grad.norm() + 1e-8
        optimizer.step()

    return capture(step, s) if graphed else step


# Seismics: shots above a layered ground.


def leap(now: Tensor, before: Tensor, speed: Tensor, damp: Tensor) -> Tensor:
    bent = torch.zeros_like(now)
    bent[:, 1:-1, 1:-1] = now[:, :-2, 1:-1] + now[:, 2:, 1:-1] + now[:, 1:-1, :-2] + now[:, 1:-1, 2:] - 4.0 * now[:, 1:-1, 1:-1]
    return damp * (2.0 * now - damp * before + speed**2 * bent)


def seismic_shots(s: Setup, *, compiled: bool = False, on_host: bool = True, checked: bool = True) -> Step:
    shots, deep, wide, times = s.size(40, 2), s.size(512, 16), s.size(640, 16), s.size(60, 4)
    speed = (0.2 + 0.3 * torch.linspace(0, 1, deep, device=s.device))[:, None].expand(deep, wide).contiguous()
    damp = torch.ones(deep, wide, device=s.device)
    damp[-8:] = damp[:, -8:] = damp[:, :8] = 0.98
    source = torch.arange(shots, device=s.device) * (wide // shots)
    wavelet = torch.sin(torch.arange(times) * 0.3).tolist()
    advance = s.compile(leap) if compiled else leap

    @torch.no_grad()
    def step() -> Tensor:
        now = torch.zeros(shots, deep, wide, device=s.device)
        before, traces = torch.zeros_like(now), []
        each = torch.arange(shots, device=s.device)
        for time in range(times):
            now, before = advance(now, before, speed, damp), now
            now[each, 2, source] += wavelet[time]
            traces.append(now[:, 4].cpu() if on_host else now[:, 4].clone())
            if checked and time % 10 == 9 and torch.isnan(now).any():
                raise FloatingPointError("unstable")
        return torch.stack(traces).cpu()

    return step


# Search by late interaction: each word of a question finds its best word in each document.


def late_interaction(s: Setup, *, narrow: bool = False, tf32: bool = False, kept: bool = False) -> Step:
    documents, length, dim = s.size(16_000, 12), s.size(160, 6), s.size(128, 8)
    store = torch.randn(documents, length, dim, device=s.device, dtype=torch.bfloat16)
    real = torch.arange(length, device=s.device) < torch.randint(2, length + 1, (documents, 1), device=s.device)
    question = F.normalize(torch.randn(32, dim, device=s.device), dim=1)

    @torch.no_grad()
    def step() -> Any:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        similar = store @ question.to(BF16).T if narrow else store.float() @ question.T
        best = similar.masked_fill(~real[:, :, None], -1e4).amax(1).float().sum(1)
        found = best.topk(min(100, documents))
        return found if kept else list(zip(found.indices.tolist(), found.values.tolist(), strict=True))

    return step


# Interpretability: a sparse dictionary of a language model's activations.


def sparse_dictionary(s: Setup, *, autocast: bool = False, ahead: bool = False, fused: bool = False, tf32: bool = False) -> Step:
    dim, atoms, rows = s.size(1024, 16), s.size(12_288, 64), s.size(4096, 8)
    host = [(torch.randn(rows, dim),) for _ in range(4)]
    batches = Prefetcher([(s.pin(part),) for (part,) in host], s) if ahead else None
    encode, decode = nn.Linear(dim, atoms).to(s.device), nn.Linear(atoms, dim).to(s.device)
    parameters = [*encode.parameters(), *decode.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-4, **({"fused": True} if fused else {}))
    turn = [0]

    def step() -> None:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        turn[0] += 1
        x = batches.next()[0] if batches else host[turn[0] % 4][0].to(s.device)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            code = F.relu(encode(x - decode.bias))
            again = decode(code)
        loss = F.mse_loss(again.float(), x) + 1e-3 * code.float().abs().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            decode.weight /= decode.weight.norm(dim=0, keepdim=True)

    return step


# Reinforcement learning: proximal policy updates on what many environments have seen.


def _advantages(rewards: Any, values: Any, done: Any, listed: bool) -> Any:
    """Generalised advantages: by lists for each environment, as written first, or for all at once."""
    if not listed:
        out, last = np.zeros_like(rewards), np.zeros(rewards.shape[1], np.float32)
        for t in reversed(range(len(rewards))):
            last = rewards[t] + 0.99 * values[t + 1] * (1 - done[t]) - values[t] + 0.9405 * (1 - done[t]) * last
            out[t] = last
        return out
    columns = []
    for e in range(rewards.shape[1]):
        gained, last_one = [], 0.0
        for t in reversed(range(len(rewards))):
            delta = float(rewards[t, e]) + 0.99 * float(values[t + 1, e]) * (1 - float(done[t, e])) - float(values[t, e])
            last_one = delta + 0.9405 * (1 - float(done[t, e])) * last_one
            gained.insert(0, last_one)
        columns.append(gained)
    return np.array(columns, dtype=np.float32).T


def policy_update(s: Setup, *, listed: bool = True, log: bool = True, fused: bool = False) -> Step:
    times, many, width = s.size(128, 4), s.size(64, 2), s.size(256, 8)
    rng = np.random.default_rng(0)
    rewards, done = rng.random((times, many), np.float32), (rng.random((times, many)) < 0.02).astype(np.float32)
    body = nn.Sequential(nn.Linear(24, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()).to(s.device)
    actor, critic = nn.Linear(width, 6).to(s.device), nn.Linear(width, 1).to(s.device)
    parameters = [*body.parameters(), *actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-4, **({"fused": True} if fused else {"foreach": False}))
    seen = torch.randn(times + 1, many, 24, device=s.device)
    acted = torch.randint(6, (times * many,), device=s.device)
    divergences: list[float] = []

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        with torch.no_grad():
            hidden = body(seen)
            values = critic(hidden).squeeze(-1).cpu().numpy()
            old = actor(hidden[:-1]).log_softmax(-1).flatten(0, 1).gather(1, acted[:, None]).squeeze(1)
        gained = torch.from_numpy(_advantages(rewards, values, done, listed)).to(s.device).flatten()
        wanted = gained + torch.from_numpy(values[:-1]).to(s.device).flatten()
        x = seen[:-1].flatten(0, 1)
        for _ in range(2):
            for rows in torch.randperm(times * many, device=s.device).chunk(4):
                hidden = body(x[rows])
                log_p = actor(hidden).log_softmax(-1)
                ratio = (log_p.gather(1, acted[rows, None]).squeeze(1) - old[rows]).exp()
                g = (gained[rows] - gained[rows].mean()) / (gained[rows].std() + 1e-8)
                policy = -torch.min(ratio * g, ratio.clamp(0.8, 1.2) * g).mean()
                value = (critic(hidden).squeeze(1) - wanted[rows]).square().mean()
                loss = policy + 0.5 * value + 0.01 * (log_p.exp() * log_p).sum(1).mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
                if log:
                    divergences.append((ratio - 1 - ratio.log()).mean().item())

    return step


# Operations: which lines of a log are out of order.


PARTS = re.compile(r"[a-z]+|\d+\.\d+\.\d+\.\d+|0x[0-9a-f]+|\d+|[^\sa-z\d]")


class Lines(Dataset[tuple[Tensor, int]]):
    def __init__(self, s: Setup, parsed: bool) -> None:
        rng, words = np.random.default_rng(0), [f"{a}{b}" for a in ("disk", "node", "user", "job", "net") for b in "abcdefghij"]
        self.length = s.size(128, 12)
        self.known = {word: i + 3 for i, word in enumerate(words)}
        self.lines = [
            " ".join(f"{words[i]}=0x{i:04x} [{i}.{i}.0.1] {i};" for i in rng.integers(len(words), size=s.size(14, 2))) for _ in range(s.size(4000, 16))
        ]
        self.parsed = [torch.tensor(self.parse(line)) for line in self.lines] if parsed else None

    def parse(self, line: str) -> list[int]:
        numbers = []
        for part in PARTS.findall(line.strip().lower()):
            if part.startswith("0x") or part[0].isdigit():
                numbers.append(1)
            else:
                numbers.append(self.known.get(part, 2 if part.isalpha() else 60 + ord(part[0]) % 40))
        return (numbers + [0] * self.length)[: self.length]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.parsed[index] if self.parsed else torch.tensor(self.parse(self.lines[index])), index % 2


class LineModel(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.table, self.rnn = nn.Embedding(128, width), nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        out, _ = self.rnn(self.table(ids))
        return self.head(out.amax(1))  # type: ignore[no-any-return]


def log_lines(s: Setup, *, workers: bool = False, parsed: bool = False, autocast: bool = False) -> Step:
    model = LineModel(s.size(192, 8)).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = _loaded(s, Lines(s, parsed), s.size(256, 4), workers)

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        ids, labels = (part.to(s.device, non_blocking=workers) for part in next(batches))
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            loss = F.cross_entropy(model(ids), labels)
        loss.backward()
        optimizer.step()

    return step


# Code completion: a decoder of one's own, trained in bf16, whose norms leave it.


class OwnNorm(nn.Module):
    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.library = library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.layer_norm(x, x.shape[-1:], self.scale, self.shift)
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        return self.scale * (x - mean) / torch.sqrt(variance + 1e-5) + self.shift


class CodeBlock(nn.Module):
    def __init__(self, width: int, heads: int, library: bool) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = OwnNorm(width, library), OwnNorm(width, library)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))  # type: ignore[no-any-return]


def code_completion(s: Setup, *, library: bool = False, fused: bool = False, loss: str = "own") -> Step:
    width, words, batch, length = s.size(768, 16), s.size(24_576, 50), s.size(12, 2), s.size(768, 8)
    table, blocks = nn.Embedding(words, width), [CodeBlock(width, s.size(12, 2), library) for _ in range(s.size(6, 1))]
    model = nn.Sequential(table, *blocks, OwnNorm(width, library), nn.Linear(width, words)).to(s.device, BF16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **({"fused": True} if fused else {"foreach": False}))
    ids = torch.randint(words, (batch, length + 1), device=s.device)

    def step() -> None:
        optimizer.zero_grad()
        logits, target = model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
        if loss == "own":
            probabilities = torch.exp(logits.float() - logits.float().max(-1, keepdim=True).values)
            probabilities = probabilities / probabilities.sum(-1, keepdim=True)
            lost = -torch.log(probabilities.gather(1, target[:, None]) + 1e-9).mean()
        else:
            lost = F.cross_entropy(logits.float(), target)
        lost.backward()
        optimizer.step()

    return step


# Evolution strategies: a population of small networks, one after another.


def evolution_search(s: Setup, *, together: bool = False, read: bool = True, on_gpu: bool = False) -> Step:
    many, rows, widths = s.size(40, 3), s.size(512, 8), (16, s.size(64, 8), s.size(64, 8), 4)
    shapes = list(pairwise(widths))
    weights = [torch.randn(shape, device=s.device) / shape[0] ** 0.5 for shape in shapes]
    x, y = torch.randn(rows, widths[0], device=s.device), torch.randn(rows, widths[-1], device=s.device)

    @torch.no_grad()
    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        place = s.device if on_gpu else torch.device("cpu")
        noise = [torch.randn(many, *shape, device=place) for shape in shapes]
        if together:
            moved = [part.to(s.device) for part in noise]
            hidden = x.expand(many, -1, -1)
            for layer, (weight, part) in enumerate(zip(weights, moved, strict=True)):
                hidden = torch.bmm(hidden, weight + 0.1 * part)
                hidden = torch.tanh(hidden) if layer < 2 else hidden
            fitness = -(hidden - y).square().mean((1, 2))
            scores = torch.tensor(fitness.tolist(), device=s.device) if read else fitness
        else:
            each: list[Any] = []
            parts: list[list[Tensor]] = []
            for member in range(many):
                hidden = x
                parts.append([part[member].to(s.device) for part in noise])
                for layer, (weight, part) in enumerate(zip(weights, parts[-1], strict=True)):
                    hidden = hidden @ (weight + 0.1 * part)
                    hidden = torch.tanh(hidden) if layer < 2 else hidden
                fitness = -(hidden - y).square().mean()
                each.append(fitness.item() if read else fitness)
            scores = torch.tensor(each, device=s.device) if read else torch.stack(each)
            moved = [torch.stack(layer) for layer in zip(*parts, strict=True)]
        scores = (scores - scores.mean()) / (scores.std() + 1e-8)
        for weight, part in zip(weights, moved, strict=True):
            weight += 0.01 / many * torch.einsum("m,mio->io", scores, part)

    return step


# Tiles of a map put into a codebook.


class TileCodes(nn.Module):
    def __init__(self, width: int, codes: int, dim: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.SiLU(), nn.Conv2d(width, width, 4, 2, 1), nn.SiLU(), nn.Conv2d(width, width, 3, 1, 1), nn.SiLU(),
            nn.Conv2d(width, dim, 1),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Conv2d(dim, width, 3, 1, 1), nn.SiLU(), nn.Conv2d(width, width, 3, 1, 1), nn.SiLU(), nn.ConvTranspose2d(width, width, 4, 2, 1), nn.SiLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )  # fmt: skip
        self.codes = nn.Parameter(torch.randn(codes, dim))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = self.encoder(x).permute(0, 2, 3, 1)
        flat = z.flatten(0, 2).float()
        far = flat.square().sum(1, keepdim=True) - 2 * flat @ self.codes.T + self.codes.square().sum(1)
        hot = F.one_hot(far.argmin(1), len(self.codes)).float()
        chosen = (hot @ self.codes).view(z.shape)
        loss = F.mse_loss(chosen, z.detach().float()) + 0.25 * F.mse_loss(z.float(), chosen.detach())
        used = hot.mean(0)
        passed = (z + (chosen - z).detach()).permute(0, 3, 1, 2)
        return self.decoder(passed), loss, torch.exp(-(used * torch.log(used + 1e-10)).sum())


def map_tiles(s: Setup, *, autocast: bool = False, last: bool = False, log: bool = True) -> Step:
    layout = torch.channels_last if last else torch.contiguous_format
    model = TileCodes(s.size(128, 8), s.size(1024, 16), s.size(64, 4)).to(s.device, memory_format=layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    tiles = torch.rand(s.size(32, 2), 3, s.size(128, 16), s.size(128, 16), device=s.device).to(memory_format=layout)
    history: list[tuple[float, float]] = []

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            again, loss, perplexity = model(tiles)
        loss = loss + F.mse_loss(again.float(), tiles)
        loss.backward()
        optimizer.step()
        if log:
            history.append((loss.item(), perplexity.item()))

    return step


WORKLOADS = (
    _public(
        "qwen3_scoring", "Qwen3 of transformers in bf16 reads 8 x 1024 words, attention and norms written out, of queries and keys too.", qwen3, {},
        {"unfused-attention": {"attention": "sdpa"}, "unfused-norm": {"norms": True}, "graph-candidate": {"graph": True}},
    ),
    _public(
        "clip_captions", "CLIP of transformers, training in bf16 autocast on 128 pictures and captions from pageable memory, attention written out.",
        clip_pairs, {},
        {"memcpy": {"pinned": True}, "unfused-attention": {"attention": "sdpa"}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "mpnet_question", "MPNet of transformers embeds one question of 24 words, FP32.", mpnet, {},
        {"launch-gap": {"compiled": GRAPHS}, "precision": {"autocast": BF16}, "precision/tf32": {"tf32": True}},
    ),
    _public(
        "cspdarknet_amp", "CSPDarknet-53 of timm, training in bf16 autocast, NCHW: two numbers are read in each step.", cspdarknet, {},
        {"memory-layout": {"channels_last": True}, "sync-stall": {"log": False}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "dla_cifar", "DLA-34 of timm, training in FP32 on 64 pictures of 32 under SGD(foreach=False): two numbers are read in each step.", dla_cifar, {},
        {"optimizer-foreach": {"optimizer": "fused"}, "sync-stall": {"log": False}, "memory-layout": {"channels_last": True}},
    ),
    _public(
        "appnp_citations", "APPNP of torch_geometric on 19,717 papers, training in FP32: loops are added by a mask in each step.", appnp, {},
        {"sync-stall": {"cached": True}, "precision": {"autocast": BF16}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "hubert_calls", "HuBERT of transformers, training in FP32 on 16 recordings that numpy changes in this process, attention written out.",
        hubert_calls, {},
        {"data-loading": {"workers": True}, "precision": {"autocast": BF16}, "unfused-attention": {"attention": "sdpa"}},
    ),
    _public(
        "convnextv2_photos", "ConvNeXt V2 of timm on 64 pictures, FP32, NCHW.", convnextv2, {},
        {"precision": {"autocast": BF16}, "memory-layout": {"channels_last": True}, "unfused-elementwise": {"compiled": COMPILED}},
    ),
    written_pair(
        "growing_cells", "graph-candidate", "Forty steps of a neural cellular automaton on 8 x 40 x 40 cells, forward and backward.",
        "the step as a CUDA graph", growing_cells, {"graphed": True},
        alone={"precision": {"autocast": True}, "memory-layout": {"last": True}}, top=("launch-gap", "graph-candidate"),
    ),
    written_pair(
        "seismic_shots", "unfused-elementwise", "Forty shots over 512 x 640 cells, sixty leaps in time; the microphones' row is copied to the host after each.",
        "torch.compile of the leap", seismic_shots, {"compiled": True},
        alone={"memcpy": {"on_host": False}, "sync-stall": {"checked": False}}, gpu_bound=True,
    ),
    written_pair(
        "late_interaction", "dtype-casts", "A question's 32 words against 2.5 million words kept in bf16, which are made FP32 for each question.",
        "the product in the store's type", late_interaction, {"narrow": True},
        alone={"precision/tf32": {"tf32": True}, "sync-stall": {"kept": True}}, gpu_bound=True,
    ),
    written_pair(
        "sparse_dictionary", "precision", "A sparse autoencoder of 12,288 atoms in FP32 without TF32; 4096 activations come from pageable memory.",
        "bf16 autocast", sparse_dictionary, {"autocast": True},
        alone={"memcpy": {"ahead": True}, "optimizer-foreach": {"fused": True}, "precision/tf32": {"tf32": True}}, gpu_bound=True,
    ),
    written_pair(
        "policy_update", "host-bound", "A proximal policy update from 64 environments: advantages by Python lists, eight small batches under Adam(foreach=False).",
        "advantages of all environments at once", policy_update, {"listed": False},
        alone={"optimizer-foreach": {"fused": True}, "sync-stall": {"log": False}}, top=("host-bound", "launch-gap"),
    ),
    written_pair(
        "log_lines", "data-loading", "A GRU on 256 lines of a log, which a regular expression takes apart in the training process.",
        "num_workers=8, persistent_workers and pin_memory", log_lines, {"workers": True},
        alone={"host-bound": {"parsed": True}, "precision": {"autocast": True}},
    ),
    written_pair(
        "code_completion", "unfused-norm", "A decoder trained in bf16 on 12 x 768 words, layer norm and softmax written out, under AdamW(foreach=False).",
        "F.layer_norm", code_completion, {"library": True},
        alone={"unfused-norm/loss": {"loss": "library"}, "optimizer-foreach": {"fused": True}}, gpu_bound=True,
    ),
    written_pair(
        "evolution_search", "launch-gap", "Forty small networks one after another, each with noise copied from the host and its fitness read.",
        "one bmm over the population", evolution_search, {"together": True},
        alone={"sync-stall": {"read": False}, "memcpy": {"on_gpu": True}}, top=("launch-gap", "sync-stall"),
    ),
    written_pair(
        "map_tiles", "memory-layout", "A VQ-VAE of 32 tiles of 128 x 128, FP32 with TF32 convolutions, NCHW: two numbers are read in each step.",
        "channels_last", map_tiles, {"last": True}, alone={"precision": {"autocast": True}, "sync-stall": {"log": False}}, gpu_bound=True,
    ),
)  # fmt: skip
