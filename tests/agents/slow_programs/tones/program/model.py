import torch.nn as nn


class ToneNet(nn.Module):
    def __init__(self, n_classes, width=6):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(width, width * 2, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width * 2, width * 2, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Linear(width * 2, n_classes)

    def forward(self, x):
        h = self.body(x)
        h = h.mean(dim=(2, 3))
        return self.head(h)
