"""Programs written to test predictions, set B. See written_1."""

from __future__ import annotations

import io
import math
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, capture
from .written_1 import BF16, FP16, _written

# Gray-Scott reaction and diffusion on a periodic grid.


def react(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    lap_u = torch.roll(u, 1, 0) + torch.roll(u, -1, 0) + torch.roll(u, 1, 1) + torch.roll(u, -1, 1) - 4 * u
    lap_v = torch.roll(v, 1, 0) + torch.roll(v, -1, 0) + torch.roll(v, 1, 1) + torch.roll(v, -1, 1) - 4 * v
    uvv = u * v * v
    return u + 0.16 * lap_u - uvv + 0.035 * (1 - u), v + 0.08 * lap_v + uvv - (0.035 + 0.065) * v


def gray_scott(s: Setup, *, compiled: bool = False) -> Step:
    side = s.size(4096, 16)
    state = [torch.ones(side, side, device=s.device), torch.rand(side, side, device=s.device)]
    advance = s.compile(react) if compiled else react

    def step() -> Tensor:
        for _ in range(5):
            state[:] = advance(*state)
        return state[1]

    return step


# A relational graph network that takes the relations one by one.


class RelationalLayer(nn.Module):
    def __init__(self, dim: int, relations: int) -> None:
        super().__init__()
        self.weight, self.own = nn.Parameter(torch.randn(relations, dim, dim) / dim**0.5), nn.Linear(dim, dim)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, kind: Tensor, lists: list[tuple[Tensor, Tensor]] | None) -> Tensor:
        out = self.own(x)
        for r in range(len(self.weight)):
            if lists is not None:
                src, dst = lists[r]
            else:
                src, dst = source[kind == r], target[kind == r]
            out = out.index_add(0, dst, x[src] @ self.weight[r])
        return F.relu(out)


def relational_graph(s: Setup, *, listed: bool = False) -> Step:
    nodes, edges, relations, dim = s.size(8000, 20), s.size(120000, 60), s.size(24, 3), s.size(128, 8)
    source, target = torch.randint(nodes, (2, edges), device=s.device)
    kind = torch.randint(relations, (edges,), device=s.device)
    lists = [(source[kind == r], target[kind == r]) for r in range(relations)] if listed else None
    layers = nn.ModuleList(RelationalLayer(dim, relations) for _ in range(2)).to(s.device)
    head = nn.Linear(dim, 8).to(s.device)
    optimizer = torch.optim.Adam([*layers.parameters(), *head.parameters()], lr=1e-3, fused=True)
    x, labels = torch.randn(nodes, dim, device=s.device), torch.randint(8, (nodes,), device=s.device)

    def step() -> None:
        optimizer.zero_grad()
        h = x
        for layer in layers:
            h = layer(h, source, target, kind, lists)
        F.cross_entropy(head(h), labels).backward()
        optimizer.step()

    return step


# Suppression of overlapping boxes, as it is written in numpy.


def suppress(boxes: Tensor, scores: Tensor, limit: float) -> list[int]:
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    order = scores.argsort(descending=True)
    keep = []
    while order.numel() > 0:
        best = order[0].item()
        keep.append(int(best))
        rest = order[1:]
        low = torch.maximum(boxes[rest, :2], boxes[best, :2])
        high = torch.minimum(boxes[rest, 2:], boxes[best, 2:])
        common = (high - low).clamp(min=0).prod(1)
        overlap = common / (area[rest] + area[best] - common)
        order = rest[overlap <= limit]
    return keep


