import numpy as np
import torch

VOCAB = 64


def build_corpus(length=60000, seed=3):
    """Second-order Markov chain over a small alphabet."""
    rng = np.random.default_rng(seed)
    table = rng.integers(0, VOCAB, size=(VOCAB, VOCAB, 4))
    picks = rng.integers(0, 4, size=length)
    out = np.empty(length, dtype=np.int64)
    a, b = 1, 2
    for i in range(length):
        c = table[a, b % 8, picks[i]]
        out[i] = c
        a, b = b, c
    return torch.from_numpy(out)


class BatchSampler:
    def __init__(self, tokens, batch_size, context, seed):
        self.tokens = tokens
        self.batch_size = batch_size
        self.context = context
        self.gen = torch.Generator().manual_seed(seed)

    def next(self):
        hi = len(self.tokens) - self.context - 1
        starts = torch.randint(0, hi, (self.batch_size,), generator=self.gen)
        xs, ys = [], []
        for s in starts.tolist():
            xs.append(self.tokens[s : s + self.context])
            ys.append(self.tokens[s + 1 : s + self.context + 1])
        return torch.stack(xs).contiguous(), torch.stack(ys).contiguous()
