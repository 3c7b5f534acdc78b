"""Rows of the table: PP by 1F1B, and PP x FSDP x TP. A rank has a stage."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from shared.runtime.errors import CourseError
from shared.training.schedules import simulate
from shared.training.storages import local_of
from shared.training.timeline import bubble

from lab_16_executor import Pipeline
from lesson_16 import proof_schedules as pipelines
from lesson_16.stage import Stage, stage_of
from lesson_17 import proof_gpt as tensor_parallel
from lesson_19.sharding import shard_units
from lesson_22.rows import Job, Row, Traffic, place


class OneForwardOneBackward:
    """Lesson 16's trainer with Adam, on this rank's stage of the truth."""

    def __init__(self, job: Job) -> None:
        cfg, self.ranks = job.cfg, job.group.world_size
        self.job = job
        self.plan = pipelines.plan_of("1F1B", self.ranks, cfg.micro_batches)
        self.trainer = pipelines.Trainer("1F1B", self.plan, job.group, pipelines.Config(gpt=cfg.gpt))
        for name, p in self.trainer.parameters.items():
            p.data.copy_(job.truth.start[name])
        self.optimizer = job.adam(self.trainer.parameters.values())
        self.bubble = bubble(simulate(self.plan, cfg.micro_batches).spans, self.ranks)

    def step(self, number: int) -> torch.Tensor:
        tokens, labels = self.job.rows(number)
        pieces = self.job.cfg.micro_batches
        batch = pipelines.Batch(list(tokens.chunk(pieces)), list(labels.chunk(pieces)), labels.numel())
        self.optimizer.zero_grad()
        loss = self.trainer.forward_and_backward(batch)
        self.trainer.tied.add_gradients()
        self.optimizer.step()
        return loss  # the last stage has it, the others have 0

    def check(self) -> None:
        micro_batches = self.job.cfg.micro_batches
        held = self.trainer.pipeline.peak_live
        expected = min(self.ranks - self.job.group.rank, micro_batches)
        if held != expected:
            raise CourseError(f"PP, 1F1B: {held} micro-batches at once, expected {expected}")
        formula = (self.ranks - 1) / (micro_batches + self.ranks - 1)
        if abs(self.bubble - formula) > 1e-9:
            raise CourseError(f"PP, 1F1B: a bubble of {self.bubble:.3f}, expected {formula:.3f}")


def pp_1f1b(job: Job) -> Row:
    """Lesson 16: some layers on each rank, no more micro-batches at once than there are stages to come."""
    cfg, rank, n = job.cfg, job.group.rank, job.group.world_size
    job.mesh(pp=n)
    job.dimension_of[(0, n - 1)] = "pp"  # for the tied weight
    training = OneForwardOneBackward(job)
    borders = 2 - (rank == 0) - (rank == n - 1)
    messages = (borders * cfg.micro_batches, borders * job.activations(cfg.rows))
    traffic = {("pp", "send"): messages, ("pp", "recv"): messages}
    if rank in (0, n - 1):
        traffic["pp", "all_reduce"] = (1, job.truth.start["tokens.weight"].nbytes)
    return Row(
        training.step,
        training.trainer.parameters.items,
        training.optimizer,
        traffic,
        part=training.trainer.part_of,
        bubble=training.bubble,
        check=training.check,
    )


class FsdpPipeline(Pipeline):
    """A pipeline whose stage is sharded. Stage and gradients stay whole until the last micro-batch."""

    def backward(self, stage: int, number: int) -> None:
        last = number == len(self.inputs) - 1
        module = self.stages[stage]
        module.set_is_last_backward(last)
        module.set_requires_gradient_sync(last)
        module.set_reshard_after_backward(last)
        super().backward(stage, number)


class StepsInPipeline:
    """Steps in micro-batches, in the order of this stage's ``plan``."""

    def __init__(
        self, job: Job, mesh: DeviceMesh, stage: Stage, optimizer: torch.optim.Optimizer, plan: list
    ) -> None:
        cfg = job.cfg
        self.job = job
        self.stage = stage
        self.optimizer = optimizer
        self.plan = plan
        self.tp, self.pp = mesh.get_group("tp"), mesh.get_group("pp")
        self.index, self.parts = place(mesh, "dp")
        self.micro_batches = cfg.micro_batches // self.parts
        self.shape = torch.Size((cfg.rows // cfg.micro_batches, cfg.gpt.context, cfg.gpt.width))
        number, _ = place(mesh, "pp")
        owner = dist.get_process_group_ranks(self.pp)  # ranks of the world, by stage
        patience = timedelta(seconds=60)
        self.pipeline = FsdpPipeline({number: stage}, owner, job.group.device, cfg.gpt.dtype, patience)

    def step(self, number: int) -> torch.Tensor:
        tokens, labels = self.job.rows(number, self.index, self.parts)
        pieces = labels.chunk(self.micro_batches)

        def share_of_loss(micro_batch: int, logits: torch.Tensor) -> torch.Tensor:
            own = pieces[micro_batch]
            return tensor_parallel.vocabulary_parallel_loss_sum(logits, own, self.tp) / labels.numel()

        self.optimizer.zero_grad()
        inputs = list(tokens.chunk(self.micro_batches))
        loss = self.pipeline.step(self.plan, inputs, [self.shape] * self.micro_batches, share_of_loss)
        tied = local_of(self.stage.tokens.weight.grad)  # both stages of two have the tied weight
        dist.all_reduce(tied, group=self.pp)
        self.optimizer.step()
        return loss


def traffic_of_pipeline(job: Job, stage: Stage, n: int, stage_bytes: int, tied_bytes: int) -> Traffic:
    """What a rank sends when ``n`` ranks of dp share a stage, which has ``stage_bytes`` on a rank of tp."""
    gpt, rows = job.cfg.gpt, job.cfg.rows // n
    micro_batches, blocks = job.cfg.micro_batches // n, len(stage.blocks)
    of_activations = 4 * blocks + 1  # the last is g of the embedding in the first stage, f of the head
    of_loss = 3 if stage.last else 0
    per_token = rows * gpt.context * gpt.dtype.itemsize
    messages = (micro_batches, job.activations(rows))
    return {
        ("dp", "all_gather"): (1 + blocks, stage_bytes // n),  # once, for all micro-batches
        ("dp", "reduce_scatter"): (1 + blocks, stage_bytes),
        ("tp", "all_reduce"): (
            (of_activations + of_loss) * micro_batches,
            of_activations * job.activations(rows) + of_loss * per_token,
        ),
        ("pp", "send"): messages,
        ("pp", "recv"): messages,
        ("pp", "all_reduce"): (1, tied_bytes),
    }


def pp_fsdp_tp(job: Job) -> Row:
    """A stage of the pipeline, split over tp, and the rest sharded over dp."""
    ranks = job.group.world_size
    mesh = job.mesh(pp=2, dp=ranks // 4, tp=2)
    job.dimension_of[tuple(range(ranks))] = "pp"  # its messages go through the world's group
    group = mesh.get_group("tp")
    number, stages = place(mesh, "pp")
    index, n = place(mesh, "dp")
    stage = stage_of(tensor_parallel.split_gpt(job.model(), group), number, stages)
    # Shards stay gathered between forward and backward, or each micro-batch would gather them again.
    shard_units(stage, mesh["dp"], reshard_after_forward=False)
    optimizer = job.adam(stage.parameters())
    micro_batches = job.cfg.micro_batches // n
    plan = pipelines.plan_of("1F1B", stages, micro_batches)
    names = {name for name, _ in stage.named_parameters()}
    of_tp = tensor_parallel.part_in(group)

    def of_stage(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
        return of_tp(name, tensor) if name in names else None

    def part(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
        own = of_stage(name, tensor)
        return None if own is None else own.chunk(n)[index]

    tied = part("tokens.weight", job.truth.start["tokens.weight"])
    return Row(
        StepsInPipeline(job, mesh, stage, optimizer, plan[number]).step,
        stage.named_parameters,
        optimizer,
        traffic_of_pipeline(job, stage, n, job.bytes_of(of_stage), tied.nbytes),
        part=part,
        share=1 / (n * 2),  # one stage has the loss, the other 0; the ranks of tp have the same
        bubble=bubble(simulate(plan, micro_batches).spans, stages),
    )
