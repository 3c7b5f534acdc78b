"""Train an image classifier on any number of ranks, and go on after a restart at any moment.

Copy this file, lab_11_checkpointing.py and lab_13_stopping.py. They need torch, and torchvision for folders.

Alone:       python lab_10_train.py --epochs 2
Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_10_train.py --epochs 2
Written by:  notebooks/10_training_template.ipynb (edit it there)

SIGTERM, SIGINT and SIGHUP, to a rank or to torchrun, and SIGUSR1 to a rank make all ranks save and leave.
Exit codes of a rank: 0 done, 1 a failure, 2 refused, 75 saved and left; the same command goes on from there.
"""

import argparse
import gzip
import json
import math
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import lab_13_stopping as stopping
import torch
import torch.distributed as dist
import torch.nn.functional as F
from lab_11_checkpointing import Checkpoints, Refused
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler, Subset, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

# When a run goes on, these options may differ: they do not decide what is learnt,
FREE = {"allow_changes", "checkpoints", "data", "device", "evaluate", "keep", "log_every", "peak_tflops"}
FREE |= {"save_every", "timeout", "workers"}
# and these may with --allow-changes. All others must be as they were, and the images, wherever they lie.
CHANGEABLE = {"clip", "compile", "epochs", "images", "lr", "micro_batch", "warm_up", "weight_decay"}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    shows_defaults = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(formatter_class=shows_defaults, allow_abbrev=False, exit_on_error=False)
    add = parser.add_argument
    add("--data", default="digits", help="digits, or a folder with train/CLASS/ and test/CLASS/")
    add("--side", type=int, default=64, help="height and width of the images of a folder")
    add("--model", default="convnet", help="convnet, or the name of a classifier of torchvision")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: GPUs, if there are any")
    add("--epochs", type=int, default=6, help="how often each image is used")
    add("--batch-size", type=int, default=48, help="images per step, of all ranks together")
    add("--micro-batch", type=int, help="images per forward pass and rank; gradients add up to a step")
    add("--optimizer", choices=["sgd", "adamw"], default="sgd", help="sgd has a momentum of 0.9")
    add("--lr", type=float, help="highest learning rate, after the warm-up; None: 0.1 of sgd, 0.001 of adamw")
    add("--warm-up", type=int, default=20, help="steps in which the learning rate grows")
    add("--weight-decay", type=float, default=1e-4, help="of matrices and filters, not of norms and biases")
    add("--clip", type=float, default=1.0, help="highest norm of the gradient; 0: any")
    add("--augment", action="store_true", help="shift the images to train on at random")
    add("--amp", nargs="?", const="bf16", choices=["bf16", "fp16"], help="half precision where that is safe")
    add("--float64", action="store_true", help="compute in float64, to compare runs")
    add("--compile", action="store_true", help="compile the model, anew for each size of a micro-batch")
    add("--seed", type=int, default=0, help="of all that is random")
    add("--workers", type=int, default=0, help="processes per rank that load images")
    add("--checkpoints", type=Path, metavar="FOLDER", help="save there, and go on from the newest one there")
    add("--save-every", type=int, help="steps between two checkpoints; None: an epoch")
    add("--keep", type=int, default=2, help="checkpoints to keep")
    add("--allow-changes", action="store_true", help=f"these may differ: {', '.join(sorted(CHANGEABLE))}")
    add("--evaluate", action="store_true", help="only test the newest checkpoint")
    add("--log-every", type=int, default=10, help="steps between two lines of JSON")
    add("--peak-tflops", type=float, help="of a GPU in this precision, from its data sheet, to log the MFU")
    add("--timeout", type=int, default=600, help="seconds that a rank waits for the others")
    options = parser.parse_args(arguments)
    if options.lr is None:
        options.lr = 0.1 if options.optimizer == "sgd" else 0.001
    for name, value in vars(options).items():
        lowest = 0 if name in ("lr", "warm_up", "weight_decay", "clip", "workers", "seed") else 1
        if type(value) in (int, float) and not lowest <= value < math.inf:
            raise Refused(f"--{name.replace('_', '-')} must be a number from {lowest}, not {value}")
    if options.amp and options.float64:
        raise Refused("--amp computes in half precision, --float64 in double: use one of them")
    if options.evaluate and not options.checkpoints:
        raise Refused("--evaluate tests a checkpoint: name its folder with --checkpoints")
    return options


class Ranks(NamedTuple):
    rank: int
    size: int
    device: torch.device


