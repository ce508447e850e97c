"""Lightning's Trainer on a deep, narrow net: launches, no arithmetic."""

import logging

import lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Tagger(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU()) for _ in range(24)), nn.Linear(128, 5))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, number):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


data = TensorDataset(torch.randn(200_000, 128), torch.randint(0, 5, (200_000,)))
trainer = pl.Trainer(max_steps=3000, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Tagger(), DataLoader(data, batch_size=64))
