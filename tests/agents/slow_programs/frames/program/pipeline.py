import torch

from network import CellNet, load_pretrained


class Predictor:
    def __init__(self, seed, temperature=1.5):
        self.model = load_pretrained(CellNet(), seed).eval()
        self.temperature = temperature

    def _match(self, x):
        param = next(self.model.parameters())
        if param.dtype != x.dtype or param.device != x.device:
            self.model = self.model.to(device=x.device, dtype=x.dtype)
        return self.model

    @torch.no_grad()
    def __call__(self, x):
        model = self._match(x)
        logits = model(x)
        flipped = model(torch.flip(x, dims=[3]).contiguous())
        probs = torch.softmax(0.5 * (logits + flipped) / self.temperature, dim=1)
        entropy = -(probs * torch.log(probs.clamp_min(1e-12))).sum(dim=1)
        return probs, entropy