def box_suppression(s: Setup, *, on_host: bool = False) -> Step:
    width, centres, many = s.size(128, 4), s.size(100, 3), s.size(1500, 12)
    model = nn.Sequential(nn.Conv2d(3, width, 7, stride=4, padding=3), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 1))
    model = model.to(s.device).to(memory_format=torch.channels_last).eval()
    image = torch.rand(1, 3, s.size(640, 16), s.size(640, 16), device=s.device)
    middle = (torch.rand(centres, 2) * 600).repeat_interleave(many // centres, 0) + torch.randn(many // centres * centres, 2)
    corners = torch.cat([middle - 12, middle + 12], 1).to(s.device)

    @torch.no_grad()
    def step() -> list[int]:
        scores = model(image).flatten().repeat(s.size(1, 200))[: len(corners)].sigmoid()
        boxes = corners + scores[:, None]
        return suppress(boxes.cpu(), scores.cpu(), 0.5) if on_host else suppress(boxes, scores, 0.5)

    return step


# A Fourier neural operator.


class SpectralBlock(nn.Module):
    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, modes, dtype=torch.cfloat) / width)
        self.pointwise = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft2(x.float())
        out = torch.zeros_like(spectrum)
        m = self.modes
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], self.weight)
        return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.pointwise(x))


def fourier_operator(s: Setup, *, autocast: bool = False) -> Step:
    width, side = s.size(32, 4), s.size(256, 16)
    model = nn.Sequential(*(SpectralBlock(width, s.size(24, 3)) for _ in range(4)), nn.Conv2d(width, 1, 1)).to(s.device).eval()
    x = torch.randn(s.size(32, 1), width, side, side, device=s.device)

    @torch.no_grad()
    def step() -> Tensor:
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            return model(x)

    return step


# Feed-forward blocks that leave bf16 for every activation and sum.


class CastingBlock(nn.Module):
    def __init__(self, dim: int, casts: bool) -> None:
        super().__init__()
        self.casts = casts
        self.norm, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(self.norm(x))
        if not self.casts:
            return x + self.down(F.gelu(h))
        h = F.gelu(h.float()).to(x.dtype)
        return (x.float() + self.down(h).float()).to(x.dtype)


def float_activations(s: Setup, *, casts: bool = True) -> Step:
    dim = s.size(1024, 16)
    model = nn.Sequential(*(CastingBlock(dim, casts) for _ in range(s.size(6, 1)))).to(s.device, BF16).eval()
    x = torch.randn(s.size(32768, 4), dim, device=s.device, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x)

    return step


# Mixing over patches by turning the tensor round and back.


class PatchMixing(nn.Module):
    def __init__(self, patches: int, hidden: int, dim: int, turned: bool) -> None:
        super().__init__()
        self.turned = turned
        self.norm, self.up, self.down = nn.LayerNorm(dim), nn.Linear(patches, hidden, bias=False), nn.Linear(hidden, patches, bias=False)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        if self.turned:
            y = self.norm(x).transpose(1, 2).contiguous()
            y = self.down(F.gelu(self.up(y))).transpose(1, 2).contiguous()
        else:
            up, down = (layer.weight.expand(len(x), -1, -1) for layer in (self.up, self.down))
            y = torch.bmm(down, F.gelu(torch.bmm(up, self.norm(x))))
        x = x + y
        return x + self.mlp(x)


def patch_mixing(s: Setup, *, turned: bool = True) -> Step:
    patches, dim = s.size(256, 8), s.size(512, 16)
    model = nn.Sequential(*(PatchMixing(patches, s.size(256, 8), dim, turned) for _ in range(s.size(6, 1)))).to(s.device, BF16).eval()
    x = torch.randn(s.size(256, 2), patches, dim, device=s.device, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x)

    return step


# Segmentation of volumes.


def volumes(s: Setup, *, autocast: bool = False, channels_last: bool = False) -> Step:
    width, side = s.size(32, 4), s.size(96, 8)
    layers: list[nn.Module] = []
    for i, o, stride in ((1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1)):
        layers += [nn.Conv3d(i * width, o * width, 3, stride, 1), nn.InstanceNorm3d(o * width, affine=True), nn.LeakyReLU(0.01)]
    model = nn.Sequential(*layers, nn.Conv3d(4 * width, 4, 1), nn.Upsample(scale_factor=4, mode="trilinear")).to(s.device)
    x = torch.randn(2, width, side, side, side, device=s.device)
    labels = torch.randint(4, (2, side, side, side), device=s.device)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last_3d), x.contiguous(memory_format=torch.channels_last_3d)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()

    return step


# Depthwise convolutions.


class WideDepthwise(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.BatchNorm2d(width)
        self.up, self.down = nn.Conv2d(width, 4 * width, 1), nn.Conv2d(4 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(self.depthwise(x)))))


