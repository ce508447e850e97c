"""A language model of LSTMs whose loop synchronises and empties the cache, as many loops on the web do."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.out = nn.Embedding(8000, 256), nn.LSTM(256, 256, 2, batch_first=True), nn.Linear(256, 8000)

    def forward(self, ids):
        return self.out(self.lstm(self.embed(ids))[0])


model = Words().to(device)
optimizer = torch.optim.Adam(model.parameters())
ids = torch.randint(0, 8000, (16, 65), device=device)
for _ in range(20_000):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
