"""The loop of torchvision's references: ResNet-50 on images that workers make, the loss printed by a read in each step."""

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader

device = "cuda" if torch.cuda.is_available() else "cpu"
small = device == "cpu"


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        return torch.full((3, 64 if small else 224, 64 if small else 224), (i % 17) / 17), i % 1000


def main():
    model = (torchvision.models.resnet18() if small else torchvision.models.resnet50()).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    loader = DataLoader(Images(), batch_size=4 if small else 64, shuffle=True, num_workers=2 if small else 8)
    total = 0.0
    for image, target in loader:
        image, target = image.to(device), target.to(device)
        loss = criterion(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()


if __name__ == "__main__":
    main()