def depthwise(s: Setup, *, channels_last: bool = False) -> Step:
    width, side = s.size(128, 4), s.size(56, 8)
    model = nn.Sequential(*(WideDepthwise(width) for _ in range(s.size(4, 1)))).to(s.device)
    x = torch.randn(s.size(64, 2), width, side, side, device=s.device)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()

    return step


# Gradients zeroed by hand.


def zero_by_hand(s: Setup, *, by_hand: bool = True) -> Step:
    dim = s.size(4096, 16)
    layers = [m for _ in range(s.size(12, 2)) for m in (nn.Linear(dim, dim, bias=False), nn.GELU())]
    model = nn.Sequential(*layers).to(s.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    x = torch.randn(s.size(2048, 4), dim, device=s.device)

    def step() -> None:
        if by_hand:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()
        else:
            optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()

    return step


# A convolutional LSTM whose norm spans channels, height and width.


class WholeNorm(nn.Module):
    def __init__(self, shape: tuple[int, int, int], split: bool) -> None:
        super().__init__()
        self.split, self.norm = split, nn.LayerNorm(shape)

    def forward(self, x: Tensor) -> Tensor:
        if not self.split:
            return self.norm(x)
        var, mean = torch.var_mean(x, dim=(1, 2, 3), keepdim=True, correction=0)
        return torch.addcmul(self.norm.bias, (x - mean) * torch.rsqrt(var + self.norm.eps), self.norm.weight)


def frame_prediction(s: Setup, *, split: bool = False) -> Step:
    width, side = s.size(64, 4), s.size(128, 8)
    from_input, from_state = (nn.Conv2d(width, 4 * width, 5, padding=2, bias=False).to(s.device) for _ in range(2))
    norms = nn.ModuleList(WholeNorm((4 * width, side, side), split) for _ in range(2)).to(s.device)
    frames = torch.randn(s.size(6, 2), 4, width, side, side, device=s.device)

    @torch.no_grad()
    def step() -> Tensor:
        h = c = torch.zeros_like(frames[0])
        for frame in frames:
            i, f, g, o = (norms[0](from_input(frame)) + norms[1](from_state(h))).chunk(4, 1)
            c = torch.sigmoid(f + 1.0) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h

    return step


# Validation on pictures of many sizes, with memory given back after each.


def validation(s: Setup, *, empty: bool = True) -> Step:
    width = s.size(64, 4)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
    for _ in range(s.size(4, 1)):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(width, 3, 3, padding=1)).to(s.device, FP16 if s.cuda else None).to(memory_format=torch.channels_last).eval()
    dtype = next(model.parameters()).dtype
    pictures = [torch.rand(1, 3, s.size(512 + 96 * i, 8), s.size(768, 8), device=s.device, dtype=dtype) for i in range(6)]

    @torch.no_grad()
    def step() -> Tensor:
        total = torch.zeros((), device=s.device)
        for picture in pictures:
            restored = model(picture.contiguous(memory_format=torch.channels_last))
            total += F.mse_loss(restored.float(), picture.float())
            del restored
            if empty:
                torch.cuda.empty_cache()
        return total

    return step


# A compiled loss that counts its calls: Dynamo compiles it eight times and then runs it eagerly.


class CountingNoise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        temperature = max(0.5, math.exp(-1e-4 * self.calls))
        noise = -torch.log(-torch.log(torch.rand_like(logits) + 1e-9) + 1e-9)
        soft = torch.sigmoid((logits + noise) / temperature)
        return (torch.abs(soft - target) ** 1.5 + 0.1 * soft * (1 - soft)).mean()


class TensorNoise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        temperature = torch.exp(-1e-4 * self.calls).clamp(min=0.5)
        noise = -torch.log(-torch.log(torch.rand_like(logits) + 1e-9) + 1e-9)
        soft = torch.sigmoid((logits + noise) / temperature)
        return (torch.abs(soft - target) ** 1.5 + 0.1 * soft * (1 - soft)).mean()


