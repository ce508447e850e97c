"""Trains a convolutional classifier with Lightning, in the style of its introduction. Images are random, and decoded in the main process."""

import lightning as L
import numpy as np
import torch
import torchvision
from torch import nn
from torchvision.transforms import v2


class Photos(torch.utils.data.Dataset):
    def __init__(self, rows=20000):
        self.raw = np.random.default_rng(0).integers(0, 255, (256, 256, 256, 3), dtype=np.uint8)
        self.rows = rows
        self.transform = v2.Compose([v2.ToImage(), v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        return self.transform(self.raw[row % len(self.raw)]), row % 10


class LitClassifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torchvision.models.resnet18(num_classes=10)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


train_loader = torch.utils.data.DataLoader(Photos(), batch_size=64, shuffle=True)
trainer = L.Trainer(max_steps=150, enable_checkpointing=False, logger=False)
trainer.fit(LitClassifier(), train_loader)
