"""Transformers' Trainer on a small GPT-2, logging each step."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

small = not torch.cuda.is_available()


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 40_000

    def __getitem__(self, i):
        ids = torch.arange(128) * (i % 89 + 1) % 5000
        return {"input_ids": ids, "labels": ids}


config = GPT2Config(vocab_size=5000, n_layer=2 if small else 6, n_embd=64 if small else 256, n_head=4, n_positions=128)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=8, max_steps=5000, save_strategy="no", report_to="none", logging_steps=10, disable_tqdm=True
    )
    Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Texts()).train()
