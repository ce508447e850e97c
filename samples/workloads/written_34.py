"""Training loops that people write themselves: a GPT of recipes, a diffusion U-Net of teapots, two views of seashells, a library's loans.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture, written

BF16, HALF = torch.bfloat16, torch.float16


# Recipes: a GPT that is written from scratch, with each layer spelled out.


class LayerNorm(nn.Module):
    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.eps, self.library = 1e-5, library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.layer_norm(x, (x.shape[-1],), self.scale, self.shift, self.eps)
        mean = x.mean(dim=-1, keepdim=True)
        var = x.var(dim=-1, keepdim=True, unbiased=False)
        norm_x = (x - mean) / torch.sqrt(var + self.eps)
        return self.scale * norm_x + self.shift


class Gelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


class MultiHeadAttention(nn.Module):
    mask: Tensor

    def __init__(self, width: int, heads: int, longest: int, dropout: float, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.head, self.sdpa = heads, width // heads, sdpa
        self.w_query, self.w_key, self.w_value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out_proj, self.dropout = nn.Linear(width, width), nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(longest, longest), diagonal=1))

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        queries, keys, values = (w(x).view(b, n, self.heads, self.head).transpose(1, 2) for w in (self.w_query, self.w_key, self.w_value))
        if self.sdpa:
            context = F.scaled_dot_product_attention(queries, keys, values, dropout_p=self.dropout.p if self.training else 0.0, is_causal=True)
        else:
            scores = queries @ keys.transpose(2, 3)
            scores.masked_fill_(self.mask.bool()[:n, :n], -torch.inf)
            weights = torch.softmax(scores / self.head**0.5, dim=-1)
            context = self.dropout(weights) @ values
        return self.out_proj(context.transpose(1, 2).contiguous().view(b, n, width))


class TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int, longest: int, dropout: float, library: bool, sdpa: bool) -> None:
        super().__init__()
        self.att = MultiHeadAttention(width, heads, longest, dropout, sdpa)
        self.ff = nn.Sequential(nn.Linear(width, 4 * width), Gelu(), nn.Linear(4 * width, width))
        self.norm1, self.norm2, self.drop_shortcut = LayerNorm(width, library), LayerNorm(width, library), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_shortcut(self.att(self.norm1(x)))
        return x + self.drop_shortcut(self.ff(self.norm2(x)))


class GptModel(nn.Module):
    def __init__(self, words: int, width: int, heads: int, layers: int, longest: int, library: bool, sdpa: bool) -> None:
        super().__init__()
        self.tok_emb, self.pos_emb, self.drop_emb = nn.Embedding(words, width), nn.Embedding(longest, width), nn.Dropout(0.1)
        self.trf_blocks = nn.Sequential(*(TransformerBlock(width, heads, longest, 0.1, library, sdpa) for _ in range(layers)))
        self.final_norm, self.out_head = LayerNorm(width, library), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok_emb(ids) + self.pos_emb(torch.arange(ids.shape[1], device=ids.device))
        return self.out_head(self.final_norm(self.trf_blocks(self.drop_emb(x))))


def recipe_gpt(
    s: Setup,
    *,
    compiled: bool = False,
    graphed: bool = False,
    library: bool = False,
    sdpa: bool = False,
    padded: bool = False,
    fused: bool = False,
    autocast: bool = False,
) -> Step:
    """A GPT from scratch in training on four pieces of 256 words, TF32: norms, GELU and attention written out, 50,257 words, the loss is read."""
    words, batch, longest = s.size(50_257, 61), s.size(4, 2), s.size(256, 8)
    rows = s.size(50_304, 64) if padded else words
    rng = np.random.default_rng(340)
    pieces = [torch.from_numpy(rng.integers(0, words, (batch, longest + 1))) for _ in range(8)]
    batches = [(piece[:, :-1].contiguous(), piece[:, 1:].contiguous()) for piece in pieces]
    with s.device:
        model = GptModel(rows, s.size(768, 16), s.size(12, 2), s.size(8, 2), longest, library, sdpa).train()
        ids, targets = (torch.zeros(batch, longest, dtype=torch.long) for _ in range(2))
        noted = torch.zeros(())
    network = s.compile(model, dynamic=False) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=0.1, fused=fused or None, capturable=graphed and s.cuda)
    losses, turn = [0.0], counter()

    def learn(input_batch: Tensor, target_batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            logits = network(input_batch)
            loss = F.cross_entropy(logits.flatten(0, 1), target_batch.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    def static() -> None:
        noted.copy_(learn(ids, targets))

    torch.set_float32_matmul_precision("high")
    work = capture(static, s) if graphed else None

    def step() -> float:
        torch.set_float32_matmul_precision("high")
        input_batch, target_batch = batches[next(turn) % len(batches)]
        if work is not None:
            ids.copy_(input_batch)
            targets.copy_(target_batch)
            work()
            losses[0] = noted.item()
        else:
            losses[0] = learn(input_batch.to(s.device), target_batch.to(s.device)).item()
        return losses[0]

    return step


# Teapots: a diffusion U-Net, with norms over all channels and attention at two of its three sizes.

Finish = Callable[..., Tensor]


def normed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.group_norm(x, 1, weight, bias))


def added(skip: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(skip + F.group_norm(x, 1, weight, bias))


class DoubleConv(nn.Module):
    def __init__(self, inner: int, out: int, finishes: tuple[Finish, Finish], residual: bool = False) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inner, out, 3, padding=1, bias=False), nn.GroupNorm(1, out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, padding=1, bias=False), nn.GroupNorm(1, out)
        self.residual, (self.normed, self.added) = residual, finishes

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(self.normed(self.conv1(x), self.norm1.weight, self.norm1.bias))
        if self.residual:
            return self.added(x, y, self.norm2.weight, self.norm2.bias)
        return self.normed(y, self.norm2.weight, self.norm2.bias)


class SelfAttention(nn.Module):
    def __init__(self, channels: int, weights: bool) -> None:
        super().__init__()
        self.mha, self.ln, self.weights = nn.MultiheadAttention(channels, 4, batch_first=True), nn.LayerNorm(channels), weights
        self.ff_self = nn.Sequential(nn.LayerNorm(channels), nn.Linear(channels, channels), nn.GELU(), nn.Linear(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        x = x.view(b, c, h * w).swapaxes(1, 2)
        x_ln = self.ln(x)
        attention_value, _ = self.mha(x_ln, x_ln, x_ln, need_weights=self.weights)
        attention_value = attention_value + x
        attention_value = self.ff_self(attention_value) + attention_value
        return attention_value.swapaxes(2, 1).view(b, c, h, w)


class Stage(nn.Module):
    """Two double convolutions, and the moment added to each place of the picture."""

    def __init__(self, inner: int, out: int, moment: int, finishes: tuple[Finish, Finish]) -> None:
        super().__init__()
        self.conv = nn.Sequential(DoubleConv(inner, out, finishes), DoubleConv(out, out, finishes, residual=True))
        self.emb_layer = nn.Sequential(nn.SiLU(), nn.Linear(moment, out))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x = self.conv(x)
        emb = self.emb_layer(t)[:, :, None, None].repeat(1, 1, x.shape[-2], x.shape[-1])
        return x + emb


class UNet(nn.Module):
    def __init__(self, width: int, moment: int, weights: bool, finishes: tuple[Finish, Finish]) -> None:
        super().__init__()
        self.moment, self.pool = moment, nn.MaxPool2d(2)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.inc, self.outc = DoubleConv(3, width, finishes), nn.Conv2d(width, 3, kernel_size=1)
        self.down1, self.down2 = Stage(width, 2 * width, moment, finishes), Stage(2 * width, 4 * width, moment, finishes)
        self.bot = nn.Sequential(*(DoubleConv(4 * width, 4 * width, finishes) for _ in range(2)))
        self.up1, self.up2 = Stage(6 * width, 2 * width, moment, finishes), Stage(3 * width, width, moment, finishes)
        self.sa1, self.sa2, self.sa3 = SelfAttention(2 * width, weights), SelfAttention(4 * width, weights), SelfAttention(2 * width, weights)

    def pos_encoding(self, t: Tensor) -> Tensor:
        inv_freq = 1.0 / (10000 ** (torch.arange(0, self.moment, 2, device=t.device).float() / self.moment))
        angle = t[:, None].repeat(1, self.moment // 2) * inv_freq
        return torch.cat([torch.sin(angle), torch.cos(angle)], dim=-1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        t = self.pos_encoding(t.float())
        x1 = self.inc(x)
        x2 = self.sa1(self.down1(self.pool(x1), t))
        x3 = self.bot(self.sa2(self.down2(self.pool(x2), t)))
        x = self.sa3(self.up1(torch.cat([x2, self.up(x3)], dim=1), t))
        return self.outc(self.up2(torch.cat([x1, self.up(x)], dim=1), t))


def teapot_diffusion(
    s: Setup,
    *,
    compiled: bool = False,
    norms: bool = False,
    weights: bool = True,
    channels_last: bool = False,
    autocast: bool = False,
    listed: bool = False,
    drawn: bool = False,
) -> Step:
    """A diffusion U-Net in training on 32 pictures of 64 x 64, NCHW, FP32 with TF32 convolutions: attention keeps its weights, EMA by a loop."""
    batch, side, moments, beta = s.size(32, 2), s.size(64, 8), s.size(1000, 10), 0.995
    rng = np.random.default_rng(341)
    pictures = [torch.from_numpy(rng.uniform(-1, 1, (batch, 3, side, side)).astype(np.float32)) for _ in range(4)]
    layout = torch.channels_last if channels_last else torch.contiguous_format
    finishes = (s.compile(normed, dynamic=False), s.compile(added, dynamic=False)) if norms else (normed, added)
    with s.device:
        model = UNet(s.size(64, 8), s.size(256, 8), weights, finishes).train().to(memory_format=layout)
        alpha_hat = torch.cumprod(1.0 - torch.linspace(1e-4, 0.02, moments), dim=0)
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    network = s.compile(model, dynamic=False) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    current: list[Tensor] = list(model.parameters())
    kept: list[Tensor] = list(ema.parameters())
    progress, turn = [0.0], counter()

    def noised(images: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        sqrt_alpha_hat = torch.sqrt(alpha_hat[t])[:, None, None, None]
        sqrt_one_minus_alpha_hat = torch.sqrt(1 - alpha_hat[t])[:, None, None, None]
        noise = torch.randn_like(images)
        return sqrt_alpha_hat * images + sqrt_one_minus_alpha_hat * noise, noise

    @torch.no_grad()
    def follow() -> None:
        if listed:
            torch._foreach_lerp_(kept, current, 1 - beta)
            return
        for new, old in zip(current, kept, strict=True):
            old.data = old.data * beta + (1 - beta) * new.data

    def step() -> float:
        torch.set_float32_matmul_precision("highest")
        images = pictures[next(turn) % len(pictures)].to(s.device).contiguous(memory_format=layout)
        t = torch.randint(1, moments, (batch,), device=s.device) if drawn else torch.randint(1, moments, (batch,)).to(s.device)
        x_t, noise = noised(images, t)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            loss = F.mse_loss(network(x_t, t).float(), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        follow()
        progress[0] = loss.item()
        torch.set_float32_matmul_precision("high")
        return progress[0]

    return step


# Seashells: two views of each shell should lie close to each other (SimCLR).


class BasicBlock(nn.Module):
    def __init__(self, inner: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inner, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential()
        if stride != 1 or inner != out:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class ResNetSimCLR(nn.Module):
    def __init__(self, width: int, blocks: int, out: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        layers: list[nn.Module] = []
        for n, (inner, wide) in enumerate(((width, width), (width, 2 * width), (2 * width, 4 * width))):
            layers.append(BasicBlock(inner, wide, 2 if n else 1))
            layers += [BasicBlock(wide, wide, 1) for _ in range(blocks - 1)]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(4 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, out))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(F.relu(self.bn1(self.conv1(x))))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def accuracy(logits: Tensor, target: Tensor, topk: tuple[int, int]) -> list[Tensor]:
    _, pred = logits.topk(max(topk), 1, True, True)
    correct = pred.t().eq(target.view(1, -1))
    return [correct[:k].reshape(-1).float().sum() / len(target) for k in topk]


def seashell_views(
    s: Setup,
    *,
    compiled: bool = False,
    shaped: bool = False,
    ahead: bool = False,
    known: bool = False,
    fused: bool = False,
    channels_last: bool = False,
    dropped: bool = False,
) -> Step:
    """SimCLR in training on 512 shells seen twice, fp16 autocast with a GradScaler, NCHW: masks come from the host, boolean masks pick, three reads."""
    shells, side, temperature = s.size(512, 4), s.size(32, 8), 0.07
    many, dtype = 2 * shells, HALF if s.cuda else BF16
    rng = np.random.default_rng(342)
    shelf = [tuple(torch.from_numpy(rng.standard_normal((shells, 3, side, side), np.float32)) for _ in range(2)) for _ in range(4)]
    loader = Prefetcher([tuple(s.pin(view) for view in views) for views in shelf], s) if ahead else None
    layout = torch.channels_last if channels_last else torch.contiguous_format
    with s.device:
        model = ResNetSimCLR(s.size(64, 8), s.size(2, 1), s.size(128, 8)).train().to(memory_format=layout)
        noted = torch.zeros(3)
    network = s.compile(model, dynamic=False) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, weight_decay=1e-4, fused=fused or None)
    scaler = torch.amp.GradScaler(s.device.type, enabled=s.cuda)
    log, turn = [0.0] * 3, counter()

    def constants(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        labels = torch.cat([torch.arange(shells, device=device) for _ in range(2)], dim=0)
        same = (labels[None] == labels[:, None]).float()
        return same, torch.eye(many, dtype=torch.bool, device=device), torch.zeros(many, dtype=torch.long, device=device)

    held = constants(s.device) if known else None

    def info_nce(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, and how often the other view is the nearest or among the nearest five."""
        labels, mask, target = held or (part.to(s.device) for part in constants(torch.device("cpu")))
        features = F.normalize(features, dim=1)
        similarity = (features @ features.T).float()
        if shaped:
            logits = similarity.masked_fill(mask, -torch.inf) / temperature
            right = (similarity * labels.masked_fill(mask, 0.0)).sum(1) / temperature
            nearer = (logits > right[:, None]).sum(1)
            return (logits.logsumexp(1) - right).mean(), (nearer < 1).float().mean(), (nearer < 5).float().mean()
        labels = labels[~mask].view(many, -1)
        similarity = similarity[~mask].view(many, -1)
        positives = similarity[labels.bool()].view(many, -1)
        negatives = similarity[~labels.bool()].view(many, -1)
        logits = torch.cat([positives, negatives], dim=1) / temperature
        top1, top5 = accuracy(logits, target, (1, 5))
        return F.cross_entropy(logits, target), top1, top5

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        if loader is not None:
            images = torch.cat(loader.next(), dim=0)
        else:
            images = torch.cat(shelf[next(turn) % len(shelf)], dim=0).to(s.device)
        images = images.contiguous(memory_format=layout)
        with torch.autocast(s.device.type, dtype):
            loss, top1, top5 = info_nce(network(images))
        optimizer.zero_grad(set_to_none=dropped)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if shaped:
            noted.add_(torch.stack([loss.detach(), top1, top5]))
        else:
            for n, value in enumerate((loss, top1, top5)):
                log[n] += value.item()
        return loss.detach()

    return step