def join(options: argparse.Namespace) -> Ranks:
    """Join the group that torchrun prepared, or be alone. A GPU for each rank of this machine, or the CPU."""
    names = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    rank, size, local_rank, ranks_here = (int(os.environ.get(name, alone)) for name, alone in names.items())
    gpus = 0 if options.device == "cpu" else torch.cuda.device_count()
    if gpus < ranks_here and (gpus or options.device == "cuda"):
        raise Refused(f"{ranks_here} ranks but {gpus} GPU(s) on this machine: start {gpus}, or --device cpu")
    device = torch.device("cuda", local_rank) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    patience = timedelta(seconds=options.timeout)
    store = stopping.store_of_this_attempt(patience)  # because torchrun may start the ranks again
    who = {"store": store, "rank": rank, "world_size": size, "device_id": device if gpus else None}
    dist.init_process_group("nccl" if gpus else "gloo", timeout=patience, **who)
    if rank == 0:
        about = {"ranks": size, "device": device.type, "torch": torch.__version__, "options": vars(options)}
        print(json.dumps(about, default=str), flush=True)
    return Ranks(rank, size, device)


def seed_of(*what: object) -> int:
    """A number that depends on all of ``what`` and on nothing else: so no random state has to be saved."""
    return random.Random(repr(what)).getrandbits(63)


class Data(NamedTuple):
    """Images as float32 (channels, side, side), each with the number of its class."""

    train: Dataset
    test: Dataset
    classes: int
    known_by: int  # another number, other images


