"""timm's ViT trained in float32 on a batch that stays on the device."""

import timm
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
small = device == "cpu"
model = timm.create_model("vit_tiny_patch16_224" if small else "vit_base_patch16_224", num_classes=100).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05)
images = torch.randn(2 if small else 64, 3, 224, 224, device=device)
labels = torch.randint(0, 100, (len(images),), device=device)
for _ in range(10_000):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
