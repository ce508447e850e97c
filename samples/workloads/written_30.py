"""Programs by an author who has not read the rules: cut-out portraits, a menu translated, look-alike listings, customers who leave.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import copy
import random
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count as counter
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture, written

BF16 = torch.bfloat16


# Portraits: how much of each pixel belongs to the person (matting by a U-Net, Laplacian pyramids in the loss).


def conv(inner: int, out: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inner, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True))


class Residual(nn.Module):
    def __init__(self, inner: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(inner, out, stride), nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        same = inner == out and stride == 1
        self.short = nn.Identity() if same else nn.Sequential(nn.Conv2d(inner, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


class Cutter(nn.Module):
    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = conv(3, widths[0])
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(nn.Sequential(Residual(a, b, 2), Residual(b, b, 1)) for a, b in pairs)
        self.up = nn.ModuleList(nn.Sequential(conv(a + b, a), conv(a, a)) for a, b in reversed(pairs))
        self.alpha = nn.Conv2d(widths[0], 1, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.stem(x)]
        for stage in self.down:
            kept.append(stage(kept[-1]))
        x = kept.pop()
        for stage in self.up:
            skip = kept.pop()
            x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=False)
            x = stage(torch.cat([x, skip], 1))
        return torch.sigmoid(self.alpha(x).float())


class CutLoss(nn.Module):
    """L1 of the alpha, of its Laplacian pyramid, of its edges and of the picture put together again."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = levels
        line = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16.0
        self.register_buffer("blur", (line[:, None] * line)[None, None])
        sobel = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]])
        self.register_buffer("sobel", torch.stack([sobel, sobel.T])[:, None])

    def pyramid(self, x: Tensor) -> list[Tensor]:
        out = []
        for _ in range(self.levels):
            small = F.conv2d(F.pad(x, (2, 2, 2, 2), mode="reflect"), self.blur, stride=2)
            out.append(x - F.interpolate(small, size=x.shape[-2:], mode="bilinear", align_corners=False))
            x = small
        return [*out, x]

    def forward(self, guess: Tensor, alpha: Tensor, image: Tensor, person: Tensor) -> tuple[Tensor, Tensor]:
        border = ((alpha > 0.02) & (alpha < 0.98)).float()
        weight = 1.0 + 4.0 * border
        plain = (weight * torch.sqrt((guess - alpha) ** 2 + 1e-6)).mean()
        pairs = zip(self.pyramid(guess), self.pyramid(alpha), strict=True)
        laplace = torch.stack([2.0**n * (a - b).abs().mean() for n, (a, b) in enumerate(pairs)]).sum()
        edges = (F.conv2d(guess, self.sobel, padding=1) - F.conv2d(alpha, self.sobel, padding=1)).abs().mean()
        behind = (image - alpha * person) / (1.0 - alpha + 1e-3)
        again = guess * person + (1.0 - guess) * behind.clamp(-3.0, 3.0)
        put = torch.sqrt((again - image) ** 2 + 1e-6).mean()
        error = ((guess - alpha).detach() ** 2 * border).sum() / (border.sum() + 1.0)
        return plain + laplace + 0.5 * edges + put, error