def digits() -> Data:
    """1,797 images of 8 x 8 that scikit-learn brings along; 1,437 to train on and 360 to test with."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise Refused("--data digits comes with scikit-learn: pip install scikit-learn")
    with gzip.open(Path(spec.origin).parent / "datasets/data/digits.csv.gz", "rt") as lines:
        rows = torch.tensor([[float(value) for value in line.split(",")] for line in lines])
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    every = TensorDataset(rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].long())
    return Data(Subset(every, range(1437)), Subset(every, range(1437, 1797)), 10, seed_of(rows.tolist()))


def images_of(folder: Path, side: int) -> Data:
    from torchvision import datasets, transforms

    cut = [transforms.Resize(side), transforms.CenterCrop(side), transforms.ToTensor()]
    train = datasets.ImageFolder(folder / "train", transforms.Compose(cut))
    test = datasets.ImageFolder(folder / "test", transforms.Compose(cut))
    if train.classes != test.classes:
        raise Refused(f"{folder.name}: train has the classes {train.classes}, test has {test.classes}")
    names = [str(Path(path).relative_to(folder)) for path, _ in train.samples + test.samples]
    some = [Path(path).read_bytes() for path, _ in train.samples[:: math.ceil(len(train) / 8)]]
    return Data(train, test, len(train.classes), seed_of(names, some))


class Shifted(Dataset):
    """Each image moved by up to one pixel. The same image in the same epoch moves alike on every rank."""

    def __init__(self, images: Dataset, seed: int) -> None:
        self.images = images
        self.seed = seed

    def __getitem__(self, position: tuple[int, int]) -> tuple[torch.Tensor, int]:
        epoch, index = position
        image, label = self.images[index]
        own = random.Random(seed_of(self.seed, "augmentation", epoch, index))
        return torch.roll(image, (own.randint(-1, 1), own.randint(-1, 1)), (1, 2)), label


class RankBatches(Sampler[list]):
    """This rank's images of each global batch of an epoch, from any step on: of n ranks, each n-th one.

    Their order depends on seed and epoch alone, and takes 8 bytes per image. The rest of an epoch is left out.
    """

    def __init__(self, images: int, options: argparse.Namespace, ranks: Ranks) -> None:
        if not ranks.size <= options.batch_size <= images:
            raise Refused(f"--batch-size must be from {ranks.size} (ranks) to {images} (images)")
        self.images = images
        self.options = options
        self.ranks = ranks
        self.steps = images // options.batch_size  # in an epoch
        self.done = 0  # in all epochs

    def __iter__(self) -> Iterator[list]:
        epoch, first = divmod(self.done, self.steps)
        generator = torch.Generator().manual_seed(seed_of(self.options.seed, "order", epoch))
        batches = torch.randperm(self.images, generator=generator).split(self.options.batch_size)
        for batch in batches[first : self.steps]:
            mine = batch[self.ranks.rank :: self.ranks.size].tolist()
            yield [(epoch, index) for index in mine] if self.options.augment else mine


def loaders(data: Data, options: argparse.Namespace, ranks: Ranks) -> tuple[DataLoader, DataLoader]:
    """Loaders of this rank: batches to train on, and its share of the test images, each on one rank."""
    common = {"num_workers": options.workers, "worker_init_fn": stopping.leave_signals_to_the_rank}
    common["persistent_workers"] = options.workers > 0
    common["multiprocessing_context"] = "fork" if options.workers and sys.platform == "linux" else None
    common["pin_memory"] = ranks.device.type == "cuda"
    train = Shifted(data.train, options.seed) if options.augment else data.train
    share = range(ranks.rank, len(data.test), ranks.size)  # not padded, so that each image counts once
    to_test = DataLoader(Subset(data.test, share), batch_size=256, **common)
    return DataLoader(train, batch_sampler=RankBatches(len(data.train), options, ranks), **common), to_test


def build(data: Data, options: argparse.Namespace, ranks: Ranks) -> nn.Module:
    torch.manual_seed(options.seed)
    channels, side, _ = data.train[0][0].shape
    if options.model == "convnet":  # group norm does not mix the images of a batch
        first = [nn.Conv2d(channels, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(4, 64), nn.ReLU(), nn.Flatten()]
        model = nn.Sequential(*first, *second, nn.Linear(64 * (side // 2) ** 2, data.classes))
    else:
        from torchvision import models

        if options.model not in models.list_models(models) or channels != 3:
            raise Refused(f"--model {options.model}: no classifier of torchvision, or --data is no folder")
        model = models.get_model(options.model, num_classes=data.classes)
    if ranks.device.type == "cuda":  # on a CPU each rank normalizes over its own images
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return model.to(ranks.device, torch.float64 if options.float64 else torch.float32)


class Trainer:
    """A model, its optimizer, and how far they are."""

    def __init__(self, data: Data, options: argparse.Namespace, ranks: Ranks, steps: int) -> None:
        self.options = options
        self.ranks = ranks
        self.steps = steps  # of the whole run
        self.step = 0  # optimizer steps that are done
        model = build(data, options, ranks)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model.eval()(self.move(data.train[0][0][None]))
        self.flops_per_image = 3 * counter.get_total_flops()  # backward computes twice as much as forward
        where = [ranks.device.index] if ranks.device.type == "cuda" else None
        self.ddp = DistributedDataParallel(model.train(), device_ids=where, gradient_as_bucket_view=True)
        if options.compile:
            self.ddp.compile()  # in place, so that names of parameters stay as they are
        groups = [
            {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": options.weight_decay}
        ]
        groups.append({"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0})
        if options.optimizer == "adamw":
            self.optimizer = torch.optim.AdamW(groups, options.lr)
        else:
            self.optimizer = torch.optim.SGD(groups, options.lr, momentum=0.9)
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=options.amp == "fp16")
        half = torch.float16 if options.amp == "fp16" else torch.bfloat16
        self.precision = torch.autocast(ranks.device.type, half, enabled=options.amp is not None)
        self.begin_log()

    def move(self, x: torch.Tensor) -> torch.Tensor:
        dtype = torch.float64 if self.options.float64 and x.is_floating_point() else x.dtype
        return x.to(self.ranks.device, dtype, non_blocking=True)

    def learning_rate(self) -> float:
        """It grows for ``warm_up`` steps, then falls to 0 along half a cosine."""
        rise = min(1.0, (self.step + 1) / max(1, self.options.warm_up))
        done = max(0, self.step - self.options.warm_up) / max(1, self.steps - self.options.warm_up)
        return self.options.lr * rise * 0.5 * (1 + math.cos(math.pi * done))

    def train_step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """One optimizer step on this rank's part of a global batch."""
        batch_size = self.options.batch_size
        torch.manual_seed(seed_of(self.options.seed, "noise", self.step, self.ranks.rank))
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate()
        largest_share = math.ceil(batch_size / self.ranks.size)
        pieces = math.ceil(largest_share / (self.options.micro_batch or largest_share))  # equal on all ranks
        micro_batches = zip(images.tensor_split(pieces), labels.tensor_split(pieces), strict=True)
        for number, (x, y) in enumerate(micro_batches, start=1):
            with nullcontext() if number == pieces else self.ddp.no_sync():  # the last averages gradients
                with self.precision:  # forward and loss; the loss itself is computed in float32
                    loss = F.cross_entropy(self.ddp(self.move(x)), self.move(y), reduction="sum")
                self.scaler.scale(loss * self.ranks.size / batch_size).backward()  # DDP divides by the ranks
            self.losses += loss.detach()
        self.scaler.unscale_(self.optimizer)
        self.gradient_norm = nn.utils.clip_grad_norm_(self.ddp.parameters(), self.options.clip or math.inf)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.step += 1

    def share_buffers(self) -> None:
        """Give all ranks the buffers of rank 0: DDP has done so before the last forward pass, not after it."""
        for buffer in self.ddp.module.buffers():
            dist.broadcast(buffer, src=0)

    def is_finite(self) -> bool:
        return all(torch.stack([p.isfinite().all() for p in self.ddp.parameters()]))

    @torch.inference_mode()
    def evaluate(self, loader: DataLoader) -> tuple[float, int]:
        """Return (share recognised, images seen). Sums over the ranks, which may have an image more or less."""
        self.share_buffers()
        model = self.ddp.module.eval()  # not the wrapper: its forward may communicate
        counts = torch.zeros(2, dtype=torch.int64, device=self.ranks.device)  # recognised, seen
        for images, labels in loader:
            with self.precision:
                scores = model(self.move(images))
            counts[0] += (scores.argmax(1) == self.move(labels)).sum()
            counts[1] += len(labels)
        model.train()
        dist.all_reduce(counts)
        recognised, seen = counts.tolist()
        return recognised / seen, seen

    def test(self, loader: DataLoader, epoch: int) -> None:
        share, seen = self.evaluate(loader)
        self.say({"epoch": epoch, "accuracy": round(share, 4), "images": seen})

    def begin_log(self) -> None:
        self.losses = torch.zeros((), device=self.ranks.device)  # their sum; it stays on the device
        self.logged = self.step
        self.since = time.perf_counter()

    def log(self) -> None:
        """A line about the steps since the last one. Collective."""
        dist.all_reduce(self.losses)
        images = (self.step - self.logged) * self.options.batch_size
        loss = self.losses.item() / images  # it waits for the GPU, so the clock is read after it
        speed = images / (time.perf_counter() - self.since)
        tflops = speed * self.flops_per_image / self.ranks.size / 1e12
        line = {
            "step": self.step,
            "loss": round(loss, 6),
            "gradient_norm": round(self.gradient_norm.item(), 4),
        }
        line |= {"lr": round(self.optimizer.param_groups[0]["lr"], 6), "images/s": round(speed, 1)}
        line["tflops_per_rank"] = float(f"{tflops:.3g}")
        if self.options.peak_tflops:
            line["mfu"] = round(tflops / self.options.peak_tflops, 4)
        self.say(line)
        self.begin_log()

    def say(self, line: dict) -> None:
        if self.ranks.rank == 0:
            print(json.dumps(line), flush=True)


