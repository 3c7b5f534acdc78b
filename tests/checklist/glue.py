"""A text classifier by Accelerate."""

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup


def loaders(accelerator, tokenizer, batch_size):
    data = load_dataset("glue", "mrpc")

    def tokenize(examples):
        return tokenizer(examples["sentence1"], examples["sentence2"], truncation=True)

    with accelerator.main_process_first():
        data = data.map(tokenize, batched=True)
    train = DataLoader(data["train"], shuffle=True, batch_size=batch_size, collate_fn=tokenizer.pad)
    return train, DataLoader(data["validation"], batch_size=32, collate_fn=tokenizer.pad)


def evaluate(accelerator, model, loader):
    model.eval()
    correct = total = 0
    for batch in loader:
        with torch.no_grad():
            outputs = model(**batch)
        found, labels = accelerator.gather_for_metrics((outputs.logits.argmax(-1), batch["labels"]))
        correct += (found == labels).sum().item()
        total += len(labels)
    return correct / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--patience", type=int, default=2)
    args = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=4)
    set_seed(42)
    tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
    train_loader, eval_loader = loaders(accelerator, tokenizer, 16)
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    scheduler = get_linear_schedule_with_warmup(optimizer, 100, len(train_loader) * args.epochs)
    model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, scheduler
    )
    best, bad_epochs = 0.0, 0
    for epoch in range(args.epochs):
        model.train()
        for step, batch in enumerate(train_loader):
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if step % 100 == 0:
                mean = accelerator.reduce(loss.detach(), reduction="mean")
                accelerator.print(f"step {step}: {mean.item():.3f}")
        accuracy = evaluate(accelerator, model, eval_loader)
        accelerator.print(f"epoch {epoch}: {accuracy:.3f}")
        accelerator.save_state(os.path.join(args.output_dir, f"epoch_{epoch}"))
        bad_epochs = 0 if accuracy > best else bad_epochs + 1
        best = max(best, accuracy)
        if bad_epochs > args.patience:
            break
    accelerator.wait_for_everyone()
    unwrapped = accelerator.unwrap_model(model)
    if accelerator.is_main_process:
        torch.save(unwrapped.state_dict(), os.path.join(args.output_dir, "model.pt"))


if __name__ == "__main__":
    main()
