"""Transformers' Trainer on BERT from scratch."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

small = not torch.cuda.is_available()


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 40_000

    def __getitem__(self, i):
        ids = torch.arange(128) * (i % 97 + 1) % 30_000
        return {"input_ids": ids, "attention_mask": torch.ones(128, dtype=torch.long), "labels": i % 2}


config = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128) if small else BertConfig()
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=4 if small else 32, max_steps=5000, save_strategy="no", report_to="none", logging_steps=50, disable_tqdm=True
    )
    Trainer(BertForSequenceClassification(config), arguments, train_dataset=Sentences()).train()
