"""Trains a transformer language model in plain PyTorch, in the style of its tutorials. Texts are random."""

import torch
from torch import nn

WORDS, LENGTH, WIDTH = 32000, 256, 512


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.encoder(self.embedding(tokens), mask=mask, is_causal=True))


device = "cuda"
model = LanguageModel().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
loss_fn = nn.CrossEntropyLoss()
tokens = torch.randint(WORDS, (6400, LENGTH + 1))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tokens), batch_size=32, shuffle=True)

total = 0.0
for (batch,) in loader:
    batch = batch.to(device)
    logits = model(batch[:, :-1])
    loss = loss_fn(logits.reshape(-1, WORDS), batch[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item()
print(total / len(loader))
