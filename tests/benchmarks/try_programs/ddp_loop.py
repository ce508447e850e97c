"""DistributedDataParallel over the ranks of torchrun, as PyTorch's tutorial writes it: a transformer on random texts."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

device = "cuda" if torch.cuda.is_available() else "cpu"
words, width, layers = (100, 32, 2) if device == "cpu" else (8000, 512, 6)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 32)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)))


def main():
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank = int(os.environ["LOCAL_RANK"])
    if device == "cuda":
        torch.cuda.set_device(rank)
    model = DistributedDataParallel(Tagger().to(device), device_ids=[rank] if device == "cuda" else None, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    texts = TensorDataset(torch.randint(words, (64_000, 128)), torch.randint(32, (64_000, 128)))
    sampler = DistributedSampler(texts)
    loader = DataLoader(texts, batch_size=4 if device == "cpu" else 32, sampler=sampler)
    for epoch in range(10):
        sampler.set_epoch(epoch)
        for tokens, tags in loader:
            tokens, tags = tokens.to(device), tags.to(device)
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tags.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
