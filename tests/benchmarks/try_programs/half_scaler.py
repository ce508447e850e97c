"""Mixed precision in float16 with a gradient scaler, as PyTorch's recipe writes it."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.LayerNorm(256)) for _ in range(16)), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device)
x, y = torch.randn(64, 256, device=device), torch.randint(0, 10, (64,), device=device)
for _ in range(20_000):
    optimizer.zero_grad()
    with torch.autocast(device, torch.float16 if device == "cuda" else torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
