import numpy as np
import torch

N_FIELDS = 10
CARDINALITY = 40


def make_table(rows=6000, seed=9):
    rng = np.random.default_rng(seed)
    fields = rng.integers(0, CARDINALITY, (rows, N_FIELDS))
    weights = rng.normal(0, 1, (N_FIELDS, CARDINALITY))
    score = sum(weights[i][fields[:, i]] for i in range(N_FIELDS))
    labels = (score + rng.normal(0, 1, rows) > 0).astype(np.float32)
    return fields, labels


def to_tensors(fields, labels):
    return torch.from_numpy(fields.copy()), torch.from_numpy(labels.copy())