# A library: which books a reader will borrow (a variational autoencoder with a multinomial likelihood).


class MultiVae(nn.Module):
    def __init__(self, books: int, hidden: int, latent: int) -> None:
        super().__init__()
        self.latent = latent
        self.q_layers = nn.ModuleList([nn.Linear(books, hidden), nn.Linear(hidden, 2 * latent)])
        self.p_layers = nn.ModuleList([nn.Linear(latent, hidden), nn.Linear(hidden, books)])
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.drop(F.normalize(x))
        h = torch.tanh(self.q_layers[0](h))
        mu, logvar = self.q_layers[1](h).chunk(2, dim=1)
        std = torch.exp(0.5 * logvar)
        z = mu + torch.randn_like(std) * std
        return self.p_layers[1](torch.tanh(self.p_layers[0](z))), mu, logvar


def library_loans(
    s: Setup,
    *,
    sparse: bool = False,
    pinned: bool = False,
    read: bool = True,
    fused: bool = False,
    autocast: bool = False,
    compiled: bool = False,
    graphed: bool = False,
) -> Step:
    """Mult-VAE in training on 512 readers of 30,000 books, FP32: rows of a sparse matrix are made dense by scipy, pageable; three reads."""
    from scipy.sparse import csr_matrix

    readers, batch, books = s.size(20_000, 40), s.size(512, 4), s.size(30_000, 50)
    rng = np.random.default_rng(343)
    lent = rng.integers(5, s.size(140, 12), readers)
    rows, columns = np.repeat(np.arange(readers), lent), np.minimum(rng.exponential(books / 6, lent.sum()).astype(np.int64), books - 1)
    loans = csr_matrix((np.ones(len(rows), dtype=np.float32), (rows, columns)), shape=(readers, books))
    loans.data[:] = 1.0
    staged = s.pin(torch.zeros(batch, books)) if pinned else None
    with s.device:
        model = MultiVae(books, s.size(600, 16), s.size(200, 4)).train()
        noted, total, anneal_now = torch.zeros(3), torch.zeros(3), torch.zeros(())
        held = torch.zeros(batch, books) if graphed else None
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused or None, capturable=graphed and s.cuda)
    log, turn = [0.0] * 3, counter()

    def errors(x: Tensor) -> tuple[Tensor, Tensor]:
        recon_x, mu, logvar = model(x)
        bce = -torch.mean(torch.sum(F.log_softmax(recon_x, 1) * x, -1))
        kld = -0.5 * torch.mean(torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1))
        return bce, kld

    judge = s.compile(errors, dynamic=False) if compiled else errors

    def dense() -> Tensor:
        some = loans[rng.integers(0, readers, batch)]
        if sparse:
            of_row = torch.from_numpy(np.repeat(np.arange(batch), np.diff(some.indptr))).to(s.device)
            x = torch.zeros(batch, books, device=s.device)
            x[of_row, torch.from_numpy(some.indices.astype(np.int64)).to(s.device)] = 1.0
            return x
        if staged is not None:
            some.toarray(out=staged.numpy())
            return staged.to(s.device, non_blocking=True)
        data = torch.from_numpy(some.toarray())
        return data if graphed else data.to(s.device)

    def learn(x: Tensor, anneal: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            bce, kld = judge(x)
        loss = bce + anneal * kld
        loss.backward()
        optimizer.step()
        return loss.detach(), bce.detach(), kld.detach()

    def static() -> None:
        assert held is not None
        noted.copy_(torch.stack(learn(held, anneal_now)))

    torch.set_float32_matmul_precision("highest")
    work = capture(static, s) if graphed else None

    def step() -> list[float] | Tensor:
        torch.set_float32_matmul_precision("highest")
        x, anneal = dense(), min(0.2, next(turn) / 200_000)
        if work is not None and held is not None:
            held.copy_(x)
            anneal_now.fill_(anneal)
            work()
            told: tuple[Tensor, ...] = noted.unbind()
        else:
            told = learn(x, anneal)
        torch.set_float32_matmul_precision("high")
        if not read:
            return total.add_(torch.stack(told))
        for n, value in enumerate(told):
            log[n] += value.item()
        return log

    return step


WORKLOADS = (
    written(
        "recipe_gpt",
        "A GPT from scratch in training on four pieces of 256 words, TF32: norms, GELU and attention written out, 50,257 words, the loss is read.",
        "torch.compile of the model; CUDA graph of the step; F.layer_norm; scaled_dot_product_attention; 50,304 words; fused AdamW; bf16 autocast", recipe_gpt,
        {
            "launch-gap": {"compiled": True}, "graph-candidate": {"graphed": True}, "unfused-norm": {"library": True}, "unfused-attention": {"sdpa": True},
            "gemm-alignment": {"padded": True}, "optimizer-foreach": {"fused": True}, "precision": {"autocast": True},
        },
    ),
    written(
        "teapot_diffusion",
        "A diffusion U-Net in training on 32 pictures of 64 x 64, NCHW, FP32 with TF32 convolutions: attention keeps its weights, EMA by a loop.",
        "torch.compile of the model; of its norms alone; attention without weights; channels_last; bf16 autocast; EMA by _foreach_lerp_; moments from the GPU",
        teapot_diffusion,
        {
            "unfused-elementwise": {"compiled": True}, "small-grid": {"norms": True}, "unfused-attention": {"weights": False},
            "memory-layout": {"channels_last": True}, "precision": {"autocast": True}, "optimizer-foreach": {"listed": True}, "memcpy": {"drawn": True},
        },
    ),
    written(
        "seashell_views",
        "SimCLR in training on 512 shells seen twice, fp16 autocast with a GradScaler, NCHW: masks come from the host, boolean masks pick, three reads.",
        "torch.compile of the network; fixed masks and no reads; pinned views copied ahead; masks from the GPU; fused Adam; channels_last; gradients dropped",
        seashell_views,
        {
            "unfused-elementwise": {"compiled": True}, "sync-stall": {"shaped": True}, "memcpy": {"ahead": True}, "memcpy/constants": {"known": True},
            "amp-scaler-sync": {"fused": True}, "memory-layout": {"channels_last": True}, "grad-zeroing": {"dropped": True},
        },
    ),
    written(
        "library_loans", "Mult-VAE in training on 512 readers of 30,000 books, FP32: rows of a sparse matrix are made dense by scipy, pageable; three reads.",
        "rows made dense on the GPU; a pinned buffer; no reads; fused Adam; bf16 autocast; torch.compile of model and loss; CUDA graph of the update",
        library_loans,
        {
            "host-bound": {"sparse": True}, "memcpy": {"pinned": True}, "sync-stall": {"read": False}, "optimizer-foreach": {"fused": True},
            "precision": {"autocast": True}, "unfused-elementwise": {"compiled": True}, "graph-candidate": {"graphed": True},
        },
    ),
)  # fmt: skip
