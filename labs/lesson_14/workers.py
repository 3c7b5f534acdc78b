"""Data-parallel training of many workers in one process, in every way of lesson 14 that sends less.

Nothing is sent here: the workers are the second dimension of a tensor. ``proof_ways`` proves that this gives
the same parameters as ranks that communicate. In the shapes below r counts runs, which differ in their seed
and learning rate, w counts workers and p parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from shared.training.data import load_images

LAYERS = (64, 96, 48, 10)
MATRICES = tuple(zip(LAYERS[1:], LAYERS[:-1], strict=True))  # (out, in) of each layer's weight
SHAPES = tuple(shape for out, size in MATRICES for shape in ((out, size), (out,)))
SIZES = tuple(torch.Size(shape).numel() for shape in SHAPES)
FOLDS = 5


@dataclass(frozen=True)
class Config:
    workers: int = 8
    images: int = 16  # of each worker, in a step
    steps: int = 256
    momentum: float = 0.9
    look: int = 4  # steps between two measurements of accuracy


@dataclass(frozen=True)
class Split:
    """Images (count, 64) in float64 and labels (count,): three fifths to train, one to tune, one to test."""

    train_x: torch.Tensor
    train_y: torch.Tensor
    tune_x: torch.Tensor
    tune_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor


def split_of(seed: int) -> Split:
    """With the seeds 0 to 4 each of the 1,797 images is tested once."""
    data = load_images("digits")
    x = torch.cat([data.train_x, data.test_x]).flatten(1).double()
    y = torch.cat([data.train_y, data.test_y])
    parts_x, parts_y = x.chunk(FOLDS), y.chunk(FOLDS)
    test = seed % FOLDS
    tune = (seed + 1) % FOLDS
    train = [part for part in range(FOLDS) if part not in (test, tune)]
    return Split(
        torch.cat([parts_x[part] for part in train]),
        torch.cat([parts_y[part] for part in train]),
        parts_x[tune],
        parts_y[tune],
        parts_x[test],
        parts_y[test],
    )


def first_parameters(seed: int) -> torch.Tensor:
    """(p,): a perceptron with the layers ``LAYERS``, as ``nn.Linear`` makes them."""
    torch.manual_seed(seed)
    flat = []
    for out, size in MATRICES:
        layer = torch.nn.Linear(size, out, dtype=torch.float64)
        flat += [layer.weight.detach().flatten(), layer.bias.detach()]
    return torch.cat(flat)


def batches_of(seed: int, split: Split, cfg: Config) -> torch.Tensor:
    """(steps, w, images): which images each worker takes, the same in all ways."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(len(split.train_x), (cfg.steps, cfg.workers, cfg.images), generator=random)


