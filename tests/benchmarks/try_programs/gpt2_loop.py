"""A plain loop around Transformers' GPT-2 with eager attention, and an optimizer that takes one parameter after the other."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

device = "cuda" if torch.cuda.is_available() else "cpu"
config = GPT2Config(n_layer=2, n_embd=64, n_head=2) if device == "cpu" else GPT2Config()
config._attn_implementation = "eager"
model = GPT2LMHeadModel(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
ids = torch.randint(0, 50_000, (2 if device == "cpu" else 8, 128 if device == "cpu" else 512), device=device)
for _ in range(10_000):
    optimizer.zero_grad(set_to_none=False)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
