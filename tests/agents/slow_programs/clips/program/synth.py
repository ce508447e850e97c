import numpy as np

RATE = 8000


def make_clip(label, rng, n_samples):
    t = np.arange(n_samples) / RATE
    base = 180.0 + 95.0 * label
    wave = np.zeros(n_samples)
    for harmonic in range(1, 5):
        phase = rng.uniform(0, 2 * np.pi)
        detune = 1.0 + rng.normal(0, 0.01)
        wave += np.sin(2 * np.pi * base * harmonic * detune * t + phase) / harmonic
    envelope = np.exp(-t * rng.uniform(0.5, 3.0))
    return (wave * envelope + rng.normal(0, 0.15, n_samples)).astype(np.float32)


def make_corpus(n_clips, n_classes, n_samples, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n_clips)
    clips = [make_clip(int(y), rng, n_samples) for y in labels]
    return clips, labels.astype(np.int64)
