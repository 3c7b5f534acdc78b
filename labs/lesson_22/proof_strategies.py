"""Every strategy of lessons 08 to 21 as one function: its part of one transformer, a step, its formulas.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_22/proof_table.py

What trains here is what lessons 16, 17, 18, 20 and 21 proved. To add a row, write a function that returns a
``Row`` of labs/lesson_22/rows.py, and put it into ``ROWS``.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from shared.runtime.errors import CourseError, InputError
from shared.runtime.group import Group
from shared.training.gpt import GPT, loss_sum
from shared.training.one_process import whole
from shared.training.schedules import simulate
from shared.training.storages import local_of
from shared.training.timeline import bubble

from lab_16_executor import Pipeline
from lab_18_zero_1 import Zero1
from lesson_16 import proof_schedules as pipelines
from lesson_17 import proof_gpt as tensor_parallel
from lesson_17 import proof_sequence as sequence_parallel
from lesson_20 import proof_gpt as context_parallel
from lesson_21 import proof_gpt as expert_parallel
from lesson_22.rows import Config, Job, Row, Traffic, Truth, kinds, mean_of_rows, place, steps_of

FIRST_BUCKET = 2**20  # bytes at which DDP closes its first bucket; the next ones take 25 times as many


def new_model(experts: bool, group: Group, cfg: Config) -> GPT:
    """The one transformer; with ``experts`` its MLPs are mixtures of them."""
    model = GPT(cfg.gpt)
    if experts:
        model = expert_parallel.use_experts(model, cfg.experts, cfg.k)
    return model.to(group.device)


# The rows. First the data parallel ones.


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

    def average_gradient(self) -> torch.Tensor:
        self.mean = super().average_gradient()
        return self.mean


def zero_1(job: Job) -> Row:
    """Lesson 18: each rank has the optimizer state of 1/N of the numbers."""
    n = job.group.world_size
    mesh = job.mesh(dp=n)
    model = job.model()
    zero = NotedZero1(model.parameters(), job.adam)
    length = len(zero.part)
    begins, at = {}, 0  # where a parameter begins in the flat tensor
    for name, p in model.named_parameters():
        begins[name] = at
        at += p.numel()
    loss_of = mean_of_rows(job, model, *place(mesh, "dp"))

    def step(number: int) -> torch.Tensor:
        zero.mean = None  # it was for the comparison
        return steps_of(zero, loss_of)(number)

    def gradient_part(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
        """Those of its numbers that lie in this rank's part of the flat tensor."""
        begin = job.group.rank * length - begins[name]
        own = tensor.flatten()[max(0, begin) : max(0, begin + length)]
        return own if len(own) else None

    def gradients() -> dict[str, torch.Tensor]:
        held = {name: gradient_part(name, p) for name, p in job.truth.start.items()}
        sizes = {name: len(own) for name, own in held.items() if own is not None}
        parts = zero.mean.split([*sizes.values(), length - sum(sizes.values())])
        return dict(zip(sizes, parts, strict=False))

    flat = length * n * zero.part.element_size()
    traffic = {("dp", "reduce_scatter"): (1, flat), ("dp", "all_gather"): (1, flat // n)}
    return Row(
        step,
        model.named_parameters,
        zero.optimizer,
        traffic,
        gradient_part=gradient_part,
        gradients=gradients,
        keeps=kinds(flat, flat, flat // n, 1),
        share=1 / n,
    )


def shard_units(model: nn.Module, units: Iterable[nn.Module], mesh: DeviceMesh, **options: Any) -> None:
    """Each block is a unit, the rest is the root."""
    for unit in units:
        fully_shard(unit, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)


def gathers_and_scatters(layers: int, everything: int, in_blocks: int, ranks: int) -> tuple:
    """What FSDP calls for units of so many bytes: blocks are gathered once more for backward."""
    return (1 + 2 * layers, (everything + in_blocks) // ranks), (1 + layers, everything)


def in_blocks(name: str) -> bool:
    return name.startswith("blocks.")


def fsdp(job: Job, recompute: bool = False) -> Row:
    """Lesson 19: parameters, gradients and state are shards."""
    n = job.group.world_size
    mesh = job.mesh(dp=n)
    model = job.model()
    if recompute:
        for block in model.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    shard_units(model, model.blocks, mesh)
    optimizer = job.adam(model.parameters())
    of_blocks = job.bytes_of(whole, in_blocks)
    gathers, scatters = gathers_and_scatters(len(model.blocks), job.truth.size, of_blocks, n)
    left_at_most = None
    if recompute:  # the inputs of blocks, ends of the model; what is gathered: the root, the last block
        of_rows = 2 * len(model.blocks) * job.activations(job.cfg.rows // n)
        left_at_most = of_rows + job.truth.size - of_blocks + of_blocks // len(model.blocks)
    return Row(
        steps_of(optimizer, mean_of_rows(job, model, *place(mesh, "dp"))),
        model.named_parameters,
        optimizer,
        {("dp", "all_gather"): gathers, ("dp", "reduce_scatter"): scatters},
        part=lambda name, tensor: tensor.chunk(n)[job.group.rank],
        share=1 / n,
        left_at_most=left_at_most,
    )


def fsdp_recomputing(job: Job) -> Row:
    """Lesson 19: a block keeps its input only, and computes forward again in backward."""
    return fsdp(job, recompute=True)


def hsdp(job: Job) -> Row:
    """Lesson 19: shards within a group of ranks, copies between the groups."""
    mesh = job.mesh(replicate=job.group.world_size // 2, shard=2)
    model = job.model()
    shard_units(model, model.blocks, mesh["replicate", "shard"])
    optimizer = job.adam(model.parameters())
    gathers, scatters = gathers_and_scatters(
        len(model.blocks), job.truth.size, job.bytes_of(whole, in_blocks), 2
    )
    traffic = {
        ("shard", "all_gather"): gathers,
        ("shard", "reduce_scatter"): scatters,
        ("replicate", "all_reduce"): (1 + len(model.blocks), job.truth.size // 2),
    }
    return Row(
        steps_of(optimizer, mean_of_rows(job, model, *place(mesh, "replicate", "shard"))),
        model.named_parameters,
        optimizer,
        traffic,
        part=lambda name, tensor: tensor.chunk(2)[mesh.get_local_rank("shard")],
        share=1 / job.group.world_size,
    )


# What divides layers, or the model in depth.


def loss_over_tp(job: Job, model: nn.Module, group: dist.ProcessGroup, index: int = 0, parts: int = 1):
    """The mean of these rows, from logits that stay on their ranks."""

    def loss_of(number: int) -> torch.Tensor:
        tokens, labels = job.rows(number, index, parts)
        total = tensor_parallel.vocabulary_parallel_loss_sum(model(tokens), labels, group)
        return total / labels.numel()

    return loss_of


def all_reduces_of_tp(job: Job, layers: int, rows: int) -> tuple[int, int]:
    """f and g of each block twice, g of the embedding, f of the head, and three for the loss."""
    of_activations = 4 * layers + 2
    per_token = rows * job.cfg.gpt.context * job.cfg.gpt.dtype.itemsize
    return of_activations + 3, of_activations * job.activations(rows) + 3 * per_token


def tp(job: Job) -> Row:
    """Lesson 17: 1/N of each layer; all ranks read the whole batch."""
    n = job.group.world_size
    group = job.mesh(tp=n).get_group("tp")
    model = tensor_parallel.split_gpt(job.model(), group)
    optimizer = job.adam(model.parameters())
    return Row(
        steps_of(optimizer, loss_over_tp(job, model, group)),
        model.named_parameters,
        optimizer,
        {("tp", "all_reduce"): all_reduces_of_tp(job, len(model.blocks), job.cfg.rows)},
        part=tensor_parallel.part_in(group),
        share=1 / n,
    )


def tp_sp(job: Job) -> Row:
    """Lesson 17: and between the split layers 1/N of the sequence."""
    n = job.group.world_size
    group = job.mesh(tp=n).get_group("tp")
    model = sequence_parallel.split_sequence(job.model(), group)
    optimizer = job.adam(model.parameters())
    sum_whole = partial(sequence_parallel.sum_gradients_of_whole_parameters, model, group)
    calls, size = all_reduces_of_tp(job, len(model.blocks), job.cfg.rows)
    of_loss = size - (calls - 3) * job.activations(job.cfg.rows)
    of_whole = job.bytes_of(whole, lambda name: not sequence_parallel.is_split(name))
    traffic = {  # the all-reduces of TP, in two halves
        ("tp", "all_gather"): (calls - 3, (size - of_loss) // n),
        ("tp", "reduce_scatter"): (calls - 3, size - of_loss),
        ("tp", "all_reduce"): (3 + 1, of_loss + of_whole),
    }
    return Row(
        steps_of(optimizer, loss_over_tp(job, model, group), sum_whole),
        model.named_parameters,
        optimizer,
        traffic,
        part=tensor_parallel.part_in(group),
        share=1 / n,
    )


def pp_1f1b(job: Job) -> Row:
    """Lesson 16: some layers on each rank, no more micro-batches at once than there are stages to come."""
    cfg, rank, n = job.cfg, job.group.rank, job.group.world_size
    job.mesh(pp=n)
    plan = pipelines.plan_of("1F1B", n, cfg.micro_batches)
    trainer = pipelines.Trainer("1F1B", plan, job.group, pipelines.Config(gpt=cfg.gpt))
    for name, p in trainer.parameters.items():
        p.data.copy_(job.truth.start[name])
    job.dimension_of[(0, n - 1)] = "pp"  # for the tied weight
    optimizer = job.adam(trainer.parameters.values())

    def step(number: int) -> torch.Tensor:
        tokens, labels = job.rows(number)
        pieces = cfg.micro_batches
        batch = pipelines.Batch(list(tokens.chunk(pieces)), list(labels.chunk(pieces)), labels.numel())
        optimizer.zero_grad()
        loss = trainer.forward_and_backward(batch)
        trainer.tied.add_gradients()
        optimizer.step()
        return loss  # the last stage has it, the others have 0

    borders = 2 - (rank == 0) - (rank == n - 1)
    messages = (borders * cfg.micro_batches, borders * job.activations(cfg.rows))
    traffic = {("pp", "send"): messages, ("pp", "recv"): messages}
    if rank in (0, n - 1):
        traffic["pp", "all_reduce"] = (1, job.truth.start["tokens.weight"].nbytes)

    simulated = bubble(simulate(plan, cfg.micro_batches).spans, n)

    def check() -> None:
        held, expected = trainer.pipeline.peak_live, min(n - rank, cfg.micro_batches)
        if held != expected:
            raise CourseError(f"PP, 1F1B: {held} micro-batches at once, expected {expected}")
        formula = (n - 1) / (cfg.micro_batches + n - 1)
        if abs(simulated - formula) > 1e-9:
            raise CourseError(f"PP, 1F1B: a bubble of {simulated:.3f}, expected {formula:.3f}")

    return Row(
        step,
        trainer.parameters.items,
        optimizer,
        traffic,
        part=trainer.part_of,
        bubble=simulated,
        check=check,
    )


# What divides the sequence.


def loss_of_tokens(job: Job, model: nn.Module, way: str, mesh: DeviceMesh, *data: str) -> Callable:
    """What this rank's tokens add to the loss: their sum, divided by the labels of *all* ranks."""

    def loss_of(number: int) -> torch.Tensor:
        tokens, labels = job.rows(number, *place(mesh, *data))
        tokens, labels = context_parallel.part_of_batch(tokens, labels, way, mesh.get_group("cp"))
        return loss_sum(model(tokens), labels) / job.all_labels

    return loss_of


def sends_of_ring(job: Job, rows: int, ranks: int) -> tuple[int, int]:
    """To N - 1 ranks: keys and values, forward and backward, and their gradients."""
    messages = 3 * (ranks - 1) * job.cfg.gpt.layers
    return messages, messages * 2 * job.activations(rows) // ranks


def cp(job: Job, way: str, traffic: Traffic) -> Row:
    """Lesson 20: 1/N of the sequence on each rank. Their gradients are averaged as DDP does it."""
    n = job.group.world_size
    mesh = job.mesh(cp=n)
    model = context_parallel.split_context(job.model(), way, mesh.get_group("cp"))
    optimizer = job.adam(model.parameters())
    copies = DistributedDataParallel(model, process_group=mesh.get_group("cp"))
    part_of_loss = loss_of_tokens(job, copies, way, mesh)
    step = steps_of(optimizer, lambda number: n * part_of_loss(number))  # DDP divides by the ranks
    traffic |= {("cp", "all_reduce"): (buckets(job), job.truth.size)}
    return Row(step, model.named_parameters, optimizer, traffic, share=1 / n)


def cp_ring(job: Job) -> Row:
    """Lesson 20: keys and values go round."""
    messages = sends_of_ring(job, job.cfg.rows, job.group.world_size)
    return cp(job, "ring", {("cp", "send"): messages, ("cp", "recv"): messages})


def cp_ulysses(job: Job) -> Row:
    """Lesson 20: for attention, each rank has all of the sequence and 1/N of the heads."""
    layers = job.cfg.gpt.layers
    own = job.activations(job.cfg.rows) // job.group.world_size
    # Queries, keys, values in one, and the output; their gradients come back.
    return cp(job, "Ulysses", {("cp", "all_to_all"): (4 * layers, layers * 2 * (3 + 1) * own)})


# Several at once.


def sum_gradients_only(model: nn.Module) -> None:
    """FSDP adds up, and divides by nothing: each rank has divided its loss by the labels of all ranks.

    torchtitan does so, too (``disable_fsdp_gradient_division``). A factor other than the default is a
    PREMUL_SUM, which gloo does not have; "force sum" makes it a plain sum.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)


def fsdp_cp(job: Job) -> Row:
    """Parts of a sequence along cp, other rows along dp; shards over both, joined into one dimension."""
    mesh = job.mesh(dp=job.group.world_size // 2, cp=2)
    joined = mesh["dp", "cp"]._flatten("dp_cp")
    job.note("dp_cp", joined.get_group())
    model = context_parallel.split_context(job.model(), "ring", mesh.get_group("cp"))
    shard_units(model, model.blocks, joined)
    sum_gradients_only(model)
    optimizer = job.adam(model.parameters())
    n = joined.size()
    gathers, scatters = gathers_and_scatters(
        len(model.blocks), job.truth.size, job.bytes_of(whole, in_blocks), n
    )
    messages = sends_of_ring(job, job.cfg.rows // mesh["dp"].size(), 2)
    traffic = {
        ("dp_cp", "all_gather"): gathers,
        ("dp_cp", "reduce_scatter"): scatters,
        ("cp", "send"): messages,
        ("cp", "recv"): messages,
    }
    return Row(
        steps_of(optimizer, loss_of_tokens(job, model, "ring", mesh, "dp")),
        model.named_parameters,
        optimizer,
        traffic,
        part=lambda name, tensor: tensor.chunk(n)[joined.get_local_rank()],
    )


def fsdp_tp(job: Job, data: tuple[str, ...] = ("dp",)) -> Row:
    """FSDP of what TP leaves on a rank. A group of tp reads the same rows."""
    mesh = job.mesh(dp=job.group.world_size // 2, tp=2)
    group = mesh.get_group("tp")
    model = tensor_parallel.split_gpt(job.model(), group)
    shard_units(model, model.blocks, mesh["dp"])
    optimizer = job.adam(model.parameters())
    of_tp = tensor_parallel.part_in(group)
    index, n = place(mesh, "dp")
    gathers, scatters = gathers_and_scatters(
        len(model.blocks), job.bytes_of(of_tp), job.bytes_of(of_tp, in_blocks), n
    )
    traffic = {
        ("dp", "all_gather"): gathers,
        ("dp", "reduce_scatter"): scatters,
        ("tp", "all_reduce"): all_reduces_of_tp(job, len(model.blocks), job.cfg.rows // n),
    }
    return Row(
        steps_of(optimizer, loss_over_tp(job, model, group, *place(mesh, *data))),
        model.named_parameters,
        optimizer,
        traffic,
        part=lambda name, tensor: of_tp(name, tensor).chunk(n)[index],
        share=1 / job.group.world_size,
    )


class Stage(nn.Module):
    """Some consecutive blocks of a GPT that may be split already, under the names that they have there."""

    def __init__(self, model: GPT, number: int, stages: int) -> None:
        super().__init__()
        self.first = number == 0
        self.last = number == stages - 1
        layers = len(model.blocks)
        mine = range(layers * number // stages, layers * (number + 1) // stages)
        self.blocks = nn.ModuleDict({str(i): model.blocks[i] for i in mine})
        if self.first or self.last:
            self.tokens = model.tokens
        if self.first:
            self.positions = model.positions
        if self.last:
            self.norm = model.norm
            self.head = model.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.first:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x)) if self.last else x


class FsdpPipeline(Pipeline):
    """A pipeline whose stage is sharded. Stage and gradients stay whole until the last micro-batch."""

    def backward(self, stage: int, number: int) -> None:
        last = number == len(self.inputs) - 1
        module = self.stages[stage]
        module.set_is_last_backward(last)
        module.set_requires_gradient_sync(last)
        module.set_reshard_after_backward(last)
        super().backward(stage, number)


def steps_in_pipeline(
    job: Job, mesh: DeviceMesh, stage: Stage, optimizer: torch.optim.Optimizer, plan: list
) -> Callable[[int], torch.Tensor]:
    """Steps in micro-batches, in the order of this stage's ``plan``."""
    cfg, group, of_stages = job.cfg, mesh.get_group("tp"), mesh.get_group("pp")
    number, _ = place(mesh, "pp")
    index, n = place(mesh, "dp")
    micro_batches = cfg.micro_batches // n
    owner = dist.get_process_group_ranks(of_stages)  # ranks of the world, by stage
    pipeline = FsdpPipeline({number: stage}, owner, job.group.device, cfg.gpt.dtype, timedelta(seconds=60))
    shape = torch.Size((cfg.rows // cfg.micro_batches, cfg.gpt.context, cfg.gpt.width))

    def step(step_number: int) -> torch.Tensor:
        tokens, labels = job.rows(step_number, index, n)
        pieces = labels.chunk(micro_batches)

        def share_of_loss(micro_batch: int, logits: torch.Tensor) -> torch.Tensor:
            own = pieces[micro_batch]
            return tensor_parallel.vocabulary_parallel_loss_sum(logits, own, group) / labels.numel()

        optimizer.zero_grad()
        inputs = list(tokens.chunk(micro_batches))
        loss = pipeline.step(plan, inputs, [shape] * micro_batches, share_of_loss)
        tied = local_of(stage.tokens.weight.grad)  # both stages of two have the tied weight
        dist.all_reduce(tied, group=of_stages)
        optimizer.step()
        return loss

    return step


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
    stage = Stage(tensor_parallel.split_gpt(job.model(), group), number, stages)
    # Shards stay gathered between forward and backward, or each micro-batch would gather them again.
    shard_units(stage, stage.blocks.values(), mesh["dp"], reshard_after_forward=False)
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
        steps_in_pipeline(job, mesh, stage, optimizer, plan[number]),
        stage.named_parameters,
        optimizer,
        traffic_of_pipeline(job, stage, n, job.bytes_of(of_stage), tied.nbytes),
        part=part,
        share=1 / (n * 2),  # one stage has the loss, the other 0; the ranks of tp have the same
        bubble=bubble(simulate(plan, micro_batches).spans, stages),
    )


# With experts in place of each MLP: another model, which has a row of one process of its own.


def loss_of_rows(job: Job, model: nn.Module, mesh: DeviceMesh, name: str) -> Callable:
    """What this rank's rows add to the loss: their sum, divided by the labels of *all* ranks."""

    def loss_of(number: int) -> torch.Tensor:
        tokens, labels = job.rows(number, *place(mesh, name))
        return loss_sum(model(tokens), labels) / job.all_labels

    return loss_of


def exchanges(job: Job) -> tuple[int, int]:
    """The mean over the ranks: counts, then routed tokens there and back, and their gradients."""
    cfg = job.cfg
    routed = cfg.k * job.activations(cfg.rows) // job.group.world_size
    counts = 8 * cfg.experts
    return 5 * cfg.gpt.layers, cfg.gpt.layers * (counts + 4 * routed)


def is_dense(name: str) -> bool:
    return not expert_parallel.is_expert(name)


def ep(job: Job) -> Row:
    """Lesson 21: some experts on each rank; tokens travel to those that they chose."""
    mesh = job.mesh(ep=job.group.world_size)
    group = mesh.get_group("ep")
    model = expert_parallel.spread_experts(job.model(), group)
    optimizer = job.adam(model.parameters())
    reduce = partial(expert_parallel.reduce_gradients, model, group)
    traffic = {
        ("ep", "all_to_all"): exchanges(job),
        ("ep", "all_reduce"): (1, job.bytes_of(whole, is_dense)),
    }
    return Row(
        steps_of(optimizer, loss_of_rows(job, model, mesh, "ep"), reduce),
        model.named_parameters,
        optimizer,
        traffic,
        part=expert_parallel.part_in(group),
        even=False,  # who gets how many tokens, the router decides
    )


def fsdp_ep(job: Job) -> Row:
    """Two meshes over the same ranks: experts are divided along ep and efsdp, all else is sharded along dp.

    One ``fully_shard`` of a block shards both kinds; torchtitan does it so. A gradient of an expert is the
    sum over its ep group already, one of the rest is not: so nobody divides by a number of ranks.
    """
    ranks = job.group.world_size
    dense, sparse = job.mesh(dp=ranks), job.mesh(efsdp=ranks // 2, ep=2)
    model = expert_parallel.spread_experts(job.model(), sparse.get_group("ep"))
    of_experts = ShardPlacementResult(Shard(0), FSDPMeshInfo(sparse["efsdp"], shard_mesh_dim=0))
    for block in model.blocks:
        experts = set(block.mlp.experts.parameters())
        fully_shard(
            block,
            mesh=dense,
            shard_placement_fn=lambda p, experts=experts: of_experts if p in experts else None,
        )
    fully_shard(model, mesh=dense)
    sum_gradients_only(model)
    optimizer = job.adam(model.parameters())
    of_ep = expert_parallel.part_in(sparse.get_group("ep"))
    layers, efsdp = len(model.blocks), sparse["efsdp"].size()

    def part(name: str, tensor: torch.Tensor) -> torch.Tensor:
        index, parts = place(dense, "dp") if is_dense(name) else place(sparse, "efsdp")
        return of_ep(name, tensor).chunk(parts)[index]

    everything = job.bytes_of(whole, is_dense)
    dense_blocks = job.bytes_of(whole, lambda name: is_dense(name) and in_blocks(name))
    own_experts = job.bytes_of(of_ep, expert_parallel.is_expert)
    gathers, scatters = gathers_and_scatters(layers, everything, dense_blocks, ranks)
    traffic = {
        ("dp", "all_gather"): gathers,
        ("dp", "reduce_scatter"): scatters,
        ("efsdp", "all_gather"): (2 * layers, 2 * own_experts // efsdp),
        ("efsdp", "reduce_scatter"): (layers, own_experts),
        ("ep", "all_to_all"): exchanges(job),
    }
    return Row(
        steps_of(optimizer, loss_of_rows(job, model, dense, "dp")),
        model.named_parameters,
        optimizer,
        traffic,
        part=part,
        even=False,
    )


Build = Callable[[Job], Row]
ROWS: dict[str, Build] = {
    "single": single,
    "DDP": ddp,
    "ZeRO-1": zero_1,
    "FSDP": fsdp,
    "FSDP, checkpointing": fsdp_recomputing,
    "HSDP": hsdp,
    "TP": tp,
    "TP + SP": tp_sp,
    "PP, 1F1B": pp_1f1b,
    "CP, ring": cp_ring,
    "CP, Ulysses": cp_ulysses,
    "FSDP x CP": fsdp_cp,
    "FSDP x TP": fsdp_tp,
}
ROWS_WITH_EXPERTS: dict[str, Build] = {"single, experts": single, "EP": ep, "FSDP x EP": fsdp_ep}
ROWS_OF_8: dict[str, Build] = {"PP x FSDP x TP": pp_fsdp_tp}


def rows_for(ranks: int) -> dict[str, Build]:
    """The rows that run with so many ranks."""
    rows = {4: ROWS | ROWS_WITH_EXPERTS, 8: ROWS_OF_8}.get(ranks)
    if rows is None:
        raise InputError(f"the table runs with 4 ranks, its last row with 8, not with {ranks}")
    return rows


class Truths:
    """One ``Truth`` for each kind of model, made when it is asked for. Collective."""

    def __init__(self, group: Group, cfg: Config) -> None:
        self.group = group
        self.cfg = cfg
        self.made: dict[bool, Truth] = {}

    def of(self, experts: bool) -> Truth:
        if experts not in self.made:
            make = partial(new_model, experts, self.group, self.cfg)
            self.made[experts] = Truth(make, self.group, self.cfg)
        return self.made[experts]

    @property
    def size(self) -> int:
        """S: the bytes of all parameters of the transformer without experts, the unit of *all* rows."""
        return self.of(experts=False).size

    def job(self, name: str) -> Job:
        experts = name in ROWS_WITH_EXPERTS
        return Job(self.of(experts), experts, self.group, self.cfg)
