"""Four deep and cross networks in FP64 rank offers in eight parts of 2048 rows: words looked up in Python, columns copied one by one."""

from __future__ import annotations

from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written


class DeepCross(nn.Module):
    spare: Tensor

    def __init__(self, numbers: int, columns: int, codes: int, size: int, hidden: tuple[int, int]) -> None:
        super().__init__()
        width = numbers + columns * size
        self.embedding = nn.Embedding(columns * codes, size)
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.deep = nn.Sequential(nn.Linear(width, hidden[0]), nn.ReLU(), nn.Linear(hidden[0], hidden[1]), nn.ReLU())
        self.head = nn.Linear(hidden[1] + width, 1)
        self.register_buffer("spare", torch.zeros(1, 0))

    def widen(self, spare: int) -> None:
        """Columns of zeros after the features, in the layers themselves."""
        for layer in (*self.cross, self.deep[0], self.head):
            down = spare if layer in self.cross else 0
            layer.weight = nn.Parameter(F.pad(layer.weight.detach(), (0, spare, 0, down)))
            layer.bias = nn.Parameter(F.pad(layer.bias.detach(), (0, down)))
        self.spare = F.pad(self.spare, (0, spare))

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        known = torch.sign(numbers) * torch.log1p(numbers.abs())
        x0 = torch.cat([known, self.embedding(codes).flatten(1), self.spare.expand(len(numbers), -1)], 1)
        x = x0
        for layer in self.cross:
            x = x0 * layer(x) + x
        return self.head(torch.cat([self.deep(x0), x], 1))[:, 0]


def ferry_offers(
    s: Setup,
    *,
    times: int = 1,
    single: bool = False,
    prepared: bool = False,
    packed: bool = False,
    once: bool = False,
    together: bool = False,
    padded: bool = False,
) -> Step:
    """Four deep and cross networks in FP64 rank offers in eight parts of 2048 rows: words are looked up in Python, columns copied one by one."""
    parts, offers, customers = s.size(8, 2), s.size(16, 4), s.size(128, 3) * times
    count, coded, worded, codes, size = s.size(13, 5), s.size(16, 3), s.size(4, 2), s.size(2000, 20), s.size(16, 4)
    rows, columns, kept = customers * offers, coded + worded, s.size(5, 2)
    job = parts * s.size(2048, 12) * 8
    rng = np.random.default_rng(363)
    numbers = [rng.lognormal(2.0, 1.0, job) for _ in range(count)]
    known = [rng.integers(0, codes, job) for _ in range(coded)]
    vocabularies = [{f"{column}-{n:04d}": n for n in range(1, codes)} for column in range(worded)]
    texts = [[f"{column}-{n:04d}" for n in rng.integers(0, codes, job).tolist()] for column in range(worded)]
    looked_up = [np.array([words.get(word, 0) for word in text]) for words, text in zip(vocabularies, texts, strict=True)] if prepared else []
    dtype = torch.float32 if single else torch.float64
    if single:
        numbers = [column.astype(np.float32) for column in numbers]
    with s.device:
        members = [DeepCross(count, columns, codes, size, (s.size(512, 16), s.size(256, 8))).to(dtype).eval() for _ in range(4)]
        offsets = torch.arange(columns) * codes
    if padded:
        for member in members:
            member.widen(-(count + columns * size) % 16)
    state = torch.func.stack_module_state(members) if together else None
    rooms = [(s.pin(torch.zeros(rows, count, dtype=dtype)), s.pin(torch.zeros(rows, columns, dtype=torch.long))) for _ in range(parts)] if packed else []
    turn = counter()

    def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, code: Tensor) -> Tensor:
        return torch.func.functional_call(members[0], (parameters, buffers), (x, code))  # type: ignore[no-any-return]

    def features(part: int, at: slice) -> tuple[Tensor, Tensor]:
        if prepared:
            words = [column[at] for column in looked_up]
        else:
            words = [np.array([names.get(word, 0) for word in text[at]]) for names, text in zip(vocabularies, texts, strict=True)]
        reals, ints = [column[at] for column in numbers], [*(column[at] for column in known), *words]
        if packed:
            x, code = rooms[part]
            np.stack(reals, 1, out=x.numpy())
            np.stack(ints, 1, out=code.numpy())
            return x.to(s.device, non_blocking=True), code.to(s.device, non_blocking=True)
        return tuple(torch.stack([torch.from_numpy(column).to(s.device) for column in kind], 1) for kind in (reals, ints))  # type: ignore[return-value]

    @torch.no_grad()
    def step() -> np.ndarray:
        torch.set_float32_matmul_precision("high")
        begin = next(turn) * parts * rows % job
        chosen, written_down = [], []
        for part in range(parts):
            x, code = features(part, slice(begin + part * rows, begin + (part + 1) * rows))
            code = code + offsets
            if state is not None:
                logits = torch.vmap(one, in_dims=(0, 0, None, None))(*state, x, code)
            else:
                logits = torch.stack([member(x, code) for member in members])
            chance = torch.sigmoid(logits)
            worth = (chance.mean(0) + 0.3 * chance.std(0)) * x[:, 0]
            best = worth.view(customers, offers).topk(kept)
            found = torch.cat([best.indices.to(dtype), best.values], 1)
            if once:
                chosen.append(found)
            else:
                written_down.append(found.cpu().numpy())
        return torch.cat(chosen).cpu().numpy() if once else np.concatenate(written_down)

    return step


PROGRAM = written(
    "ferry_offers",
    "Four deep and cross networks in FP64 rank offers in eight parts of 2048 rows: words looked up in Python, columns copied one by one.",
    "FP32; words looked up once; columns packed and pinned; one read at the end; the four networks at once; width padded to 336; eight times the rows",
    ferry_offers,
    {
        "precision": {"single": True},
        "host-bound": {"prepared": True},
        "memcpy": {"packed": True},
        "sync-stall": {"once": True},
        "launch-gap": {"together": True},
        "gemm-alignment": {"padded": True},
        "low-arithmetic-intensity": {"times": 8},
    },
    shared={"low-arithmetic-intensity": 8.0},
)
