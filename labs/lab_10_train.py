"""Train a model on any number of ranks, and resume after a kill at any moment; images are the example.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_10_train.py --epochs 2
Written by:  notebooks/10_training_template.ipynb (edit it there)

To copy, with lab_10_batches.py, lab_11_checkpointing.py and lab_13_stopping.py. Folders need torchvision.
For your own data, model and loss write a class like ``Images``; lab_10_tokens.py does, in 40 lines.
On SIGTERM, SIGINT or SIGHUP to torchrun or a rank, or SIGUSR1 to a rank, all ranks save and leave; an
evaluation ends first. If torchrun itself got no signal, it restarts them while --max-restarts lasts.
Exit codes of a rank: 0 done, 1 a failure, 2 refused, 75 saved and left; the same command resumes.
"""

import argparse
import json
import math
import os
import resource
import sys
import time
from collections import namedtuple
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset
from torch.utils.flop_counter import FlopCounterMode

from lab_10_batches import Data, DataError, RankBatches, Seeded, digits, images_of, seed_of
from lab_11_checkpointing import Checkpoints, Refused
from lab_13_stopping import SAVED_AND_LEFT, StopSign, ignore_signals, run_rank, store_of_this_attempt

# When a run resumes, FREE options may differ; CHANGEABLE ones only with --allow-changes; no others.
FREE = {"allow_changes", "checkpoints", "data", "device", "evaluate", "keep", "keep_every", "log_every"}
FREE |= {"peak_tflops", "save_every", "save_minutes", "timeout", "workers"}
CHANGEABLE = {"clip", "compile", "epochs", "images", "lr", "micro_batch", "warm_up", "weight_decay"}
MAY_BE_0 = {"clip", "lr", "save_minutes", "seed", "warm_up", "weight_decay", "workers"}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    shows_defaults = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(formatter_class=shows_defaults, allow_abbrev=False, exit_on_error=False)
    add = parser.add_argument
    add("--data", default="digits", help="digits, or a folder with train/CLASS/ and test/CLASS/")
    add("--side", type=int, default=64, help="height and width of the images of a folder")
    add("--model", default="convnet", help="convnet, or a torchvision classifier with one output")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: GPUs, if there are any")
    add("--epochs", type=int, default=6, help="how often each image is used")
    add("--batch-size", type=int, default=48, help="images per step, of all ranks together")
    add("--micro-batch", type=int, help="images per forward pass and rank; gradients add up to a step")
    add("--optimizer", choices=["sgd", "adamw"], default="sgd", help="sgd has a momentum of 0.9")
    add("--lr", type=float, help="highest learning rate, after the warm-up; None: 0.1 of sgd, 0.001 of adamw")
    add("--warm-up", type=int, default=20, help="steps in which the learning rate grows")
    add("--weight-decay", type=float, default=1e-4, help="of matrices and filters, not of norms and biases")
    add("--clip", type=float, default=1.0, help="highest norm of the gradient; 0: any")
    add("--augment", action="store_true", help="crop and mirror images of a folder at random, shift digits")
    add(
        "--amp", nargs="?", const="bf16", choices=["bf16", "fp16"], help="use half precision where it is safe"
    )
    add("--sync-batch-norm", action="store_true", help="normalize over the images of all ranks; needs GPUs")
    add("--float64", action="store_true", help="compute in float64, to compare runs")
    add("--compile", action="store_true", help="compile the model; recompiles for each micro-batch size")
    add("--seed", type=int, default=0, help="of all that is random")
    add("--workers", type=int, default=0, help="processes per rank that load images; as many again to test")
    add("--checkpoints", type=Path, metavar="FOLDER", help="save there, and resume from the newest one there")
    add("--save-every", type=int, help="steps between two checkpoints; None: an epoch")
    add("--save-minutes", type=float, help="minutes between two checkpoints, beside --save-every; None: any")
    add("--keep", type=int, default=2, help="newest checkpoints to keep")
    add("--keep-every", type=int, help="also keep the checkpoint of each multiple of this step, for ever")
    add("--allow-changes", action="store_true", help=f"these may differ: {', '.join(sorted(CHANGEABLE))}")
    add("--evaluate", action="store_true", help="only test the newest checkpoint")
    add("--log-every", type=int, default=10, help="steps between two lines of JSON")
    add("--peak-tflops", type=float, help="of a GPU in this precision, from its data sheet, to log the MFU")
    add("--timeout", type=int, default=600, help="seconds that a rank waits for the others")
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise Refused(f"unknown option {unknown[0]}; --help lists all")
    if options.lr is None:
        options.lr = {"sgd": 0.1, "adamw": 0.001}[options.optimizer]
    for name, value in vars(options).items():
        lowest = 0 if name in MAY_BE_0 else 1
        if type(value) in (int, float) and not lowest <= value < math.inf:
            raise Refused(f"--{name.replace('_', '-')} must be a number from {lowest}, not {value}")
    return options


