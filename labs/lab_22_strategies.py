"""Every strategy of lessons 15 to 21 as one small class: its part of one transformer, a step, its formulas.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_22_strategies.py
Written by:  notebooks/22_device_mesh.ipynb

What trains here is what the lessons proved: labs/lab_16_executor.py, labs/lab_16_schedules.py,
labs/lab_17_gpt.py, labs/lab_17_sequence.py, labs/lab_18_zero_1.py, labs/lab_18_by_hand.py,
labs/lab_20_gpt.py and labs/lab_21_gpt.py. To add a row, add a class, and put it into ``ROWS``.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import lab_16_schedules as pipelines
import lab_17_gpt as tensor_parallel
import lab_17_sequence as sequence_parallel
import lab_20_gpt as context_parallel
import lab_21_gpt as expert_parallel
import torch
import torch.distributed as dist
from lab_16_executor import Pipeline
from lab_18_by_hand import Zero2
from lab_18_zero_1 import Zero1
from lab_22_mesh import Sizes, part
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from shared.comm.broadcast import broadcast_from_rank_0
from shared.runtime.errors import CourseError, InputError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.gpt import GPT, GPTConfig, loss_sum, token_batch
from shared.training.one_process import PartOf, Step, train_alone
from shared.training.parity import assert_equal
from shared.training.schedules import simulate
from shared.training.storages import GRADIENTS, OPTIMIZER, PARAMETERS, local_of
from shared.training.timeline import bubble

FIRST_BUCKET = 2**20  # bytes at which DDP closes its first bucket; the next ones take 25 times as many

Traffic = dict[tuple[str, str], tuple[int, int]]  # {(dimension, collective): (calls, bytes handed in)}


@dataclass(frozen=True)
class Config:
    gpt: GPTConfig = field(default_factory=lambda: GPTConfig(context=32, width=64))
    rows: int = 8  # sequences in the batch, of all ranks together
    micro_batches: int = 8  # with PP x FSDP x TP: of all dp groups together
    experts: int = 4  # in place of each MLP, in the row EP
    k: int = 2  # of them for each token
    steps: int = 3
    lr: float = 0.01
    # Some gradients are 0 but for rounding, such as those of the keys' biases. Adam divides by their size;
    # this keeps it from making a step of rounding errors.
    eps: float = 1e-4
    tolerance: float = 1e-12  # float64


class Truth:
    """A model and its training in one process, which a row is held against."""

    def __init__(self, model: GPT, group: Group, cfg: Config) -> None:
        broadcast_from_rank_0(model.parameters())  # each rank has a seed of its own
        self.start = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.size = sum(p.nbytes for p in self.start.values())  # S, in bytes

        def loss_of(one: nn.Module, number: int) -> torch.Tensor:
            tokens, labels = batch_of(cfg, number, group)
            return loss_sum(one(tokens), labels) / labels.numel()

        optimizer = torch.optim.Adam(model.parameters(), cfg.lr, eps=cfg.eps)
        self.steps = train_alone(model, optimizer, loss_of, cfg.steps)
        self.norms = [nn.utils.get_total_norm(step.gradients.values()) for step in self.steps]


def batch_of(cfg: Config, number: int, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels of the whole batch, (rows, context) each."""
    tokens, labels = token_batch(cfg.gpt, cfg.rows, number)
    return tokens.to(group.device), labels.to(group.device)


def new_model(cfg: Config, experts: bool) -> GPT:
    """The one transformer; with ``experts`` its MLPs are mixtures of them."""
    model = GPT(cfg.gpt)
    return expert_parallel.use_experts(model, cfg.experts, cfg.k) if experts else model


def padded(numel: int, ranks: int) -> int:
    return numel + -numel % ranks


