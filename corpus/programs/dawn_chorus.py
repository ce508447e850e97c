"""A tagger of bird song hears 12 microphones one after the other: causal convolutions under weight norm, a GRU cell a frame, thresholds in lists."""

from __future__ import annotations

from collections import deque
from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

from workloads.base import Setup, Step, capture, written

BF16 = torch.bfloat16


class Listener(nn.Module):
    """A step takes each state as an argument and gives it back, so that one model serves all microphones."""

    def __init__(self, mels: int, width: int, convs: int, birds: int, fft: int, hop: int, whole: bool) -> None:
        super().__init__()
        self.fft, self.hop = fft, hop
        self.convs = nn.ModuleList(weight_norm(nn.Conv1d(width if n else mels, width, 5)) for n in range(convs))
        self.halve = weight_norm(nn.Conv1d(width, width, 2, stride=2))
        self.cell, self.head = nn.GRUCell(width, width), nn.Linear(width, birds)
        nn.init.normal_(self.head.weight, std=0.5)  # so that some birds sing
        self.register_buffer("window", torch.hann_window(fft))
        self.register_buffer("filters", torch.rand(fft // 2 + 1, mels) / fft)
        self.gru = None
        if whole:
            self.gru = nn.GRU(width, width, batch_first=True)
            self.gru.load_state_dict({f"{key}_l0": value for key, value in self.cell.state_dict().items()})

    def features(self, wave: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        frames = wave.unfold(1, self.fft, self.hop) * self.window
        power = torch.fft.rfft(frames).abs() ** 2
        mel = torch.log(power @ self.filters + 1e-6)
        mean = 0.95 * mean + 0.05 * mel.mean(1)
        return (mel - mean.unsqueeze(1)).transpose(1, 2), mean

    def heard(self, x: Tensor, hidden: Tensor, pasts: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        kept = []
        for n, conv in enumerate(self.convs):
            long = torch.cat([pasts[n].to(x.dtype), x], 2)
            kept.append(long[:, :, -4:])
            y = F.silu(conv(long))
            x = x + y if n else y
        x = F.silu(self.halve(x)).transpose(1, 2)
        if self.gru is not None:
            states, last = self.gru(x, hidden.unsqueeze(0))
            return torch.sigmoid(self.head(states)), last[0], kept
        rows = []
        for t in range(x.shape[1]):
            hidden = self.cell(x[:, t], hidden)
            rows.append(torch.sigmoid(self.head(hidden)))
        return torch.stack(rows, 1), hidden, kept


def dawn_chorus(
    s: Setup,
    *,
    batched: bool = False,
    whole: bool = False,
    graphed: bool = False,
    folded: bool = False,
    arrays: bool = False,
    autocast: bool = False,
    late: bool = False,
) -> Step:
    """A tick of 12 microphones, half a second at 16 kHz each, 180 birds, FP32; songs begin and end by two thresholds."""
    posts, samples, hop, fft = s.size(12, 3), s.size(8000, 64), s.size(160, 8), s.size(512, 16)
    mels, width, convs, birds = s.size(64, 6), s.size(192, 8), s.size(5, 2), s.size(180, 5)
    low, high = 0.45, 0.55
    with s.device:
        model = Listener(mels, width, convs, birds, fft, hop, whole).eval()
        banks = [torch.zeros(posts, fft - hop), torch.zeros(posts, mels), torch.zeros(posts, width)]
        banks += [torch.zeros(posts, width if n else mels, 4) for n in range(convs)]
        held = [torch.zeros_like(bank[:1]) for bank in banks]
        sound = torch.zeros(1, samples, dtype=torch.int16)
    if folded:
        for conv in (*model.convs, model.halve):
            parametrize.remove_parametrizations(conv, "weight")
    rng = np.random.default_rng(471)
    ticks = [(rng.standard_normal((posts, samples)) * 3000.0).astype(np.int16) for _ in range(8)]
    smooth = np.zeros((posts, birds)) if arrays else [[0.0] * birds for _ in range(posts)]
    sings = np.zeros((posts, birds), dtype=bool) if arrays else [[False] * birds for _ in range(posts)]
    songs: deque[tuple[int, int, int, bool]] = deque(maxlen=500)
    turn = counter()

    @torch.no_grad()
    def listen(new: Tensor, states: list[Tensor]) -> Tensor:
        """Updates the states in place."""
        tail, mean, hidden, *pasts = states
        wave = torch.cat([tail, new.float() / 32768.0], 1)
        x, now = model.features(wave, mean)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            heard, last, kept = model.heard(x, hidden, pasts)
        for state, value in zip(states, [wave[:, samples:], now, last, *kept], strict=True):
            state.copy_(value)
        return heard.float()

    out: list[Tensor] = []

    def captured() -> None:
        out[:] = [listen(sound, held)]

    torch.set_float32_matmul_precision("highest")
    replay = capture(captured, s) if graphed else None

    def tag(new: Tensor, group: slice) -> Tensor:
        states = [bank[group] for bank in banks]
        if replay is None:
            return listen(new, states)
        sound.copy_(new)
        for there, state in zip(held, states, strict=True):
            there.copy_(state)
        replay()
        for there, state in zip(held, states, strict=True):
            state.copy_(there)
        return out[0]

    def note(now: int, post: int, heard: np.ndarray) -> None:
        if arrays:
            for row in heard.astype(np.float64):
                smooth[post] = 0.7 * smooth[post] + 0.3 * row
                on = smooth[post] > np.where(sings[post], low, high)
                for bird in np.flatnonzero(on != sings[post]).tolist():
                    songs.append((now, post, bird, bool(on[bird])))
                sings[post] = on
            return
        level, singing = smooth[post], sings[post]
        for row in heard.tolist():
            for bird, value in enumerate(row):
                level[bird] = 0.7 * level[bird] + 0.3 * value
                on = level[bird] > (low if singing[bird] else high)
                if on != singing[bird]:
                    songs.append((now, post, bird, on))
                    singing[bird] = on

    groups = [slice(0, posts)] if batched else [slice(post, post + 1) for post in range(posts)]

    @torch.no_grad()
    def step() -> object:
        torch.set_float32_matmul_precision("highest")
        now = next(turn)
        tick, waiting = torch.from_numpy(ticks[now % 8]).to(s.device), []
        for group in groups:
            heard = tag(tick[group], group)
            if late:
                waiting.append(heard)
                continue
            for post, rows in enumerate(heard.cpu().numpy(), group.start):
                note(now, post, rows)
        if late:
            for post, rows in enumerate(torch.cat(waiting).cpu().numpy()):
                note(now, post, rows)
        return songs

    return step


PROGRAM = written(
    "dawn_chorus",
    "A tagger of bird song hears 12 microphones one after the other: causal convolutions under weight norm, a GRU cell a frame, thresholds in lists.",
    "all microphones in one batch; nn.GRU; CUDA graph of a microphone; weight norms folded; thresholds by numpy; bf16 autocast; one read a tick",
    dawn_chorus,
    {
        "low-arithmetic-intensity": {"batched": True},
        "launch-gap": {"whole": True},
        "graph-candidate": {"graphed": True},
        "weight-norm": {"folded": True},
        "host-bound": {"arrays": True},
        "precision": {"autocast": True},
        "sync-stall": {"late": True},
    },
)
