"""Programs by an author who has not read the rules, the fifth set: half on public architectures from a config, half from scratch.

Each fix is what its rule's advice says, alone; about a third are what people try first and gain nothing there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .base import Prefetcher, Setup, Step, capture, written_pair
from .public_models import BF16, COMPILED, GRAPHS, How, _casting, _images, _optimizer, _precision, _timm, _tokens, _vision, inference, training
from .public_models_4 import _public

WORKERS: dict[str, Any] = {"num_workers": 8, "persistent_workers": True, "multiprocessing_context": "fork"}


def _without_end(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def _loaded(s: Setup, data: Dataset[Any], batch: int, workers: bool) -> Iterator[Any]:
    options = WORKERS | {"pin_memory": s.cuda} if workers and s.cuda else {}
    return _without_end(DataLoader(data, batch_size=batch, shuffle=True, drop_last=True, **options))


# Public architectures.


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


def _root_mean_square(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


def granite(s: Setup, *, norms: bool = False, **how: Any) -> Step:
    """Granite goes on being trained, all in bf16."""
    from transformers import GraniteConfig, GraniteForCausalLM

    way, words = How(dtype=BF16, **how), s.size(24_576, 101)
    config = GraniteConfig(
        vocab_size=words, hidden_size=s.size(1024, 32), intermediate_size=s.size(2816, 64), num_hidden_layers=s.size(4, 1),
        num_attention_heads=s.size(16, 2), num_key_value_heads=s.size(4, 2), attn_implementation=way.attention, use_cache=False,
    )  # fmt: skip
    model = GraniteForCausalLM(config)
    for module in model.modules():
        if norms and type(module).__name__ == "GraniteRMSNorm":
            module.forward = MethodType(_root_mean_square, module)
    ids = _tokens(s, 4, 1024, words)
    return training(s, way, model, lambda model: model(input_ids=ids, labels=ids).loss)


def squeezebert(s: Setup, **how: Any) -> Step:
    """What one message is about, by grouped convolutions."""
    from transformers import SqueezeBertConfig, SqueezeBertForSequenceClassification

    words = s.size(30_528, 101)
    config = SqueezeBertConfig(
        vocab_size=words, hidden_size=s.size(768, 32), num_hidden_layers=s.size(12, 1), num_attention_heads=s.size(12, 4),
        intermediate_size=s.size(3072, 64), embedding_size=s.size(768, 32), num_labels=9,
    )  # fmt: skip
    ids = torch.randint(2, words, (1, s.size(20, 8)), device=s.device)
    return inference(s, How(**how), SqueezeBertForSequenceClassification(config), {"input_ids": ids, "attention_mask": torch.ones_like(ids)})


def repvgg(s: Setup, **how: Any) -> Step:
    """RepVGG in its training form: three branches in each block are normalised and added."""
    way = How(**how)
    images, labels = _images(s, way, 64, 192, 64), torch.randint(100, (s.size(64, 2),), device=s.device)
    model = _timm("repvgg_a0", num_classes=100)
    return training(s, way, model, lambda model: F.cross_entropy(model(images), labels), torch.optim.SGD, momentum=0.9)


def edgenext(s: Setup, **how: Any) -> Step:
    way = How(**({"autocast": BF16} | how))
    return inference(s, way, _timm("edgenext_small"), (_images(s, way, 96, 256, 64, way.dtype),))


class Shelves(Dataset[tuple[Tensor, int]]):
    """Photographs of a shop's shelves, cropped, turned and made lighter or darker by numpy."""

    def __init__(self, s: Setup) -> None:
        self.side = s.size(128, 64)
        self.photos = np.random.default_rng(0).integers(0, 256, (s.size(96, 8), self.side + 32, self.side + 32, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        rng = np.random.default_rng(index)
        top, left = rng.integers(32, size=2)
        photo = self.photos[index % len(self.photos), top : top + self.side, left : left + self.side].astype(np.float32) / 255
        if rng.random() < 0.5:
            photo = photo[:, ::-1]
        photo = np.clip((photo - photo.mean()) * rng.uniform(0.7, 1.3) + photo.mean() + rng.uniform(-0.1, 0.1), 0, 1)
        photo = (photo - np.array([0.485, 0.456, 0.406], np.float32)) / np.array([0.229, 0.224, 0.225], np.float32)
        return torch.from_numpy(np.ascontiguousarray(photo.transpose(2, 0, 1), np.float32)), index % 40


def squeezenet(s: Setup, *, workers: bool = False, log: bool = True, **how: Any) -> Step:
    way = How(**how)
    model = _vision("squeezenet1_1", num_classes=40).to(s.device).train()
    optimizer = _optimizer(way, model.parameters(), torch.optim.SGD, momentum=0.9)
    batches = _loaded(s, Shelves(s), s.size(64, 2), workers)
    sums = [0.0, 0.0]

    def step() -> None:
        _precision(way)
        photos, labels = (part.to(s.device, non_blocking=workers) for part in next(batches))
        optimizer.zero_grad()
        with _casting(s, way):
            logits = model(photos)
            loss = F.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        if log:
            sums[0] += loss.item()
            sums[1] += (logits.argmax(1) == labels).sum().item()

    return step


def deep_graph(s: Setup, *, masked: bool = True, **how: Any) -> Step:
    """DeeperGCN: ten layers of GENConv on one graph, of which some nodes' labels are known."""
    from torch_geometric.nn import DeepGCNLayer, GENConv

    class Net(nn.Module):
        def __init__(self, inner: int, hidden: int, outer: int) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(inner, hidden), nn.Linear(hidden, outer)
            self.layers = nn.ModuleList(
                DeepGCNLayer(GENConv(hidden, hidden, aggr="softmax", t=1.0, num_layers=2, norm="layer"), nn.LayerNorm(hidden), nn.ReLU(), dropout=0.1)
                for _ in range(s.size(10, 2))
            )

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            x = self.inner(x)
            for layer in self.layers:
                x = layer(x, edges)
            return self.outer(x)  # type: ignore[no-any-return]

    nodes = s.size(12_000, 40)
    x, y = torch.rand(nodes, s.size(128, 8), device=s.device), torch.randint(8, (nodes,), device=s.device)
    edges = torch.randint(nodes, (2, s.size(60_000, 120)), device=s.device)
    known = torch.arange(nodes, device=s.device) % 3 == 0
    rows = known if masked else known.nonzero()[:, 0]
    return training(s, How(**how), Net(x.shape[1], s.size(64, 8), 8), lambda model: F.cross_entropy(model(x, edges)[rows], y[rows]), torch.optim.Adam)


# Prices of options by paths of a stochastic volatility.


def _one_day(price: Tensor, variance: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    positive = variance.clamp(min=0.0)
    root = torch.sqrt(positive / 252)
    mixed = -0.7 * first + 0.714 * second
    price = price * torch.exp((0.02 - 0.5 * positive) / 252 + root * first)
    return price, variance + 1.5 * (0.04 - positive) / 252 + 0.3 * root * mixed


def heston_paths(s: Setup, *, compiled: bool = False, wide: bool = True, checked: bool = True) -> Step:
    """An Asian option's price; numpy's habit of float64 draws was kept."""
    paths, days = s.size(6_000_000, 64), s.size(50, 3)
    advance = s.compile(_one_day) if compiled else _one_day

    @torch.no_grad()
    def step() -> Tensor:
        price = torch.full((paths,), 100.0, device=s.device)
        variance, total = torch.full_like(price, 0.04), torch.zeros_like(price)
        for _ in range(days):
            draws = torch.randn(2, paths, device=s.device, dtype=torch.float64 if wide else torch.float32).float()
            price, variance = advance(price, variance, draws[0], draws[1])
            if checked and not torch.isfinite(price).all():
                raise FloatingPointError("a path ran away")
            total += price
        return (total / days - 100.0).clamp(min=0.0).mean()

    return step


# Radar: range and speed of what moves, from pulses that a receiver writes as pairs of int16.


def _detected(power: Tensor) -> Tensor:
    """How many of three widths see each cell above its surroundings."""
    level = 10.0 * torch.log10(power + 1e-9)
    hits = torch.zeros_like(level)
    for guard, ring, offset in ((2, 8, 9.0), (4, 16, 8.0), (8, 32, 7.0)):
        near = (torch.roll(power, guard, -1) + torch.roll(power, -guard, -1)) * 0.5
        far = (torch.roll(power, ring, -1) + torch.roll(power, -ring, -1)) * 0.5
        ground = 10.0 * torch.log10(torch.minimum(near, far).clamp(min=1e-9))
        hits = hits + torch.sigmoid(4.0 * (level - ground - offset))
    return hits / 3.0


def radar_pulses(s: Setup, *, ahead: bool = False, compiled: bool = False, moved: bool = True) -> Step:
    antennas, pulses, samples = s.size(16, 2), s.size(192, 8), s.size(2048, 16)
    host = [torch.randint(-2048, 2048, (2, antennas, pulses, samples, 2), dtype=torch.int16) for _ in range(2)]
    prefetcher = Prefetcher([(s.pin(frame),) for frame in host], s) if ahead else None
    fast, slow = (torch.hann_window(length, device=s.device) for length in (samples, pulses))
    detected, turn = s.compile(_detected) if compiled else _detected, [0]

    @torch.no_grad()
    def step() -> Tensor:
        if prefetcher:
            (raw,) = prefetcher.next()
        else:
            turn[0] += 1
            raw = host[turn[0] % 2].to(s.device)
        echo = torch.view_as_complex(raw.float() / 2048)
        spectrum = torch.fft.fft(echo * fast, 2 * samples)
        if moved:
            turned = spectrum.transpose(-1, -2).contiguous()
            spectrum = torch.fft.fftshift(torch.fft.fft(turned * slow), -1).transpose(-1, -2).contiguous()
        else:
            spectrum = torch.fft.fftshift(torch.fft.fft(spectrum * slow[:, None], dim=-2), -2)
        return detected(spectrum.real**2 + spectrum.imag**2).sum(1)

    return step


# Reads of a sequencer, told apart by species.


LETTERS: dict[str, list[float]] = {"A": [1.0, 0.0, 0.0, 0.0], "C": [0.0, 1.0, 0.0, 0.0], "G": [0.0, 0.0, 1.0, 0.0], "T": [0.0, 0.0, 0.0, 1.0], "N": [0.25] * 4}


class Reads(Dataset[tuple[Tensor, int]]):
    def __init__(self, s: Setup, looked_up: bool) -> None:
        rng, self.looked_up = random.Random(0), looked_up
        self.reads = ["".join(rng.choices("ACGTN", (30, 20, 20, 29, 1), k=s.size(300, 32))) for _ in range(s.size(2000, 16))]
        self.table = np.zeros((256, 4), np.float32)
        for letter, row in LETTERS.items():
            self.table[ord(letter)] = row

    def __len__(self) -> int:
        return 60_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        read = self.reads[index % len(self.reads)]
        if self.looked_up:
            return torch.from_numpy(self.table[np.frombuffer(read.encode(), np.uint8)].T.copy()), index % 5
        return torch.tensor([LETTERS[letter] for letter in read]).T.contiguous(), index % 5


def genome_reads(s: Setup, *, workers: bool = False, looked_up: bool = False, autocast: bool = False) -> Step:
    width = s.size(128, 8)
    layers: list[nn.Module] = []
    for inner in (4, width, width, width):
        layers += [nn.Conv1d(inner, width, 9, padding=4), nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(2)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, 5)).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = _loaded(s, Reads(s, looked_up), s.size(160, 4), workers)

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        reads, species = (part.to(s.device, non_blocking=workers) for part in next(batches))
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            loss = F.cross_entropy(model(reads), species)
        loss.backward()
        optimizer.step()

    return step


# A ward's hourly signs: two layers of LSTM, hour by hour.


class Ward(nn.Module):
    def __init__(self, signs: int, width: int, cells: bool) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.LSTMCell(inner, width) for inner in (signs, width)) if cells else None
        self.whole = None if cells else nn.LSTM(signs, width, 2, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.whole is not None:
            return self.head(self.whole(x)[0])[..., 0]  # type: ignore[no-any-return]
        assert self.cells is not None
        states: list[Any] = [None, None]
        risks = []
        for hour in range(x.shape[1]):
            now = x[:, hour]
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(now, states[layer])
                now = states[layer][0]
            risks.append(self.head(now))
        return torch.cat(risks, 1)


def ward_monitor(s: Setup, *, cells: bool = True, graphed: bool = False, autocast: bool = False) -> Step:
    batch, hours, signs = s.size(96, 2), s.size(48, 6), s.size(36, 4)
    model = Ward(signs, s.size(160, 8), cells).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=s.cuda)
    x, worse = torch.randn(batch, hours, signs, device=s.device), torch.rand(batch, hours, device=s.device).round()

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            risks = model(x)
        F.binary_cross_entropy_with_logits(risks.float(), worse).backward()
        optimizer.step()

    return capture(step, s) if graphed else step


# Which exercises a pupil will solve, by those before.


class PlainNorm(nn.Module):
    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.scale, self.shift, self.library = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.layer_norm(x, self.scale.shape, self.scale, self.shift, 1e-6)
        mean, spread = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) / (spread + 1e-6).sqrt() * self.scale + self.shift