class Strategy:
    """One row of the table: training in one process, and in each subclass what its strategy changes.

    Attributes:
        name: of the row.
        data: the dimensions of the mesh along which the rows of the batch are divided.
        share: what this rank's loss counts in the loss of the whole batch; 1 / ranks for a mean of some rows.
        experts: the MLPs of the model are mixtures of experts.
        even: each rank's calls and bytes are those of the formula; else only their sums are.
        bubble: the share of the time in which devices wait for each other.
    """

    name = "single"
    data: tuple[str, ...] = ()
    share: float | None = None
    experts = False
    even = True
    bubble = 0.0

    def __init__(self, truth: Truth, group: Group, cfg: Config) -> None:
        self.truth = truth
        self.group = group
        self.cfg = cfg
        self.ranks = group.world_size
        self.sizes = self.mesh_sizes(group.world_size)
        self.dimension_of: dict[tuple[int, ...], str] = {}  # by the members of a group
        if self.sizes:
            shape, names = tuple(self.sizes.values()), tuple(self.sizes)
            self.mesh = init_device_mesh(group.device.type, shape, mesh_dim_names=names)
            for name in self.sizes:
                self.dimension_of[tuple(dist.get_process_group_ranks(self.mesh.get_group(name)))] = name
        model = new_model(cfg, self.experts).to(group.device)
        for name, p in model.named_parameters():
            p.data.copy_(truth.start[name])
        self.optimizer: Any = None
        self.build(model)

    # What a strategy may change.

    def mesh_sizes(self, ranks: int) -> Sizes:
        """The mesh, the outermost dimension first."""
        return {}

    def build(self, model: GPT) -> None:
        """Make this rank's part of the whole ``model``, and the optimizer."""
        self.model: nn.Module = model
        self.optimizer = self.adam(model.parameters())

    def loss(self, number: int) -> torch.Tensor:
        """This rank's loss in step ``number``: the mean over its own rows."""
        tokens, labels = self.own_rows(number)
        return loss_sum(self.model(tokens), labels) / labels.numel()

    def after_backward(self) -> None:
        """What is done with the gradients before the optimizer's step."""

    def step(self, number: int) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(number)
        loss.backward()
        self.after_backward()
        self.optimizer.step()
        return loss.detach()

    def parameter_part(self, name: str, whole: torch.Tensor) -> torch.Tensor | None:
        """What this rank holds of a parameter between two steps."""
        return whole

    def gradient_part(self, name: str, whole: torch.Tensor) -> torch.Tensor | None:
        """What this rank holds of its gradient, averaged, after a step."""
        return self.parameter_part(name, whole)

    def parameters(self) -> dict[str, torch.Tensor]:
        return dict(self.model.named_parameters())

    def gradients(self) -> dict[str, torch.Tensor]:
        return {name: p.grad for name, p in self.model.named_parameters()}

    def also_held(self) -> list[torch.Tensor]:
        """Parameters that are not the model's, but the optimizer's."""
        return []

    def traffic(self) -> Traffic:
        """The formula: what a step calls, and the bytes that this rank hands in."""
        return {}

    def keeps(self) -> dict[str, int]:
        """The formula: bytes that this rank has in store after a step, by kind."""
        parameters = self.held_bytes(self.parameter_part)
        gradients = self.held_bytes(self.gradient_part)
        return self.kinds(parameters, gradients, parameters, len(self.parameters()))

    def check(self) -> None:
        """What else this row claims, and can be seen after a step."""

    # What they all use.

    def kinds(self, parameters: int, gradients: int, stepped: int, tensors: int) -> dict[str, int]:
        """Adam keeps two numbers for each that it steps, and counts the steps of each tensor in 4 bytes."""
        return {PARAMETERS: parameters, GRADIENTS: gradients, OPTIMIZER: 2 * stepped + 4 * tensors}

    def held_bytes(self, part_of: PartOf) -> int:
        parts = [part_of(name, whole) for name, whole in self.truth.start.items()]
        return sum(one.nbytes for one in parts if one is not None)

    def adam(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, self.cfg.lr, eps=self.cfg.eps)

    def own_rows(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's rows of the batch. Ranks that differ along other dimensions only, read the same."""
        if not self.sizes:
            return batch_of(self.cfg, number, self.group)
        index, parts = part(self.group.rank, self.sizes, self.data)
        tokens, labels = batch_of(self.cfg, number, self.group)
        return tokens.chunk(parts)[index], labels.chunk(parts)[index]

    def activations(self, rows: int) -> int:
        """Bytes of what goes from block to block."""
        return rows * self.cfg.gpt.context * self.cfg.gpt.width * self.cfg.gpt.dtype.itemsize

    def per_token(self, rows: int) -> int:
        """Bytes of one number for each token, as the loss sums them up over tp."""
        return rows * self.cfg.gpt.context * self.cfg.gpt.dtype.itemsize

    def finish_step(self, loss: torch.Tensor) -> Step:
        """What a step has left behind here; the loss is that of the whole batch. Collective."""
        share = 1 / self.ranks if self.share is None else self.share
        total = loss * share
        dist.all_reduce(total)
        step = Step(total)
        step.parameters = {name: local_of(p).detach().clone() for name, p in self.parameters().items()}
        step.gradients = {name: local_of(g).detach().clone() for name, g in self.gradients().items()}
        return step


class ByHand(Strategy):
    """Lesson 06: one all-reduce for each gradient."""

    name = "DP by hand"
    data = ("dp",)

    def mesh_sizes(self, ranks: int) -> Sizes:
        return {"dp": ranks}

    def after_backward(self) -> None:
        for p in self.model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)

    def traffic(self) -> Traffic:
        return {("dp", "all_reduce"): (len(self.truth.start), self.truth.size)}