def annealed_noise(s: Setup, *, counted: bool = True) -> Step:
    torch._dynamo.config.recompile_limit = 8  # the default, which other workloads raise
    loss = s.compile((CountingNoise() if counted else TensorNoise()).to(s.device))
    logits = torch.randn(s.size(8192, 8), s.size(4096, 8), device=s.device)
    target = torch.rand_like(logits)

    @torch.no_grad()
    def step() -> Tensor:
        return loss(logits, target)

    return step


# A compiled network whose layers report their activations, and so break the graph.


class ReportingLayer(nn.Module):
    def __init__(self, dim: int, reports: bool) -> None:
        super().__init__()
        self.reports, self.seen = reports, 0.0
        self.norm, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.up(self.norm(x)))
        if self.reports:
            self.seen = h.abs().mean().item()
        return x + self.down(h)


def reporting_layers(s: Setup, *, reports: bool = True) -> Step:
    dim = s.size(1024, 16)
    model = s.compile(nn.Sequential(*(ReportingLayer(dim, reports) for _ in range(s.size(8, 2)))).to(s.device, BF16).eval())
    x = torch.randn(s.size(4096, 4), dim, device=s.device, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x)

    return step


# The head of a language model for two candidates.


def candidate_head(s: Setup, *, rows: int = 2) -> Step:
    dim, words = s.size(8192, 32), s.size(152064, 64)
    feeds = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(dim, 2 * dim, bias=False), nn.ReLU(), nn.Linear(2 * dim, dim, bias=False))))
    head = nn.Linear(dim, words, bias=False)
    feeds, head = feeds.to(s.device, BF16), head.to(s.device, BF16)
    x = torch.randn(rows, dim, device=s.device, dtype=BF16)

    @torch.inference_mode()
    def step() -> Tensor:
        return head(feeds(x)).argmax(-1)

    return step


# Windowed attention with dropout, in training.


class WindowedAttention(nn.Module):
    def __init__(self, dim: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        if self.fused:
            q, k, v = (part.transpose(1, 2) for part in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=near, dropout_p=0.1).transpose(1, 2)
        else:
            scores = torch.einsum("bnhd,bmhd->bhnm", q * q.shape[-1] ** -0.5, k)
            weights = F.dropout(scores.masked_fill(~near, -1e4).softmax(-1), 0.1)
            y = torch.einsum("bhnm,bmhd->bnhd", weights, v)
        return x + self.out(y.flatten(2))


def windowed(s: Setup, *, fused: bool = False) -> Step:
    dim, length = s.size(1024, 32), s.size(2048, 8)
    layers = nn.ModuleList(WindowedAttention(dim, s.size(16, 2), fused) for _ in range(3)).to(s.device, BF16)
    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-4, fused=True)
    at = torch.arange(length, device=s.device)
    near = (at[:, None] - at[None, :]).abs() <= s.size(256, 2)
    x = torch.randn(s.size(4, 1), length, dim, device=s.device, dtype=BF16)

    def step() -> None:
        optimizer.zero_grad()
        h = x
        for layer in layers:
            h = layer(h, near)
        h.float().square().mean().backward()
        optimizer.step()

    return step


# Positions and masks made on the CPU for every batch.


def positions(length: int, dim: int, device: torch.device) -> Tensor:
    at = torch.arange(length, device=device).float()[:, None]
    rates = torch.exp(torch.arange(0, dim, 2, device=device).float() * (-math.log(10000.0) / dim))
    table = torch.zeros(length, dim, device=device)
    table[:, 0::2], table[:, 1::2] = torch.sin(at * rates), torch.cos(at * rates)
    return table


def made_on_host(s: Setup, *, place: str = "cpu") -> Step:
    dim, length = s.size(512, 16), s.size(1024, 8)
    layer = nn.TransformerEncoderLayer(dim, s.size(8, 2), 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, s.size(4, 1), enable_nested_tensor=False).to(s.device, BF16)
    embed = nn.Embedding(s.size(32000, 50), dim).to(s.device, BF16)
    tokens = torch.randint(50, (s.size(16, 2), length), device=s.device)
    where = s.device if place == "gpu" else torch.device("cpu")

    @torch.no_grad()
    def step() -> Tensor:
        mask = torch.triu(torch.full((length, length), float("-inf"), device=where), diagonal=1).to(s.device).to(BF16)
        x = embed(tokens) * math.sqrt(dim) + positions(length, dim, where).to(s.device).to(BF16)
        return model(x, mask=mask)

    return step


