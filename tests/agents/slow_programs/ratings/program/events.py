import numpy as np
import torch


def make_events(n_events, n_users, n_items, seed):
    rng = np.random.default_rng(seed)
    user = rng.integers(0, n_users, n_events)
    item = np.minimum((n_items * rng.random(n_events) ** 2).astype(np.int64), n_items - 1)
    hour = rng.integers(0, 24, n_events)
    price = rng.lognormal(0, 1, n_events).astype(np.float32)
    score = np.sin(user * 0.37) * np.cos(item * 0.11) + 0.3 * np.sin(hour / 24 * 2 * np.pi) - 0.2 * np.log1p(price)
    click = (score + rng.normal(0, 0.4, n_events) > 0).astype(np.float32)
    return {"user": user, "item": item, "hour": hour, "price": price, "click": click}


def batches(table, size):
    n = len(table["click"])
    for start in range(0, n - size + 1, size):
        rows = slice(start, start + size)
        dense = np.stack(
            [
                np.log1p(table["price"][rows]),
                np.sin(table["hour"][rows] / 24 * 2 * np.pi),
                np.cos(table["hour"][rows] / 24 * 2 * np.pi),
            ],
            axis=1,
        ).astype(np.float32)
        yield (torch.tensor(table["user"][rows]), torch.tensor(table["item"][rows]), torch.tensor(dense), torch.tensor(table["click"][rows]))
