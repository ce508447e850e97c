"""Accelerate's loop around a transformer of torch.nn, in float32."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
wide, deep = (512, 8) if torch.cuda.is_available() else (64, 2)
layer = nn.TransformerEncoderLayer(wide, 8, 4 * wide, batch_first=True, norm_first=True)
model = nn.Sequential(nn.TransformerEncoder(layer, deep, enable_nested_tensor=False), nn.Linear(wide, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
data = TensorDataset(torch.randn(2000, 64, wide), torch.randint(0, 10, (2000, 64)))
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=32, shuffle=True))
for _ in range(50):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
