"""What the training script promises for each step: that of one process, one all-reduce, a loss in float32.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_10/proof_one_step.py
"""

import io
import random
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, Subset

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, parameters

import lab_10_train as script


@dataclass(frozen=True)
class Config:
    batch: int = 29  # divides by no number of ranks from 2 to 8
    micro_batch: int = 3
    half_batch: int = 32  # images of a rank; the gradients of very few can overflow in fp16, rightly
    steps: int = 3
    test_images: int = 59  # divides by no number of ranks either
    tolerance: float = 1e-12  # float64
    steps_of_epoch: int = 25  # as far as the schedule knows; it has two epochs


def trainer_of(data: script.Data, ranks: script.Ranks, cfg: Config, *more: str) -> script.Trainer:
    common = f"--epochs 2 --batch-size {cfg.batch} --warm-up 2 --clip 0.5".split()
    return script.Trainer(data, script.parse([*common, *more]), ranks, cfg.steps_of_epoch)


def batches_of(
    data: script.Data, options: object, ranks: script.Ranks, epoch: int = 0, first: int = 0
) -> list[list[int]]:
    """The indices of a rank's batches in an epoch, from step ``first`` on."""
    sampler = script.RankBatches(len(data.train), options.batch_size, options.seed, ranks.rank, ranks.size)
    sampler.done = epoch * sampler.steps + first
    return [[index for _, index in batch] for batch in sampler]


def order_of_images(data: script.Data, ranks: script.Ranks, cfg: Config) -> None:
    """One process plays all ranks: whatever their number, their batches make up that of one process."""
    options = script.parse(["--batch-size", str(cfg.batch)])
    alone = ranks._replace(rank=0, size=1)
    expected = batches_of(data, options, alone)
    for size in range(1, 9):
        parts = [batches_of(data, options, alone._replace(rank=rank, size=size)) for rank in range(size)]
        for step, batch in enumerate(expected):
            joined = [index for part in parts for index in part[step]]
            if sorted(joined) != sorted(batch):
                raise CourseError(f"on {size} ranks step {step} takes other images than one process does")
    images = [index for batch in expected for index in batch]
    if len(set(images)) != len(images):
        raise CourseError("an epoch takes an image twice")
    if batches_of(data, options, alone, epoch=1) == expected:
        raise CourseError("two epochs have the same order")
    if batches_of(data, options, alone, first=7) != expected[7:]:
        raise CourseError("an epoch that begins in its middle takes other images")
    sampler = script.RankBatches(len(data.train), cfg.batch, 0, 0, 1)
    once, again = ([[index for _, index in batch] for batch in sampler] for _ in range(2))
    if once == again:
        raise CourseError("a loop that goes through it twice takes the first epoch twice")
    print_on_rank_0("on 1 to 8 ranks a step takes the images that one process takes, from any step on")


Parameters = list[tuple[str, torch.Tensor]]


