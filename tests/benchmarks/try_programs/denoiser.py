"""A diffusion model's training loop, as diffusers' examples write it, around a U-Net of convolutions."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
wide = 16 if device == "cpu" else 160


class Block(nn.Module):
    def __init__(self, into, out):
        super().__init__()
        self.convs = nn.Sequential(
            nn.GroupNorm(8, into), nn.SiLU(), nn.Conv2d(into, out, 3, padding=1), nn.GroupNorm(8, out), nn.SiLU(), nn.Conv2d(out, out, 3, padding=1)
        )
        self.skip = nn.Conv2d(into, out, 1)

    def forward(self, x):
        return self.skip(x) + self.convs(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(4, wide, 3, padding=1), nn.Conv2d(wide, 4, 3, padding=1)
        self.down, self.middle, self.up = Block(wide, wide), Block(wide, 2 * wide), Block(3 * wide, wide)

    def forward(self, x):
        high = self.down(self.first(x))
        low = self.middle(nn.functional.avg_pool2d(high, 2))
        return self.last(self.up(torch.cat([high, nn.functional.interpolate(low, scale_factor=2.0)], 1)))


unet = UNet().to(device)
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
latents = torch.randn(2 if device == "cpu" else 32, 4, 64, 64, device=device)
alphas = torch.linspace(0.99, 0.01, 1000, device=device)
for _ in range(20_000):
    noise, when = torch.randn_like(latents), torch.randint(0, 1000, (len(latents),), device=device)
    kept = alphas[when].view(-1, 1, 1, 1)
    loss = nn.functional.mse_loss(unet(kept.sqrt() * latents + (1 - kept).sqrt() * noise), noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
