"""Train an image classifier on any number of ranks, and go on after a restart at any moment.

Needs torch and tqdm; torchvision for some data sets and models; nothing else of this course.

Alone:       python lab_10_train.py --epochs 2
Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_10_train.py --epochs 2
Written by:  notebooks/10_training_template.ipynb
"""

import argparse
import ctypes
import gc
import gzip
import json
import math
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler, Subset, TensorDataset
from tqdm import tqdm

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
SAVED_AND_LEFT = 75  # EX_TEMPFAIL of sysexits.h: "try again later", and it goes on where it was
MAY_CHANGE = (  # when a run goes on: all options that do not decide what is learnt
    "checkpoints",
    "downloads",
    "keep",
    "save_every",
    "log_every",
    "workers",
    "timeout",
    "compile",
    "micro_batch",
)


# --- Options ---


class Refused(Exception):
    """Something that the one who started the run can mend; its text says how."""


def whole_number(text: str) -> int:
    """At least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text!r}")
    return int(text)


def not_negative(text: str) -> float:
    """At least 0, and finite."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number from 0, not {text!r}")
    return number


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], add_help=False, exit_on_error=False
    )
    add = parser.add_argument
    add("--help", action="store_true", help="print this and leave")
    add(
        "--data",
        default="digits",
        help="digits, mnist, cifar10, random, or a folder with train/CLASS/ and test/CLASS/",
    )
    add(
        "--side",
        type=whole_number,
        default=64,
        help="height and width of random images and of those of a folder",
    )
    add(
        "--downloads",
        type=Path,
        default=Path("~/.cache/images"),
        help="where torchvision keeps mnist and cifar10",
    )
    add("--model", default="convnet", help="convnet, or the name of a classifier of torchvision")
    add("--epochs", type=whole_number, default=6)
    add("--batch-size", type=whole_number, default=48, help="images per step, of all ranks together")
    add(
        "--micro-batch",
        type=whole_number,
        help="images per forward pass and rank; gradients add up to a step",
    )
    add("--lr", type=not_negative, default=0.1, help="highest learning rate, reached after the warm-up")
    add("--warm-up", type=not_negative, default=20, help="steps in which the learning rate grows")
    add("--weight-decay", type=not_negative, default=1e-4)
    add("--clip", type=not_negative, default=1.0, help="highest norm of the gradient; 0: any")
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
    add("--seed", type=int, default=0)
    add(
        "--workers",
        type=int,
        choices=range(65),
        metavar="N",
        default=0,
        help="processes per rank that load images",
    )
    add("--checkpoints", type=Path, metavar="FOLDER", help="save there, and go on from the newest one there")
    add("--save-every", type=whole_number, help="steps between two checkpoints; default: an epoch")
    add("--keep", type=whole_number, default=2, help="checkpoints to keep")
    add("--log-every", type=whole_number, default=10, help="steps between two lines of JSON")
    add("--timeout", type=whole_number, default=600, help="seconds that a rank waits for the others")
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
    if options.amp and options.float64:
        raise Refused("--amp computes in half precision, --float64 in double: use one of them")
    return options


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


def join(timeout_s: int) -> Ranks:
    """Join the group that torchrun prepared, or be alone. A GPU for each rank of this machine, or the CPU."""
    rank = int(os.environ.get("RANK", "0"))
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available() and torch.cuda.device_count() >= ranks_here:
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store_of_this_attempt(timeout),
        rank=rank,
        world_size=size,
        timeout=timeout,
    )
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


def load_data(options: argparse.Namespace, ranks: Ranks) -> Data:
    if options.data == "digits":
        return digits()
    if options.data == "random":
        return random_images(options.side)
    if options.data in ("mnist", "cifar10"):
        if is_first_here():
            downloaded(options, download=True)  # one rank of each machine; the others wait
        dist.barrier(ranks.for_saving)
        return downloaded(options, download=False)
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