class PupilLayer(nn.Module):
    def __init__(self, width: int, heads: int, norms: bool, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.before, self.between = PlainNorm(width, norms), PlainNorm(width, norms)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, exercises: Tensor, x: Tensor) -> Tensor:
        normed = self.before(x)
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query(exercises), self.key(normed), self.value(normed))
        )  # fmt: skip
        if self.sdpa:
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            seen = torch.softmax(scores.masked_fill(later, float("-inf")), -1) @ v
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))  # type: ignore[no-any-return]


class Pupils(nn.Module):
    def __init__(self, s: Setup, norms: bool, sdpa: bool) -> None:
        super().__init__()
        width, self.count, length = s.size(256, 16), s.size(4000, 20), s.size(200, 8)
        self.exercises, self.answers = nn.Embedding(self.count, width), nn.Embedding(2 * self.count, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.ModuleList(PupilLayer(width, s.size(8, 2), norms, sdpa) for _ in range(s.size(3, 1)))
        self.head = nn.Linear(width, 1)

    def forward(self, asked: Tensor, solved: Tensor) -> Tensor:
        x = self.answers(asked[:, :-1] + self.count * solved[:, :-1]) + self.places
        wanted = self.exercises(asked[:, 1:])
        for layer in self.layers:
            x = layer(wanted, x)
        return self.head(x)[..., 0]  # type: ignore[no-any-return]


def pupil_answers(s: Setup, *, norms: bool = False, sdpa: bool = False, autocast: bool = False) -> Step:
    model = Pupils(s, norms, sdpa).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    shape = s.size(192, 2), s.size(200, 8) + 1
    asked, solved = (torch.randint(count, shape, device=s.device) for count in (model.count, 2))

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            logits = model(asked, solved)
        F.binary_cross_entropy_with_logits(logits.float(), solved[:, 1:].float()).backward()
        optimizer.step()

    return step


# Substances like those asked for, by their fingerprints.


def _likeness(common: Tensor, asked: Tensor, known: Tensor) -> Tensor:
    union = asked[:, None] + known[None] - common
    likeness = common / union.clamp(min=1.0)
    likeness = torch.where(likeness < 0.05, torch.zeros_like(likeness), likeness)
    size = 1.0 - 0.1 * torch.abs(asked[:, None] - known[None]) / torch.maximum(asked[:, None], known[None])
    return likeness * size


def tanimoto_screen(s: Setup, *, compiled: bool = False, tf32: bool = False, ahead: bool = False) -> Step:
    bits, count, asked = s.size(1024, 32), s.size(200_000, 50), s.size(320, 3)
    library = (torch.rand(count, bits, device=s.device) < 0.08).float()
    known = library.sum(1)
    host = [((torch.rand(asked, bits) < 0.08).float(),) for _ in range(2)]
    prefetcher = Prefetcher([tuple(s.pin(part) for part in batch) for batch in host], s) if ahead else None
    likeness, turn = s.compile(_likeness) if compiled else _likeness, [0]

    @torch.no_grad()
    def step() -> tuple[Tensor, Tensor]:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        if prefetcher:
            (queries,) = prefetcher.next()
        else:
            turn[0] += 1
            queries = host[turn[0] % 2][0].to(s.device)
        values, order = likeness(queries @ library.T, queries.sum(1), known).max(1)
        return values.cpu(), order.cpu()

    return step


# Talks of several people put into rows of one length, for a small decoder.


class TalkBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.before, self.between = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))  # type: ignore[no-any-return]