def train(options: argparse.Namespace) -> int:
    """Train to the end, or to a signal; return the exit code."""
    ranks = join(options)
    on_cpu = {"backend": "gloo", "timeout": timedelta(seconds=options.timeout)}
    data = digits() if options.data == "digits" else images_of(Path(options.data), options.side)
    to_train, to_test = loaders(data, options, ranks)
    batches = to_train.batch_sampler
    trainer = Trainer(data, options, ranks, batches.steps * options.epochs)
    checkpoints = None
    if options.checkpoints:
        settings = {name: value for name, value in vars(options).items() if name not in FREE}
        settings["images"] = data.known_by
        state = (trainer.ddp, trainer.optimizer, {"scaler": trainer.scaler})
        how = (options.keep, CHANGEABLE if options.allow_changes else set(), options.evaluate)
        checkpoints = Checkpoints(options.checkpoints, settings, dist.new_group(**on_cpu), *state, *how)
        trainer.step = checkpoints.resume()
    if options.evaluate and not trainer.step:
        raise Refused(f"--evaluate: there is no checkpoint in {options.checkpoints}")
    stop_sign = stopping.StopSign(dist.new_group(**on_cpu))
    if trainer.step and (options.evaluate or trainer.step % batches.steps == 0):
        trainer.test(to_test, trainer.step // batches.steps)  # the run may have ended before it
    stopped = False
    while trainer.step < trainer.steps and not (stopped or options.evaluate):
        trainer.begin_log()
        batches.done = trainer.step
        for images, labels in to_train:
            trainer.train_step(images, labels)
            stopped = stop_sign.seen_by_all()
            last = stopped or trainer.step == trainer.steps
            is_logged = last or trainer.step % options.log_every == 0
            is_saved = checkpoints and (last or trainer.step % (options.save_every or batches.steps) == 0)
            if (is_logged or is_saved) and not trainer.is_finite():
                if checkpoints:
                    checkpoints.wait()  # for that of an earlier step
                raise Refused(f"step {trainer.step}: the loss is not finite; try a lower --lr")
            if is_logged:
                trainer.log()
            if is_saved:
                trainer.share_buffers()
                checkpoints.save(trainer.step)
            if stopped:
                break
        else:
            trainer.test(to_test, trainer.step // batches.steps)
    stop_sign.finish()
    if checkpoints and not options.evaluate and not checkpoints.finish(trainer.step):
        return 1
    if stopped:
        trainer.say({"stopped after step": trainer.step, "saved": checkpoints is not None})
    return stopping.SAVED_AND_LEFT if stopped else 0


def main(arguments: list[str] | None = None) -> int:
    return stopping.run_rank(lambda: train(parse(arguments)), (Refused, argparse.ArgumentError))


if __name__ == "__main__":
    sys.exit(main())
