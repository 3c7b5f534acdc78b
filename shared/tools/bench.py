"""``make bench``: the training script's loop beside a bare DDP loop, and half precision beside float32.

Not a test. All loops run in one process group and take rounds of steps in turns, so that they see the same
load; medians count.
"""

import contextlib
import io
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from shared.runtime.group import Group, process_group
from shared.runtime.loading import load_file
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.tools.lessons import ROOT

SCRIPT = ROOT / "labs" / "lab_10_train.py"
DIGITS = ("--data", "digits", "--batch-size", "48")
RESNET = ("--data", "random", "--side", "64", "--model", "resnet18", "--batch-size", "32")
WARM_UP = 5
ROUNDS = 15
STEPS = 50  # of a round; a tenth of it for resnet18

Loop = Callable[[int], None]  # takes so many steps


def endless(loader: DataLoader, next_epoch: Callable[[int], None]) -> Iterator[list[torch.Tensor]]:
    """Batch after batch, epoch after epoch."""
    epoch = 0
    while True:
        next_epoch(epoch)
        yield from loader
        epoch += 1


def loop_of_the_script(script: Any, arguments: tuple[str, ...], ranks: Any) -> Loop:
    """All that the script does for a step: the step, the log, the stop sign."""
    options = script.parse([*arguments, "--epochs", "1000"])
    data = script.load_data(options)
    loader, _ = script.loaders(data, options, ranks)
    trainer = script.Trainer(data, options, ranks)
    stop_sign = script.StopSign(ranks)
    steps = 1000 * len(loader)
    with contextlib.redirect_stderr(io.StringIO()):  # where its bar goes
        log = script.Log(options, ranks, trainer, None, steps)
    batches = endless(loader, lambda epoch: loader.batch_sampler.start_at(epoch, 0))

    def take(count: int) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            for _ in range(count):
                images, labels = next(batches)
                log.note(trainer.train_step(images, labels, steps))
                stop_sign.seen_by_all()

    return take


def bare_loop(script: Any, arguments: tuple[str, ...], ranks: Any) -> Loop:
    """The least that trains the same model on the same data with DDP."""
    options = script.parse(list(arguments))
    data = script.load_data(options)
    sampler: DistributedSampler = DistributedSampler(data.train, drop_last=True)
    loader = DataLoader(data.train, options.batch_size // ranks.size, sampler=sampler, drop_last=True)
    ddp = DistributedDataParallel(script.build(data, options, ranks), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    batches = endless(loader, sampler.set_epoch)

    def take(count: int) -> None:
        for _ in range(count):
            images, labels = next(batches)
            loss = F.cross_entropy(ddp(images.to(ranks.device)), labels.to(ranks.device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return take


def in_turns(loops: dict[str, Loop], steps: int) -> dict[str, list[float]]:
    """{name: seconds of a step in each round}."""
    for take in loops.values():
        take(WARM_UP)
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(ROUNDS):
        for name, take in loops.items():
            dist.barrier()
            started = time.perf_counter()
            take(steps)
            dist.barrier()
            seconds[name].append((time.perf_counter() - started) / steps)
    return seconds


def print_ratios(title: str, seconds: dict[str, list[float]]) -> None:
    """Milliseconds of a step, and times the first row's step: medians of the rounds."""
    print_on_rank_0(f"{title:40} ms/step   ratio")
    first = next(iter(seconds.values()))
    for name, taken in seconds.items():
        ratio = statistics.median(own / other for own, other in zip(taken, first, strict=True))
        print_on_rank_0(f"  {name:38} {1e3 * statistics.median(taken):7.2f} {ratio:7.3f}")


def bench(group: Group) -> None:
    script = load_file(SCRIPT, "lab_10_train")
    for_signals = dist.new_group(backend="gloo")
    ranks = script.Ranks(group.rank, group.world_size, group.device, for_signals, for_signals)
    for title, arguments, steps in (("digits", DIGITS, STEPS), ("resnet18, 64 x 64", RESNET, STEPS // 10)):
        with contextlib.redirect_stdout(io.StringIO()):  # what the script says of batch norm
            loops = {
                "bare DDP loop": bare_loop(script, arguments, ranks),
                "the script, --clip 0": loop_of_the_script(script, (*arguments, "--clip", "0"), ranks),
                "the script": loop_of_the_script(script, arguments, ranks),
                "the script, --amp bf16": loop_of_the_script(script, (*arguments, "--amp", "bf16"), ranks),
            }
        print_ratios(title, in_turns(loops, steps))


def main() -> None:
    with process_group(timeout_s=300, report=False) as group:
        bench(group)


if __name__ == "__main__":
    run(main)
