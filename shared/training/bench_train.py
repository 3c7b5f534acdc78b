"""The training script's loop beside a bare DDP loop, and half precision beside float32.

    torchrun --standalone --nproc-per-node=2 -m shared.training.bench_train

Not a test. All loops run in one process group and take rounds of steps in turns, so that they see the same
load; medians count. ``make bench`` runs it. Taught in lesson 10.
"""

import argparse
import contextlib
import io
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from shared.runtime.group import Group, process_group
from shared.runtime.loading import load_file
from shared.runtime.options import positive
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run

SCRIPT = Path(__file__).resolve().parents[2] / "labs" / "lab_10_train.py"
DIGITS = ("--data", "digits", "--batch-size", "48")
RESNET = ("--data", "random", "--side", "64", "--model", "resnet18", "--batch-size", "32")
LARGER = ("--data", "random", "--side", "128", "--model", "resnet18", "--batch-size", "32")
BF16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16", "asimdbf16")  # of x86 and ARM, in /proc/cpuinfo
WARM_UP = 5

Loop = Callable[[int], None]  # takes so many steps


def for_ever(loader: DataLoader, next_epoch: Callable[[int], None]) -> Iterator[list[torch.Tensor]]:
    """Batch after batch, epoch after epoch."""
    epoch = 0
    while True:
        next_epoch(epoch)
        yield from loader
        epoch += 1


def loop_of_the_script(script: Any, arguments: tuple[str, ...], ranks: Any) -> Loop:
    """All that the script does for a step: the step, the log, the stop sign."""
    options = script.parse([*arguments, "--epochs", "1000"])
    data = script.load_data(options, ranks)
    to_train, _ = script.loaders(data, options, ranks)
    trainer = script.Trainer(data, options, ranks)
    stop_sign = script.StopSign(ranks)
    steps = 1000 * len(to_train)
    with contextlib.redirect_stderr(io.StringIO()):  # where its bar goes
        log = script.Log(options, ranks, trainer, None, steps)
    batches = for_ever(to_train, lambda epoch: to_train.batch_sampler.start_at(epoch, 0))

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
    data = script.load_data(options, ranks)
    sampler: DistributedSampler = DistributedSampler(data.train, drop_last=True)
    loader = DataLoader(
        data.train, options.batch_size // ranks.size, sampler=sampler, drop_last=True, pin_memory=ranks.on_gpu
    )
    ddp = DistributedDataParallel(script.build(data, options, ranks), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    batches = for_ever(loader, sampler.set_epoch)

    def take(count: int) -> None:
        for _ in range(count):
            images, labels = next(batches)
            loss = F.cross_entropy(ddp(images.to(ranks.device)), labels.to(ranks.device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return take


def in_turns(loops: dict[str, Loop], rounds: int, steps: int) -> dict[str, list[float]]:
    """{name: seconds per step of each round}."""
    for take in loops.values():
        take(WARM_UP)
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, take in loops.items():
            dist.barrier()
            started = time.perf_counter()
            take(steps)
            dist.barrier()
            seconds[name].append((time.perf_counter() - started) / steps)
    return seconds


def table(title: str, seconds: dict[str, list[float]], batch: int) -> None:
    """Rows of milliseconds per step, images per second, and times the first row's step, by rounds."""
    print_on_rank_0(f"\n{title}\n  {'':24} ms/step  images/s  x step of the first")
    first = next(iter(seconds.values()))
    for name, taken in seconds.items():
        median = statistics.median(taken)
        ratio = statistics.median(own / other for own, other in zip(taken, first, strict=True))
        print_on_rank_0(f"  {name:24} {1e3 * median:7.2f} {batch / median:9,.0f} {ratio:10.3f}")


def bf16_instructions() -> str:
    """Those of this CPU, by name."""
    cpuinfo = Path("/proc/cpuinfo")
    flags: set[str] = set()
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                flags.update(line.partition(":")[2].split())
    return ", ".join(flag for flag in BF16_FLAGS if flag in flags) or "none"


def bench(group: Group, rounds: int, steps: int, more: dict[str, Callable[..., Loop]]) -> None:
    """``more``: other loops to measure, each built like ``bare_loop``."""
    script = load_file(SCRIPT, "lab_10_train")
    for_signals = dist.new_group(backend="gloo")
    ranks = script.Ranks(group.rank, group.world_size, group.device, for_signals, for_signals)
    for name, arguments, count in (("digits", DIGITS, steps), ("resnet18, 64 x 64", RESNET, steps // 10)):
        batch = script.parse(list(arguments)).batch_size
        with contextlib.redirect_stdout(io.StringIO()):  # what the script says of batch norm
            loops = {
                "bare DDP loop": bare_loop(script, arguments, ranks),
                "the script": loop_of_the_script(script, arguments, ranks),
                "the script, --clip 0": loop_of_the_script(script, (*arguments, "--clip", "0"), ranks),
            }
            for other, build in more.items():
                loops[other] = build(script, arguments, ranks)
        table(name, in_turns(loops, rounds, count), batch)
    for side, arguments in (("64 x 64", RESNET), ("128 x 128", LARGER)):
        with contextlib.redirect_stdout(io.StringIO()):
            loops = {
                "float32": loop_of_the_script(script, arguments, ranks),
                "--amp bf16": loop_of_the_script(script, (*arguments, "--amp", "bf16"), ranks),
            }
        title = f"resnet18, {side}, the script; bf16 instructions of this CPU: {bf16_instructions()}"
        table(title, in_turns(loops, rounds, steps // 10), 32)


def main(more: dict[str, Callable[..., Loop]] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=positive, default=15, help="the median of so many counts")
    parser.add_argument("--steps", type=positive, default=50, help="per round; a tenth of it for resnet18")
    options = parser.parse_args()
    with process_group(timeout_s=300, report=False) as group:
        bench(group, options.rounds, options.steps, more or {})


if __name__ == "__main__":
    run(main)
