"""launch-gap"""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from workloads.base import Setup, Step, written_pair


def utterance_features(s: Setup, *, together: bool = False, pinned: bool = False, packed: bool = False, tf32: bool = False) -> Step:
    dice = random.Random(0)
    lengths = [dice.randrange(s.size(16_000, 800), s.size(48_000, 1600)) for _ in range(s.size(48, 3))]
    waves = [torch.randn(length) for length in lengths]
    waves = [s.pin(wave) for wave in waves] if pinned else waves
    window, bank = torch.hamming_window(400, device=s.device), torch.rand(257, 80, device=s.device)
    encoder = nn.Sequential(nn.Conv1d(80, 256, 5, 2, 2), nn.ReLU(), nn.Conv1d(256, 256, 5, 2, 2), nn.ReLU(), nn.Conv1d(256, 192, 1)).to(s.device).eval()

    def log_mel(x: Tensor) -> Tensor:
        x = torch.cat([x[..., :1], x[..., 1:] - 0.97 * x[..., :-1]], -1)
        frames = x.unfold(-1, 400, 160)
        frames = (frames - frames.mean(-1, keepdim=True)) * window
        return torch.log(torch.fft.rfft(frames, 512).abs().square() @ bank + 1e-6)

    def one_by_one() -> Tensor:
        if packed:
            sent: list[Tensor] | tuple[Tensor, ...] = torch.cat(waves).to(s.device).split(lengths)
        else:
            sent = [wave.to(s.device, non_blocking=pinned) for wave in waves]
        features = []
        for x in sent:
            mel = log_mel(x)
            features.append((mel - mel.mean(0)) / (mel.std(0) + 1e-5))
        return nn.utils.rnn.pad_sequence(features, batch_first=True)

    def all_at_once() -> Tensor:
        mel = log_mel(nn.utils.rnn.pad_sequence(waves, batch_first=True).to(s.device))
        frames = torch.tensor([(length - 400) // 160 + 1 for length in lengths], device=s.device)
        inside = (torch.arange(mel.shape[1], device=s.device) < frames[:, None])[..., None]
        counts = frames[:, None, None]
        centred = (mel - (mel * inside).sum(1, keepdim=True) / counts) * inside
        return centred / ((centred.square().sum(1, keepdim=True) / (counts - 1)).sqrt() + 1e-5)

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        found = encoder((all_at_once() if together else one_by_one()).mT)
        torch.set_float32_matmul_precision("high")
        return found

    return step


PROGRAM = written_pair(
    "utterance_features",
    "launch-gap",
    "Spectrograms of 48 utterances that are copied and worked on one by one, then a small encoder.",
    "pad them first and compute all at once",
    utterance_features,
    {"together": True},
    alone={"memcpy": {"pinned": True}, "memcpy/packed": {"packed": True}, "precision/tf32": {"tf32": True}},
    top=("launch-gap", "memcpy"),
)
