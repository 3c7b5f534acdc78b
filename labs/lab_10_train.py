"""Train an image classifier on any number of ranks, and go on after a restart at any moment.

Needs torch and tqdm; torchvision for --data FOLDER and for other models; nothing else of this course.

Alone:       python lab_10_train.py --epochs 2
Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_10_train.py --epochs 2
Written by:  notebooks/10_training_template.ipynb (edit it there)

SIGTERM, SIGINT and SIGHUP, to a rank or to torchrun, make all ranks save and leave after the step, or the
batch of the evaluation, that they are in. SIGUSR1 does so, too; torchrun must be told to hand it on:
--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1. It gives its ranks 30 s, then it kills them.

Exit codes of a rank: 0 done, 1 a failure, 2 refused, 75 saved and left; the same command goes on from there.
torchrun itself ends with 1 in each of the last three cases.
"""

import argparse
import ctypes
import gc
import gzip
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler, Subset, TensorDataset
from tqdm import tqdm

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
SAVED_AND_LEFT = 75  # EX_TEMPFAIL of sysexits.h: "try again later", and it goes on where it was
LEAVE_S = 60.0  # that a rank which has failed waits for the save under way
FIRST_SAYS_S = 20.0  # that a refused rank waits for the first, which may still be importing torch
COMPLETE = re.compile(r"step_\d{8,}")  # the name of a checkpoint that is complete
# When a run goes on, these options may differ: they do not decide what is learnt,
FREE = {"allow_changes", "checkpoints", "device", "evaluate", "export", "keep", "log_every", "metrics"}
FREE |= {"profile", "save_every", "timeout", "workers"}
# and these may with --allow-changes. All others must be as they were.
CHANGEABLE = {"clip", "compile", "data", "epochs", "lr", "micro_batch", "warm_up", "weight_decay"}


# --- Options ---


class Refused(Exception):
    """Something that the one who started the run can mend; its text says how."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        epilog="torchrun --standalone --nproc-per-node=2 lab_10_train.py --checkpoints runs",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        add_help=False,  # each rank would print it
        allow_abbrev=False,
        exit_on_error=False,
    )
    add = parser.add_argument
    add("-h", "--help", action="store_true", help="print this and leave")
    add("--data", default="digits", help="digits, random, or a folder with train/CLASS/ and test/CLASS/")
    add("--side", type=int, default=64, help="height and width of random images and of those of a folder")
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
    add(
        "--amp",
        nargs="?",
        const="bf16",
        choices=["bf16", "fp16"],
        help="compute in half precision where that is safe; bf16 if no kind is named",
    )
    add("--float64", action="store_true", help="compute in float64, to compare runs")
    add("--compile", action="store_true", help="compile the model with torch.compile")
    add("--seed", type=int, default=0, help="of all that is random")
    add("--workers", type=int, default=0, help="processes per rank that load images")
    add("--checkpoints", type=Path, metavar="FOLDER", help="save there, and go on from the newest one there")
    add("--save-every", type=int, help="steps between two checkpoints; None: an epoch")
    add("--keep", type=int, default=2, help="checkpoints to keep")
    add("--allow-changes", action="store_true", help="go on although --lr, --epochs or the like have changed")
    add("--evaluate", action="store_true", help="only test the newest checkpoint")
    add("--export", type=Path, metavar="FOLDER", help="write the trained model there as safetensors")
    add("--log-every", type=int, default=10, help="steps between two lines of JSON")
    add("--metrics", metavar="MODULE:FUNCTION", help="called with each of these lines, as a dictionary")
    add("--profile", type=Path, metavar="FOLDER", help="write a trace of steps 6 to 8 of this start there")
    add("--timeout", type=int, default=600, help="seconds that a rank waits for the others")
    try:
        options, unknown = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise Refused(f"{error}; --help lists all options") from None
    if unknown:
        raise Refused(f"unknown option {unknown[0]}; --help lists all options")
    if options.help:
        if is_rank_0():
            parser.print_help()
        sys.exit(0)
    del options.help
    check(options)
    return options


def check(options: argparse.Namespace) -> None:
    """Fill in what depends on other options; raise ``Refused`` for what cannot be."""
    if options.lr is None:
        options.lr = 0.1 if options.optimizer == "sgd" else 0.001
    for name in ("side", "epochs", "batch_size", "micro_batch", "save_every", "keep", "log_every", "timeout"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise Refused(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    for name in ("lr", "warm_up", "weight_decay", "clip", "workers"):
        value = getattr(options, name)
        if not 0 <= value < math.inf:
            raise Refused(f"--{name.replace('_', '-')} must be a number from 0, not {value}")
    if options.amp and options.float64:
        raise Refused("--amp computes in half precision, --float64 in double: use one of them")
    if options.evaluate and not options.checkpoints:
        raise Refused("--evaluate tests a checkpoint: name its folder with --checkpoints")
    if options.export and find_spec("safetensors") is None:
        raise Refused("--export needs a package: pip install safetensors")
    for name in ("checkpoints", "export", "profile"):
        if getattr(options, name):
            setattr(options, name, getattr(options, name).expanduser())


def is_rank_0() -> bool:
    return os.environ.get("RANK", "0") == "0"


def is_first_here() -> bool:
    """Whether this is the first rank of its machine."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


