"""Day-ahead electricity load forecasting: one week of hourly readings in, 24 hours out."""

import gc
import math

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

HIST, HORIZON, CHANNELS = 168, 24, 6


def make_series(n):
    t = torch.arange(HIST + HORIZON).float()
    phase, amp = torch.rand(n, 1, CHANNELS) * 2 * math.pi, 0.5 + torch.rand(n, 1, CHANNELS)
    daily = amp * torch.sin(2 * math.pi * t[None, :, None] / 24 + phase)
    weekly = 0.4 * torch.cos(2 * math.pi * t[None, :, None] / 168 + phase)
    s = daily + weekly + 0.1 * torch.randn(n, HIST + HORIZON, CHANNELS)
    return TensorDataset(s[:, :HIST], s[:, HIST:, 0])


class Forecaster(L.LightningModule):
    def __init__(self, dim=512, depth=6):
        super().__init__()
        self.inp = nn.Linear(CHANNELS, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(1, HIST, dim))
        layer = nn.TransformerEncoderLayer(dim, 8, 4 * dim, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(dim, HORIZON)
        self.history = []

    def forward(self, x):
        return self.out(self.encoder(self.inp(x) + self.pos)[:, -1])

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.smooth_l1_loss(self(x), y)
        self.history.append(loss.item())
        if self.global_step % 50 == 0:
            print(f"step {self.global_step}  loss {sum(self.history[-50:]) / len(self.history[-50:]):.4f}", flush=True)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        # ran out of memory on the old card, keep things tidy
        if batch_idx % 10 == 0:
            gc.collect()
            torch.cuda.empty_cache()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-4)


if __name__ == "__main__":
    L.seed_everything(1)
    cuda = torch.cuda.is_available()
    train = DataLoader(make_series(16384), batch_size=128, shuffle=True, drop_last=True, num_workers=4, pin_memory=cuda, persistent_workers=True)
    trainer = L.Trainer(
        max_steps=5000,
        accelerator="gpu" if cuda else "cpu",
        devices=1,
        precision="bf16-mixed",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Forecaster(), train)
