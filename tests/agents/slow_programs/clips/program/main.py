import random

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from features import LogMel
from model import ToneNet
from synth import make_corpus

torch.set_num_threads(1)

N_CLASSES = 8
N_SAMPLES = 8000
EPOCHS = 3
BATCH = 16


class ClipDataset(Dataset):
    def __init__(self, clips, labels, extractor, seed):
        self.clips = clips
        self.labels = labels
        self.extractor = extractor
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return len(self.clips)

    def augment(self, wave):
        shift = int(self.rng.integers(-400, 400))
        wave = np.roll(wave, shift) * self.rng.uniform(0.7, 1.3)
        return wave + self.rng.normal(0, 0.02, len(wave))

    def __getitem__(self, i):
        wave = self.augment(self.clips[i].copy()).astype(np.float32)
        feats = self.extractor(wave)
        feats = (feats - feats.mean()) / (feats.std() + 1e-6)
        return torch.tensor(feats).unsqueeze(0), torch.tensor(self.labels[i])


def main():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)

    clips, labels = make_corpus(384, N_CLASSES, N_SAMPLES, seed=5)
    data = ClipDataset(clips, labels, LogMel(), seed=17)
    loader = DataLoader(data, batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(3))
    model = ToneNet(N_CLASSES)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, EPOCHS * len(loader))

    history = []
    running = 0.0
    for epoch in range(EPOCHS):
        model.train()
        correct = 0
        for x, y in loader:
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            running = 0.95 * running + 0.05 * loss.item()
            for p, t in zip(logits.argmax(1).tolist(), y.tolist()):
                correct += int(p == t)
        history.append((running, correct / len(data)))

    print("checksum %.8f" % (sum(a + b for a, b in history)))


if __name__ == "__main__":
    main()