# --- Processes ---


@dataclass(frozen=True)
class Ranks:
    """Who this process is, where it computes, and the groups for what must not mix with the gradients."""

    rank: int
    size: int
    device: torch.device
    for_saving: dist.ProcessGroup | None = None  # its collectives run in a thread, beside those of training
    for_signals: dist.ProcessGroup | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"


def die_with_launcher() -> None:
    """On Linux, have the kernel end this rank with its launcher, even after kill -9 of that.

    A rank that outlived it would go on writing where the next run already writes.
    """
    if sys.platform == "linux" and "LOCAL_RANK" in os.environ:
        pr_set_pdeathsig = 1  # linux/prctl.h
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def pick_device(wanted: str, local_rank: int, ranks_here: int) -> torch.device:
    """A GPU for each rank of this machine, or the CPU. Some ranks on GPUs and others not is an error."""
    gpus = 0 if wanted == "cpu" else torch.cuda.device_count()
    if wanted == "cuda" and not gpus:
        raise Refused("--device cuda: torch sees no GPU on this machine")
    if not gpus:
        return torch.device("cpu")
    if gpus < ranks_here:
        raise Refused(f"{ranks_here} ranks but {gpus} GPU(s) on this machine: start {gpus}, or --device cpu")
    return torch.device("cuda", local_rank)


def join(options: argparse.Namespace) -> Ranks:
    """Join the group that torchrun prepared, or be alone."""
    rank = int(os.environ.get("RANK", "0"))
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = pick_device(options.device, local_rank, ranks_here)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=options.timeout)
    store = store_of_this_attempt(timeout)
    if rank == 0:
        store.set("device of rank 0", device.type)
    of_rank_0 = store.get("device of rank 0").decode()
    if device.type != of_rank_0:  # gloo here and nccl there would wait for each other
        raise Refused(f"rank {rank} would compute on {device.type}, rank 0 does on {of_rank_0}: see --device")
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    if rank == 0:
        about = {"ranks": size, "device": device.type, "backend": backend, "torch": torch.__version__}
        print(json.dumps(about | {"options": vars(options)}, default=str), flush=True)
    for_saving = dist.new_group(backend="gloo", timeout=timeout)
    for_signals = dist.new_group(backend="gloo", timeout=timeout)
    return Ranks(rank, size, device, for_saving, for_signals)


def store_of_this_attempt(timeout: timedelta) -> dist.Store:
    """Where the ranks leave their addresses.

    After a restart torchrun's store still holds the addresses of the ranks that are gone, so each attempt
    has keys of its own. On several machines the attempts of the agents differ: start those with
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, which gives each attempt a new store.
    """
    if "MASTER_ADDR" not in os.environ:
        return dist.HashStore()  # started without torchrun
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and is_rank_0(),
        timeout=timeout,
    )
    one_machine = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if one_machine else "any"
    return dist.PrefixStore(f"attempt {attempt}", store)


# --- Seeds: one rule for everything random ---


def seed_of(*what: object) -> int:
    """A number that depends on all of ``what`` and on nothing else.

    The order of images is seeded by (seed, epoch), an image's augmentation by (seed, epoch, image), noise
    in the model by (seed, step, rank). So no state has to be saved, and the first two do not depend on
    the number of ranks or workers.
    """
    return random.Random(repr(what)).getrandbits(63)


# --- Data ---


@dataclass(frozen=True)
class Data:
    """Images to train on and to test with, as float32 (channels, side, side), and how many classes."""

    train: Dataset
    test: Dataset
    channels: int
    side: int
    classes: int


def load_data(options: argparse.Namespace) -> Data:
    if options.data == "digits":
        return digits()
    if options.data == "random":
        return random_images(options.side)
    return images_of_folder(Path(options.data).expanduser(), options.side)