def joined_steps(data: script.Data, ranks: script.Ranks, cfg: Config) -> list[Parameters]:
    """The single-process truth: plain PyTorch on the joined batches. The parameters after each step."""
    trainer = trainer_of(data, ranks, cfg, "--float64")
    options = trainer.options
    model = script.build(data, options, ranks)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 1e-4},
        {"params": [p for p in model.parameters() if p.ndim == 1]},  # norms and biases
    ]
    optimizer = torch.optim.SGD(groups, 0.1, momentum=0.9)
    indices = batches_of(data, options, ranks._replace(rank=0, size=1))
    after = []
    for step in range(cfg.steps):
        trainer.step = step
        for group in groups:
            group["lr"] = (0.05, 0.1, 0.1)[step]  # 2 steps of warm-up, then a cosine that begins at 0.1
        images, labels = data.train[indices[step]]
        loss = F.cross_entropy(model(images.to(ranks.device).double()), labels.to(ranks.device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        after.append([(name, value.clone()) for name, value in parameters(model)])
    return after


def take_steps(
    name: str, trainer: script.Trainer, data: script.Data, expected: list[Parameters], cfg: Config
) -> tuple[dict[str, int], int]:
    """The script's steps on this rank's part, compared one by one with ``expected``.

    Returns what the last one communicates: {kind: calls}, and bytes. (In the first one DDP also learns in
    which order gradients come, and tells all ranks.)
    """
    indices = batches_of(data, trainer.options, trainer.ranks)
    for step, expected_now in enumerate(expected):
        images, labels = data.train[indices[step]]
        with record() as log:
            trainer.train_step(images, labels)
        now = parameters(trainer.ddp)
        assert_same_on_every_rank(name, now)
        assert_all_equal(f"{name}, step {step + 1}:", now, expected_now, cfg.tolerance)
    return dict(log.counts()), log.bytes()


def same_as_one_process(data: script.Data, ranks: script.Ranks, cfg: Config) -> None:
    """With and without accumulation: the parameters, and what a step communicates."""
    expected = joined_steps(data, ranks, cfg)
    model_bytes = sum(8 * value.numel() for _, value in expected[-1])
    for name, more in {"whole": (), "in micro-batches": ("--micro-batch", str(cfg.micro_batch))}.items():
        trainer = trainer_of(data, ranks, cfg, "--float64", *more)
        calls, size = take_steps(name, trainer, data, expected, cfg)
        if calls != {"all_reduce": 1} or size != model_bytes:
            raise CourseError(f"{name}: a step communicates by {calls}, {size:,} bytes")
        print_on_rank_0(f"{name}: equal to one process; a step has 1 all-reduce, of {model_bytes:,} bytes")


def stop_sign() -> None:
    """What it adds to a step."""
    sign = script.StopSign(dist.new_group(backend="gloo"))
    with record() as log:
        sign.seen_by_all()
        sign.finish()
    if log.counts() != {"all_reduce": 1} or log.bytes() != 4:
        raise CourseError(f"the stop sign communicates by {dict(log.counts())}, {log.bytes()} bytes")
    print_on_rank_0("the stop sign: 1 all-reduce, of 4 bytes")


def no_batch_norm(data: script.Data, ranks: script.Ranks) -> None:
    model = script.build(data, script.parse([]), ranks)
    layers = [type(layer).__name__ for layer in model.modules()]
    if any("BatchNorm" in layer for layer in layers):
        raise CourseError("the default model mixes the images of a batch")


@contextmanager
def dtypes_of_losses():
    """Yields a list that gets (dtype of the scores, dtype of the loss) of each ``F.cross_entropy``."""
    seen = []
    original = F.cross_entropy

    def spy(scores: torch.Tensor, *args, **options) -> torch.Tensor:
        loss = original(scores, *args, **options)
        seen.append((scores.dtype, loss.dtype))
        return loss

    with patch.object(F, "cross_entropy", spy):
        yield seen


def half_precision(data: script.Data, ranks: script.Ranks, cfg: Config) -> dict[str, float]:
    """Scores are in half precision, the loss is not, and the first step of fp16 is not skipped."""
    for kind, half in {"bf16": torch.bfloat16, "fp16": torch.float16}.items():
        batch = str(cfg.half_batch * ranks.size)
        trainer = trainer_of(data, ranks, cfg, "--amp", kind, "--batch-size", batch)
        before = [parameter.detach().clone() for parameter in trainer.ddp.parameters()]
        images, labels = data.train[batches_of(data, trainer.options, ranks)[0]]
        with dtypes_of_losses() as seen:
            trainer.train_step(images, labels)
        for scores, loss in seen:
            if scores != half or loss != torch.float32:
                raise CourseError(f"{kind}: scores are {scores}, the loss is {loss}")
        same = [torch.equal(a, b) for a, b in zip(before, trainer.ddp.parameters(), strict=True)]
        if any(same):
            raise CourseError(f"{kind}: step 1 is skipped")
        print_on_rank_0(f"--amp {kind}: scores in {half}, loss in {torch.float32}, step 1 is done")
    return loss_outside(trainer, images, labels, ranks)


def loss_outside(
    trainer: script.Trainer, images: torch.Tensor, labels: torch.Tensor, ranks: script.Ranks
) -> dict[str, float]:
    """The same step with the loss after the autocast block: it overflows, and the step is skipped."""
    scaler = torch.amp.GradScaler(ranks.device.type)
    with trainer.precision:
        scores = trainer.ddp(images.to(ranks.device))
    loss = F.cross_entropy(scores, labels.to(ranks.device))
    before = next(trainer.ddp.parameters()).detach().clone()
    scaler.scale(loss).backward()
    scaler.step(trainer.optimizer)
    scaler.update()
    assert loss.dtype == torch.float16
    assert torch.equal(before, next(trainer.ddp.parameters()))
    assert scaler.get_scale() == 65536 / 2
    print_on_rank_0(f"loss outside of autocast: in {loss.dtype}, step 1 is skipped, scale 65,536 -> 32,768")
    return {"scale": scaler.get_scale()}


def evaluation(data: script.Data, ranks: script.Ranks, cfg: Config) -> None:
    """Each image counts once, on however many ranks."""
    few = data._replace(test=Subset(data.test, range(cfg.test_images)))
    trainer = trainer_of(few, ranks, cfg)
    indices = batches_of(data, trainer.options, ranks)
    for step in range(cfg.steps):
        trainer.train_step(*data.train[indices[step]])
    to_test = script.loaders(few, trainer.options, ranks)[1]
    with redirect_stdout(io.StringIO()):  # the script's own line
        share, seen = trainer.evaluate(to_test)
    images, labels = data.test[list(range(cfg.test_images))]
    with torch.inference_mode():
        scores = trainer.ddp.module(images.to(ranks.device)).cpu()
    alone = (scores.argmax(1) == labels).sum().item()
    if seen != cfg.test_images or abs(share - alone / seen) > cfg.tolerance:
        raise CourseError(f"evaluates {seen} images, {share:.4f}; there are {cfg.test_images}, {alone} right")
    print_on_rank_0(f"evaluation: each of {seen} images once")


def shift_of(before: torch.Tensor, after: torch.Tensor) -> tuple[int, int]:
    """By how many pixels an image was moved down and to the right."""
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            if torch.equal(torch.roll(before, (down, right), (1, 2)), after):
                return down, right
    raise CourseError("an augmented image is not the image, moved by at most one pixel")


def augmentation(data: script.Data) -> None:
    """It depends on the epoch and the image alone."""
    augmented = script.digits(augment=True).train
    shifted, again = (script.Seeded(augmented, seed=0) for _ in range(2))
    images = [data.train[index][0] for index in range(20)]
    first = [shift_of(images[index], shifted[(0, index)][0]) for index in range(20)]
    second = [shift_of(images[index], shifted[(1, index)][0]) for index in range(20)]
    for index in reversed(range(20)):
        if shift_of(images[index], again[(0, index)][0]) != first[index]:
            raise CourseError("an image's augmentation depends on what was drawn before it")
    if len(set(first)) == 1:
        raise CourseError("all images of an epoch move alike")
    if first == second:
        raise CourseError("two epochs draw the same augmentations")
    draws_of_each_generator()
    print_on_rank_0("augmentation, from torch, NumPy or random: by seed, epoch and image alone")


class Draws(Dataset):
    """An item is what an augmentation would draw from each generator."""

    def __getitem__(self, index: int) -> dict[str, int]:
        of_torch = torch.randint(2**31, ()).item()
        return {"torch": of_torch, "NumPy": np.random.randint(2**31), "random": random.randrange(2**31)}


def draws_of_each_generator() -> None:
    """Each draw follows from epoch and image, and what is drawn afterwards does not."""
    draws = Draws()
    positions = [(0, 0), (0, 1), (1, 0)]
    first, again = {}, {}
    for seen, order in ((first, positions), (again, positions[::-1])):
        for position in order:
            draws[0]  # something else draws, too
            seen[position] = script.Seeded(draws, seed=0)[position]
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    expected = [draws[0], draws[0]]
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    beside = [draws[0], script.Seeded(draws, seed=0)[0, 0], draws[0]]
    for name in expected[0]:
        if len({seen[name] for seen in first.values()}) < len(positions):
            raise CourseError(f"{name}: two images or two epochs draw alike")
        if any(first[position][name] != again[position][name] for position in positions):
            raise CourseError(f"{name}: a draw depends on what was drawn before it")
        if beside[2][name] != expected[1][name]:
            raise CourseError(f"{name}: an augmentation changes what the rank draws after it")


def main(cfg: Config) -> None:
    with process_group(smallest=2) as group:
        ranks = script.Ranks(group.rank, group.world_size, group.device)
        data = script.digits()
        order_of_images(data, ranks, cfg)
        augmentation(data)
        no_batch_norm(data, ranks)
        same_as_one_process(data, ranks, cfg)
        stop_sign()
        evaluation(data, ranks, cfg)
        record_results("10_one_step", half_precision(data, ranks, cfg))


if __name__ == "__main__":
    run(main, Config())
