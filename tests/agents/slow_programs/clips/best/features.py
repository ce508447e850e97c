import numpy as np
import torch


def hz_to_mel(hz):
    return 2595.0 * np.log10(1.0 + hz / 700.0)


def mel_to_hz(mel):
    return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)


def mel_filters(rate, n_fft, n_mels, fmin, fmax):
    edges = mel_to_hz(np.linspace(hz_to_mel(fmin), hz_to_mel(fmax), n_mels + 2))
    freqs = np.linspace(0, rate / 2, n_fft // 2 + 1)
    bank = np.zeros((n_mels, len(freqs)), dtype=np.float32)
    for m in range(n_mels):
        left, center, right = edges[m : m + 3]
        for k, f in enumerate(freqs):
            if left < f <= center:
                bank[m, k] = (f - left) / (center - left)
            elif center < f < right:
                bank[m, k] = (right - f) / (right - center)
    return bank


def frame_signal(wave, n_fft, hop):
    n_frames = 1 + (len(wave) - n_fft) // hop
    starts = np.arange(n_frames) * hop
    return wave[starts[:, None] + np.arange(n_fft)[None, :]]


class LogMel:
    def __init__(self, rate=8000, n_fft=512, hop=128, n_mels=80, fmin=60.0, fmax=3800.0):
        self.rate, self.n_fft, self.hop = rate, n_fft, hop
        self.n_mels, self.fmin, self.fmax = n_mels, fmin, fmax
        self.filters = mel_filters(rate, n_fft, n_mels, fmin, fmax)

    def __call__(self, wave):
        frames = frame_signal(wave, self.n_fft, self.hop)
        window = np.hanning(self.n_fft).astype(np.float32)
        spectrum = np.fft.rfft(frames * window, axis=1)
        power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
        mel = (torch.from_numpy(power) @ torch.from_numpy(self.filters).T).numpy()
        return np.log(mel + 1e-5).T.copy()