def scores(parameters: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """(n, p) and (n, images, 64) to (n, images, 10): n models, each on images of its own."""
    parts = parameters.split(SIZES, dim=1)
    for layer, (out, size) in enumerate(MATRICES):
        weight = parts[2 * layer].view(-1, out, size)
        x = torch.baddbmm(parts[2 * layer + 1].unsqueeze(1), x, weight.transpose(1, 2))
        if layer < len(MATRICES) - 1:
            x = torch.relu(x)
    return x


def gradients(parameters: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """(r, w, p), of each worker's mean loss."""
    flat = parameters.flatten(0, 1).requires_grad_()
    found = scores(flat, x.flatten(0, 1))
    loss = F.cross_entropy(found.transpose(1, 2), y.flatten(0, 1), reduction="none").mean(1).sum()
    return torch.autograd.grad(loss, flat)[0].view_as(parameters)


class EachStep:
    """Gradients are averaged in each step, and no more. What follows from it sends less."""

    def average(self, gradient: torch.Tensor) -> torch.Tensor:
        """(r, w, p) to what each worker's optimizer takes, (r, w, p)."""
        return gradient.mean(1, keepdim=True).expand_as(gradient)

    def after_step(self, step: int, parameters: torch.Tensor) -> torch.Tensor:
        """(r, w, p) after the optimizer's ``step``, from 1, to what the workers go on with."""
        return parameters


class Rounded(EachStep):
    """Gradients are sent as bf16, divided first. The sum is rounded after each worker."""

    def average(self, gradient: torch.Tensor) -> torch.Tensor:
        workers = gradient.shape[1]
        small = gradient.bfloat16() / workers
        total = small[:, 0]
        for worker in range(1, workers):
            total = total + small[:, worker]
        return total.double().unsqueeze(1).expand_as(gradient)


class TopK(EachStep):
    """Each worker sends its gradient's largest numbers. With ``feedback`` it keeps the rest for later."""

    def __init__(self, share: float, feedback: bool = True) -> None:
        self.k = int(share * sum(SIZES))
        self.feedback = feedback
        self.residual: torch.Tensor | None = None

    def average(self, gradient: torch.Tensor) -> torch.Tensor:
        corrected = gradient if self.residual is None else gradient + self.residual
        indices = corrected.abs().topk(self.k, dim=2, sorted=False).indices
        sent = torch.zeros_like(corrected).scatter(2, indices, corrected.gather(2, indices))
        if self.feedback:
            self.residual = corrected - sent
        return super().average(sent)


class PowerSGD(EachStep):
    """Each matrix is sent as two thin ones, with error feedback and warm start; biases are sent whole."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.random = torch.Generator().manual_seed(0)
        self.errors: dict[int, torch.Tensor] = {}
        self.qs: dict[int, torch.Tensor] = {}

    def average(self, gradient: torch.Tensor) -> torch.Tensor:
        parts = []
        for number, (shape, part) in enumerate(zip(SHAPES, gradient.split(SIZES, dim=2), strict=True)):
            if shrinks(shape, self.rank):
                matrix = part.unflatten(2, shape)
                parts.append(self.average_matrix(number, matrix).flatten(2))
            else:
                parts.append(part.mean(1, keepdim=True))
        return torch.cat(parts, dim=2).expand_as(gradient)

    def average_matrix(self, number: int, matrix: torch.Tensor) -> torch.Tensor:
        """(r, w, n, m) to (r, 1, n, m)."""
        if number in self.errors:
            matrix = matrix + self.errors[number]
        else:
            shape = (matrix.shape[3], self.rank)
            first = torch.randn(*shape, generator=self.random, dtype=matrix.dtype)
            self.qs[number] = first.expand(len(matrix), 1, *shape)
        p = (matrix @ torch.linalg.qr(self.qs[number]).Q).mean(1, keepdim=True)
        p = torch.linalg.qr(p).Q
        own_q = matrix.transpose(2, 3) @ p
        q = own_q.mean(1, keepdim=True)
        self.errors[number] = matrix - p @ own_q.transpose(2, 3)
        self.qs[number] = q
        return p @ q.transpose(2, 3)


class LocalSGD(EachStep):
    """After each ``every`` steps the parameters become their mean; gradients stay where they are."""

    def __init__(self, every: int) -> None:
        self.every = every

    def average(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient

    def after_step(self, step: int, parameters: torch.Tensor) -> torch.Tensor:
        if step % self.every:
            return parameters
        return parameters.mean(1, keepdim=True).expand_as(parameters)


class DiLoCo(LocalSGD):
    """After each ``every`` steps Nesterov's SGD makes a step of the common model, by the mean of the ways."""

    def __init__(
        self, every: int, outer_lr: torch.Tensor, start: torch.Tensor, momentum: float = 0.9
    ) -> None:
        super().__init__(every)
        self.lr = outer_lr.view(-1, 1, 1)
        self.shared = start
        self.momentum = momentum
        self.buffer = torch.zeros_like(start)

    def after_step(self, step: int, parameters: torch.Tensor) -> torch.Tensor:
        if step % self.every:
            return parameters
        gradient = self.shared - parameters.mean(1, keepdim=True)
        self.buffer = self.momentum * self.buffer + gradient
        self.shared = self.shared - self.lr * (gradient + self.momentum * self.buffer)
        return self.shared.expand_as(parameters)


def shrinks(shape: tuple[int, ...], rank: int) -> bool:
    """Whether PowerSGD sends a tensor of this shape as two thin matrices."""
    return len(shape) == 2 and 2 * rank * sum(shape) < torch.Size(shape).numel()


# What makes of a way's outer learning rates, (r,), and its first parameters, (r, 1, p), the way itself.
Build = Callable[[torch.Tensor, torch.Tensor], EachStep]


@dataclass(frozen=True)
class Way:
    """One way to communicate; ``every`` is how many steps lie between two synchronizations."""

    kind: str
    build: Build
    every: int = 1


WAYS: dict[str, Way] = {
    "all-reduce": Way("all-reduce", lambda outer_lr, start: EachStep()),
    "bf16": Way("bf16", lambda outer_lr, start: Rounded()),
    "PowerSGD, rank 4": Way("PowerSGD", lambda outer_lr, start: PowerSGD(4)),
    "PowerSGD, rank 1": Way("PowerSGD", lambda outer_lr, start: PowerSGD(1)),
    "top 10 %": Way("top-k", lambda outer_lr, start: TopK(0.1)),
    "top 1 %": Way("top-k", lambda outer_lr, start: TopK(0.01)),
    "top 0.1 %": Way("top-k", lambda outer_lr, start: TopK(0.001)),
    "top 1 %, no feedback": Way("top-k, no feedback", lambda outer_lr, start: TopK(0.01, feedback=False)),
    "local SGD, H = 4": Way("local SGD", lambda outer_lr, start: LocalSGD(4), 4),
    "local SGD, H = 16": Way("local SGD", lambda outer_lr, start: LocalSGD(16), 16),
    "local SGD, H = 64": Way("local SGD", lambda outer_lr, start: LocalSGD(64), 64),
    "DiLoCo, H = 4": Way("DiLoCo", lambda outer_lr, start: DiLoCo(4, outer_lr, start), 4),
    "DiLoCo, H = 16": Way("DiLoCo", lambda outer_lr, start: DiLoCo(16, outer_lr, start), 16),
    "DiLoCo, H = 64": Way("DiLoCo", lambda outer_lr, start: DiLoCo(64, outer_lr, start), 64),
}


@dataclass(frozen=True)
class Run:
    """One training. ``outer_lr`` counts for DiLoCo alone."""

    seed: int
    lr: float
    outer_lr: float = 0.0


class Workers:
    """All workers of all runs of one way, step by step. ``common`` is what they agreed on last, (r, p)."""

    def __init__(self, way: Way, runs: list[Run], cfg: Config) -> None:
        self.cfg = cfg
        self.seeds = [run.seed for run in runs]
        self.splits = {seed: split_of(seed) for seed in self.seeds}
        self.batches = {seed: batches_of(seed, self.splits[seed], cfg) for seed in self.seeds}
        self.lr = torch.tensor([run.lr for run in runs], dtype=torch.float64).view(-1, 1, 1)
        start = torch.stack([first_parameters(seed) for seed in self.seeds]).unsqueeze(1)
        self.parameters = start.expand(-1, cfg.workers, -1)
        self.buffer = torch.zeros_like(self.parameters)
        self.way = way
        self.method = way.build(torch.tensor([run.outer_lr for run in runs], dtype=torch.float64), start)
        self.common = start[:, 0]
        self.done = 0

    def step(self) -> None:
        chosen = {seed: batches[self.done] for seed, batches in self.batches.items()}
        x = torch.stack([self.splits[seed].train_x[chosen[seed]] for seed in self.seeds])
        y = torch.stack([self.splits[seed].train_y[chosen[seed]] for seed in self.seeds])
        gradient = self.method.average(gradients(self.parameters, x, y))
        self.buffer = self.cfg.momentum * self.buffer + gradient
        self.done += 1
        self.parameters = self.method.after_step(self.done, self.parameters - self.lr * self.buffer)
        if self.done % self.way.every == 0:
            self.common = self.parameters[:, 0]

    def accuracy(self) -> tuple[list[float], list[float]]:
        """Of the common model of each run: on the images to tune by, and on those to test by."""
        found: tuple[list[float], list[float]] = ([], [])
        for seed, parameters in zip(self.seeds, self.common, strict=True):
            split = self.splits[seed]
            for values, x, y in zip(
                found, (split.tune_x, split.test_x), (split.tune_y, split.test_y), strict=True
            ):
                right = scores(parameters.unsqueeze(0), x.unsqueeze(0))[0].argmax(1) == y
                values.append(right.double().mean().item())
        return found


def train(way: Way, runs: list[Run], cfg: Config) -> list[list[tuple[float, float]]]:
    """For each run its accuracies (tune, test) after each ``look`` steps."""
    workers = Workers(way, runs, cfg)
    found: list[list[tuple[float, float]]] = [[] for _ in runs]
    for _ in range(cfg.steps):
        workers.step()
        if workers.done % cfg.look == 0:
            for values, pair in zip(found, zip(*workers.accuracy(), strict=True), strict=True):
                values.append(pair)
    return found