def digits() -> Data:
    """1,797 images of 8 x 8 that scikit-learn brings along; 1,437 to train on and 360 to test with."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise Refused("--data digits comes with scikit-learn: pip install scikit-learn")
    file = Path(spec.origin).parent / "datasets/data/digits.csv.gz"
    with gzip.open(file, "rt") as lines:
        rows = torch.tensor([[float(value) for value in line.split(",")] for line in lines])
    images = rows[:, :64].reshape(-1, 1, 8, 8) / 16
    labels = rows[:, 64].long()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    train = TensorDataset(images[order[:1437]], labels[order[:1437]])
    test = TensorDataset(images[order[1437:]], labels[order[1437:]])
    return Data(train, test, channels=1, side=8, classes=10)


def random_images(side: int, count: int = 1000) -> Data:
    """Nothing to learn, to measure the speed."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(count, 3, side, side, generator=generator)
    labels = torch.randint(1000, (count,), generator=generator)
    both = TensorDataset(images, labels)
    return Data(both, both, channels=3, side=side, classes=1000)


def images_of_folder(folder: Path, side: int) -> Data:
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    if not folder.is_dir():
        raise Refused(f"--data {folder}: use digits, random, or a folder")
    prepare = transforms.Compose(
        [transforms.Resize(side), transforms.CenterCrop(side), transforms.ToTensor()]
    )
    try:
        train = ImageFolder(folder / "train", prepare)
        test = ImageFolder(folder / "test", prepare)
    except FileNotFoundError:
        raise Refused(f"{folder.name} must hold images as train/CLASS/*.png and test/CLASS/*.png") from None
    if train.classes != test.classes:
        raise Refused(f"{folder.name}: train has the classes {train.classes}, test has {test.classes}")
    return Data(train, test, channels=3, side=side, classes=len(train.classes))


class Shifted(Dataset):
    """Each image moved by up to one pixel. The same image in the same epoch moves alike on every rank."""

    def __init__(self, images: Dataset, seed: int) -> None:
        self.images = images
        self.seed = seed

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, position: tuple[int, int]) -> tuple[torch.Tensor, int]:
        epoch, index = position
        image, label = self.images[index]
        own = random.Random(seed_of(self.seed, "augmentation", epoch, index))
        return torch.roll(image, (own.randint(-1, 1), own.randint(-1, 1)), (1, 2)), label


class RankBatches(Sampler[list]):
    """This rank's part of each global batch of an epoch, from any step on.

    The order of images does not depend on the number of ranks: a step takes the next ``batch_size`` images,
    and rank r of n gets each n-th of them, beginning with the r-th. What is left at the end of an epoch is
    less than a batch and is left out.
    """

    def __init__(self, images: int, options: argparse.Namespace, ranks: Ranks) -> None:
        if not ranks.size <= options.batch_size <= images:
            raise Refused(f"--batch-size must be from {ranks.size} (ranks) to {images} (images)")
        self.images = images
        self.options = options
        self.ranks = ranks
        self.steps = images // options.batch_size
        self.epoch = 0
        self.first_step = 0

    def start_at(self, epoch: int, step: int) -> None:
        self.epoch = epoch
        self.first_step = step

    def __len__(self) -> int:
        return self.steps - self.first_step

    def __iter__(self) -> Iterator[list]:
        generator = torch.Generator().manual_seed(seed_of(self.options.seed, "order", self.epoch))
        order = torch.randperm(self.images, generator=generator).tolist()
        for step in range(self.first_step, self.steps):
            begin = step * self.options.batch_size
            mine = order[begin : begin + self.options.batch_size][self.ranks.rank :: self.ranks.size]
            if self.options.augment:
                yield [(self.epoch, index) for index in mine]
            else:
                yield mine


def loaders(data: Data, options: argparse.Namespace, ranks: Ranks) -> tuple[DataLoader, DataLoader]:
    """Loaders of this rank: batches to train on, and its share of the test images, each on one rank."""
    common = {
        "num_workers": options.workers,
        "persistent_workers": options.workers > 0,
        "multiprocessing_context": "fork" if options.workers and sys.platform == "linux" else None,
        "pin_memory": ranks.on_gpu,
        "worker_init_fn": leave_signals_to_the_rank,
    }
    train = Shifted(data.train, options.seed) if options.augment else data.train
    batches = RankBatches(len(data.train), options, ranks)
    to_train = DataLoader(train, batch_sampler=batches, **common)
    share = range(ranks.rank, len(data.test), ranks.size)  # not padded, so that each image counts once
    return to_train, DataLoader(Subset(data.test, share), batch_size=256, **common)


# --- Model ---


