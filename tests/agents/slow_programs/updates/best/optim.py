import math

import torch


class AdamW(torch.optim.AdamW):
    """AMSGrad with decoupled weight decay, gradient clipping and weight averaging."""

    def __init__(self, params, max_norm=1.0, decay=0.98, **kwargs):
        super().__init__(params, amsgrad=True, fused=True, **kwargs)
        self.max_norm = max_norm
        self.decay = decay
        self.average = [p.detach().clone() for p in self.param_groups[0]["params"]]

    @property
    def lr(self):
        return self.param_groups[0]["lr"]

    @lr.setter
    def lr(self, value):
        for group in self.param_groups:
            group["lr"] = value

    def step(self, closure=None):
        params = self.param_groups[0]["params"]
        torch.nn.utils.clip_grad_norm_(params, self.max_norm, foreach=True)
        result = super().step(closure)
        with torch.no_grad():
            torch._foreach_lerp_(self.average, params, 1 - self.decay)
        return result

    @torch.no_grad()
    def load_average(self):
        for p, avg in zip(self.param_groups[0]["params"], self.average):
            p.copy_(avg)


def cosine(step, total, base, floor):
    return floor + 0.5 * (base - floor) * (1 + math.cos(math.pi * step / total))
