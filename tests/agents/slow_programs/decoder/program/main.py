import math

import torch
import torch.nn.functional as F

from corpus import VOCAB, BatchSampler, build_corpus
from layers import TinyLM

STEPS = 64
CONTEXT = 768
BATCH = 1


def lr_at(step):
    warm = 8
    if step < warm:
        return 1e-3 * (step + 1) / warm
    frac = (step - warm) / max(1, STEPS - warm)
    return 1e-4 + 0.5 * (1e-3 - 1e-4) * (1 + math.cos(math.pi * frac))


def validation_loss(model, sampler, rounds):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for _ in range(rounds):
            x, y = sampler.next()
            logits = model(x)
            total += F.cross_entropy(logits.reshape(-1, VOCAB), y.reshape(-1)).item()
    model.train()
    return total / rounds


def main():
    torch.set_num_threads(1)
    torch.manual_seed(21)
    tokens = build_corpus()
    split = int(len(tokens) * 0.9)
    train = BatchSampler(tokens[:split], BATCH, CONTEXT, seed=7)
    valid = BatchSampler(tokens[split:], BATCH, CONTEXT, seed=8)

    model = TinyLM(VOCAB, context=CONTEXT)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    history = []
    val = []
    for step in range(STEPS):
        for group in opt.param_groups:
            group["lr"] = lr_at(step)
        x, y = train.next()
        logits = model(x)
        loss = F.cross_entropy(logits.reshape(-1, VOCAB), y.reshape(-1))
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        history.append(loss.item())
        if (step + 1) % 16 == 0:
            val.append(validation_loss(model, valid, 2))

    final = sum(history) / len(history) + sum(val)
    print(f"checksum {final:.6f}")


if __name__ == "__main__":
    main()
