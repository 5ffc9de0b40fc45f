"""Hugging Face's Trainer on a small model: ``hf_trainer.py on|off WORKERS`` sets dataloader_pin_memory."""

import os
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

STEPS, BATCH, COUNT = 40, 16, 64 * 4096


class Pieces(Dataset):
    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        return {"x": torch.full((COUNT,), float(index % 7)), "labels": torch.tensor(index % 10)}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4096, 10)

    def forward(self, x, labels):
        logits = self.inner(x.view(len(labels), 64, 4096)).mean(1)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def main():
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=BATCH, max_steps=STEPS, report_to=[], save_strategy="no",
            disable_tqdm=True, dataloader_pin_memory=sys.argv[1] == "on",
            dataloader_num_workers=int(sys.argv[2]),
        )  # fmt: skip
        trainer = Trainer(model=Model(), args=arguments, train_dataset=Pieces())
        trainer.train()  # the training


main()