class Ddp(ByHand):
    """Lessons 08 and 09: buckets, on their way during backward."""

    name = "DDP"

    def build(self, model: GPT) -> None:
        super().build(model)
        self.ddp = DistributedDataParallel(model)

    def loss(self, number: int) -> torch.Tensor:
        tokens, labels = self.own_rows(number)
        return loss_sum(self.ddp(tokens), labels) / labels.numel()

    def after_backward(self) -> None:
        """It is done already."""

    def traffic(self) -> Traffic:
        buckets = 1 if self.truth.size <= FIRST_BUCKET else 2
        return {("dp", "all_reduce"): (buckets, self.truth.size)}


class Zero1Row(ByHand):
    """Lesson 18: each rank has the optimizer state of 1/N of the numbers."""

    name = "ZeRO-1"

    def build(self, model: GPT) -> None:
        self.model = model
        self.zero = NotedZero1(model.parameters(), self.adam)
        self.optimizer = self.zero.optimizer
        self.start: dict[str, int] = {}  # where a parameter begins in the flat tensor
        at = 0
        for name, p in model.named_parameters():
            self.start[name] = at
            at += p.numel()
        self.length = len(self.zero.part)

    def step(self, number: int) -> torch.Tensor:
        self.zero.mean = None  # it was for the comparison
        self.zero.zero_grad()
        loss = self.loss(number)
        loss.backward()
        self.zero.step()
        return loss.detach()

    def gradient_part(self, name: str, whole: torch.Tensor) -> torch.Tensor | None:
        """Those of its numbers that lie in this rank's part of the flat tensor."""
        begin = self.group.rank * self.length - self.start[name]
        own = whole.flatten()[max(0, begin) : max(0, begin + self.length)]
        return own if len(own) else None

    def gradients(self) -> dict[str, torch.Tensor]:
        found = {}
        at = 0
        for name, whole in self.truth.start.items():
            own = self.gradient_part(name, whole)
            if own is not None:
                found[name] = self.zero.mean[at : at + len(own)]
                at += len(own)
        return found

    def traffic(self) -> Traffic:
        size = self.length * self.ranks * self.zero.part.element_size()
        return {("dp", "reduce_scatter"): (1, size), ("dp", "all_gather"): (1, size // self.ranks)}

    def keeps(self) -> dict[str, int]:
        flat = self.length * self.ranks * self.zero.part.element_size()
        return self.kinds(flat, flat, flat // self.ranks, 1)


class NotedZero1(Zero1):
    """It drops the averaged gradient after the step; this one keeps it for the comparison."""

    mean: torch.Tensor | None = None

    def average_gradient(self) -> torch.Tensor:
        self.mean = super().average_gradient()
        return self.mean


class Zero2Row(ByHand):
    """Lesson 18: and only 1/N of the gradients outlives backward."""

    name = "ZeRO-2"

    def build(self, model: GPT) -> None:
        self.model = model
        self.zero = Zero2(model.parameters(), self.adam)
        self.optimizer = self.zero.optimizer

    def step(self, number: int) -> torch.Tensor:
        self.zero.zero_grad()
        loss = self.loss(number)
        loss.backward()
        self.zero.step()
        return loss.detach()

    def gradient_part(self, name: str, whole: torch.Tensor) -> torch.Tensor | None:
        return self.zero.padded(whole).chunk(self.ranks)[self.group.rank]

    def gradients(self) -> dict[str, torch.Tensor]:
        return {name: self.zero.shards[p].grad for name, p in self.model.named_parameters()}

    def also_held(self) -> list[torch.Tensor]:
        return list(self.zero.shards.values())

    def padded_bytes(self) -> int:
        return sum(padded(p.numel(), self.ranks) * p.element_size() for p in self.truth.start.values())

    def traffic(self) -> Traffic:
        calls, size = len(self.truth.start), self.padded_bytes()
        return {("dp", "reduce_scatter"): (calls, size), ("dp", "all_gather"): (calls, size // self.ranks)}

    def keeps(self) -> dict[str, int]:
        shards = self.padded_bytes() // self.ranks
        return self.kinds(self.truth.size + shards, shards, shards, len(self.truth.start))


class Fsdp(ByHand):
    """Lesson 19: parameters, gradients and state are shards; each block is a unit, the rest is the root."""

    name = "FSDP"

    def build(self, model: GPT) -> None:
        self.shard_units(model, list(model.blocks), "dp")

    def shard_units(self, model: nn.Module, units: list[nn.Module], *names: str, **options: bool) -> None:
        mesh = self.mesh[names]
        for unit in units:
            fully_shard(unit, mesh=mesh, **options)
        self.model = fully_shard(model, mesh=mesh, **options)
        self.optimizer = self.adam(model.parameters())

    def after_backward(self) -> None:
        """It is done already."""

    def shard_of(self, whole: torch.Tensor, name: str = "dp") -> torch.Tensor:
        return whole.chunk(self.sizes[name])[self.mesh.get_local_rank(name)]

    def unsharded_part(self, name: str, whole: torch.Tensor) -> torch.Tensor | None:
        """What this rank has of a parameter while its unit computes."""
        return whole

    def parameter_part(self, name: str, whole: torch.Tensor) -> torch.Tensor | None:
        unsharded = self.unsharded_part(name, whole)
        return None if unsharded is None else self.shard_of(unsharded)

    def unsharded_bytes(self) -> tuple[int, int]:
        """Of all units, and of the blocks among them."""
        in_blocks = 0
        for name, whole in self.truth.start.items():
            unsharded = self.unsharded_part(name, whole)
            if name.startswith("blocks.") and unsharded is not None:
                in_blocks += unsharded.nbytes
        return self.held_bytes(self.unsharded_part), in_blocks

    def traffic(self) -> Traffic:
        everything, in_blocks = self.unsharded_bytes()
        layers = self.cfg.gpt.layers
        gathered = everything + in_blocks  # blocks once more for backward
        return {
            ("dp", "all_gather"): (1 + 2 * layers, gathered // self.sizes["dp"]),
            ("dp", "reduce_scatter"): (1 + layers, everything),
        }


class Hsdp(Fsdp):
    """Lesson 19: shards within a group of ranks, copies between the groups."""

    name = "HSDP"
    data = ("replicate", "shard")

    def mesh_sizes(self, ranks: int) -> Sizes:
        return {"replicate": ranks // 2, "shard": 2}

    def build(self, model: GPT) -> None:
        self.shard_units(model, list(model.blocks), "replicate", "shard")

    def parameter_part(self, name: str, whole: torch.Tensor) -> torch.Tensor | None:
        return self.shard_of(whole, "shard")

    def traffic(self) -> Traffic:
        everything, in_blocks = self.unsharded_bytes()
        layers = self.cfg.gpt.layers
        shard = self.sizes["shard"]
        return {
            ("shard", "all_gather"): (1 + 2 * layers, (everything + in_blocks) // shard),
            ("shard", "reduce_scatter"): (1 + layers, everything),
            ("replicate", "all_reduce"): (1 + layers, everything // shard),
        }


class Tp(Strategy):
    """Lesson 17: 1/N of each layer; all ranks read the whole batch."""

    name = "TP"

    def mesh_sizes(self, ranks: int) -> Sizes:
        return {"tp": ranks}

    def build(self, model: GPT) -> None:
        super().build(tensor_parallel.split_gpt(model, self.mesh.get_group("tp")))

    def loss(self, number: int) -> torch.Tensor:
        tokens, labels = self.own_rows(number)
        logits = self.model(tokens)
        total = tensor_parallel.vocabulary_parallel_loss_sum(logits, labels, self.mesh.get_group("tp"))
        return total / labels.numel()

    def parameter_part(self, name: str, whole: torch.Tensor) -> torch.Tensor | None:
        return tensor_parallel.part_in(self.mesh.get_group("tp"))(name, whole)

    def all_reduces(self, rows: int) -> tuple[int, int]:
        """f and g of each block twice, g of the embedding, f of the head, and three for the loss."""
        of_activations = 4 * self.cfg.gpt.layers + 2
        size = of_activations * self.activations(rows) + 3 * self.per_token(rows)
        return of_activations + 3, size

    def traffic(self) -> Traffic:
        return {("tp", "all_reduce"): self.all_reduces(self.cfg.rows)}


class TpSp(Tp):
    """Lesson 17: and between the split layers 1/N of the sequence."""

    name = "TP + SP"

    def build(self, model: GPT) -> None:
        Strategy.build(self, sequence_parallel.split_sequence(model, self.mesh.get_group("tp")))

    def after_backward(self) -> None:
        sequence_parallel.sum_gradients_of_whole_parameters(self.model, self.mesh.get_group("tp"))

    def traffic(self) -> Traffic:
        calls = 4 * self.cfg.gpt.layers + 2  # the all-reduces of TP, in two halves
        size = calls * self.activations(self.cfg.rows)
        whole = [p for name, p in self.truth.start.items() if not sequence_parallel.is_split(name)]
        of_whole = sum(p.nbytes for p in whole)
        return {
            ("tp", "all_gather"): (calls, size // self.ranks),
            ("tp", "reduce_scatter"): (calls, size),
            ("tp", "all_reduce"): (3 + 1, 3 * self.per_token(self.cfg.rows) + of_whole),
        }


class PpGpipe(Strategy):
    """Lesson 16: some layers on each rank; all micro-batches forward, then all backward."""

    name = "PP, GPipe"
    share = 1.0  # the last stage has the loss, the others have 0
    schedule = "GPipe"

    def mesh_sizes(self, ranks: int) -> Sizes:
        return {"pp": ranks}

    def build(self, model: GPT) -> None:
        cfg = self.cfg
        plan = pipelines.plan_of(self.schedule, self.ranks, cfg.micro_batches)
        self.bubble = bubble(simulate(plan, cfg.micro_batches).spans, self.ranks)
        settings = pipelines.Config(gpt=cfg.gpt)
        self.trainer = pipelines.Trainer(self.schedule, plan, self.group, settings)
        for name, p in self.trainer.parameters.items():
            p.data.copy_(self.truth.start[name])
        self.dimension_of[(0, self.ranks - 1)] = "pp"  # for the tied weight
        self.optimizer = self.adam(self.trainer.parameters.values())

    def step(self, number: int) -> torch.Tensor:
        tokens, labels = batch_of(self.cfg, number, self.group)
        pieces = self.cfg.micro_batches
        batch = pipelines.Batch(list(tokens.chunk(pieces)), list(labels.chunk(pieces)), labels.numel())
        self.optimizer.zero_grad()
        loss = self.trainer.forward_and_backward(batch)
        self.trainer.tied.add_gradients()
        self.optimizer.step()
        return loss

    def parameters(self) -> dict[str, torch.Tensor]:
        return self.trainer.parameters

    def gradients(self) -> dict[str, torch.Tensor]:
        return {name: p.grad for name, p in self.trainer.parameters.items()}

    def parameter_part(self, name: str, whole: torch.Tensor) -> torch.Tensor | None:
        return self.trainer.part_of(name, whole)

    def traffic(self) -> Traffic:
        first, last = self.group.rank == 0, self.group.rank == self.ranks - 1
        borders = 2 - first - last
        messages = (borders * self.cfg.micro_batches, borders * self.activations(self.cfg.rows))
        found = {("pp", "send"): messages, ("pp", "recv"): messages}
        if first or last:
            found["pp", "all_reduce"] = (1, self.truth.start["tokens.weight"].nbytes)
        return found

    def most_at_once(self) -> int:
        """Micro-batches whose activations this rank holds."""
        return self.cfg.micro_batches

    def check(self) -> None:
        held = self.trainer.pipeline.peak_live
        if held != self.most_at_once():
            raise CourseError(f"{self.name}: {held} micro-batches at once, expected {self.most_at_once()}")
        formula = (self.ranks - 1) / (self.cfg.micro_batches + self.ranks - 1)
        if abs(self.bubble - formula) > 1e-9:
            raise CourseError(f"{self.name}: a bubble of {self.bubble:.3f}, expected {formula:.3f}")


class Pp1F1B(PpGpipe):
    """Lesson 16: one forward, one backward; no more micro-batches at once than there are stages to come."""

    name = "PP, 1F1B"
    schedule = "1F1B"

    def most_at_once(self) -> int:
        return min(self.ranks - self.group.rank, self.cfg.micro_batches)


class CpRing(Strategy):
    """Lesson 20: 1/N of the sequence on each rank; keys and values go round."""

    name = "CP, ring"
    way = "ring"
    share = 1.0  # a rank's loss is its part of the sum

    def mesh_sizes(self, ranks: int) -> Sizes:
        return {"cp": ranks}

    def build(self, model: GPT) -> None:
        super().build(context_parallel.split_context(model, self.way, self.mesh.get_group("cp")))

    def loss(self, number: int) -> torch.Tensor:
        tokens, labels = self.own_rows(number)
        own = context_parallel.part_of_batch(tokens, labels, self.way, self.mesh.get_group("cp"))
        own_tokens, own_labels = own
        return loss_sum(self.model(own_tokens), own_labels) / labels.numel()

    def after_backward(self) -> None:
        context_parallel.sum_gradients(self.model, self.mesh.get_group("cp"))

    def traffic(self) -> Traffic:
        """To N - 1 ranks: keys and values, forward and backward, and their gradients."""
        messages = 3 * (self.ranks - 1) * self.cfg.gpt.layers
        own_keys = self.activations(self.cfg.rows) // self.ranks
        passed_on = (messages, messages * 2 * own_keys)
        return {
            ("cp", "send"): passed_on,
            ("cp", "recv"): passed_on,
            ("cp", "all_reduce"): (1, self.truth.size),
        }


class CpUlysses(CpRing):
    """Lesson 20: for attention, each rank has all of the sequence and 1/N of the heads."""

    name = "CP, Ulysses"
    way = "Ulysses"

    def traffic(self) -> Traffic:
        """Queries, keys, values in one, and the output; their gradients come back."""
        layers = self.cfg.gpt.layers
        own = self.activations(self.cfg.rows) // self.ranks
        return {
            ("cp", "all_to_all"): (4 * layers, layers * 2 * (3 + 1) * own),
            ("cp", "all_reduce"): (1, self.truth.size),
        }


class Ep(Strategy):
    """Lesson 21: some experts on each rank; its rows of tokens travel to those that they chose."""

    name = "EP"
    data = ("ep",)
    experts = True
    even = False  # who gets how many rows, the router decides
    share = 1.0

    def mesh_sizes(self, ranks: int) -> Sizes:
        return {"ep": ranks}

    def build(self, model: GPT) -> None:
        super().build(expert_parallel.spread_experts(model, self.mesh.get_group("ep")))

    def loss(self, number: int) -> torch.Tensor:
        tokens, labels = self.own_rows(number)
        return loss_sum(self.model(tokens), labels) / (labels.numel() * self.ranks)

    def after_backward(self) -> None:
        expert_parallel.reduce_gradients(self.model, self.mesh.get_group("ep"))

    def parameter_part(self, name: str, whole: torch.Tensor) -> torch.Tensor | None:
        return expert_parallel.part_in(self.mesh.get_group("ep"))(name, whole)

    def traffic(self) -> Traffic:
        """The mean over the ranks: counts, then rows there and back, and their gradients."""
        cfg = self.cfg
        rows = cfg.k * self.activations(cfg.rows) // self.ranks
        counts = 8 * cfg.experts
        layers = cfg.gpt.layers
        dense = [p for name, p in self.truth.start.items() if not expert_parallel.is_expert(name)]
        return {
            ("ep", "all_to_all"): (5 * layers, layers * (counts + 4 * rows)),
            ("ep", "all_reduce"): (1, sum(p.nbytes for p in dense)),
        }


class FsdpTp(Fsdp, Tp):
    """FSDP of what TP leaves on a rank. A group of tp reads the same rows."""

    name = "FSDP x TP"

    def mesh_sizes(self, ranks: int) -> Sizes:
        return {"dp": ranks // 2, "tp": 2}

    def build(self, model: GPT) -> None:
        tensor_parallel.split_gpt(model, self.mesh.get_group("tp"))
        self.shard_units(model, list(model.blocks), "dp")

    def unsharded_part(self, name: str, whole: torch.Tensor) -> torch.Tensor | None:
        return Tp.parameter_part(self, name, whole)

    def traffic(self) -> Traffic:
        own_rows = self.cfg.rows // self.sizes["dp"]
        return Fsdp.traffic(self) | {("tp", "all_reduce"): self.all_reduces(own_rows)}


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


class PpFsdpTp(FsdpTp):
    """A stage of the pipeline, split over tp, and the rest sharded over dp."""

    name = "PP x FSDP x TP"

    def mesh_sizes(self, ranks: int) -> Sizes:
        return {"pp": 2, "dp": ranks // 4, "tp": 2}

    def build(self, model: GPT) -> None:
        stages = self.sizes["pp"]
        self.number = self.mesh.get_local_rank("pp")
        tensor_parallel.split_gpt(model, self.mesh.get_group("tp"))
        stage = Stage(model, self.number, stages)
        # Shards stay gathered between forward and backward, or each micro-batch would gather them again.
        self.shard_units(stage, list(stage.blocks.values()), "dp", reshard_after_forward=False)
        self.micro_batches = self.cfg.micro_batches // self.sizes["dp"]
        plan = pipelines.plan_of("1F1B", stages, self.micro_batches)
        self.bubble = bubble(simulate(plan, self.micro_batches).spans, stages)
        self.actions = plan[self.number]
        owner = dist.get_process_group_ranks(self.mesh.get_group("pp"))  # ranks of the world, by stage
        gpt = self.cfg.gpt
        self.pipeline = FsdpPipeline(
            {self.number: stage}, owner, self.group.device, gpt.dtype, timedelta(seconds=60)
        )
        self.dimension_of[tuple(range(self.ranks))] = "pp"  # its messages go through the world's group
        self.shapes = [torch.Size((self.cfg.rows // self.cfg.micro_batches, gpt.context, gpt.width))]

    def step(self, number: int) -> torch.Tensor:
        tokens, labels = self.own_rows(number)
        pieces = labels.chunk(self.micro_batches)

        def by_tokens(micro_batch: int, logits: torch.Tensor) -> torch.Tensor:
            of_labels = pieces[micro_batch]
            tp = self.mesh.get_group("tp")
            total = tensor_parallel.vocabulary_parallel_loss_sum(logits, of_labels, tp)
            return total / labels.numel()

        self.optimizer.zero_grad()
        inputs = list(tokens.chunk(self.micro_batches))
        shapes = self.shapes * self.micro_batches
        loss = self.pipeline.step(self.actions, inputs, shapes, by_tokens)
        tied = local_of(self.model.tokens.weight.grad)  # both stages of two have the tied weight
        dist.all_reduce(tied, group=self.mesh.get_group("pp"))
        self.optimizer.step()
        return (
            loss * self.sizes["pp"]
        )  # one stage has it, the others have 0; so the mean over all ranks is it

    def unsharded_part(self, name: str, whole: torch.Tensor) -> torch.Tensor | None:
        return super().unsharded_part(name, whole) if name in self.parameters() else None

    def traffic(self) -> Traffic:
        everything, _ = self.unsharded_bytes()
        blocks = len(self.model.blocks)
        dp = self.sizes["dp"]
        rows = self.cfg.rows // dp
        of_activations = 4 * blocks + 1  # the last is g of the embedding in the first stage, f of the head
        of_loss = 3 if self.model.last else 0
        calls = (of_activations + of_loss) * self.micro_batches
        size = of_activations * self.activations(rows) + of_loss * self.per_token(rows)
        messages = (self.micro_batches, self.activations(rows))
        tied = self.parameter_part("tokens.weight", self.truth.start["tokens.weight"])
        return {
            ("dp", "all_gather"): (1 + blocks, everything // dp),  # once, for all micro-batches
            ("dp", "reduce_scatter"): (1 + blocks, everything),
            ("tp", "all_reduce"): (calls, size),
            ("pp", "send"): messages,
            ("pp", "recv"): messages,
            ("pp", "all_reduce"): (1, tied.numel() * tied.element_size()),
        }


ROWS: list[type[Strategy]] = [
    Strategy,
    ByHand,
    Ddp,
    Zero1Row,
    Zero2Row,
    Fsdp,
    Hsdp,
    Tp,
    TpSp,
    PpGpipe,
    Pp1F1B,
    CpRing,
    CpUlysses,
    Ep,
    FsdpTp,
]
ROWS_OF_8: list[type[Strategy]] = [PpFsdpTp]


def rows_for(ranks: int) -> list[type[Strategy]]:
    """The rows that run with so many ranks."""
    rows = {4: ROWS, 8: ROWS_OF_8}.get(ranks)
    if rows is None:
        raise InputError(f"the table runs with 4 ranks, its last row with 8, not with {ranks}")
    return rows


class Truths:
    """One ``Truth`` for each kind of model, made when it is asked for. Collective."""

    def __init__(self, group: Group, cfg: Config) -> None:
        self.group = group
        self.cfg = cfg
        self.made: dict[bool, Truth] = {}

    def of(self, row: type[Strategy]) -> Truth:
        if row.experts not in self.made:
            model = new_model(self.cfg, row.experts).to(self.group.device)
            self.made[row.experts] = Truth(model, self.group, self.cfg)
        return self.made[row.experts]


def main(cfg: Config) -> None:
    """One step of each row. lab_22_table.py looks at them closely."""
    with process_group(timeout_s=60) as group:
        truths = Truths(group, cfg)
        for row in rows_for(group.world_size):
            truth = truths.of(row)
            strategy = row(truth, group, cfg)
            step = strategy.finish_step(strategy.step(0))
            assert_equal(f"{row.name}: loss", step.loss, truth.steps[0].loss, cfg.tolerance)
            print_on_rank_0(f"{row.name:15} loss {step.loss:.6f}, as one process")


if __name__ == "__main__":
    run(main, Config())
