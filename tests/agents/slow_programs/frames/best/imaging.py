import numpy as np
import torch

SIZE = 64


class FrameSource:
    """Synthetic 8-bit microscope frames, delivered in batches."""

    def __init__(self, n_batches, batch_size, seed):
        self.n_batches = n_batches
        self.batch_size = batch_size
        self.rng = np.random.default_rng(seed)
        self.mean = np.array([88.0, 92.0, 97.0], dtype=np.float32).reshape(1, 3, 1, 1)
        self.std = np.array([41.0, 39.0, 44.0], dtype=np.float32).reshape(1, 3, 1, 1)

    def __len__(self):
        return self.n_batches

    def frame_batch(self):
        yy, xx = np.mgrid[0:SIZE, 0:SIZE].astype(np.float32)
        out = np.empty((self.batch_size, 3, SIZE, SIZE), dtype=np.uint8)
        for i in range(self.batch_size):
            img = np.full((SIZE, SIZE), 60, dtype=np.float32)
            for _ in range(3):
                cx, cy, r = self.rng.uniform(8, 56), self.rng.uniform(8, 56), self.rng.uniform(4, 12)
                img += 120 * np.exp(-((xx - cx) ** 2 + (yy - cy) ** 2) / (2 * r * r))
            noise = self.rng.normal(0, 8, (3, SIZE, SIZE))
            out[i] = np.clip(img[None] + noise, 0, 255).astype(np.uint8)
        return out

    def __iter__(self):
        for _ in range(self.n_batches):
            raw = self.frame_batch()
            x = (raw.astype(np.float32) - self.mean) / self.std
            yield torch.from_numpy(np.ascontiguousarray(x))
