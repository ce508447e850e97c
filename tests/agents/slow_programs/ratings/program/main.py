import random

import numpy as np
import torch
import torch.nn.functional as F

from events import batches, make_events
from network import ClickModel

torch.set_num_threads(1)

CONFIG = {
    "users": 150000,
    "items": 60000,
    "dim": 32,
    "batch": 2048,
    "events": 2048 * 60,
    "epochs": 2,
    "lr": 0.03,
}


def auc(scores, labels):
    order = np.argsort(scores)
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    pos = labels > 0.5
    n_pos, n_neg = pos.sum(), (~pos).sum()
    return (ranks[pos].sum() - n_pos * (n_pos + 1) / 2) / (n_pos * n_neg)


class Meter:
    def __init__(self):
        self.values = []

    def update(self, value):
        self.values.append(value)

    def mean(self):
        return sum(self.values) / max(len(self.values), 1)


def train_epoch(model, opt, table, cfg, meter):
    model.train()
    for user, item, dense, click in batches(table, cfg["batch"]):
        logits = model(user, item, dense)
        loss = F.binary_cross_entropy_with_logits(logits, click)
        opt.zero_grad()
        loss.backward()
        opt.step()
        meter.update(loss.detach().item())
        if not torch.isfinite(loss):
            raise RuntimeError("diverged")


@torch.no_grad()
def evaluate(model, table, cfg):
    model.eval()
    scores, labels = [], []
    for user, item, dense, click in batches(table, cfg["batch"]):
        scores.extend(torch.sigmoid(model(user, item, dense)).tolist())
        labels.extend(click.tolist())
    return auc(np.array(scores), np.array(labels))


def main():
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    cfg = dict(CONFIG)
    table = make_events(cfg["events"], cfg["users"], cfg["items"], seed=21)
    held = make_events(cfg["batch"] * 6, cfg["users"], cfg["items"], seed=22)
    model = ClickModel(cfg["users"], cfg["items"], cfg["dim"], n_dense=3)
    opt = torch.optim.Adagrad(model.parameters(), lr=cfg["lr"], initial_accumulator_value=1e-6)
    meter = Meter()
    result = 0.0
    for _ in range(cfg["epochs"]):
        train_epoch(model, opt, table, cfg, meter)
        result += evaluate(model, held, cfg)
    print("checksum %.8f" % (result + meter.mean()))


if __name__ == "__main__":
    main()
