import math

import numpy as np
import torch
from torch.utils.data import Dataset

SAMPLE_RATE = 8000
CLIP_LEN = 8000


def synth_clip(rng, label):
    """One second of a harmonic tone whose partials depend on the class."""
    t = np.arange(CLIP_LEN, dtype=np.float32) / SAMPLE_RATE
    base = 110.0 * (1.0 + 0.35 * label) * rng.uniform(0.97, 1.03)
    wave = np.zeros(CLIP_LEN, dtype=np.float32)
    for k in range(1, 5):
        amp = rng.uniform(0.2, 1.0) / k
        wave += amp * np.sin(2 * math.pi * base * k * t + rng.uniform(0, 6.28)).astype(np.float32)
    wave *= np.exp(-t * rng.uniform(0.5, 3.0))
    wave += rng.normal(0, 0.35, CLIP_LEN).astype(np.float32)
    return wave


def mel_filterbank(n_freqs, n_mels):
    def to_mel(f):
        return 2595.0 * math.log10(1.0 + f / 700.0)

    mels = torch.linspace(to_mel(30.0), to_mel(SAMPLE_RATE / 2), n_mels + 2)
    hz = 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    freqs = torch.linspace(0, SAMPLE_RATE / 2, n_freqs)
    up = (freqs[None, :] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
    down = (hz[2:, None] - freqs[None, :]) / (hz[2:] - hz[1:-1])[:, None]
    return torch.clamp(torch.minimum(up, down), min=0.0)


class ToneDataset(Dataset):
    def __init__(self, n_clips, n_classes, seed, n_fft=512, hop=80, n_mels=40):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, n_classes, n_clips)
        self.waves = [synth_clip(rng, int(y)) for y in self.labels]
        self.n_fft = n_fft
        self.hop = hop
        self.window = torch.hann_window(n_fft)
        self.fbank = mel_filterbank(n_fft // 2 + 1, n_mels)
        self.items = [self.features(w) for w in self.waves]

    def __len__(self):
        return len(self.waves)

    def features(self, wave):
        x = torch.from_numpy(wave)
        x = torch.cat([x[:1], x[1:] - 0.97 * x[:-1]])
        spec = torch.stft(x, self.n_fft, self.hop, window=self.window, return_complex=True)
        mel = self.fbank @ spec.abs().pow(2)
        logmel = torch.log(mel + 1e-6)
        mean = logmel.mean(dim=1, keepdim=True)
        std = logmel.std(dim=1, keepdim=True)
        norm = (logmel - mean) / (std + 1e-5)
        delta = torch.zeros_like(norm)
        delta[:, 1:-1] = 0.5 * (norm[:, 2:] - norm[:, :-2])
        return torch.stack([logmel * 0.1, norm, delta])

    def __getitem__(self, idx):
        return self.items[idx], int(self.labels[idx])
