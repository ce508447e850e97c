"""Fine-tunes a small GPT-2 with the Trainer, in the style of the Transformers documentation. Weights and texts are random."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Texts(torch.utils.data.Dataset):
    def __init__(self, rows=4000, length=256, words=50257):
        self.tokens = torch.randint(words, (rows, length))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, row):
        return {"input_ids": self.tokens[row], "labels": self.tokens[row]}


model = GPT2LMHeadModel(GPT2Config())

training_args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=16,
    learning_rate=2e-5,
    max_steps=240,
    logging_steps=20,
    save_strategy="no",
    report_to="none",
)

trainer = Trainer(model=model, args=training_args, train_dataset=Texts())
trainer.train()