def portrait_cutouts(
    s: Setup,
    *,
    channels_last: bool = False,
    together: bool = False,
    fused: bool = False,
    ahead: bool = False,
    compiled: bool = False,
    read: bool = True,
) -> Step:
    """Training in bf16 autocast on 16 portraits of 320 x 320 in NCHW; a mean of the weights follows tensor by tensor; loss is read."""
    count, side = s.size(16, 2), s.size(320, 32)
    widths = (32, 64, 96, 160, 256) if not s.tiny else (4, 6, 8)
    rng = np.random.default_rng(30)
    batches = []
    for _ in range(3):
        image, person = (rng.integers(0, 256, (count, 3, side, side), dtype=np.uint8) for _ in range(2))
        yy, xx = np.mgrid[0:side, 0:side] / side
        middle = rng.random((count, 2)) * 0.4 + 0.3
        far = np.hypot(yy - middle[:, :1, None], xx - middle[:, 1:, None])
        alpha = (255.0 * np.clip((0.35 - far) * 12.0 + 0.5, 0.0, 1.0)).astype(np.uint8)[:, None]
        batches.append(tuple(torch.from_numpy(part) for part in (image, person, alpha)))
    queue = Prefetcher([tuple(s.pin(part) for part in batch) for batch in batches], s) if ahead else None
    with s.device:
        model, criterion = Cutter(widths), CutLoss(s.size(5, 2))
        middle_color = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
        spread_color = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
        noted = torch.zeros(2)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = model.to(memory_format=layout)
    mean = copy.deepcopy(model).requires_grad_(False)
    losses = s.compile(criterion, dynamic=False) if compiled else criterion
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=1e-2, fused=fused or None)
    following, leading = list(mean.parameters()), list(model.parameters())
    turn, log = counter(), [0.0, 0.0]

    def ready(part: Tensor) -> Tensor:
        return ((part.float() / 255.0 - middle_color) / spread_color).contiguous(memory_format=layout)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        image, person, alpha = queue.next() if queue else (part.to(s.device) for part in batches[next(turn) % len(batches)])
        image, person, alpha = ready(image), ready(person), alpha.float() / 255.0
        with torch.autocast(s.device.type, BF16):
            guess = model(image)
        loss, error = losses(guess, alpha, image, person)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            if together:
                torch._foreach_mul_(following, 0.999)
                torch._foreach_add_(following, leading, alpha=0.001)
            else:
                for old, new in zip(following, leading, strict=True):
                    old.mul_(0.999).add_(new, alpha=0.001)
        if read:
            log[0], log[1] = log[0] + loss.item(), log[1] + error.item()
        else:
            noted.add_(torch.stack([loss.detach(), error]))
        return loss.detach()

    return step


# Menus: dishes into another language, word by word, by an encoder and a decoder that keeps keys and values.


