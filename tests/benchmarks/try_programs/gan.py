"""Two nets that learn by turns, as PyTorch's tutorial on DCGAN has them."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
wide = 8 if device == "cpu" else 64
G = nn.Sequential(
    nn.ConvTranspose2d(100, 4 * wide, 4), nn.BatchNorm2d(4 * wide), nn.ReLU(), nn.ConvTranspose2d(4 * wide, 2 * wide, 4, 2, 1), nn.BatchNorm2d(2 * wide), nn.ReLU(),
    nn.ConvTranspose2d(2 * wide, wide, 4, 2, 1), nn.BatchNorm2d(wide), nn.ReLU(), nn.ConvTranspose2d(wide, 3, 4, 2, 1), nn.Tanh(),
).to(device)  # fmt: skip
D = nn.Sequential(
    nn.Conv2d(3, wide, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(wide, 2 * wide, 4, 2, 1), nn.BatchNorm2d(2 * wide), nn.LeakyReLU(0.2),
    nn.Conv2d(2 * wide, 4 * wide, 4, 2, 1), nn.BatchNorm2d(4 * wide), nn.LeakyReLU(0.2), nn.Conv2d(4 * wide, 1, 4), nn.Flatten(),
).to(device)  # fmt: skip
of_g, of_d = (torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in (G, D))
real = torch.rand(64, 3, 32, 32, device=device) * 2 - 1
loss = nn.BCEWithLogitsLoss()
one, none = torch.ones(64, 1, device=device), torch.zeros(64, 1, device=device)
for _ in range(20_000):
    fake = G(torch.randn(64, 100, 1, 1, device=device))
    of_d.zero_grad()
    (loss(D(real), one) + loss(D(fake.detach()), none)).backward()
    of_d.step()
    of_g.zero_grad()
    loss(D(fake), one).backward()
    of_g.step()