Ranks = namedtuple("Ranks", "rank size device")  # who this process is, and its torch.device


def join(options: argparse.Namespace) -> Ranks:
    """Join the group that torchrun prepared, or be alone. A GPU for each rank of this machine, or the CPU."""
    names = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    rank, size, local_rank, ranks_here = (int(os.environ.get(name, alone)) for name, alone in names.items())
    gpus = 0 if options.device == "cpu" else torch.cuda.device_count()
    too_few = f"{ranks_here} ranks but {gpus} GPU(s) on this machine: start as many, or --device cpu"
    if gpus < ranks_here and (gpus > 1 or (gpus == 0 and options.device == "cuda")):
        raise Refused(too_few)
    device = torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    patience = timedelta(seconds=options.timeout)
    store = store_of_this_attempt(patience)  # because torchrun may start the ranks again
    if rank == 0:
        store.set("device", device.type)
        about = {"ranks": size, "device": device.type, "torch": torch.__version__, "options": vars(options)}
        print(json.dumps(about, default=str), flush=True)
    if device.type.encode() != store.get("device"):  # else nccl and gloo would wait for each other
        raise Refused(f"rank {rank} is on {device.type}, rank 0 is not: see --device")
    if gpus and store.add(str(torch.cuda.get_device_properties(device).uuid), 1) > 1:
        raise Refused(too_few)  # each process may see one GPU alone, but not the same
    who = {"store": store, "rank": rank, "world_size": size, "device_id": device if gpus else None}
    dist.init_process_group("nccl" if gpus else "gloo", timeout=patience, **who)
    return Ranks(rank, size, device)


def loaders(data: Data, options: argparse.Namespace, ranks: Ranks) -> tuple[DataLoader, DataLoader]:
    """Loaders of this rank: batches to train on, and its share of the test images, each on one rank."""
    workers = options.workers  # of each loader; "fork", because Python 3.14's default imports torch in each
    start = "fork" if workers and sys.platform == "linux" else None
    common = {"num_workers": workers, "persistent_workers": workers > 0, "multiprocessing_context": start}
    common |= {"worker_init_fn": ignore_signals, "pin_memory": ranks.device.type == "cuda"}
    batches = RankBatches(len(data.train), options.batch_size, options.seed, ranks.rank, ranks.size)
    to_train = DataLoader(Seeded(data.train, options.seed), batch_sampler=batches, **common)
    share = range(ranks.rank, len(data.test), ranks.size)  # not padded, so that each image counts once
    fits = options.micro_batch or math.ceil(options.batch_size / ranks.size)  # with gradients, even
    return to_train, DataLoader(Subset(data.test, share), batch_size=fits, **common)


