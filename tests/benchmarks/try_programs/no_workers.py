"""A small convolutional net whose batches are decoded and transformed in the main process."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class Pictures(Dataset):
    def __len__(self):
        return 50_000

    def __getitem__(self, i):
        raw = torch.arange(3 * 160 * 160, dtype=torch.float32).reshape(3, 160, 160).remainder(251 + i % 5)
        cut = nn.functional.interpolate(raw[None], size=128, mode="bilinear", align_corners=False)[0]
        return (cut / 255 - 0.5) / 0.25, i % 10


model = nn.Sequential(
    nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)
).to(device)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
loader = DataLoader(Pictures(), batch_size=32, shuffle=True)
for images, labels in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()
    optimizer.step()
