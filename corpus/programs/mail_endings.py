"""LayerSkip: four words drafted by three layers and checked by twelve, four mails, bf16; compared on the host."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, capture, written

BF16 = torch.bfloat16


class Root(nn.Module):
    """RMSNorm, computed in FP32."""

    def __init__(self, width: int, library: bool = False) -> None:
        super().__init__()
        self.weight, self.library = nn.Parameter(torch.ones(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), 1e-6)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


def waves(places: Tensor, size: int, base: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines for halves of heads of `size`."""
    turn = places[..., None] * base ** -(torch.arange(0, size, 2, device=places.device) / size)
    turn = torch.cat([turn, turn], -1)
    return turn.cos(), turn.sin()


def spun(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    y = x.float()
    one, two = y.chunk(2, -1)
    return (y * cos + torch.cat([-two, one], -1) * sin).to(x.dtype)


def grown(layer: nn.Linear, inner: int, out: int) -> nn.Linear:
    """The same layer with zeros for further inputs and outputs."""
    place = layer.weight
    wide = nn.utils.skip_init(nn.Linear, inner, out, bias=False, device=place.device, dtype=place.dtype)
    with torch.no_grad():
        wide.weight.zero_()
        wide.weight[: place.shape[0], : place.shape[1]] = place
    return wide


def up_to(size: int, step: int) -> int:
    return -(-size // step) * step


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Written(nn.Module):
    """A layer with grouped queries, and the keys and values of all mails."""

    def __init__(self, rows: int, room: int, width: int, heads: int, shared: int, inner: int, library: bool, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.shared, self.sdpa, size = heads, shared, sdpa, width // heads
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = nn.Linear(width, shared * size, bias=False), nn.Linear(width, shared * size, bias=False)
        self.before, self.between, self.feed = Root(width, library), Root(width, library), Gated(width, inner)
        self.register_buffer("keys", torch.randn(rows, shared, room, size))
        self.register_buffer("values", torch.randn(rows, shared, room, size))

    def seen(self, q: Tensor, known: Tensor) -> Tensor:
        keys = self.keys.repeat_interleave(self.heads // self.shared, 1)
        values = self.values.repeat_interleave(self.heads // self.shared, 1)
        if self.sdpa:
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=known[:, None])
        scores = torch.matmul(q, keys.transpose(2, 3)) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~known[:, None], torch.finfo(scores.dtype).min)
        return torch.matmul(torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype), values)

    def forward(self, x: Tensor, rows: Tensor, places: Tensor, known: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.before(x)
        q = self.query(h).unflatten(-1, (self.heads, -1))
        k, v = (part(h).unflatten(-1, (self.shared, -1)) for part in (self.key, self.value))
        self.keys[rows, :, places] = spun(k, cos, sin)
        self.values[rows, :, places] = v
        seen = self.seen(spun(q, cos, sin).transpose(1, 2), known)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))


class Mail(nn.Module):
    def __init__(self, words: int, rows: int, room: int, width: int, heads: int, shared: int, layers: int, early: int, library: bool, sdpa: bool) -> None:
        super().__init__()
        self.words, self.early, self.size = words, early, width // heads
        self.word, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.layers = nn.ModuleList(Written(rows, room, width, heads, shared, 8 * width // 3, library, sdpa) for _ in range(layers))
        self.last = Root(width, library)
        self.register_buffer("rows", torch.arange(rows)[:, None])
        self.register_buffer("room", torch.arange(room))
        with torch.no_grad():
            for layer in self.layers[early:]:
                layer.out.weight *= 0.1
                layer.feed.down.weight *= 0.1

    def _said(self, tokens: Tensor, at: Tensor, depth: int) -> Tensor:
        places = at[:, None] + self.room[: tokens.shape[1]]
        cos, sin = waves(places[:, :, None], self.size)
        known, x = self.room <= places[:, :, None], self.word(tokens)
        for layer in self.layers[:depth]:
            x = layer(x, self.rows, places, known, cos, sin)
        return self.head(self.last(x))[..., : self.words].argmax(-1)

    def draft(self, tokens: Tensor, at: Tensor) -> Tensor:
        return self._said(tokens, at, self.early)

    def check(self, tokens: Tensor, at: Tensor) -> Tensor:
        return self._said(tokens, at, len(self.layers))


def mail_endings(
    s: Setup,
    *,
    rows: int = 4,
    compiled: bool = False,
    graphed: bool = False,
    asked: bool = True,
    library: bool = False,
    sdpa: bool = False,
    padded: bool = False,
) -> Step:
    """Three rounds of four drafted words for four mails in bf16; each drafted word is compared on the host."""
    rows, room, words, ahead, rounds = s.size(rows, rows // 2), s.size(1024, 48), s.size(32_003, 61), s.size(4, 2), s.size(3, 2)
    width, heads, shared, layers, early = s.size(1536, 32), s.size(12, 4), s.size(4, 2), s.size(12, 2), s.size(3, 1)
    with s.device:
        model = Mail(words, rows, room, width, heads, shared, layers, early, library, sdpa).to(BF16).eval()
        begin = torch.randint(room // 2, room - rounds * (ahead + 1), (rows,))
        first = torch.randint(words, (rows,))
        drafted, said = torch.zeros(rows, ahead + 1, dtype=torch.long), torch.zeros(rows, rounds * (ahead + 1), dtype=torch.long)
        many, places = torch.zeros(rows, dtype=torch.long), torch.arange(ahead + 1)
    if padded:
        model.head = grown(model.head, width, up_to(words, 64))
    draft = s.compile(model.draft, mode="reduce-overhead", dynamic=False) if compiled else model.draft
    check = s.compile(model.check, mode="reduce-overhead", dynamic=False) if compiled else model.check

    def round_of(word: Tensor, at: Tensor) -> Tensor:
        drafted[:, 0] = word
        for n in range(ahead):
            drafted[:, n + 1] = draft(drafted[:, n : n + 1], at + n)[:, 0]
        return check(drafted, at)

    @torch.no_grad()
    def compared() -> list[list[int]]:
        """Word by word."""
        texts: list[list[int]] = [[] for _ in range(rows)]
        word, at = first, begin
        for _ in range(rounds):
            true = round_of(word, at)
            for row, text in enumerate(texts):
                for n in range(ahead + 1):
                    text.append(int(true[row, n].item()))
                    if n == ahead or text[-1] != drafted[row, n + 1].item():
                        break
            word = torch.tensor([text[-1] for text in texts], device=s.device)
            at = begin + torch.tensor([len(text) for text in texts], device=s.device)
        return texts

    @torch.no_grad()
    def kept() -> None:
        """How many words are right, as a tensor; what stands behind them is written over by the next round."""
        word = first
        many.zero_()
        for _ in range(rounds):
            true = round_of(word, begin + many)
            right = (true[:, :-1] == drafted[:, 1:]).long().cumprod(1).sum(1, keepdim=True)
            said.scatter_(1, many[:, None] + places, true)
            word = true.gather(1, right)[:, 0]
            many.add_(right[:, 0] + 1)

    torch.set_float32_matmul_precision("high")
    work = capture(kept, s) if graphed else kept

    def step() -> list[list[int]]:
        torch.set_float32_matmul_precision("high")
        if asked and not graphed:
            return compared()
        work()
        *texts, lengths = torch.cat([said, F.pad(many, (0, said.shape[1] - rows))[None]]).tolist()
        return [text[:length] for text, length in zip(texts, lengths, strict=False)]

    return step


PROGRAM = written(
    "mail_endings",
    "LayerSkip: four words drafted by three layers and checked by twelve, four mails, bf16; compared on the host.",
    "torch.compile; three rounds as a CUDA graph; compared on the GPU; F.rms_norm; scaled_dot_product_attention; a head of 32,064",
    mail_endings,
    {
        "launch-gap": {"compiled": True},
        "graph-candidate": {"graphed": True},
        "sync-stall": {"asked": False},
        "unfused-norm": {"library": True},
        "unfused-attention": {"sdpa": True},
        "gemm-alignment": {"padded": True},
    },
)