def downloaded(options: argparse.Namespace, download: bool) -> Data:
    from torchvision import datasets, transforms

    folder = options.downloads.expanduser()
    kind = {"mnist": datasets.MNIST, "cifar10": datasets.CIFAR10}[options.data]
    to_tensor = transforms.ToTensor()
    try:
        train = kind(folder, train=True, transform=to_tensor, download=download)
        test = kind(folder, train=False, transform=to_tensor, download=download)
    except (OSError, RuntimeError) as error:
        raise Refused(
            f"--data {options.data} is not in {folder.name}/, nor can it be downloaded: {error}"
        ) from None
    channels, side, _ = train[0][0].shape
    return Data(train, test, channels, side, classes=10)


def images_of_folder(folder: Path, side: int) -> Data:
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    if not folder.is_dir():
        raise Refused(f"--data {folder}: use digits, mnist, cifar10, random, or a folder")
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
        self.optimizer = torch.optim.SGD(
            self.ddp.parameters(), options.lr, momentum=0.9, weight_decay=options.weight_decay
        )
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=options.amp == "fp16")
        self.step = 0  # optimizer steps that are done
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
        size = options.micro_batch or len(images)
        micro_batches = list(zip(images.split(size), labels.split(size), strict=True))
        for number, (x, y) in enumerate(micro_batches, start=1):
            is_last = number == len(micro_batches)
            with nullcontext() if is_last else self.ddp.no_sync():  # the last one averages the gradients
                with precision(options, ranks):  # forward and loss; the loss itself is computed in float32
                    loss = F.cross_entropy(self.ddp(x), y, reduction="sum")
                self.scaler.scale(loss * (ranks.size / options.batch_size)).backward()
            loss_sum += loss.detach()
        if options.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.ddp.parameters(), options.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.step += 1
        return loss_sum


@torch.inference_mode()
def evaluate(trainer: Trainer, loader: DataLoader) -> tuple[float, int]:
    """Return (share recognised, images seen). Sums travel, for the shares of the ranks differ in size."""
    ranks = trainer.ranks
    model = trainer.ddp.module  # not the wrapper: its forward may communicate
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=ranks.device)  # recognised, seen
    for images, labels in loader:
        images = images.to(ranks.device, non_blocking=True)
        labels = labels.to(ranks.device, non_blocking=True)
        if trainer.options.float64:
            images = images.double()
        with precision(trainer.options, ranks):
            scores = model(images)
        counts[0] += (scores.argmax(1) == labels).sum()
        counts[1] += len(labels)
    model.train()
    dist.all_reduce(counts)
    recognised, seen = counts.tolist()
    return recognised / seen, seen


# --- Checkpoints ---


