"""The training script with a ResNet, whose batch norm our own synchronizes on the CPU: 9 images on two ranks.

Rank 0 has 5 of them, rank 1 has 4. A step on all at once is compared with plain PyTorch on the joined batch.
In micro-batches of up to 4 both ranks must make two: else one waits for ever in a batch norm. Without our
batch norm, evaluation must leave all ranks the same running statistics.
"""

import sys

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

from shared.training.parity import assert_same_on_every_rank

import lab_10_train as script
from lesson_10.sync_batch_norm import convert_batch_norm

BATCH = 9


def main() -> int:
    ranks = script.join(script.parse(["--timeout", "60"]))
    generator = torch.Generator().manual_seed(0)
    whole = TensorDataset(torch.rand(BATCH, 3, 32, 32, generator=generator), torch.arange(BATCH))
    data = script.Data(whole, whole, classes=10, known_by=0)
    indices = range(ranks.rank, BATCH, ranks.size)
    images, labels = data.train[list(indices)]
    original = script.build
    script.build = lambda *arguments: convert_batch_norm(original(*arguments))
    model = ["--model", "resnet18", "--float64", "--clip", "0", "--warm-up", "0", "--weight-decay", "0"]
    options = script.parse([*model, "--batch-size", str(BATCH)])
    trainer = script.Trainer(data, options, ranks, steps_of_epoch=2)
    trainer.train_step(images, labels)

    alone = original(data, options, ranks)
    x, y = data.train[:]
    F.cross_entropy(alone(x.double()), y).backward()
    torch.optim.SGD(alone.parameters(), options.lr).step()
    tensors = dict(trainer.ddp.module.state_dict())
    for name, expected in alone.state_dict().items():
        torch.testing.assert_close(tensors[name], expected, rtol=0, atol=1e-8, msg=f"{name} differs")

    trainer = script.Trainer(
        data, script.parse([*model, f"--batch-size={BATCH}", "--micro-batch=4"]), ranks, 2
    )
    trainer.train_step(images, labels)
    if ranks.rank == 0:
        print(f"in micro-batches; the loss is finite: {bool(trainer.losses.isfinite())}")

    script.build = original
    trainer = script.Trainer(data, options, ranks, steps_of_epoch=2)
    trainer.train_step(images, labels)
    trainer.evaluate(DataLoader(Subset(data.test, indices), batch_size=2))
    assert trainer.ddp.module.training, "evaluation leaves the model in evaluation mode"
    assert_same_on_every_rank("after evaluation", list(trainer.ddp.module.named_buffers()))
    script.dist.barrier()
    script.dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
