"""Programs in their authors' own code: how far quasars are, a hotel's concierge that answers from a cache in pages, noodles by courier.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture, written

BF16 = torch.bfloat16


# Quasars: the redshift of each spectrum as one of 1024 bins (a transformer on patches of wavelengths, trained in FP32).


class Rms(nn.Module):
    def __init__(self, width: int, op: bool) -> None:
        super().__init__()
        self.weight, self.op = nn.Parameter(torch.ones(width)), op

    def forward(self, x: Tensor) -> Tensor:
        if self.op:
            return F.rms_norm(x, self.weight.shape, self.weight, 1e-6)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def angles(places: Tensor, width: int) -> tuple[Tensor, Tensor]:
    rate = 10000.0 ** (-torch.arange(0, width, 2, device=places.device) / width)
    turn = places[..., None].float() * rate
    return torch.cat([turn, turn], -1).cos(), torch.cat([turn, turn], -1).sin()


class SpectrumLayer(nn.Module):
    def __init__(self, width: int, heads: int, sdpa: bool, op: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.before, self.between = Rms(width, op), Rms(width, op)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in ((width, 3 * width), (width, 3 * width), (3 * width, width)))

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor, bad: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = turned(q, cos, sin).to(v.dtype), turned(k, cos, sin).to(v.dtype)
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=~bad[:, None, None])
        else:
            scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
            scores = scores.masked_fill(bad[:, None, None], -1e4)
            y = torch.einsum("bhij,bhjd->bhid", torch.softmax(scores, -1), v)
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, bad: Tensor) -> Tensor:
        x = x + self.attend(self.before(x), cos, sin, bad)
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Redshift(nn.Module):
    def __init__(self, patch: int, width: int, heads: int, layers: int, bins: int, sdpa: bool, op: bool) -> None:
        super().__init__()
        self.patch, self.each = patch, width // heads
        self.inlet = nn.Linear(2 * patch, width)
        self.layers = nn.ModuleList(SpectrumLayer(width, heads, sdpa, op) for _ in range(layers))
        self.norm, self.head = Rms(width, op), nn.Linear(width, bins)

    def forward(self, flux: Tensor, certainty: Tensor) -> Tensor:
        size = (flux * certainty).abs().sum(1, keepdim=True) / (certainty.sum(1, keepdim=True) + 1e-6)
        flux = torch.asinh(flux / (size + 1e-6))
        parts = torch.cat([flux.unflatten(1, (-1, self.patch)), torch.log1p(certainty).unflatten(1, (-1, self.patch))], -1)
        bad = certainty.unflatten(1, (-1, self.patch)).amax(-1) <= 0
        cos, sin = angles(torch.arange(parts.shape[1], device=flux.device), self.each)
        x = self.inlet(parts)
        for layer in self.layers:
            x = layer(x, cos, sin, bad)
        x = self.norm(x).masked_fill(bad[..., None], 0.0)
        return self.head(x.sum(1) / (~bad).sum(1, keepdim=True))


def bin_loss(logits: Tensor, at: Tensor, spread: float) -> Tensor:
    """Cross entropy against a bell around the true redshift."""
    logits = logits.float()
    logits = logits - logits.amax(-1, keepdim=True)
    likely = logits - logits.exp().sum(-1, keepdim=True).log()
    places = torch.arange(logits.shape[-1], device=logits.device)
    bell = torch.exp(-0.5 * ((places - at[:, None]) / spread) ** 2)
    bell = bell / bell.sum(-1, keepdim=True)
    return -(bell * likely).sum(-1).mean()


def quasar_redshifts(
    s: Setup,
    *,
    autocast: bool = False,
    tf32: bool = False,
    sdpa: bool = False,
    op: bool = False,
    compiled: bool = False,
    fused: bool = False,
    ahead: bool = False,
    read: bool = True,
) -> Step:
    """Training in FP32 on 32 spectra of 4096 pixels: attention, RMSNorm, rotation and loss by hand, AdamW tensor by tensor; three numbers are read."""
    rows, pixels, patch, bins = s.size(32, 2), s.size(4096, 64), s.size(8, 4), s.size(1024, 16)
    width, heads, layers = s.size(384, 16), s.size(6, 2), s.size(6, 2)
    rng = np.random.default_rng(71)
    batches = []
    for _ in range(4):
        z = rng.uniform(0.1, 5.0, rows)
        line = np.exp(-0.5 * ((np.arange(pixels) - (z[:, None] / 5.0) * pixels) / 12.0) ** 2)
        flux = (3.0 * line + rng.normal(1.0, 0.4, (rows, pixels))).astype(np.float32)
        certainty = rng.gamma(2.0, 1.0, (rows, pixels)).astype(np.float32)
        hole = pixels // 2 + patch * int(rng.integers(0, 4))
        certainty[:, hole : hole + 4 * patch] = 0.0
        batches.append((torch.from_numpy(flux), torch.from_numpy(certainty), torch.from_numpy((z / 5.0 * (bins - 1)).astype(np.float32))))
    queue = Prefetcher([tuple(s.pin(part) for part in batch) for batch in batches], s) if ahead else None
    with s.device:
        model = Redshift(patch, width, heads, layers, bins, sdpa, op)
        noted = torch.zeros(3)
    network = s.compile(model, dynamic=False) if compiled else model
    parameters = list(model.parameters())
    how = {"fused": True} if fused else {"foreach": False}
    optimizer = torch.optim.AdamW(parameters, lr=2e-4, weight_decay=0.05, **how)
    turn, history = counter(), []

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        flux, certainty, at = queue.next() if queue else (part.to(s.device) for part in batches[next(turn) % len(batches)])
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            logits = network(flux, certainty)
        loss = bin_loss(logits, at, 3.0)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        with torch.no_grad():
            off = ((logits.argmax(-1) - at).abs() > bins / 50).float().mean()
        if read:
            history.append((loss.item(), norm.item(), off.item()))
            del history[:-100]
        else:
            noted.add_(torch.stack([loss.detach(), norm, off]))
        return loss.detach()

    return step


# A hotel's concierge: the next words of 24 conversations, whose keys and values lie in pages of 16 words.


class PagedLayer(nn.Module):
    pool_k: Tensor
    pool_v: Tensor

    def __init__(self, width: int, heads: int, shared: int, pages: int, page: int, how: str, op: bool) -> None:
        super().__init__()
        self.heads, self.kept, self.each, self.how, self.op = heads, heads // shared, width // heads, how, op
        self.norm_a, self.norm_b = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.q, self.kv = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * self.kept * self.each, bias=False)
        self.out, self.up, self.down = nn.Linear(width, width, bias=False), nn.Linear(width, 6 * width, bias=False), nn.Linear(3 * width, width, bias=False)
        self.register_buffer("pool_k", torch.randn(pages, page, self.kept, self.each), persistent=False)
        self.register_buffer("pool_v", torch.randn(pages, page, self.kept, self.each), persistent=False)

    def normed(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.op:
            return F.rms_norm(x, weight.shape, weight, 1e-5)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return weight * y.to(x.dtype)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        """q: rows x heads x each; keys and values: rows x kept x words x each; seen: rows x words."""
        rows, shared = len(q), self.heads // self.kept
        hidden = ~seen[:, None, None]
        if self.how == "folded":
            scores = (q.view(rows, self.kept, shared, self.each) @ keys.transpose(-1, -2)) / self.each**0.5
            scores = scores.masked_fill(hidden, float("-inf"))
            return (torch.softmax(scores.float(), -1).to(q.dtype) @ values).reshape(rows, -1)
        keys, values = keys.repeat_interleave(shared, 1), values.repeat_interleave(shared, 1)
        if self.how == "sdpa":
            return F.scaled_dot_product_attention(q[:, :, None], keys, values, attn_mask=~hidden).reshape(rows, -1)
        scores = (q[:, :, None] @ keys.transpose(-1, -2)) / self.each**0.5
        scores = scores.masked_fill(hidden, float("-inf"))
        return (torch.softmax(scores.float(), -1).to(q.dtype) @ values).reshape(rows, -1)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, table: Tensor, page: Tensor, slot: Tensor, seen: Tensor) -> Tensor:
        y = self.normed(x, self.norm_a)
        q = turned(self.q(y).view(len(x), self.heads, self.each), cos, sin)
        k, v = self.kv(y).view(len(x), 2, self.kept, self.each).unbind(1)
        self.pool_k[page, slot] = turned(k, cos, sin)
        self.pool_v[page, slot] = v
        keys, values = (pool[table].flatten(1, 2).transpose(1, 2) for pool in (self.pool_k, self.pool_v))
        x = x + self.out(self.attend(q, keys, values, seen))
        gate, up = self.up(self.normed(x, self.norm_b)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Concierge(nn.Module):
    def __init__(self, words: int, width: int, layers: list[PagedLayer], page: int) -> None:
        super().__init__()
        self.words, self.layers, self.head, self.page = nn.Embedding(words, width), nn.ModuleList(layers), nn.Linear(width, words, bias=False), page

    def forward(self, said: Tensor, table: Tensor, at: Tensor) -> Tensor:
        x = self.words(said)
        cos, sin = (part[:, None].to(x.dtype) for part in angles(at, self.layers[0].each))
        page, slot = table.gather(1, (at // self.page)[:, None])[:, 0], at % self.page
        seen = torch.arange(table.shape[1] * self.page, device=x.device) <= at[:, None]
        for layer in self.layers:
            x = layer(x, cos, sin, table, page, slot, seen)
        return self.head(x)


def hotel_concierge(
    s: Setup,
    *,
    times: int = 1,
    how: str = "plain",
    op: bool = False,
    kept: bool = False,
    read_each: bool = True,
    compiled: bool = False,
    graphed: bool = False,
) -> Step:
    """Four words for each of 24 conversations in bf16: pages are gathered, keys repeated, tables made in Python; each word is drawn by multinomial and read."""
    rows, page, most, words = s.size(24, 2) * times, s.size(16, 4), s.size(64, 4), s.size(32000, 50)
    width, heads, shared, layers, new, end = s.size(1024, 16), s.size(16, 4), s.size(4, 2), s.size(12, 2), s.size(4, 2), 2
    rng = np.random.default_rng(72)
    begin = rng.integers(page * most // 3, page * most - new - 1, rows)
    begin[0] = page * most - new - 1
    tables = rng.permutation(rows * most).reshape(rows, most).tolist()
    vocabulary = [f"{n:05d}" for n in range(words)]
    with s.device:
        parts = [PagedLayer(width, heads, shared, rows * most, page, how, op) for _ in range(layers)]
        model = Concierge(words, width, parts, page).to(BF16).eval()
        last, first = torch.randint(3, words, (rows,)), torch.tensor(begin)
        said, at, table = last.clone(), first.clone(), torch.tensor(tables)
        drawn = torch.zeros(new, rows, dtype=torch.long)
    network = s.compile(model, mode="reduce-overhead", dynamic=False) if compiled else model
    still, reading = kept or graphed, read_each and not graphed

    def draw(logits: Tensor) -> Tensor:
        """Nucleus of 0.9."""
        chance, order = torch.softmax(logits.float() / 0.8, -1).sort(-1, descending=True)
        chance = chance.masked_fill(chance.cumsum(-1) - chance > 0.9, 0.0)
        if reading:
            best = torch.multinomial(chance / chance.sum(-1, keepdim=True), 1)
        else:  # the same draw without multinomial's checks, which wait
            best = (chance / torch.empty_like(chance).exponential_()).argmax(-1, keepdim=True)
        return order.gather(1, best)[:, 0]

    def word() -> None:
        said.copy_(draw(network(said, table, at)))
        at.add_(1)

    with torch.no_grad():
        work = capture(word, s) if graphed else word

    @torch.no_grad()
    def step() -> list[str]:
        said.copy_(last)
        at.copy_(first)
        answers: list[list[str]] = [[] for _ in range(rows)]
        ended = [False] * rows

        def note(ids: list[int]) -> None:
            for row, n in enumerate(ids):
                ended[row] = ended[row] or n == end
                if not ended[row]:
                    answers[row].append(vocabulary[n])

        for n in range(new):
            if still:
                work()
            else:
                longest = max(int(length) + n + 1 for length in begin)
                pages = -(-longest // page)
                lists = torch.tensor([line[:pages] for line in tables], device=s.device)
                places = torch.tensor([int(length) + n for length in begin], device=s.device)
                said.copy_(draw(network(said, lists, places)))
            if reading:
                note(said.tolist())
            else:
                drawn[n].copy_(said)
        if not reading:
            for ids in drawn.tolist():
                note(ids)
        return [" ".join(answer) for answer in answers]

    return step


# Noodles by courier: will a guest click, order, and come again (multi-gate mixture of experts on 20 columns).


class Tables(nn.Module):
    """An embedding for each column; or one table for all."""

    def __init__(self, columns: int, codes: int, size: int, joined: bool) -> None:
        super().__init__()
        count = 1 if joined else columns
        self.tables = nn.ParameterList(nn.Parameter(0.05 * torch.randn(columns // count * codes, size)) for _ in range(count))
        self.register_buffer("first", torch.arange(columns) * codes)
        self.joined, self.size = joined, size

    def forward(self, codes: Tensor) -> Tensor:
        if self.joined:
            return self.tables[0].index_select(0, (codes + self.first).flatten()).view(len(codes), -1)
        return torch.cat([table.index_select(0, codes[:, n]) for n, table in enumerate(self.tables)], 1)


class Experts(nn.Module):
    """Two layers each; one by one, or all in a product."""

    def __init__(self, count: int, inner: int, hidden: int, out: int, stacked: bool) -> None:
        super().__init__()
        self.stacked = stacked
        if stacked:
            self.w1, self.b1 = nn.Parameter(torch.randn(count, inner, hidden) / inner**0.5), nn.Parameter(torch.zeros(count, 1, hidden))
            self.w2, self.b2 = nn.Parameter(torch.randn(count, hidden, out) / hidden**0.5), nn.Parameter(torch.zeros(count, 1, out))
        else:
            self.each = nn.ModuleList(nn.Sequential(nn.Linear(inner, hidden), nn.ReLU(), nn.Linear(hidden, out), nn.ReLU()) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        if self.stacked:
            y = torch.relu(torch.matmul(x, self.w1) + self.b1)
            return torch.relu(torch.matmul(y, self.w2) + self.b2).transpose(0, 1)
        return torch.stack([expert(x) for expert in self.each], 1)


class Noodles(nn.Module):
    def __init__(self, columns: int, codes: int, size: int, numbers: int, experts: int, hidden: tuple[int, int], joined: bool, stacked: bool) -> None:
        super().__init__()
        inner = columns * size + numbers
        self.tables, self.experts = Tables(columns, codes, size, joined), Experts(experts, inner, *hidden, stacked)
        self.gates = nn.ModuleList(nn.Linear(inner, experts) for _ in range(3))
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(hidden[1], hidden[1] // 2), nn.ReLU(), nn.Linear(hidden[1] // 2, 1)) for _ in range(3))
        self.doubt = nn.Parameter(torch.zeros(3))

    def forward(self, codes: Tensor, numbers: Tensor) -> Tensor:
        x = torch.cat([self.tables(codes), torch.log1p(numbers)], 1)
        known = self.experts(x)
        out = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            share = torch.softmax(gate(x), -1)
            out.append(tower((share[..., None] * known).sum(1))[:, 0])
        return torch.stack(out, 1)


def surprise(logit: Tensor, truth: Tensor) -> Tensor:
    """Focal loss, row by row."""
    chance = torch.sigmoid(logit.float()).clamp(1e-6, 1 - 1e-6)
    right = truth * chance + (1 - truth) * (1 - chance)
    return -((1 - right) ** 1.5) * torch.log(right)


def noodle_couriers(
    s: Setup,
    *,
    packed: bool = False,
    stacked: bool = False,
    joined: bool = False,
    fused: bool = False,
    masked: bool = False,
    graphed: bool = False,
    autocast: bool = False,
    none: bool = False,
) -> Step:
    """Training of a mixture of eight experts on 4096 rows, TF32: columns copied one by one, orders picked by a mask, Adam(foreach=False); losses are read."""
    rows, columns, codes, size, numbers = s.size(4096, 12), s.size(20, 4), s.size(20000, 30), s.size(16, 4), s.size(12, 3)
    hidden = (s.size(256, 8), s.size(128, 8))
    rng = np.random.default_rng(73)
    days = []
    for _ in range(4):
        day = {f"code{n}": rng.zipf(1.3, rows) % codes for n in range(columns)}
        day |= {f"number{n}": rng.exponential(3.0, rows).astype(np.float32) for n in range(numbers)}
        clicked = rng.random(rows) < 0.3
        clicked[0] = True
        day |= {"clicked": clicked.astype(np.float32), "ordered": (clicked & (rng.random(rows) < 0.4)).astype(np.float32)}
        days.append(day | {"again": (rng.random(rows) < 0.2).astype(np.float32)})
    with s.device:
        model = Noodles(columns, codes, size, numbers, s.size(8, 2), hidden, joined, stacked)
        where, what, truth = torch.zeros(rows, columns, dtype=torch.long), torch.zeros(rows, numbers), torch.zeros(rows, 3)
        noted = torch.zeros(3)
    room = s.pin(torch.zeros(rows, columns, dtype=torch.long)), s.pin(torch.zeros(rows, numbers + 3))
    names = [f"code{n}" for n in range(columns)], [*(f"number{n}" for n in range(numbers)), "clicked", "ordered", "again"]
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1e-3, eps=1e-7, capturable=graphed and s.cuda, **({"fused": True} if fused else {"foreach": False})
    )  # fmt: skip
    reading = not masked and not graphed
    turn, log = counter(), [0.0, 0.0, 0.0]

    def ready(day: dict[str, np.ndarray]) -> tuple[Tensor, Tensor, Tensor]:
        if packed:
            for part, of in zip(room, names, strict=True):
                np.stack([day[name] for name in of], 1, out=part.numpy())
            ids, rest = (part.to(s.device, non_blocking=True) for part in room)
        else:
            ids, rest = (torch.stack([torch.from_numpy(day[name]).to(s.device) for name in of], 1) for of in names)
        return ids, rest[:, :numbers], rest[:, numbers:]

    def learn(ids: Tensor, amounts: Tensor, told: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=none)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            logits = model(ids, amounts)
        losses = [surprise(logits[:, 0], told[:, 0]).mean()]
        if reading:
            clicked = told[:, 0] > 0.5
            losses.append(surprise(logits[clicked, 1], told[clicked, 1]).mean())
        else:
            losses.append((surprise(logits[:, 1], told[:, 1]) * told[:, 0]).sum() / told[:, 0].sum())
        losses.append(surprise(logits[:, 2], told[:, 2]).mean())
        each = torch.stack(losses)
        (torch.exp(-model.doubt) * each + model.doubt).sum().backward()
        optimizer.step()
        if reading:
            for n, loss in enumerate(losses):
                log[n] = 0.99 * log[n] + 0.01 * loss.item()
        else:
            noted.mul_(0.99).add_(each.detach(), alpha=0.01)
        return each.detach()

    if graphed:
        torch.set_float32_matmul_precision("high")
        for place, value in zip((where, what, truth), ready(days[0]), strict=True):
            place.copy_(value)
        work = capture(lambda: learn(where, what, truth), s)

    def step() -> object:
        torch.set_float32_matmul_precision("high")
        batch = ready(days[next(turn) % len(days)])
        if not graphed:
            return learn(*batch)
        for place, value in zip((where, what, truth), batch, strict=True):
            place.copy_(value)
        work()
        return noted

    return step


WORKLOADS = (
    written(
        "quasar_redshifts", "A transformer in training on 32 spectra of 4096 pixels, FP32: attention, RMSNorm and loss written out, AdamW(foreach=False).",
        "bf16 autocast; TF32; scaled_dot_product_attention; F.rms_norm; torch.compile of the model; fused AdamW; pinned spectra copied ahead; no reads",
        quasar_redshifts,
        {
            "precision": {"autocast": True}, "precision/tf32": {"tf32": True}, "unfused-attention": {"sdpa": True}, "unfused-norm": {"op": True},
            "unfused-elementwise": {"compiled": True}, "optimizer-foreach": {"fused": True}, "memcpy": {"ahead": True},
            "sync-stall": {"read": False},
        },
    ),
    written(
        "hotel_concierge", "Four words for each of 24 conversations, bf16: pages are gathered, keys repeated, tables made in Python; each word is read.",
        "scaled_dot_product_attention; heads that share a key folded into rows; F.rms_norm; tables kept on the GPU; one read at the end; "
        "torch.compile into graphs; CUDA graph of a word; eight times the conversations",
        hotel_concierge,
        {
            "unfused-attention": {"how": "sdpa"}, "repeated-heads": {"how": "folded"}, "unfused-norm": {"op": True}, "memcpy": {"kept": True},
            "sync-stall": {"read_each": False}, "launch-gap": {"compiled": True}, "graph-candidate": {"graphed": True},
            "low-arithmetic-intensity": {"times": 8},
        }, shared={"low-arithmetic-intensity": 8.0},
    ),
    written(
        "noodle_couriers", "Eight experts with three gates in training on 4096 rows, TF32: columns copied one by one, a mask picks orders; losses are read.",
        "columns packed and pinned; experts in one product; one table for all columns; fused Adam; a mask of fixed shape and no reads; CUDA graph of the step; "
        "bf16 autocast; gradients dropped",
        noodle_couriers,
        {
            "memcpy": {"packed": True}, "launch-gap": {"stacked": True}, "launch-gap/tables": {"joined": True},
            "optimizer-foreach": {"fused": True}, "sync-stall": {"masked": True}, "graph-candidate": {"graphed": True},
            "precision": {"autocast": True}, "grad-zeroing": {"none": True},
        },
    ),
)  # fmt: skip
