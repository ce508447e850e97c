import math

import torch


class AdamW:
    """AMSGrad with decoupled weight decay, gradient clipping and weight averaging."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, max_norm=1.0, decay=0.98):
        self.params = list(params)
        self.lr = lr
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay
        self.max_norm = max_norm
        self.decay = decay
        self.steps = 0
        self.exp_avg = [torch.zeros_like(p) for p in self.params]
        self.exp_avg_sq = [torch.zeros_like(p) for p in self.params]
        self.max_avg_sq = [torch.zeros_like(p) for p in self.params]
        self.average = [p.detach().clone() for p in self.params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def clip(self):
        total = torch.zeros(())
        for p in self.params:
            total = total + torch.sum(p.grad * p.grad)
        coef = torch.clamp(self.max_norm / (torch.sqrt(total) + 1e-6), max=1.0)
        for p in self.params:
            p.grad = p.grad * coef

    @torch.no_grad()
    def step(self):
        self.clip()
        self.steps += 1
        b1, b2 = self.betas
        for i, p in enumerate(self.params):
            g = p.grad
            p.data = p.data - self.lr * self.weight_decay * p.data
            m = b1 * self.exp_avg[i] + (1 - b1) * g
            v = b2 * self.exp_avg_sq[i] + (1 - b2) * g * g
            v_max = torch.maximum(self.max_avg_sq[i], v)
            self.exp_avg[i] = m
            self.exp_avg_sq[i] = v
            self.max_avg_sq[i] = v_max
            m_hat = m / (1 - b1**self.steps)
            v_hat = v_max / (1 - b2**self.steps)
            update = m_hat / (torch.sqrt(v_hat) + self.eps)
            p.data = p.data - self.lr * update
            self.average[i] = self.decay * self.average[i] + (1 - self.decay) * p.data

    @torch.no_grad()
    def load_average(self):
        for p, avg in zip(self.params, self.average):
            p.copy_(avg)


def cosine(step, total, base, floor):
    return floor + 0.5 * (base - floor) * (1 + math.cos(math.pi * step / total))