class Images:
    """What is learned: the classes of images. Everything about images is here and in lab_10_batches.py."""

    unit = "images"  # what each has the same weight in the loss

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def data(self) -> Data:
        folder, side, augment = self.options.data, self.options.side, self.options.augment
        return digits(augment) if folder == "digits" else images_of(Path(folder), side, augment)

    def model(self, data: Data) -> nn.Module:
        channels, side, _ = data.test[0][0].shape
        if self.options.model == "convnet":  # group norm does not mix the images of a batch
            first = [nn.Conv2d(channels, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2)]
            second = [nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(4, 64), nn.ReLU(), nn.Flatten()]
            return nn.Sequential(*first, *second, nn.Linear(64 * (side // 2) ** 2, data.classes))
        from torchvision import models

        name = self.options.model
        if name not in models.list_models(models) or channels != 3:
            raise Refused(f"--model {name}: no classifier of torchvision, or --data is no folder")
        return models.get_model(name, num_classes=data.classes)

    def loss(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The sum over the units of a micro-batch, not their mean."""
        return F.cross_entropy(model(x), y, reduction="sum")

    def count(self, labels: torch.Tensor) -> int | torch.Tensor:
        """Units in a step, on all ranks together; ``labels`` are this rank's. Collective if need be."""
        return self.options.batch_size

    def right(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Of a batch for testing: how many units the model gets right, and how many there are."""
        return (model(x).argmax(1) == y).sum(), len(y)


Task = type[Images]


def build(data: Data, options: argparse.Namespace, ranks: Ranks, task: Task = Images) -> nn.Module:
    torch.manual_seed(options.seed)
    model = task(options).model(data)
    if options.sync_batch_norm:
        if ranks.device.type != "cuda":
            raise Refused("--sync-batch-norm: torch has it for GPUs alone")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return model.to(ranks.device, torch.float64 if options.float64 else torch.float32)


class Trainer:
    def __init__(
        self, data: Data, options: argparse.Namespace, ranks: Ranks, steps_of_epoch: int, task: Task = Images
    ) -> None:
        self.options = options
        self.task = task(options)
        self.ranks = ranks
        self.steps_of_epoch = steps_of_epoch
        self.steps = steps_of_epoch * options.epochs
        self.step = 0  # optimizer steps that are done
        model = build(data, options, ranks, task)
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # the counter does not see its fused kernels
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model.eval()(self.move(data.test[0][0][None]))
        torch.backends.mha.set_fastpath_enabled(fast)
        self.flops_per_sample = 3 * counter.get_total_flops()  # backward computes twice as much as forward
        where = [ranks.device.index] if ranks.device.type == "cuda" else None
        if options.compile:  # before DDP, around which a Sequential would not be compiled
            model.compile()  # in place, so that names of parameters stay as they are
        self.ddp = DistributedDataParallel(model.train(), device_ids=where, gradient_as_bucket_view=True)
        matrices = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim <= 1]  # norms and biases, which do not decay
        groups = [{"params": matrices}, {"params": others}]
        if options.optimizer == "adamw":
            self.optimizer = torch.optim.AdamW(groups, options.lr)
        else:
            self.optimizer = torch.optim.SGD(groups, options.lr, momentum=0.9)
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=options.amp == "fp16")
        half = torch.float16 if options.amp == "fp16" else torch.bfloat16
        self.precision = torch.autocast(ranks.device.type, half, enabled=options.amp is not None)
        self.begin_log()

    def new_group(self) -> dist.ProcessGroup:  # for what must not mix with the gradients
        return dist.new_group(backend="gloo", timeout=timedelta(seconds=self.options.timeout))

    def move(self, x: torch.Tensor) -> torch.Tensor:
        dtype = torch.float64 if self.options.float64 and x.is_floating_point() else x.dtype
        return x.to(self.ranks.device, dtype, non_blocking=True)

    def learning_rate(self) -> float:
        rise = min(1.0, (self.step + 1) / max(1, self.options.warm_up))
        done = max(0, self.step - self.options.warm_up) / max(1, self.steps - self.options.warm_up)
        return self.options.lr * rise * 0.5 * (1 + math.cos(math.pi * done))

    def train_step(self, samples: torch.Tensor, labels: torch.Tensor) -> None:
        """One optimizer step on this rank's part of a global batch."""
        count = self.task.count(self.move(labels))
        batch_size = self.options.batch_size
        torch.manual_seed(seed_of(self.options.seed, "noise", self.step, self.ranks.rank))
        for group, decay in zip(self.optimizer.param_groups, (self.options.weight_decay, 0.0), strict=True):
            group.update(lr=self.learning_rate(), weight_decay=decay)  # resume has restored the old ones
        largest_share = math.ceil(batch_size / self.ranks.size)
        pieces = math.ceil(largest_share / (self.options.micro_batch or largest_share))  # equal on all ranks
        micro_batches = zip(samples.tensor_split(pieces), labels.tensor_split(pieces), strict=True)
        for number, (x, y) in enumerate(micro_batches, start=1):
            with nullcontext() if number == pieces else self.ddp.no_sync():  # the last averages gradients
                with self.precision:  # forward and loss; the loss itself is computed in float32
                    loss = self.task.loss(self.ddp, self.move(x), self.move(y))
                self.scaler.scale(loss * self.ranks.size / count).backward()  # DDP divides by the ranks
            self.losses += loss.detach()
        self.counted += count
        self.scaler.unscale_(self.optimizer)
        self.gradient_norm = nn.utils.clip_grad_norm_(self.ddp.parameters(), self.options.clip or math.inf)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.step += 1

    def share_buffers(self) -> None:
        """Give all ranks rank 0's buffers: forward passes since DDP did so have made them differ."""
        for buffer in self.ddp.module.buffers():
            dist.broadcast(buffer, src=0)

    def is_finite(self) -> bool:
        self.share_buffers()  # or the ranks might differ in their answers
        finite = torch.stack([t.isfinite().all() for t in self.ddp.module.state_dict().values()]).all()
        return bool(finite) and self.scaler.get_scale() >= 1  # less: fp16 has skipped many steps in a row

    @torch.inference_mode()
    def evaluate(self, loader: DataLoader) -> tuple[float, int]:
        """Return (share that is right, units seen) of all ranks, which may have different numbers."""
        self.share_buffers()
        model = self.ddp.module.eval()  # not the wrapper: its forward may communicate
        counts = torch.zeros(2, dtype=torch.int64, device=self.ranks.device)  # right, seen
        for samples, labels in loader:
            with self.precision:
                right, seen = self.task.right(model, self.move(samples), self.move(labels))
            counts[0] += right
            counts[1] += seen
        model.train()
        dist.all_reduce(counts)
        right, seen = counts.tolist()
        epoch = self.step // self.steps_of_epoch
        self.say({"epoch": epoch, "accuracy": round(right / seen, 4), self.task.unit: seen})
        return right / seen, seen

    def begin_log(self) -> None:
        self.losses = torch.zeros((), device=self.ranks.device)  # their sum; it stays on the device
        self.counted = 0  # units in these losses
        self.logged = self.step
        self.since = time.perf_counter()

    def log(self) -> None:
        """A line about the steps since the last one, or since the epoch began. Collective."""
        dist.all_reduce(self.losses)
        units = int(self.counted)
        loss = self.losses.item() / max(1, units)  # it waits for the GPU, so the clock is read after it
        seconds = time.perf_counter() - self.since
        samples = (self.step - self.logged) * self.options.batch_size
        tflops = samples * self.flops_per_sample / seconds / self.ranks.size / 1e12
        rate = self.optimizer.param_groups[0]["lr"]
        line = {"step": self.step, "loss": round(loss, 6), "lr": round(rate, 6)}
        line["gradient_norm"] = round(self.gradient_norm.item(), 4)
        line |= {f"{self.task.unit}/s": round(units / seconds, 1), "tflops_per_rank": float(f"{tflops:.3g}")}
        line |= {"mfu": round(tflops / self.options.peak_tflops, 4)} if self.options.peak_tflops else {}
        self.say(line | {"peak_memory_gib": round(self.peak_memory() / 2**30, 2)})
        self.begin_log()

    def peak_memory(self) -> int:
        """Bytes: of this rank's GPU, or of its process."""
        if self.ranks.device.type == "cuda":
            return torch.cuda.max_memory_allocated()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    def say(self, line: dict[str, float]) -> None:
        if self.ranks.rank == 0:
            line = {name: value if math.isfinite(value) else None for name, value in line.items()}
            print(json.dumps(line | {"time": round(time.time(), 1)}), flush=True)  # in seconds since 1970
            # For Weights & Biases: wandb.log(line, step=self.step)


def open_checkpoints(trainer: Trainer, data: Data) -> Checkpoints:
    options = trainer.options
    settings = {name: value for name, value in vars(options).items() if name not in FREE}
    settings["images"] = data.known_by  # not --data: they may lie elsewhere in the next job
    state = {"model": trainer.ddp, "optimizer": trainer.optimizer, "more": {"scaler": trainer.scaler}}
    allowed = CHANGEABLE if options.allow_changes else frozenset()
    rules = {"keep": options.keep, "keep_every": options.keep_every}
    rules |= {"may_change": allowed, "only_read": options.evaluate}
    return Checkpoints(options.checkpoints, settings, trainer.new_group(), **state, **rules)


def train(options: argparse.Namespace, task: Task = Images) -> int:
    """Train to the end, or to a signal; return the exit code."""
    ranks = join(options)
    data = task(options).data()
    data.check_that_all_ranks_have_it()
    to_train, to_test = loaders(data, options, ranks)
    trainer = Trainer(data, options, ranks, to_train.batch_sampler.steps, task)
    checkpoints = open_checkpoints(trainer, data) if options.checkpoints else None
    if checkpoints:
        trainer.step = checkpoints.resume()
    if options.evaluate and not trainer.step:
        raise Refused("--evaluate: --checkpoints must name a folder with a checkpoint")
    if trainer.step and (options.evaluate or trainer.step % trainer.steps_of_epoch == 0):
        trainer.evaluate(to_test)  # the run may have ended before it
    if options.evaluate:
        return 0
    stop_sign = StopSign(trainer.new_group(), save_every_s=60 * (options.save_minutes or math.inf))
    stopped = False
    while trainer.step < trainer.steps and not stopped:
        stopped = train_epoch(trainer, to_train, checkpoints, stop_sign)
        if not stopped:
            trainer.evaluate(to_test)
    stop_sign.finish()
    if checkpoints and not checkpoints.finish(trainer.step):
        return 1
    if stopped:
        trainer.say({"stopped after step": trainer.step, "saved": checkpoints is not None})
        return SAVED_AND_LEFT if checkpoints else 1
    return 0


def train_epoch(trainer: Trainer, loader: DataLoader, saver: Checkpoints | None, stop: StopSign) -> bool:
    """Train from the next step to the end of its epoch. True if a signal came before."""
    loader.batch_sampler.done = trainer.step
    trainer.begin_log()
    for samples, labels in loader:
        trainer.train_step(samples, labels)
        stopped = stop.seen_by_all()
        is_last = stopped or trainer.step == trainer.steps
        every = [trainer.options.save_every or trainer.steps_of_epoch, trainer.options.keep_every]
        is_due = any(steps and trainer.step % steps == 0 for steps in every)
        is_saved = is_last or is_due or stop.save_now
        is_logged = is_last or trainer.step % trainer.options.log_every == 0
        if (is_saved or is_logged) and not trainer.is_finite():
            if saver:
                saver.wait()  # for the checkpoint of an earlier step
            raise Refused(f"step {trainer.step}: the loss or the model is not finite; try a lower --lr")
        if is_logged:
            trainer.log()
        if saver and is_saved:
            saver.save(trainer.step)
        if stopped:
            return True
    return False


def main(arguments: list[str] | None = None, task: Task = Images) -> int:
    return run_rank(lambda: train(parse(arguments), task), (Refused, DataError, argparse.ArgumentError))


if __name__ == "__main__":
    sys.exit(main())
