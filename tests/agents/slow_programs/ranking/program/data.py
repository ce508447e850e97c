import numpy as np
import torch

N_ITEMS = 48
DIM = 32


def make_split(n_users, rng, item_vecs):
    taste = rng.normal(0, 1, (n_users, DIM)).astype(np.float32)
    utility = np.tanh(taste @ item_vecs.T / 4) + 0.3 * rng.gumbel(size=(n_users, N_ITEMS))
    target = utility.argmax(axis=1)
    segment = (taste[:, 0] > 0).astype(np.int64) + 2 * (taste[:, 1] > 0).astype(np.int64)
    return (
        torch.from_numpy(taste),
        torch.from_numpy(target.astype(np.int64)),
        torch.from_numpy(segment),
    )


def make_data(seed=17, n_train=8000, n_valid=1200):
    rng = np.random.default_rng(seed)
    item_vecs = rng.normal(0, 1, (N_ITEMS, DIM)).astype(np.float32)
    return make_split(n_train, rng, item_vecs), make_split(n_valid, rng, item_vecs)