# LARS, a layer at a time.


def lars(s: Setup, *, foreach: bool = False) -> Step:
    width, side = s.size(64, 4), s.size(32, 8)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(s.size(20, 2)):
        layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * side * side, 10)).to(s.device).to(memory_format=torch.channels_last)
    params = list(model.parameters())
    moments = [torch.zeros_like(p) for p in params]
    images = torch.randn(s.size(64, 2), 3, side, side, device=s.device).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (len(images),), device=s.device)

    @torch.no_grad()
    def update(lr: float = 0.1, decay: float = 1e-4) -> None:
        if foreach:
            grads = [p.grad for p in params if p.grad is not None]
            sizes, lengths = torch.stack(torch._foreach_norm(params)), torch.stack(torch._foreach_norm(grads))
            ratios = torch.where((sizes > 0) & (lengths > 0), 0.001 * sizes / (lengths + decay * sizes + 1e-9), 1.0)
            torch._foreach_add_(grads, params, alpha=decay)
            torch._foreach_mul_(grads, list(ratios.unbind()))
            torch._foreach_mul_(moments, 0.9)
            torch._foreach_add_(moments, grads)
            torch._foreach_add_(params, moments, alpha=-lr)
            return
        for p, moment in zip(params, moments, strict=True):
            assert p.grad is not None
            size, length = p.norm(), p.grad.norm()
            ratio = torch.where((size > 0) & (length > 0), 0.001 * size / (length + decay * size + 1e-9), 1.0)
            moment.mul_(0.9).add_((p.grad + decay * p) * ratio)
            p.sub_(lr * moment)

    def step() -> None:
        for p in params:
            p.grad = None
        F.cross_entropy(model(images), labels).backward()
        update()

    return step


# Beam search that asks after each word whether all beams have ended.


