"""Rows of the table: one process, DDP, ZeRO-1. Each rank has the whole model."""

import torch
from torch.nn.parallel import DistributedDataParallel

from lab_18_zero_1 import Zero1
from lesson_22.rows import Job, Row, kinds, mean_of_rows, place, steps_of

FIRST_BUCKET = 2**20  # bytes at which DDP closes its first bucket; the next ones take 25 times as many


def single(job: Job) -> Row:
    """One process."""
    model = job.model()
    optimizer = job.adam(model.parameters())
    step = steps_of(optimizer, mean_of_rows(job, model))
    return Row(step, model.named_parameters, optimizer, {}, share=1 / job.group.world_size)


def buckets(job: Job) -> int:
    return 1 if job.truth.size <= FIRST_BUCKET else 2


def ddp(job: Job) -> Row:
    """Lessons 08 and 09: buckets, on their way during backward."""
    n = job.group.world_size
    mesh = job.mesh(dp=n)
    model = job.model()
    optimizer = job.adam(model.parameters())
    copies = DistributedDataParallel(model)
    step = steps_of(optimizer, mean_of_rows(job, copies, *place(mesh, "dp")))
    traffic = {("dp", "all_reduce"): (buckets(job), job.truth.size)}
    return Row(step, model.named_parameters, optimizer, traffic, share=1 / n)


class NotedZero1(Zero1):
    """It drops the averaged gradient after the step; this one keeps it for the comparison."""

    mean: torch.Tensor | None = None

    def zero_grad(self, set_to_none: bool = False) -> None:
        self.mean = None  # it was for the comparison
        super().zero_grad(set_to_none)

    def average_gradient(self) -> torch.Tensor:
        self.mean = super().average_gradient()
        return self.mean


class FlatParts:
    """What this rank has of the flat tensor of all parameters, by the parameters' names."""

    def __init__(self, zero: NotedZero1, job: Job) -> None:
        self.zero = zero
        self.start = job.truth.start
        self.length = len(zero.part)
        self.begin = job.group.rank * self.length  # of this rank's part, in the flat tensor
        self.begins = {}  # of a parameter
        at = 0
        for name, p in self.start.items():
            self.begins[name] = at
            at += p.numel()

    def part(self, name: str, tensor: torch.Tensor) -> torch.Tensor | None:
        """Those of its numbers that lie in this rank's part of the flat tensor."""
        begin = self.begin - self.begins[name]
        own = tensor.flatten()[max(0, begin) : max(0, begin + self.length)]
        return own if len(own) else None

    def gradients(self) -> dict[str, torch.Tensor]:
        held = {name: self.part(name, p) for name, p in self.start.items()}
        sizes = {name: len(own) for name, own in held.items() if own is not None}
        parts = self.zero.mean.split([*sizes.values(), self.length - sum(sizes.values())])
        return dict(zip(sizes, parts, strict=False))


def zero_1(job: Job) -> Row:
    """Lesson 18: each rank has the optimizer state of 1/N of the numbers."""
    n = job.group.world_size
    mesh = job.mesh(dp=n)
    model = job.model()
    zero = NotedZero1(model.parameters(), job.adam)
    parts = FlatParts(zero, job)
    flat = parts.length * n * zero.part.element_size()
    traffic = {("dp", "reduce_scatter"): (1, flat), ("dp", "all_gather"): (1, flat // n)}
    return Row(
        steps_of(zero, mean_of_rows(job, model, *place(mesh, "dp"))),
        model.named_parameters,
        zero.optimizer,
        traffic,
        gradient_part=parts.part,
        gradients=parts.gradients,
        keeps=kinds(flat, flat, flat // n, 1),
        share=1 / n,
    )