class HalfNorm(nn.LayerNorm):
    """Layer norm in FP32, whatever comes in."""

    careful = True

    def forward(self, x: Tensor) -> Tensor:
        if self.careful:
            return F.layer_norm(x.float(), self.normalized_shape, self.weight.float(), self.bias.float(), self.eps).to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class Look(nn.Module):
    """Attention, written out or not, of few words to what is kept."""

    def __init__(self, width: int, heads: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def kept(self, x: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.kv(x).view(*x.shape[:2], 2 * self.heads, -1).transpose(1, 2).chunk(2, 1)
        return keys, values

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None = None) -> Tensor:
        q = self.q(x).view(*x.shape[:2], self.heads, -1).transpose(1, 2)
        if self.sdpa:
            x = F.scaled_dot_product_attention(q, keys, values, attn_mask=None if hidden is None else ~hidden)
        else:
            scores = q @ keys.transpose(-1, -2) / q.shape[-1] ** 0.5
            if hidden is not None:
                scores = scores.masked_fill(hidden, float("-inf"))
            x = torch.softmax(scores.float(), -1).to(q.dtype) @ values
        return self.out(x.transpose(1, 2).flatten(2))


class Reader(nn.Module):
    def __init__(self, width: int, heads: int, sdpa: bool) -> None:
        super().__init__()
        self.look, self.one, self.two = Look(width, heads, sdpa), HalfNorm(width), HalfNorm(width)
        self.body = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        y = self.one(x)
        x = x + self.look(y, *self.look.kept(y), hidden)
        return x + self.body(self.two(x))


class Teller(Reader):
    def __init__(self, width: int, heads: int, sdpa: bool) -> None:
        super().__init__(width, heads, sdpa)
        self.source, self.three = Look(width, heads, sdpa), HalfNorm(width)

    def tell(self, x: Tensor, cache: list[Tensor], source: tuple[Tensor, Tensor], hidden: Tensor) -> Tensor:
        y = self.one(x)
        keys, values = self.look.kept(y)
        if cache:
            keys, values = torch.cat([cache[0], keys], 2), torch.cat([cache[1], values], 2)
        cache[:] = keys, values
        x = x + self.look(y, keys, values)
        x = x + self.source(self.three(x), *source, hidden)
        return x + self.body(self.two(x))


class Menu(nn.Module):
    def __init__(self, words: int, width: int, heads: int, readers: int, tellers: int, longest: int, sdpa: bool) -> None:
        super().__init__()
        self.words, self.place = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.readers = nn.ModuleList(Reader(width, heads, sdpa) for _ in range(readers))
        self.tellers = nn.ModuleList(Teller(width, heads, sdpa) for _ in range(tellers))
        self.read_norm, self.tell_norm = HalfNorm(width), HalfNorm(width)
        self.head = nn.Parameter(0.05 * torch.randn(words, width))

    def read(self, source: Tensor, hidden: Tensor) -> list[tuple[Tensor, Tensor]]:
        x = self.words(source) + self.place.weight[: source.shape[1]]
        for layer in self.readers:
            x = layer(x, hidden)
        x = self.read_norm(x)
        return [layer.source.kept(x) for layer in self.tellers]

    def next(self, word: Tensor, at: int, caches: list[list[Tensor]], source: list[tuple[Tensor, Tensor]], hidden: Tensor) -> Tensor:
        x = self.words(word) + self.place.weight[at]
        for layer, cache, (keys, values) in zip(self.tellers, caches, source, strict=True):
            x = layer.tell(x, cache, (keys, values), hidden)
        return F.linear(self.tell_norm(x[:, -1]), self.head)


def menu_translation(
    s: Setup,
    *,
    asked: bool = True,
    times: int = 1,
    graphed: bool = False,
    sdpa: bool = False,
    careful: bool = True,
    padded: bool = False,
) -> Step:
    """Greedy translation of eight dishes in fp16, 24 words by a growing cache; repeated words are held back, each word is streamed."""
    dtype = torch.float16 if s.cuda else BF16
    dishes, most, longest, vocabulary = times * s.size(8, 2), s.size(40, 6), s.size(24, 4), s.size(32_003, 51)
    rng = np.random.default_rng(31)
    menus = []
    for _ in range(4):
        menu = rng.integers(3, vocabulary, (dishes, most))
        menu[np.arange(most) >= rng.integers(most // 3, most + 1, (dishes, 1))] = 0
        menus.append(torch.from_numpy(menu))
    with s.device:
        model = Menu(vocabulary, s.size(512, 16), s.size(8, 2), s.size(4, 1), s.size(5, 2), max(most, longest), sdpa).to(dtype).eval()
        source, told = torch.zeros(dishes, most, dtype=torch.long), torch.zeros(dishes, longest, dtype=torch.long)
    if padded:
        model.head = nn.Parameter(F.pad(model.head.detach(), (0, 0, 0, -vocabulary % 64)))
    for module in model.modules():
        if isinstance(module, HalfNorm):
            module.careful = careful
    waits, turn = asked and not graphed, counter()

    def translate() -> list[list[int]]:
        hidden = (source == 0)[:, None, None]
        kept, streamed = model.read(source, hidden), []
        caches: list[list[Tensor]] = [[] for _ in model.tellers]
        word = torch.ones(dishes, 1, dtype=torch.long, device=s.device)
        ended = torch.zeros(dishes, 1, dtype=torch.bool, device=s.device)
        seen = torch.zeros(dishes, vocabulary, device=s.device)
        told.zero_()
        for at in range(longest):
            logits = model.next(word, at, caches, kept, hidden)[:, :vocabulary].float()
            logits = torch.where(seen > 0, torch.where(logits > 0, logits / 1.3, logits * 1.3), logits)
            word = logits.argmax(-1, keepdim=True)
            word = torch.where(ended, torch.zeros_like(word), word)
            seen.scatter_(1, word, 1.0)
            ended = ended | (word == 2)
            told[:, at : at + 1] = word
            if waits:
                streamed.append(word[:, 0].tolist())
                if ended.all():
                    break
        return streamed

    with torch.no_grad():
        source.copy_(menus[0])
        work = capture(translate, s) if graphed else translate

    @torch.no_grad()
    def step() -> list[list[int]]:
        source.copy_(menus[next(turn) % len(menus)])
        streamed = work()
        return streamed if waits else told.tolist()

    return step


# Listings: which goods of a market look like the one just photographed (a vision transformer and a search of all vectors).


class Root(nn.Module):
    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.weight, self.library = nn.Parameter(torch.ones(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, two = x.chunk(2, -1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)


class Patches(nn.Module):
    """A layer with normed queries and keys, turned by row and column."""

    def __init__(self, width: int, heads: int, inner: int, library: bool, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.one, self.two = Root(width, library), Root(width, library)
        self.q_norm, self.k_norm = Root(width // heads, library), Root(width // heads, library)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up, self.down = nn.Linear(width, inner), nn.Linear(width, inner), nn.Linear(inner, width)
        self.scale_one, self.scale_two = nn.Parameter(torch.full((width,), 0.2)), nn.Parameter(torch.full((width,), 0.2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = self.qkv(self.one(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = turned(self.q_norm(q), cos, sin), turned(self.k_norm(k), cos, sin)
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v
        x = x + self.scale_one * self.out(y.transpose(1, 2).flatten(2))
        y = self.two(x)
        return x + self.scale_two * self.down(F.silu(self.gate(y)) * self.up(y))


class Glance(nn.Module):
    def __init__(self, side: int, patch: int, width: int, heads: int, inner: int, layers: int, out: int, library: bool, sdpa: bool) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, patch, patch)
        self.layers = nn.ModuleList(Patches(width, heads, inner, library, sdpa) for _ in range(layers))
        self.norm, self.out = Root(width, library), nn.Linear(width, out)
        many, quarter = side // patch, width // heads // 4
        speed = 100.0 ** -(torch.arange(quarter) / quarter)
        row, column = torch.meshgrid(torch.arange(many), torch.arange(many), indexing="ij")
        angle = torch.cat([row.reshape(-1, 1) * speed, column.reshape(-1, 1) * speed], 1)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, x: Tensor) -> Tensor:
        x = self.cut(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.normalize(self.out(self.norm(x).mean(1)), dim=-1)


def lookalike_listings(
    s: Setup,
    *,
    tf32: bool = False,
    sdpa: bool = False,
    library: bool = False,
    compiled: bool = False,
    on_device: bool = False,
    channels_last: bool = False,
) -> Step:
    """Inference in FP32 on 48 photographs that the CPU makes into floats; each is held against 400,000 vectors, the nearest 20 are kept."""
    photos, side, goods, out = s.size(48, 3), s.size(224, 16), s.size(400_000, 60), s.size(256, 8)
    rng, turn = np.random.default_rng(32), counter()
    requests = [rng.integers(0, 256, (photos, side, side, 3), dtype=np.uint8) for _ in range(4)]
    sold = set(rng.integers(0, goods, goods // 10).tolist())
    with s.device:
        sizes = (s.size(16, 4), s.size(512, 16), s.size(8, 2), s.size(1408, 24), s.size(8, 2))
        model = Glance(side, *sizes, out, library, sdpa).eval()
        shelf = F.normalize(torch.randn(goods, out), dim=-1)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = model.to(memory_format=layout)
    if compiled:
        for n, layer in enumerate(model.layers):
            model.layers[n] = s.compile(layer, dynamic=False)
    place = s.device if on_device else torch.device("cpu")
    middle = torch.tensor([0.485, 0.456, 0.406], device=place).view(1, 3, 1, 1)
    spread = torch.tensor([0.229, 0.224, 0.225], device=place).view(1, 3, 1, 1)

    def ready(request: np.ndarray) -> Tensor:
        x = torch.from_numpy(request).to(place).permute(0, 3, 1, 2).contiguous()
        x = (x.float() / 255.0 - middle) / spread
        return x.to(s.device).contiguous(memory_format=layout)

    @torch.no_grad()
    def step() -> list[list[int]]:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        vectors = model(ready(requests[next(turn) % len(requests)]))
        near = (vectors @ shelf.T).topk(20, dim=1)
        found = zip(near.indices.tolist(), near.values.tolist(), strict=True)
        return [[good for good, score in zip(*row, strict=True) if score > 0.1 and good not in sold] for row in found]

    return step


# Customers: who gives notice next month, by a transformer over the columns of a table (FT-Transformer).


class Columns(nn.Module):
    """Each number by pieces of its range, each word by a table."""

    def __init__(self, edges: Tensor, kinds: list[int], width: int) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        numbers, pieces = edges.shape[0], edges.shape[1] - 1
        self.weight, self.bias = nn.Parameter(0.1 * torch.randn(numbers, pieces, width)), nn.Parameter(torch.zeros(numbers, width))
        self.kinds = nn.ModuleList(nn.Embedding(many + 1, width) for many in kinds)
        self.whole = nn.Parameter(torch.zeros(1, 1, width))

    def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
        left, right = self.edges[:, :-1], self.edges[:, 1:]
        pieces = ((numbers[..., None] - left) / (right - left)).clamp(0.0, 1.0)
        tokens = torch.einsum("bnp,npd->bnd", pieces, self.weight) + self.bias
        kinds = torch.stack([table(words[:, n]) for n, table in enumerate(self.kinds)], 1)
        return torch.cat([self.whole.expand(len(numbers), -1, -1), tokens.to(kinds.dtype), kinds], 1)


class Among(nn.Module):
    """Attention among the columns, then a ReGLU."""

    def __init__(self, width: int, heads: int, inner: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down, self.drop = nn.Linear(width, 2 * inner), nn.Linear(inner, width), nn.Dropout(0.1)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        q, k, v = self.split(self.q(y)), self.split(self.k(y)), self.split(self.v(y))
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = torch.matmul(q, k.transpose(-1, -2)) / q.shape[-1] ** 0.5
            y = torch.matmul(F.softmax(scores, dim=-1), v)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        up, gate = self.up(self.two(x)).chunk(2, -1)
        return x + self.down(self.drop(up * F.relu(gate)))


class Notice(nn.Module):
    def __init__(self, edges: Tensor, kinds: list[int], width: int, heads: int, inner: int, layers: int, sdpa: bool) -> None:
        super().__init__()
        self.columns = Columns(edges, kinds, width)
        self.layers = nn.Sequential(*(Among(width, heads, inner, sdpa) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
        return self.head(self.layers(self.columns(numbers, words))[:, 0])[:, 0].float()


def leaving_customers(
    s: Setup,
    *,
    autocast: bool = False,
    sdpa: bool = False,
    compiled: bool = False,
    behind: bool = False,
    read: bool = True,
    none: bool = False,
) -> Step:
    """Training with TF32 products on 2048 customers of 40 columns, whose words Python looks up; loss and hits are read each step."""
    count, rows, numeric, worded, pieces = s.size(2048, 6), s.size(60_000, 40), s.size(28, 3), s.size(12, 2), s.size(16, 4)
    rng, draw = np.random.default_rng(33), random.Random(33)
    table = rng.standard_normal((rows, numeric), dtype=np.float32)
    gone = (table[:, 0] + 0.5 * rng.standard_normal(rows) > 0.8).astype(np.float32)
    sizes = [draw.randrange(3, 60) for _ in range(worded)]
    names = [[f"Value {n}-{v}" for v in range(size)] for n, size in enumerate(sizes)]
    known = [{name.lower(): v + 1 for v, name in enumerate(column)} for column in names]
    drawn = [rng.integers(0, size, rows).tolist() for size in sizes]
    people = [[names[n][drawn[n][row]] for n in range(worded)] for row in range(rows)]
    edges = np.quantile(table, np.linspace(0.0, 1.0, pieces + 1), axis=0).T.astype(np.float32)
    edges += 1e-4 * np.arange(pieces + 1, dtype=np.float32)
    with s.device:
        shape = (s.size(192, 16), s.size(8, 2), s.size(256, 12), s.size(4, 2))
        model = Notice(torch.from_numpy(edges).to(s.device), sizes, *shape, sdpa)
        noted = torch.zeros(2)
    network = s.compile(model, dynamic=False) if compiled else model
    optimizer, log = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-5), [0.0, 0.0]
    pool = ThreadPoolExecutor(1) if behind else None
    ahead: list[Future[tuple[Tensor, ...]]] = []

    def batch() -> tuple[Tensor, ...]:
        picked = rng.integers(0, rows, count)
        words = [[known[n].get(name.strip().lower(), 0) for n, name in enumerate(people[row])] for row in picked.tolist()]
        return torch.from_numpy(table[picked]), torch.tensor(words), torch.from_numpy(gone[picked])

    def fetched() -> tuple[Tensor, ...]:
        if pool is None:
            return batch()
        if not ahead:
            ahead.append(pool.submit(batch))
        ready = ahead.pop().result()
        ahead.append(pool.submit(batch))
        return ready

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        numbers, words, left = (part.to(s.device) for part in fetched())
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            guess = network(numbers, words)
        loss = F.binary_cross_entropy_with_logits(guess, 0.96 * left + 0.02)
        optimizer.zero_grad(set_to_none=none)
        loss.backward()
        optimizer.step()
        hits = ((guess > 0) == (left > 0.5)).float().mean()
        if read:
            log[0], log[1] = log[0] + loss.item(), log[1] + hits.item()
        else:
            noted.add_(torch.stack([loss.detach(), hits]))
        return loss.detach()

    return step


WORKLOADS = (
    written(
        "portrait_cutouts", "A matting U-Net in training on 16 portraits of 320, bf16 autocast, NCHW; weights are averaged tensor by tensor.",
        "channels_last; weights averaged at once; fused AdamW; pinned pictures ahead; torch.compile of the loss; nothing is read",
        portrait_cutouts,
        {
            "memory-layout": {"channels_last": True}, "optimizer-foreach/mean": {"together": True}, "optimizer-foreach": {"fused": True},
            "memcpy": {"ahead": True}, "unfused-elementwise": {"compiled": True}, "sync-stall": {"read": False},
        },
    ),
    written(
        "menu_translation", "Eight dishes translated in fp16 by an encoder and a decoder, 24 words, a growing cache; each word is streamed.",
        "one read; eight times the dishes; CUDA graph of all words; scaled_dot_product_attention; norms in fp16; a head of 32,064",
        menu_translation,
        {
            "sync-stall": {"asked": False}, "low-arithmetic-intensity": {"times": 8}, "graph-candidate": {"graphed": True},
            "unfused-attention": {"sdpa": True}, "dtype-casts": {"careful": False}, "gemm-alignment": {"padded": True},
        }, shared={"low-arithmetic-intensity": 8.0},
    ),
    written(
        "lookalike_listings", "A vision transformer on 48 photographs, FP32, turned queries and RMS norms written out; 400,000 vectors searched.",
        "TF32; scaled_dot_product_attention; F.rms_norm; torch.compile of layers; photographs as bytes; channels_last", lookalike_listings,
        {
            "precision": {"tf32": True}, "unfused-attention": {"sdpa": True}, "unfused-norm": {"library": True},
            "unfused-elementwise": {"compiled": True}, "host-bound": {"on_device": True}, "memory-layout": {"channels_last": True},
        },
    ),
    written(
        "leaving_customers", "FT-Transformer in training on 2048 customers of 40 columns, TF32; words looked up in Python, two reads a step.",
        "bf16 autocast; scaled_dot_product_attention; torch.compile; words by a thread; nothing is read; set_to_none", leaving_customers,
        {
            "precision/bf16": {"autocast": True}, "unfused-attention": {"sdpa": True}, "unfused-elementwise": {"compiled": True},
            "host-bound": {"behind": True}, "sync-stall": {"read": False}, "grad-zeroing": {"none": True},
        },
    ),
)  # fmt: skip