def beam_search(s: Setup, *, every: int = 1) -> Step:
    batch, beams, dim, words, length = s.size(8, 2), 4, s.size(1024, 16), s.size(32000, 40), s.size(32, 4)
    embed, cell, head = nn.Embedding(words, dim), nn.GRUCell(dim, dim), nn.Linear(dim, words)
    embed, cell, head = (module.to(s.device, BF16 if s.cuda else None) for module in (embed, cell, head))
    start = torch.randn(batch * beams, dim, device=s.device, dtype=head.weight.dtype)
    first = torch.arange(batch, device=s.device)[:, None] * beams

    @torch.no_grad()
    def step() -> Tensor:
        state, score = start, torch.zeros(batch, beams, device=s.device)
        word = torch.ones(batch * beams, dtype=torch.long, device=s.device)
        ended = torch.zeros(batch * beams, dtype=torch.bool, device=s.device)
        found = word[:, None]
        for t in range(length):
            state = cell(embed(word), state)
            chances = F.log_softmax(head(state).float(), -1).masked_fill(ended[:, None], -1e9)
            score, pick = (score[..., None] + chances.view(batch, beams, -1)).flatten(1).topk(beams, 1)
            origin = (first + pick // words).flatten()
            word = (pick % words).flatten()
            state, found = state[origin], torch.cat([found[origin], word[:, None]], 1)
            ended = ended[origin] | (word == 2)
            if (t + 1) % every == 0 and ended.all():
                break
        return found

    return step


# Attention head by head, as in a well-known lecture.


class Head(nn.Module):
    def __init__(self, dim: int, size: int, length: int, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.key, self.query, self.value = (nn.Linear(dim, size, bias=False) for _ in range(3))
        self.tril: Tensor
        self.register_buffer("tril", torch.tril(torch.ones(length, length)))

    def forward(self, x: Tensor) -> Tensor:
        k, q, v = self.key(x), self.query(x), self.value(x)
        if self.fused:
            q, k, v = (part.unsqueeze(1) for part in (q, k, v))
            return F.scaled_dot_product_attention(q, k, v, dropout_p=0.2, is_causal=True).squeeze(1)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = F.softmax(wei.masked_fill(self.tril == 0, float("-inf")), dim=-1)
        return F.dropout(wei, 0.2) @ v


class LectureBlock(nn.Module):
    def __init__(self, dim: int, heads: int, length: int, fused: bool) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head(dim, dim // heads, length, fused) for _ in range(heads))
        self.proj, self.ln1, self.ln2 = nn.Linear(dim, dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ffwd = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim), nn.Dropout(0.2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln1(x)
        x = x + self.proj(torch.cat([head(y) for head in self.heads], -1))
        return x + self.ffwd(self.ln2(x))


def lecture_gpt(s: Setup, *, fused: bool = False, autocast: bool = False, tf32: bool = False) -> Step:
    dim, length, words = s.size(384, 12), s.size(256, 8), 65
    blocks = (LectureBlock(dim, s.size(6, 2), length, fused) for _ in range(s.size(6, 1)))
    model = nn.Sequential(nn.Embedding(words, dim), *blocks, nn.LayerNorm(dim), nn.Linear(dim, words)).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(words, (s.size(64, 2), length), device=s.device)

    def step() -> None:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            loss = F.cross_entropy(model(tokens).view(-1, words), tokens.roll(-1, 1).view(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        torch.set_float32_matmul_precision("high")

    return step


# Fixes that gain nothing, or next to nothing.


def detection_targets(s: Setup, *, pinned: bool = False) -> Step:
    width, side = s.size(128, 4), s.size(64, 8)
    layers = [m for _ in range(s.size(14, 1)) for m in (nn.Conv2d(width, width, 3, padding=1), nn.SiLU())]
    model = nn.Sequential(*layers, nn.Conv2d(width, 4, 1)).to(s.device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    x = torch.randn(s.size(64, 2), width, side, side, device=s.device).contiguous(memory_format=torch.channels_last)
    random = np.random.default_rng(0)
    boxes = [torch.rand(int(random.integers(1, 40)), 4) for _ in range(len(x))]
    boxes = [s.pin(box) for box in boxes] if pinned else boxes

    def step() -> None:
        optimizer.zero_grad()
        targets = [box.to(s.device, non_blocking=pinned) for box in boxes]
        with torch.autocast(s.device.type, BF16):
            predicted = model(x).flatten(2).mT.flatten(0, 1)
        wanted = torch.cat(targets)
        F.l1_loss(predicted[: len(wanted)].float(), wanted).backward()
        optimizer.step()

    return step


def latent_inversion(s: Setup, *, fused: bool = False) -> Step:
    width, side = s.size(256, 4), s.size(128, 8)
    layers = [m for _ in range(s.size(8, 1)) for m in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(4, width, 3, padding=1), *layers).to(s.device, BF16).to(memory_format=torch.channels_last).requires_grad_(False)
    latent = torch.randn(s.size(8, 1), 4, side, side, device=s.device, requires_grad=True)
    scale, shift = (torch.ones(1, 4, 1, 1, device=s.device, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.Adam([latent, scale, shift], lr=0.05, foreach=None if fused else False, fused=fused or None)

    def step() -> None:
        optimizer.zero_grad()
        x = (latent * scale + shift).to(BF16, memory_format=torch.channels_last)
        model(x).float().square().mean().backward()
        optimizer.step()

    return step


def contrastive_progress(s: Setup, *, every: int = 1) -> Step:
    dim, rows = s.size(2048, 16), s.size(16384, 4)
    towers = nn.ModuleList(nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(dim, dim), nn.GELU())), nn.Linear(dim, 512)) for _ in range(2))
    towers = towers.to(s.device, BF16)
    optimizer = torch.optim.AdamW(towers.parameters(), lr=1e-4, fused=True)
    pairs = [torch.randn(rows, dim, device=s.device, dtype=BF16) for _ in range(2)]
    labels, bar, done = torch.arange(rows, device=s.device), io.StringIO(), 0

    def step() -> None:
        nonlocal done
        a, b = (F.normalize(tower(x), dim=-1) for tower, x in zip(towers, pairs, strict=True))
        logits = a @ b.T / 0.07
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        accuracy = (logits.detach().argmax(1) == labels).float().mean()
        if done % every == 0:
            print(f"loss {loss.item():.3f} accuracy {accuracy.item():.3f}", file=bar)

    return step


def graphed_decoding(s: Setup) -> Step:
    """A control: 96 sequences, keys and values in place, everything under a CUDA graph."""
    batch, heads, size, past = s.size(96, 2), s.size(32, 2), s.size(128, 8), s.size(1024, 8)
    dim = heads * size
    layers = nn.ModuleList(nn.ModuleDict({"qkv": nn.Linear(dim, 3 * dim), "out": nn.Linear(dim, dim)}) for _ in range(2)).to(s.device, BF16)
    layers.requires_grad_(False)
    keys, values = (torch.randn(2, batch, heads, past, size, device=s.device, dtype=BF16) for _ in range(2))
    x = torch.randn(batch, 1, dim, device=s.device, dtype=BF16)

    def token() -> Tensor:
        h = x
        for layer, k, v in zip(layers, keys, values, strict=True):
            q, new_k, new_v = layer["qkv"](h).view(batch, 1, 3, heads, size).permute(2, 0, 3, 1, 4)
            k[:, :, -1:], v[:, :, -1:] = new_k, new_v
            h = h + layer["out"](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return h

    return capture(token, s)


WORKLOADS = (
    _written(
        "gray_scott", "unfused-elementwise", "Gray-Scott reaction and diffusion on a grid of 4096 x 4096, with torch.roll.",
        "torch.compile of one time step", gray_scott, partial(gray_scott, compiled=True), gpu_bound=True,
    ),
    _written(
        "relational_graph", "sync-stall", "Training of a relational graph network: each of 24 relations picks its edges by a boolean mask.",
        "lists of edges made once", relational_graph, partial(relational_graph, listed=True),
        top=("sync-stall", "launch-gap", "graph-candidate"), fixed_quiet=False,
    ),
    _written(
        "box_suppression", "sync-stall", "Non-maximum suppression in a Python loop over tensors on the GPU: .item() and a boolean mask for each box kept.",
        "copy boxes and scores to the CPU once", box_suppression, partial(box_suppression, on_host=True),
        top=("sync-stall", "launch-gap", "host-bound", "graph-candidate"), fixed_quiet=False, with_stack=True,
    ),
    _written(
        "fourier_operator", "precision", "A Fourier neural operator in FP32: transforms and complex products, which autocast leaves alone.",
        "none worth making: bf16 autocast", fourier_operator, partial(fourier_operator, autocast=True), trap=True, gpu_bound=True, fixed_quiet=False,
    ),
    _written(
        "float_activations", "dtype-casts", "Feed-forward blocks in bf16 that go to FP32 for each GELU and each sum.",
        "stay in bf16", float_activations, partial(float_activations, casts=False), gpu_bound=True,
    ),
    _written(
        "patch_mixing", "memory-layout", "Mixing over patches in bf16: transpose(1, 2).contiguous() before and after.",
        "multiply from the left by torch.bmm", patch_mixing, partial(patch_mixing, turned=False), gpu_bound=True,
    ),
    _written(
        "volumes_fp32", "precision", "Training on volumes of 96 x 96 x 96 in FP32, whose 3D convolutions take TF32.",
        "bf16 autocast", volumes, partial(volumes, autocast=True), alone={"memory-layout": partial(volumes, channels_last=True)},
        gpu_bound=True, fixed_quiet=False,
    ),
    _written(
        "wide_depthwise", None, "Training of blocks of 7 x 7 depthwise convolutions in NCHW under bf16 autocast.",
        "each alone", depthwise, None, alone={"memory-layout": partial(depthwise, channels_last=True)}, gpu_bound=True,
    ),
    _written(
        "zero_by_hand", "grad-zeroing", "200 million FP32 parameters whose gradients are zeroed by hand.",
        "optimizer.zero_grad(), which frees them", zero_by_hand, partial(zero_by_hand, by_hand=False), gpu_bound=True, fixed_quiet=False,
    ),
    _written(
        "frame_prediction", "small-grid", "A convolutional LSTM with LayerNorm over channels, height and width: four rows on four multiprocessors.",
        "torch.var_mean, then scale", frame_prediction, partial(frame_prediction, split=True), gpu_bound=True, fixed_quiet=False,
    ),
    _written(
        "validation_sizes", None, "Validation on pictures of six sizes, with torch.cuda.empty_cache() after each.",
        "each alone", validation, None, alone={"allocator": partial(validation, empty=False)},
    ),
    _written(
        "annealed_noise", "unfused-elementwise", "A compiled loss that counts its calls in a Python int: after eight compilations it runs eagerly.",
        "count in a buffer", annealed_noise, partial(annealed_noise, counted=False), gpu_bound=True,
    ),
    _written(
        "reporting_layers", "sync-stall", "A compiled network each layer of which reads its mean activation, which breaks the graph and waits.",
        "report nothing", reporting_layers, partial(reporting_layers, reports=False), fixed_quiet=False,
    ),
    _written(
        "candidate_head", "low-arithmetic-intensity", "Feed-forward layers of 8192 and a head of 152,064 words for two rows. fixed_ms is for two rows (step / 32).",
        "64 rows at once", candidate_head, partial(candidate_head, rows=64), requests=32.0, gpu_bound=True, fixed_quiet=False,
    ),
    _written(
        "windowed_attention", "unfused-attention", "bf16 training with attention in a window of 512: einsum, masked_fill, dropout.",
        "F.scaled_dot_product_attention with the window as its mask", windowed, partial(windowed, fused=True), gpu_bound=True,
    ),
    _written(
        "made_on_host", "memcpy", "Transformer inference that makes positions and causal mask on the CPU for each batch.",
        "make them on the GPU", made_on_host, partial(made_on_host, place="gpu"), top=("memcpy", "host-bound", "sync-stall"), fixed_quiet=False,
    ),
    _written(
        "lars_by_layer", "optimizer-foreach", "LARS by hand, a parameter at a time, on a small convolutional network in FP32.",
        "torch._foreach_*", lars, partial(lars, foreach=True), top=("optimizer-foreach", "launch-gap", "graph-candidate"), fixed_quiet=False,
    ),
    _written(
        "beam_search", "sync-stall", "Beam search over 32 words with a GRU; `if ended.all()` after each word.",
        "ask after every eighth word", beam_search, partial(beam_search, every=8), top=("sync-stall", "launch-gap", "graph-candidate"), fixed_quiet=False,
    ),
    _written(
        "lecture_gpt", "unfused-attention", "A lecture's GPT in FP32: six heads as six modules, each with its own products, mask, softmax and dropout.",
        "F.scaled_dot_product_attention in each head", lecture_gpt, partial(lecture_gpt, fused=True),
        alone={"precision": partial(lecture_gpt, autocast=True), "precision/tf32": partial(lecture_gpt, tf32=True)},
        top=("unfused-attention", "precision", "launch-gap", "graph-candidate"), fixed_quiet=False,
    ),
    _written(
        "detection_targets", None, "Convolutions in training, and 64 small box tensors copied from pageable memory in each step.",
        "each alone", detection_targets, None, alone={"memcpy": partial(detection_targets, pinned=True)},
    ),
    _written(
        "latent_inversion", "optimizer-foreach", "A latent is fitted through a frozen network by Adam with foreach=False: three tensors.",
        "none: fused=True gains nothing", latent_inversion, partial(latent_inversion, fused=True), trap=True, gpu_bound=True, fixed_quiet=False,
    ),
    _written(
        "contrastive_progress", "sync-stall", "Contrastive training that the GPU bounds; loss and accuracy are printed in each step.",
        "none worth making: print every 100 steps", contrastive_progress, partial(contrastive_progress, every=100), trap=True, gpu_bound=True, with_stack=True,
    ),
    _written(
        "graphed_decoding", None, "Decoding of 96 sequences with keys and values in place, under a CUDA graph.", "none: control", None, graphed_decoding, gpu_bound=True,
    ),
)  # fmt: skip