class ConvNet(nn.Module):
    """(batch, channels, side, side) to (batch, classes). Group norm does not mix the images of a batch."""

    def __init__(self, channels: int, side: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, 2 * width)
        self.head = nn.Linear(2 * width * (side // 2) ** 2, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = F.max_pool2d(x, 2)
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.head(x.flatten(1))


def build(data: Data, options: argparse.Namespace, ranks: Ranks) -> nn.Module:
    torch.manual_seed(options.seed)
    if options.model == "convnet":
        model: nn.Module = ConvNet(data.channels, data.side, data.classes)
    else:
        from torchvision import models

        if options.model not in models.list_models(models):
            raise Refused(f"--model {options.model}: torchvision.models has no such classifier")
        if data.channels != 3:
            raise Refused(f"--model {options.model} takes images of 3 channels, --data {options.data} has 1")
        model = models.get_model(options.model, num_classes=data.classes)
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules()):
        if ranks.on_gpu:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        elif ranks.rank == 0 and ranks.size > 1:
            print(
                "batch norm uses each rank's own images: SyncBatchNorm needs GPUs, see lab_10_sync_batch_norm"
            )
    dtype = torch.float64 if options.float64 else torch.float32
    return model.to(ranks.device, dtype)


# --- One step ---


def learning_rate(step: int, steps: int, options: argparse.Namespace) -> float:
    """It grows for ``warm_up`` steps, then falls to 0 along half a cosine. ``step`` counts from 0."""
    if step < options.warm_up:
        return options.lr * (step + 1) / options.warm_up
    done = (step - options.warm_up) / max(1, steps - options.warm_up)
    return options.lr * 0.5 * (1 + math.cos(math.pi * done))


def precision(options: argparse.Namespace, ranks: Ranks) -> torch.autocast:
    half = torch.float16 if options.amp == "fp16" else torch.bfloat16
    return torch.autocast(ranks.device.type, half, enabled=options.amp is not None)


def make_optimizer(model: nn.Module, options: argparse.Namespace) -> torch.optim.Optimizer:
    """Weight decay is for matrices and filters: norms and biases, of one dimension, are left alone."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if options.optimizer == "adamw":
        return torch.optim.AdamW(groups, options.lr)
    return torch.optim.SGD(groups, options.lr, momentum=0.9)


class Trainer:
    """A model, its optimizer, and how far they are."""

    def __init__(self, data: Data, options: argparse.Namespace, ranks: Ranks) -> None:
        self.options = options
        self.ranks = ranks
        model = build(data, options, ranks)
        self.ddp = DistributedDataParallel(
            model, device_ids=[ranks.device.index] if ranks.on_gpu else None, gradient_as_bucket_view=True
        )
        if options.compile:
            self.ddp.compile()  # in place, so that names of parameters stay as they are
        self.optimizer = make_optimizer(self.ddp, options)
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=options.amp == "fp16")
        self.step = 0  # optimizer steps that are done
        self.test_images = len(data.test)
        self.gradient_norm = torch.zeros(())  # of the last step, before clipping
        if ranks.on_gpu:  # torch.manual_seed would also seed every other kind of device, at each step
            self.noise = torch.cuda.default_generators[ranks.device.index]
        else:
            self.noise = torch.default_generator

    def train_step(self, images: torch.Tensor, labels: torch.Tensor, steps: int) -> torch.Tensor:
        """One optimizer step on this rank's part of a global batch; returns the sum of its losses.

        Images are counted over all ranks, so that ranks with one image more or less still average right:
        DDP divides by the number of ranks, and we multiply by it.
        """
        options = self.options
        ranks = self.ranks
        self.noise.manual_seed(seed_of(options.seed, "noise", self.step, ranks.rank))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, steps, options)
        images = images.to(ranks.device, non_blocking=True)
        labels = labels.to(ranks.device, non_blocking=True)
        if options.float64:
            images = images.double()
        loss_sum = torch.zeros((), device=ranks.device)
        pieces = self.pieces()
        micro_batches = list(zip(images.tensor_split(pieces), labels.tensor_split(pieces), strict=True))
        for number, (x, y) in enumerate(micro_batches, start=1):
            is_last = number == len(micro_batches)
            with nullcontext() if is_last else self.ddp.no_sync():  # the last one averages the gradients
                with precision(options, ranks):  # forward and loss; the loss itself is computed in float32
                    loss = F.cross_entropy(self.ddp(x), y, reduction="sum")
                self.scaler.scale(loss * (ranks.size / options.batch_size)).backward()
            loss_sum += loss.detach()
        self.scaler.unscale_(self.optimizer)
        clip = options.clip or math.inf
        self.gradient_norm = nn.utils.clip_grad_norm_(self.ddp.parameters(), clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.step += 1
        return loss_sum

    def pieces(self) -> int:
        """Micro-batches in a step, the same number on all ranks: synchronized batch norm runs in each."""
        if not self.options.micro_batch:
            return 1
        largest_share = math.ceil(self.options.batch_size / self.ranks.size)
        return math.ceil(largest_share / self.options.micro_batch)

    def share_buffers(self) -> None:
        """Give all ranks the buffers of rank 0. Collective.

        DDP has sent them before the last forward pass; the running statistics have moved since then.
        """
        for buffer in self.ddp.module.buffers():
            dist.broadcast(buffer, src=0)


@torch.inference_mode()
def evaluate(trainer: Trainer, loader: DataLoader, stop_sign: "StopSign") -> tuple[float, int] | None:
    """Return (share recognised, images seen), or None when asked to stop meanwhile. Collective.

    Counts are added up over the ranks, not shares of them: ranks may have an image more or less.
    """
    ranks = trainer.ranks
    model = trainer.ddp.module  # not the wrapper: its forward may communicate
    trainer.share_buffers()
    counts = torch.zeros(2, dtype=torch.int64, device=ranks.device)  # recognised, seen
    largest_share = math.ceil(trainer.test_images / ranks.size)
    batches = iter(loader)
    model.eval()
    for _ in range(math.ceil(largest_share / loader.batch_size)):
        for images, labels in islice(batches, 1):  # the last one may be missing on this rank
            images = images.to(ranks.device, non_blocking=True)
            labels = labels.to(ranks.device, non_blocking=True)
            if trainer.options.float64:
                images = images.double()
            with precision(trainer.options, ranks):
                scores = model(images)
            counts[0] += (scores.argmax(1) == labels).sum()
            counts[1] += len(labels)
        if stop_sign.seen_by_all():
            return None
    model.train()
    dist.all_reduce(counts)
    recognised, seen = counts.tolist()
    return recognised / seen, seen


# --- Checkpoints ---


class CommittingWriter(dcp.FileSystemWriter):
    """Writes into ``step_00000120.part``, and gives that its final name as soon as all ranks have written.

    DCP calls ``finish`` on rank 0, in the thread that writes, when every rank has said that its files are
    written. If it raises, the save has failed on all ranks.
    """

    def __init__(self, final: Path, about: dict, keep: int) -> None:
        super().__init__(final.with_suffix(".part"))
        self.final = final
        self.about = about
        self.keep = keep

    def finish(self, metadata: dcp.Metadata, results: list) -> None:
        super().finish(metadata, results)
        part = self.final.with_suffix(".part")
        (part / "run.json").write_text(json.dumps(self.about), encoding="utf-8")
        sync_to_disk(part / "run.json")
        sync_to_disk(part)
        part.rename(self.final)
        sync_to_disk(self.final.parent)
        for old in complete_in(self.final.parent)[self.keep :]:
            shutil.rmtree(old.rename(old.with_suffix(".part")))  # half removed, it is not complete


class Checkpoints:
    """Folders ``step_00000120`` in ``folder``. A folder of that name is complete, whatever happened.

    What a killed run leaves behind is called ``.part``, is never read, and goes at the next start.
    """

    def __init__(self, options: argparse.Namespace, ranks: Ranks) -> None:
        self.folder: Path = options.checkpoints
        self.options = options
        self.ranks = ranks
        self.step = 0  # of the newest checkpoint that is complete or under way
        self.under_way: Future | None = None
        self.succeeded = True  # the last save
        self.seconds = 0.0  # that training has waited for saving
        if ranks.rank == 0 and not options.evaluate:  # else a run may be saving there
            self.folder.mkdir(parents=True, exist_ok=True)
            for left in self.folder.glob("step_*.part"):
                if COMPLETE.fullmatch(left.stem):
                    shutil.rmtree(left)
        dist.barrier(ranks.for_saving)

    def save(self, trainer: Trainer) -> None:
        """Begin to save this step, if it is not saved yet; a thread writes. Collective."""
        if trainer.step == self.step:
            return
        started = time.perf_counter()
        self.finish()
        trainer.share_buffers()
        self.step = trainer.step
        about = {"step": trainer.step, "options": chosen(self.options)}
        writer = CommittingWriter(self.folder / f"step_{trainer.step:08d}", about, self.options.keep)
        self.under_way = dcp.async_save(
            state_of(trainer), storage_writer=writer, process_group=self.ranks.for_saving
        )
        self.seconds += time.perf_counter() - started

    def finish(self) -> bool:
        """Wait for the save under way. False, on all ranks, if the last one failed."""
        if self.under_way is not None:
            try:
                self.under_way.result()
                self.succeeded = True
            except (Exception, dcp.api.CheckpointException) as error:  # the latter is no Exception
                self.succeeded = False
                self.give_up(last_line(error))
            self.under_way = None
        return self.succeeded

    def give_up(self, reason: str) -> None:
        """Tell that the save has failed, for example for a full disk, and remove what it has left."""
        name = f"step_{self.step:08d}"
        self.step = 0
        if self.ranks.rank == 0:
            free = shutil.disk_usage(self.folder).free
            print(f"{name} was not saved: {reason}; {free:,} bytes are free there", file=sys.stderr)
            shutil.rmtree(self.folder / f"{name}.part", ignore_errors=True)

    def resume(self, trainer: Trainer) -> bool:
        """Load the newest checkpoint that can be read, on whatever number of ranks. Collective.

        One that cannot be read is told and the one before it is taken: a job that is requeued at night goes
        on. It is kept under another name. If none can be read, nothing is renamed and the run does not start.
        """
        from_rank_0 = [[path.name for path in complete_in(self.folder)]]
        dist.broadcast_object_list(from_rank_0, src=0, group=self.ranks.for_saving)  # others may see fewer
        broken = []
        for name in from_rank_0[0]:
            problem = self.load(trainer, self.folder / name)
            if not problem:
                break
            broken.append(self.folder / name)
            if self.ranks.rank == 0:
                print(f"{name} cannot be read: {problem}", file=sys.stderr)
        if broken and len(broken) == len(from_rank_0[0]):
            raise Refused(f"{self.folder.name} has no checkpoint that can be read; move it to begin anew")
        if self.ranks.rank == 0 and from_rank_0[0]:
            for path in [] if self.options.evaluate else broken:
                shutil.rmtree(path.with_suffix(".broken"), ignore_errors=True)  # of an earlier start
                path.rename(path.with_suffix(".broken"))
                print(f"it is now {path.stem}.broken, and the steps after {name} are lost", file=sys.stderr)
            print(f"going on from {name}", flush=True)
        self.step = trainer.step
        return bool(from_rank_0[0])

    def load(self, trainer: Trainer, checkpoint: Path) -> str:
        """Load a checkpoint; return what is wrong with it, the same on all ranks, or nothing. Collective."""
        read: list = [None, ""]
        if self.ranks.rank == 0:
            try:
                about = json.loads((checkpoint / "run.json").read_text(encoding="utf-8"))
                dcp.FileSystemReader(checkpoint).read_metadata()  # of a broken one dcp.load logs a traceback
                read = [(about["step"], about["options"]), ""]
            except Exception as error:  # a pickle can raise any
                read = [None, f"{type(error).__name__}: {last_line(error)}"]
        dist.broadcast_object_list(read, src=0, group=self.ranks.for_saving)
        if read[1]:
            return read[1]
        step, before = read[0]
        refuse_changes(checkpoint.name, before, self.options)
        state = state_of(trainer)
        try:
            dcp.load(state, checkpoint_id=checkpoint, process_group=self.ranks.for_saving)
        except (Exception, dcp.api.CheckpointException) as error:  # DCP raises it on all ranks
            return last_line(error)
        set_state_dict(
            trainer.ddp,
            trainer.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        trainer.scaler.load_state_dict(state["scaler"])
        trainer.step = step
        return ""


def complete_in(folder: Path) -> list[Path]:
    """Folders of complete checkpoints, the newest first; other names, such as ``step_best``, do not count."""
    checkpoints = [path for path in folder.glob("step_*") if COMPLETE.fullmatch(path.name)]
    return sorted(checkpoints, key=lambda path: int(path.name.removeprefix("step_")), reverse=True)


def state_of(trainer: Trainer) -> dict:
    """All that a run needs to go on; what is random follows from the seed and the step."""
    model, optimizer = get_state_dict(trainer.ddp, trainer.optimizer)
    return {"model": model, "optimizer": optimizer, "scaler": trainer.scaler.state_dict()}


def chosen(options: argparse.Namespace) -> dict:
    """The options that decide what is learnt."""
    return {name: value for name, value in vars(options).items() if name not in FREE}


def refuse_changes(checkpoint: str, before: dict, options: argparse.Namespace) -> None:
    """Raise ``Refused`` if an option that decides what is learnt differs from that of the checkpoint."""
    changes = {name: value for name, value in chosen(options).items() if before.get(name) != value}
    may_be_allowed = changes.keys() <= CHANGEABLE
    if not changes or (may_be_allowed and options.allow_changes):
        return
    told = []
    for name, value in changes.items():
        told.append(f"--{name.replace('_', '-')} {value} (was {before.get(name)})")
    cure = "add --allow-changes, or use another folder" if may_be_allowed else "use another folder"
    raise Refused(f"{checkpoint} is of a run with other options: {', '.join(told)}; {cure}")


def export(trainer: Trainer, folder: Path) -> None:
    """Write the model alone as ``model-00001-of-00001.safetensors``. Collective."""
    trainer.share_buffers()
    model = {name: tensor.contiguous() for name, tensor in trainer.ddp.module.state_dict().items()}
    only_rank_0 = dist.new_group([0], backend="gloo")  # all would share the work, and write one file
    if trainer.ranks.rank == 0:
        writer = dcp.HuggingFaceStorageWriter(path=str(folder))
        dcp.save(model, storage_writer=writer, process_group=only_rank_0)


def last_line(error: BaseException) -> str:
    """The reason: errors of DCP have many lines, it is in the last one. If there is no text, their kind."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[-1]


def sync_to_disk(path: Path) -> None:
    """Have a file, or the names in a folder, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- Signals ---


class StopSign:
    """Whether some rank was asked to stop: by Ctrl-C, a scheduler's SIGTERM or SIGUSR1, a lost terminal.

    A signal reaches the ranks at different steps, but all must leave after the same one. So each step asks
    all ranks, and reads the answer one step later: nobody waits for it.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.asked = False
        self.answer = torch.zeros(1, dtype=torch.int32)
        self.work: dist.Work | None = None
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup has SIGHUP ignored
                signal.signal(number, self.note)

    def note(self, number: int, frame: object) -> None:
        self.asked = True

    def seen_by_all(self) -> bool:
        """Whether all ranks are to stop now. Collective, once a step or batch; the same answer everywhere."""
        stop = False
        if self.work is not None:
            self.work.wait()
            stop = bool(self.answer.item())
        self.answer = torch.tensor([int(self.asked)], dtype=torch.int32)
        self.work = dist.all_reduce(
            self.answer, dist.ReduceOp.MAX, group=self.ranks.for_signals, async_op=True
        )
        return stop

    def finish(self) -> None:
        if self.work is not None:
            self.work.wait()


def leave_signals_to_the_rank(worker: int) -> None:
    """For processes that load images: torchrun signals them, too, and their rank needs them to the end."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


# --- The run ---


def train(options: argparse.Namespace, ranks: Ranks) -> int:
    """Train to the end, or to a signal; return the exit code."""
    data = load_data(options)
    to_train, to_test = loaders(data, options, ranks)
    batches = to_train.batch_sampler
    trainer = Trainer(data, options, ranks)
    checkpoints = Checkpoints(options, ranks) if options.checkpoints else None
    if checkpoints and not checkpoints.resume(trainer) and options.evaluate:
        raise Refused(f"--evaluate: there is no checkpoint in {options.checkpoints}")
    stop_sign = StopSign(ranks)
    steps = batches.steps * options.epochs
    save_every = options.save_every or batches.steps
    log = Log(options, ranks, trainer, checkpoints, steps)
    stopped = False
    if options.evaluate or (trainer.step and trainer.step % batches.steps == 0):
        stopped = not test(trainer, to_test, stop_sign, log)  # the run may have ended before this
    with profiler(options.profile, ranks) as profile:
        while trainer.step < steps and not (stopped or options.evaluate):
            batches.start_at(*divmod(trainer.step, batches.steps))
            for images, labels in log.loaded(to_train):
                log.note(trainer.train_step(images, labels, steps))
                if profile:
                    profile.step()
                stopped = stop_sign.seen_by_all()
                if stopped:
                    break
                if checkpoints and (trainer.step % save_every == 0 or trainer.step == steps):
                    log.refuse_nan()
                    checkpoints.save(trainer)
            if trainer.step % batches.steps == 0 and not stopped:
                stopped = not test(trainer, to_test, stop_sign, log)
    stop_sign.finish()
    log.close()
    return leave(trainer, checkpoints, log, stopped)


def leave(trainer: Trainer, checkpoints: Checkpoints | None, log: "Log", stopped: bool) -> int:
    """Save if a signal has stopped the run, wait until all is written, and return the exit code."""
    if checkpoints and stopped:
        log.refuse_nan()
        checkpoints.save(trainer)
    if checkpoints and not checkpoints.finish():
        return 1
    if stopped:
        log.say({"stopped after step": trainer.step, "saved": checkpoints is not None})
        return SAVED_AND_LEFT
    if trainer.options.export:
        export(trainer, trainer.options.export)
    return 0


def test(trainer: Trainer, loader: DataLoader, stop_sign: StopSign, log: "Log") -> bool:
    """Evaluate and log it; False when asked to stop meanwhile. Collective."""
    started = time.perf_counter()
    tested = evaluate(trainer, loader, stop_sign)
    if tested is None:
        return False
    share, seen = tested
    epochs = trainer.step // log.steps_of_epoch
    log.say({"epoch": epochs, "accuracy": round(share, 4), "images": seen})
    log.since += time.perf_counter() - started  # what it says of steps is of training alone
    return True


def profiler(folder: Path | None, ranks: Ranks) -> AbstractContextManager:
    """Records steps 6 to 8 of this start, for ui.perfetto.dev; without a folder, nothing."""
    if folder is None:
        return nullcontext()
    folder.mkdir(parents=True, exist_ok=True)
    file = str(folder / f"rank_{ranks.rank}.json")
    window = torch.profiler.schedule(wait=4, warmup=1, active=3, repeat=1)
    return torch.profiler.profile(schedule=window, on_trace_ready=lambda prof: prof.export_chrome_trace(file))


class Log:
    """A line of JSON on rank 0 every few steps, and a bar on a terminal.

    Losses stay on the device until then.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        ranks: Ranks,
        trainer: Trainer,
        checkpoints: Checkpoints | None,
        steps: int,
    ) -> None:
        self.every = options.log_every
        self.batch_size = options.batch_size
        self.ranks = ranks
        self.trainer = trainer
        self.checkpoints = checkpoints
        self.steps = steps
        self.steps_of_epoch = steps // options.epochs
        self.sink = load_sink(options.metrics) if options.metrics and ranks.rank == 0 else None
        self.bar = tqdm(
            total=steps,
            initial=trainer.step,
            desc="steps",
            disable=True if ranks.rank != 0 else None,  # None: unless it is a terminal
            leave=False,
            mininterval=1,
        )
        self.begin()

    def begin(self) -> None:
        """Measure from here on."""
        self.loss_sum = torch.zeros((), device=self.ranks.device)
        self.steps_since = 0
        self.loading = 0.0  # seconds
        self.since = time.perf_counter()

    def loaded(self, loader: DataLoader) -> Iterator:
        """The loader's batches; counts the seconds that each of them was waited for."""
        started = time.perf_counter()
        for batch in loader:
            self.loading += time.perf_counter() - started
            yield batch
            started = time.perf_counter()

    def note(self, loss_sum: torch.Tensor) -> None:
        self.loss_sum += loss_sum
        self.steps_since += 1
        self.bar.update()
        if self.trainer.step % self.every == 0 or self.trainer.step == self.steps:
            self.write()

    def write(self) -> None:
        self.refuse_nan()
        dist.all_reduce(self.loss_sum)
        images = self.steps_since * self.batch_size
        loss = self.loss_sum.item() / images
        seconds = time.perf_counter() - self.since
        self.say(
            {
                "step": self.trainer.step,
                "loss": round(loss, 6),
                "lr": round(self.trainer.optimizer.param_groups[0]["lr"], 6),
                "gradient_norm": round(self.trainer.gradient_norm.item(), 4),
                "images/s": round(images / seconds, 1),
                "loading": round(self.loading / seconds, 3),  # the share of the time
                "saving_s": round(self.checkpoints.seconds, 3) if self.checkpoints else 0.0,
                "memory_mb": round(peak_memory(self.ranks.device) / 1e6),
            }
        )
        self.begin()

    def refuse_nan(self) -> None:
        """Raise ``Refused`` if a loss since the last line, or a parameter, is not finite. Collective."""
        values = [self.loss_sum, *(p.detach() for p in self.trainer.ddp.parameters())]
        finite = torch.stack([value.isfinite().all() for value in values]).all().int()
        dist.all_reduce(finite, dist.ReduceOp.MIN)
        if not finite:
            if self.checkpoints:
                self.checkpoints.finish()  # the one under way is of an earlier step
            where = f"step {self.trainer.step}: the loss is not finite; try a lower --lr"
            raise Refused(f"{where} with --allow-changes" if self.checkpoints else where)

    def say(self, values: dict) -> None:
        if self.ranks.rank == 0:
            self.bar.write(json.dumps(values), file=sys.stdout)
            sys.stdout.flush()
        if self.sink:
            self.sink(values)

    def close(self) -> None:
        self.bar.close()


