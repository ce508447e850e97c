"""Nightly job: send every support ticket through the DeBERTa router and count tickets per team."""

import time

import torch
from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(3)

TEAMS = ["billing", "login", "delivery", "returns", "technical", "other"]
MAX_LEN, BATCH, PAD, CLS, SEP = 256, 64, 0, 1, 2

config = DebertaV2Config(
    vocab_size=32000,
    hidden_size=512,
    num_hidden_layers=8,
    num_attention_heads=8,
    intermediate_size=2048,
    relative_attention=True,
    position_buckets=128,
    norm_rel_ebd="layer_norm",
    share_att_key=True,
    pos_att_type=["p2c", "c2p"],
    position_biased_input=False,
    max_position_embeddings=512,
    type_vocab_size=0,
    num_labels=len(TEAMS),
)
model = DebertaV2ForSequenceClassification(config).to(device).eval()


def fake_tickets(n):
    """Token ids as they come out of the tokenizer: most tickets are a few sentences."""
    lengths = (18 + 30 * torch.rand(n) + 60 * torch.rand(n) ** 4).long()
    return [[CLS] + torch.randint(3, 32000, (int(k),)).tolist() + [SEP] for k in lengths]


def encode(batch):
    ids = torch.full((len(batch), MAX_LEN), PAD)
    mask = torch.zeros(len(batch), MAX_LEN, dtype=torch.long)
    for row, tokens in enumerate(batch):
        tokens = tokens[:MAX_LEN]
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = 1
    return ids, mask


tickets = fake_tickets(6400)
encoded = [encode(tickets[i : i + BATCH]) for i in range(0, len(tickets), BATCH)]

done, start = 0, time.time()
with torch.no_grad():
    for night in range(40):
        counts = torch.zeros(len(TEAMS), device=device)
        for i, (ids, mask) in enumerate(encoded):
            logits = model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
            counts += torch.nn.functional.one_hot(logits.argmax(-1), len(TEAMS)).sum(0)
            done += len(ids)
            if i % 50 == 0:
                print(f"{done} tickets, {counts.tolist()}, {time.time() - start:.1f}s", flush=True)