def _packed(talks: list[list[tuple[int, list[int]]]], rows: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First fit; only what the second speaker says is learnt."""
    ids, labels, owners = ([[] for _ in range(rows)] for _ in range(3))  # type: ignore[var-annotated]
    for number, talk in enumerate(talks):
        words = [word for _, said in talk for word in said]
        for row in range(rows):
            if len(ids[row]) + len(words) <= length:
                for speaker, said in talk:
                    for word in said:
                        ids[row].append(word)
                        labels[row].append(word if speaker else -100)
                        owners[row].append(number)
                break
    for row in range(rows):
        short = length - len(ids[row])
        ids[row] += [0] * short
        labels[row] += [-100] * short
        owners[row] += [-1] * short
    return np.array(ids), np.array(labels), np.array(owners)


def packed_talks(s: Setup, *, before: bool = False, on_gpu: bool = False, fused: bool = False) -> Step:
    width, words, rows, length = s.size(256, 16), s.size(8000, 50), s.size(12, 2), s.size(384, 32)
    table, head = nn.Embedding(words, width).to(s.device), nn.Linear(width, words).to(s.device)
    blocks = nn.ModuleList(TalkBlock(width, s.size(4, 2)) for _ in range(s.size(4, 1))).to(s.device)
    parameters = [*table.parameters(), *blocks.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=fused)
    rng = random.Random(0)
    store = [
        [[(turn % 2, [rng.randrange(1, words) for _ in range(rng.randint(3, s.size(20, 6)))]) for turn in range(rng.randint(2, 8))] for _ in range(rows * 7)]
        for _ in range(4)
    ]
    past = np.tril(np.ones((length, length), bool))

    def batch(turn: int) -> tuple[np.ndarray, ...]:
        ids, labels, owners = _packed(store[turn % 4], rows, length)
        if on_gpu:
            return ids, labels, owners
        return ids, labels, np.where((owners[:, :, None] == owners[:, None]) & past, 0.0, -1e9).astype(np.float32)[:, None]

    ready = [batch(turn) for turn in range(4)] if before else None
    past_there, turn = torch.from_numpy(past).to(s.device), [0]

    def step() -> None:
        torch.set_float32_matmul_precision("high")
        turn[0] += 1
        ids, labels, mask = (torch.from_numpy(part).to(s.device) for part in (ready[turn[0] % 4] if ready else batch(turn[0])))
        if on_gpu:
            mask = torch.where((mask[:, :, None] == mask[:, None]) & past_there, 0.0, -1e9)[:, None]
        optimizer.zero_grad()
        x = table(ids)
        for block in blocks:
            x = block(x, mask)
        F.cross_entropy(head(x[:, :-1]).flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100).backward()
        optimizer.step()

    return step


WORKLOADS = (
    _public(
        "pegasus_headlines", "Pegasus of transformers, training in bf16 autocast on 8 x 160 words under AdamW(foreach=False), the loss read in each step.",
        pegasus, {"optimizer": "loop", "read_loss": True},
        {"optimizer-foreach": {"optimizer": "fused"}, "sync-stall": {"read_loss": False}, "unfused-attention": {"attention": "sdpa"}},
    ),
    _public(
        "granite_tuning", "Granite of transformers, training in bf16 on 4 x 1024 words, attention and norms written out.", granite, {},
        {"unfused-attention": {"attention": "sdpa"}, "unfused-norm": {"norms": True}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "squeezebert_message", "SqueezeBERT of transformers on one message of 20 words, FP32.", squeezebert, {},
        {"launch-gap": {"compiled": GRAPHS}, "graph-candidate": {"graph": True}, "precision": {"autocast": BF16}},
    ),
    _public(
        "repvgg_training", "RepVGG-A0 of timm, training on 64 pictures of 192, FP32 with TF32 convolutions, NCHW.", repvgg, {},
        {"unfused-elementwise": {"compiled": COMPILED}, "memory-layout": {"channels_last": True}, "precision": {"autocast": BF16}},
    ),
    _public(
        "edgenext_photos", "EdgeNeXt of timm on 96 pictures, bf16 autocast over FP32 weights and pictures, NCHW.", edgenext, {},
        {"dtype-casts": {"autocast": None, "dtype": BF16}, "memory-layout": {"channels_last": True}, "unfused-elementwise": {"compiled": COMPILED}},
    ),
    _public(
        "squeezenet_shelves", "SqueezeNet of torchvision, training on 64 pictures that numpy changes in this process; two numbers are read in each step.",
        squeezenet, {}, {"data-loading": {"workers": True}, "sync-stall": {"log": False}, "precision": {"autocast": BF16}},
    ),
    _public(
        "deeper_graph", "DeeperGCN of torch_geometric, ten layers on 12,000 nodes, training in FP32: known nodes are chosen by a mask.", deep_graph, {},
        {"sync-stall": {"masked": False}, "optimizer-foreach": {"optimizer": "fused"}, "precision": {"autocast": BF16}},
    ),
    written_pair(
        "heston_paths", "unfused-elementwise", "Six million paths of price and variance over fifty days; draws are float64, made FP32; paths are checked each day.",
        "torch.compile of a day", heston_paths, {"compiled": True},
        alone={"dtype-casts": {"wide": False}, "sync-stall": {"checked": False}}, gpu_bound=True,
    ),
    written_pair(
        "radar_pulses", "memcpy", "Range and speed from 2 x 16 antennas' pulses, int16 in pageable memory; pulses are turned to the last axis and back.",
        "pinned memory, the next frame copied ahead", radar_pulses, {"ahead": True},
        alone={"unfused-elementwise": {"compiled": True}, "memory-layout": {"moved": False}},
    ),
    written_pair(
        "genome_reads", "data-loading", "A 1-D network on 160 reads, each made one-hot letter by letter in the training process.",
        "num_workers=8, persistent_workers and pin_memory", genome_reads, {"workers": True},
        alone={"host-bound": {"looked_up": True}, "precision": {"autocast": True}},
    ),
    written_pair(
        "ward_monitor", "launch-gap", "Two layers of LSTMCell, hour by hour over two days of 96 patients, training in FP32.",
        "nn.LSTM", ward_monitor, {"cells": False},
        alone={"graph-candidate": {"graphed": True}, "precision": {"autocast": True}}, top=("launch-gap", "graph-candidate"),
    ),
    written_pair(
        "pupil_answers", "unfused-attention", "Answers of 192 pupils to 200 exercises each, training in FP32 without TF32, attention and layer norm written out.",
        "F.scaled_dot_product_attention", pupil_answers, {"sdpa": True},
        alone={"unfused-norm": {"norms": True}, "precision": {"autocast": True}}, gpu_bound=True,
    ),
    written_pair(
        "tanimoto_screen", "unfused-elementwise", "320 fingerprints against 200,000, FP32 without TF32; the likeness is a chain over all pairs.",
        "torch.compile of the likeness", tanimoto_screen, {"compiled": True},
        alone={"precision/tf32": {"tf32": True}, "memcpy": {"ahead": True}}, gpu_bound=True,
    ),
    written_pair(
        "packed_talks", "host-bound", "Talks are packed into 12 rows of 384 word by word in each step, their mask is made by numpy and copied.",
        "talks packed before training", packed_talks, {"before": True},
        alone={"memcpy": {"on_gpu": True}, "optimizer-foreach": {"fused": True}},
    ),
)  # fmt: skip
