"""Plankton-like shape classifier: ResNet-34 from scratch on drawn silhouettes."""

import math
import random

import torch
from PIL import Image, ImageDraw
from torch.utils.data import DataLoader, Dataset
from torchvision import models, transforms

NUM_CLASSES = 8
device = "cuda" if torch.cuda.is_available() else "cpu"


def draw_cell(label, rng):
    img = Image.new("RGB", (160, 160), tuple(rng.randint(170, 230) for _ in range(3)))
    d = ImageDraw.Draw(img)
    cx, cy, r = rng.randint(60, 100), rng.randint(60, 100), rng.randint(25, 45)
    arms, phase = label + 3, rng.random() * math.pi
    for k in range(arms):
        a = phase + 2 * math.pi * k / arms
        d.line((cx, cy, cx + 1.5 * r * math.cos(a), cy + 1.5 * r * math.sin(a)), fill=(40, 60, 40), width=3)
    d.ellipse((cx - r // 2, cy - r // 2, cx + r // 2, cy + r // 2), fill=tuple(rng.randint(30, 120) for _ in range(3)))
    return img


class Plankton(Dataset):
    def __init__(self, n, tf):
        rng = random.Random(7)
        self.labels = [rng.randrange(NUM_CLASSES) for _ in range(n)]
        self.images = [draw_cell(y, rng) for y in self.labels]
        self.tf = tf

    def __getitem__(self, i):
        return self.tf(self.images[i]), self.labels[i]

    def __len__(self):
        return len(self.labels)


train_tf = transforms.Compose(
    [
        transforms.RandomResizedCrop(128, scale=(0.6, 1.0)),
        transforms.RandomHorizontalFlip(),
        transforms.RandomRotation(20),
        transforms.ColorJitter(0.2, 0.2),
        transforms.ToTensor(),
        transforms.Normalize([0.5] * 3, [0.25] * 3),
    ]
)
loader = DataLoader(Plankton(3200, train_tf), batch_size=32, shuffle=True, drop_last=True)
model = models.resnet34(num_classes=NUM_CLASSES).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.05)

step = 0
for epoch in range(50):
    for x, y in loader:
        loss = criterion(model(x.to(device)), y.to(device))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        step += 1
