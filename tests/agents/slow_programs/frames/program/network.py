import torch
import torch.nn as nn
import torch.nn.functional as F


class Residual(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.conv1 = nn.Conv2d(ch, ch, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(ch)
        self.conv2 = nn.Conv2d(ch, ch, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(ch)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(h)))


class CellNet(nn.Module):
    def __init__(self, n_classes=8, width=16):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 5, stride=2, padding=2)
        self.stage1 = Residual(width)
        self.down = nn.Conv2d(width, width * 2, 3, stride=2, padding=1)
        self.stage2 = Residual(width * 2)
        self.head = nn.Linear(width * 2, n_classes)

    def forward(self, x):
        h = F.relu(self.stem(x))
        h = self.stage1(h)
        h = F.relu(self.down(h))
        h = self.stage2(h)
        return self.head(h.mean(dim=(2, 3)))


def load_pretrained(model, seed):
    gen = torch.Generator().manual_seed(seed)
    state = {}
    for name, value in model.state_dict().items():
        if value.dim() > 1:
            fan_in = value[0].numel()
            state[name] = torch.randn(value.shape, generator=gen) * (1.6 / fan_in) ** 0.5
        elif name.endswith("running_mean"):
            state[name] = torch.randn(value.shape, generator=gen) * 0.05
        else:
            state[name] = value.clone()
    model.load_state_dict(state)
    return model