def load_sink(name: str) -> Callable[[dict], object]:
    """The function of ``MODULE:FUNCTION``, such as one that calls ``wandb.log`` or a ``SummaryWriter``."""
    module, _, function = name.partition(":")
    try:
        return getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise Refused(f"--metrics {name}: {error}") from None


def peak_memory(device: torch.device) -> int:
    """Most bytes that this rank has held so far: of its GPU, or of its process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def leave_failed() -> NoReturn:
    """Leave with exit code 1 when the save under way has ended, or after ``LEAVE_S``.

    Where a rank is lost, the thread that saves may wait for rank 0, whose training waits for this rank to go.
    """
    give_up = threading.Timer(LEAVE_S, os._exit, [1])
    give_up.daemon = True
    give_up.start()
    sys.exit(1)


def main(arguments: list[str] | None = None) -> int:
    try:
        options = parse(arguments)
        die_with_launcher()
        ranks = join(options)
        code = train(options, ranks)
    except Refused as error:
        if is_first_here():  # a file may be missing on one machine only
            print(error, file=sys.stderr)
        else:
            time.sleep(FIRST_SAYS_S)  # torchrun ends all ranks when one has ended
        if dist.is_initialized():
            dist.destroy_process_group()
        return 2
    except Exception:
        traceback.print_exc(limit=4, chain=False)  # down to the line here; torch's own frames say little
        leave_failed()
    dist.barrier(ranks.for_saving)
    dist.destroy_process_group()
    return code


if __name__ == "__main__":
    exit_code = main()
    gc.collect()  # DDP and its hooks form a cycle; if the dying interpreter ends it, that may abort with -6
    sys.exit(exit_code)