class Checkpoints:
    """Folders ``step_00000120`` in ``folder``. A folder of that name is complete, whatever happened.

    All ranks write into ``step_00000120.part``. When all have finished, rank 0 gives the folder its final
    name in one step. What a killed run leaves behind keeps the name ``.part`` and is never read.
    """

    def __init__(self, options: argparse.Namespace, ranks: Ranks) -> None:
        self.folder: Path = options.checkpoints
        self.options = options
        self.ranks = ranks
        self.under_way: tuple[object, Path] | None = None  # a save: its future, and its final folder
        self.succeeded = True  # of the last save
        self.seconds = 0.0  # that training has waited for saving
        if ranks.rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            for left in self.folder.glob("step_*.part"):
                shutil.rmtree(left)
        dist.barrier(ranks.for_saving)

    def complete(self) -> list[Path]:
        """Folders of complete checkpoints, the newest first."""
        return sorted((path for path in self.folder.glob("step_*") if path.suffix != ".part"), reverse=True)

    def save(self, trainer: Trainer) -> None:
        """Begin to save. Collective. Training goes on while a thread writes a copy."""
        started = time.perf_counter()
        self.finish()
        self.begin(trainer, self.folder / f"step_{trainer.step:08d}")
        self.seconds += time.perf_counter() - started

    def begin(self, trainer: Trainer, final: Path) -> None:
        part = final.with_suffix(".part")
        problem = ""
        if self.ranks.rank == 0:
            description = {"step": trainer.step, "options": chosen(self.options)}
            try:
                part.mkdir()
                (part / "run.json").write_text(json.dumps(description), encoding="utf-8")
                sync_to_disk(part / "run.json")
            except OSError as error:
                problem = str(error)
        if not self.failed_anywhere(final, problem):
            state = state_of(trainer)
            future = dcp.async_save(state, checkpoint_id=part, process_group=self.ranks.for_saving)
            self.under_way = future, final

    def finish(self) -> bool:
        """Wait until the save under way is complete. Collective. False if the last one failed."""
        if self.under_way is None:
            return self.succeeded
        future, final = self.under_way
        self.under_way = None
        problem = ""
        try:
            future.result()
        except (Exception, dcp.api.CheckpointException) as error:  # the latter is no Exception
            problem = last_line(error)
        if not self.failed_anywhere(final, problem) and self.ranks.rank == 0:
            part = final.with_suffix(".part")
            sync_to_disk(part)
            part.rename(final)
            sync_to_disk(self.folder)
            for old in self.complete()[self.options.keep :]:
                shutil.rmtree(old.rename(old.with_suffix(".part")))  # half removed, it is not complete
        return self.succeeded

    def failed_anywhere(self, final: Path, problem: str) -> bool:
        """Whether any rank has a problem, such as a full disk. Collective. The run then goes on unsaved."""
        failed = torch.tensor(bool(problem), dtype=torch.int32)
        dist.all_reduce(failed, dist.ReduceOp.MAX, group=self.ranks.for_saving)
        self.succeeded = not failed
        if failed and self.ranks.rank == 0:
            free = shutil.disk_usage(self.folder).free
            reason = problem or "another rank has a problem"
            print(f"{final.name} was not saved: {reason}; {free:,} bytes are free there", file=sys.stderr)
            shutil.rmtree(final.with_suffix(".part"), ignore_errors=True)
        return not self.succeeded

    def resume(self, trainer: Trainer) -> None:
        """Load the newest complete checkpoint, if there is one, on whatever number of ranks. Collective."""
        names = [folder.name for folder in self.complete()]
        from_rank_0 = [names[0] if names else None]  # on a network drive other ranks may see less
        dist.broadcast_object_list(from_rank_0, src=0, group=self.ranks.for_saving)
        if from_rank_0[0] is None:
            return
        newest = self.folder / from_rank_0[0]
        description = json.loads((newest / "run.json").read_text(encoding="utf-8"))
        refuse_changes(newest.name, description["options"], chosen(self.options))
        state = state_of(trainer)
        dcp.load(state, checkpoint_id=newest, process_group=self.ranks.for_saving)
        set_state_dict(
            trainer.ddp,
            trainer.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        trainer.scaler.load_state_dict(state["scaler"])
        trainer.step = description["step"]
        if self.ranks.rank == 0:
            print(f"going on from {newest.name}")


def state_of(trainer: Trainer) -> dict:
    """All that a run needs to go on; what is random follows from the seed and the step."""
    model, optimizer = get_state_dict(trainer.ddp, trainer.optimizer)
    return {"model": model, "optimizer": optimizer, "scaler": trainer.scaler.state_dict()}


def chosen(options: argparse.Namespace) -> dict:
    """The options that decide what is learnt."""
    return {name: value for name, value in vars(options).items() if name not in MAY_CHANGE}


def refuse_changes(checkpoint: str, before: dict, now: dict) -> None:
    """Raise ``Refused`` if an option that decides what is learnt differs from that of the checkpoint."""
    changes = []
    for name, value in now.items():
        if before.get(name) != value:
            option = "--" + name.replace("_", "-")
            changes.append(f"{option} {value} (was {before.get(name)})")
    if changes:
        what = ", ".join(changes)
        raise Refused(f"{checkpoint} is of a run with other options: {what}; use another folder")


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
    """Whether some rank was asked to stop: by Ctrl-C, by a scheduler's SIGTERM or SIGUSR1.

    A signal reaches the ranks at different steps, but all must leave after the same one. So each step asks
    all ranks, and reads the answer one step later: nobody waits for it.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.asked = False
        self.answer = torch.zeros(1, dtype=torch.int32)
        self.work: dist.Work | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self.note)

    def note(self, number: int, frame: object) -> None:
        self.asked = True

    def seen_by_all(self) -> bool:
        """Whether all ranks are to stop now. Collective, once a step; the same answer on all ranks."""
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
    data = load_data(options, ranks)
    to_train, to_test = loaders(data, options, ranks)
    batches = to_train.batch_sampler
    trainer = Trainer(data, options, ranks)
    checkpoints = Checkpoints(options, ranks) if options.checkpoints else None
    if checkpoints:
        checkpoints.resume(trainer)
    stop_sign = StopSign(ranks)
    steps = batches.steps * options.epochs
    save_every = options.save_every or batches.steps
    log = Log(options, ranks, trainer, checkpoints, steps)
    stopped = False
    while trainer.step < steps and not stopped:
        epoch, first = divmod(trainer.step, batches.steps)
        batches.start_at(epoch, first)
        for images, labels in to_train:
            log.note(trainer.train_step(images, labels, steps))
            stopped = stop_sign.seen_by_all()
            if checkpoints and (stopped or trainer.step % save_every == 0 or trainer.step == steps):
                checkpoints.save(trainer)
            if stopped:
                break
        if trainer.step % batches.steps == 0:
            share, seen = evaluate(trainer, to_test)
            log.say({"epoch": epoch + 1, "accuracy": round(share, 4), "images": seen})
    log.close()
    stop_sign.finish()
    saved = checkpoints.finish() if checkpoints else True
    if not saved:
        return 1
    return SAVED_AND_LEFT if stopped and trainer.step < steps else 0


class Log:
    """A line of JSON on rank 0 every few steps, and a bar above it. Losses stay on the device until then."""

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
        self.bar = tqdm(
            total=steps,
            initial=trainer.step,
            desc="steps",
            disable=ranks.rank != 0,
            leave=False,
            mininterval=1,
        )
        self.loss_sum = torch.zeros((), device=ranks.device)
        self.steps = 0
        self.since = time.perf_counter()

    def note(self, loss_sum: torch.Tensor) -> None:
        self.loss_sum += loss_sum
        self.steps += 1
        self.bar.update()
        if self.trainer.step % self.every == 0:
            self.write()

    def write(self) -> None:
        dist.all_reduce(self.loss_sum)
        now = time.perf_counter()
        images = self.steps * self.batch_size
        loss = self.loss_sum.item() / images
        if not math.isfinite(loss):
            raise Refused(f"step {self.trainer.step}: the loss is not finite; try a lower --lr")
        self.say(
            {
                "step": self.trainer.step,
                "loss": round(loss, 6),
                "lr": round(self.trainer.optimizer.param_groups[0]["lr"], 6),
                "images/s": round(images / (now - self.since), 1),
                "saving_s": round(self.checkpoints.seconds, 3) if self.checkpoints else 0.0,
            }
        )
        self.loss_sum = torch.zeros_like(self.loss_sum)
        self.steps = 0
        self.since = now

    def say(self, values: dict) -> None:
        if self.ranks.rank == 0:
            self.bar.write(json.dumps(values), file=sys.stdout)
            sys.stdout.flush()

    def close(self) -> None:
        self.bar.close()


def main(arguments: list[str] | None = None) -> int:
    try:
        options = parse(arguments)
        die_with_launcher()
        ranks = join(options.timeout)
        code = train(options, ranks)
    except Refused as error:
        if is_first_here():  # a file may be missing on one machine only
            print(error, file=sys.stderr)
        if dist.is_initialized():
            dist.destroy_process_group()
        return 2
    dist.barrier(ranks.for_saving)
    dist.destroy_process_group()
    return code


if __name__ == "__main__":
    exit_code = main()
    gc.collect()  # DDP and its hooks form a cycle; if the dying interpreter ends it, that may abort with -6
    sys.exit(exit_code)
