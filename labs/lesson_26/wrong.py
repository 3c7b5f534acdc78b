"""Wrong numbers without an error: the run ends well, and its result is not what it should be.

A case returns the number in question. When it is cured, all ranks have the right one.
"""

import time
from collections.abc import Iterator
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from shared.comm.record import record

from lesson_26.stage import WRONG, Case, collector

CASES: list[Case] = []
case = collector(CASES)
HITS = torch.tensor([1.0, 1, 0, 0, 0])  # of five images, two are recognised


@case(
    WRONG,
    says={0: r"^\(101.0, 101.0\)$"},
    right=r"^\(2.0, 200.0\)$",
    symptom="metrics have each other's values, or the loss is as large as the step counter",
    did="reduced metrics in the order of a dict, which differs by rank",
    cause="same shape, same kind: the calls are paired wrongly and nothing notices, not even DETAIL",
    cure="sort the keys, or stack the values into one tensor",
    lesson="04",
)
def keys_in_another_order(rank: int, cured: bool) -> tuple[float, float]:
    metrics = {"loss": torch.tensor(1.0), "steps": torch.tensor(100.0)}
    names = ["loss", "steps"]
    if not cured and rank == 1:
        names.reverse()
    for name in names:
        dist.all_reduce(metrics[name])
    return metrics["loss"].item(), metrics["steps"].item()


@case(
    WRONG,
    says={0: r"^(?!2.0$)"},
    right="^2.0$",
    symptom="sums are off by many orders of magnitude, on some ranks only",
    did="reduced float32 on one rank, int32 on the other",
    cause="gloo sends bytes, and each rank reads them as its own type",
    cure="one type on all ranks; DETAIL finds it",
    lesson="04",
)
def types_differ(rank: int, cured: bool) -> float:
    x = torch.ones(2, dtype=torch.float32 if cured or rank == 0 else torch.int32)
    dist.all_reduce(x)
    return float(x[0])


@case(
    WRONG,
    says={1: r"^(?!\[3.0, 3.0, 3.0, 3.0\])", 0: r"^\[3.0, 3.0, 3.0, 3.0\]$"},
    right=r"^\[3.0, 3.0, 3.0, 3.0\]$",
    symptom="a reduced value is right on rank 0 and arbitrary elsewhere",
    did="called `reduce` to rank 0, and used the result on rank 1, too",
    cause="only the destination has it",
    cure="`all_reduce`, or use it on `dst` alone",
    lesson="04",
)
def result_on_one_rank(rank: int, cured: bool) -> list[float]:
    x = torch.full((4,), 1.0 + rank)
    if cured:
        dist.all_reduce(x)
    else:
        dist.reduce(x, dst=0)
    return x.tolist()


@case(
    WRONG,
    says={0: "^1.0$"},
    right="^2.0$",
    symptom="a rank reads its own value in place of the sum, now and then",
    did="set `async_op=True`, and read the tensor before `wait()`",
    cause="the call has only started",
    cure="`work.wait()` first",
    lesson="04",
)
def read_before_wait(rank: int, cured: bool) -> float:
    if rank == 1:
        time.sleep(0.3)
    x = torch.ones(1)
    work = dist.all_reduce(x, async_op=True)
    if cured:
        work.wait()
    value = x.item()
    work.wait()
    return value


@case(
    WRONG,
    says={0: "^256.0$"},
    right="^257.0$",
    symptom="a counter stops growing at 256, a loss summed over many steps stalls",
    did="counted or summed in bfloat16",
    cause="256 + 1 = 256 there",
    cure="count in integers, sum in float32",
    lesson="04",
)
def sum_in_bfloat16(rank: int, cured: bool) -> float:
    x = torch.tensor(256.0 if rank == 0 else 1.0, dtype=torch.float32 if cured else torch.bfloat16)
    dist.all_reduce(x)
    return x.item()


@case(
    WRONG,
    says={0: "^(?!equal)differ by"},
    right="^equal$",
    symptom="N GPUs learn like one; checkpoints depend on the rank",
    did="called `ddp.module(x)` in the forward pass, or took the loss through it",
    cause="it bypasses DDP, so no gradients are averaged",
    cure="call the wrapper: `ddp(x)`",
    lesson="08",
)
def forward_around_ddp(rank: int, cured: bool) -> str:
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Linear(4, 1))
    torch.manual_seed(rank)
    x = torch.randn(8, 4)
    (ddp if cured else ddp.module)(x).square().mean().backward()
    with torch.no_grad():
        for p in ddp.parameters():
            p -= p.grad
    return spread(ddp.module.weight)


def spread(x: torch.Tensor) -> str:
    """How far the ranks are apart."""
    parts = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(parts, x.detach())
    off = (parts[0] - parts[1]).abs().max().item()
    return f"differ by {off:.3f}" if off else "equal"


@case(
    WRONG,
    says={0: r"^0.5 of the gradient$"},
    right="^1.0 of the gradient$",
    symptom="gradients are N times too small; more GPUs learn slower",
    did="took a loss with `reduction='sum'` under DDP",
    cause="DDP averages, and a sum should be added up; a raw `dist.all_reduce` in the loss shows the same "
    "1/N (`all_reduce_in_forward`)",
    cure="a mean; or multiply the loss by the number of ranks",
    lesson="06",
)
def summed_loss(rank: int, cured: bool) -> str:
    ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    (ddp(torch.ones(3, 1)).sum() * (2 if cured else 1)).backward()
    alone = 6.0  # one process with all six samples
    return f"{ddp.module.weight.grad.item() / alone} of the gradient"


@case(
    WRONG,
    says={0: "^2.0$"},
    right="^1.7$",
    symptom="the validation loss changes with the number of ranks",
    did="averaged the ranks' means",
    cause="a mean of means is not the mean: few samples weigh as much as many",
    cure="sum and count; weigh each rank by its samples",
    lesson="06",
)
def mean_of_means(rank: int, cured: bool) -> float:
    values = torch.tensor([1.0, 1.0, 2.0, 2.0]) if rank == 0 else torch.tensor([2.5])
    if cured:
        total = torch.tensor([values.sum(), float(len(values))])
        dist.all_reduce(total)
        return round((total[0] / total[1]).item(), 4)
    mean = values.mean()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    return round(mean.item(), 4)


@case(
    WRONG,
    says={0: "^0.2$"},
    right="^0.4$",
    symptom="accuracy is 1/N of what one process has",
    did="divided a rank's own hits by the size of the whole test set",
    cause="a rank has 1/N of the samples",
    cure="reduce both, then divide",
    lesson="10",
)
def local_hits(rank: int, cured: bool) -> float:
    own = HITS[rank::2]
    hits = own.sum()
    if cured:
        dist.all_reduce(hits)
    return round(hits.item() / len(HITS), 4)


@case(
    WRONG,
    says={0: "^0.5$"},
    right="^0.4$",
    symptom="accuracy differs in the last digits from one process's",
    did="evaluated with `DistributedSampler`",
    cause="it pads: some images count twice",
    cure="give each rank the samples rank, rank + N, ...; sum and count",
    lesson="10",
)
def padded_evaluation(rank: int, cured: bool) -> float:
    own = list(range(rank, len(HITS), 2)) if cured else list(DistributedSampler(HITS, shuffle=False))
    total = torch.tensor([HITS[own].sum(), len(own)])
    dist.all_reduce(total)
    return round((total[0] / total[1]).item(), 4)


@case(
    WRONG,
    says={0: "^same order in 3 epochs$"},
    right="^another order in each of 3 epochs$",
    symptom="the same batches in the same order in each epoch",
    did="left out `sampler.set_epoch(epoch)`",
    cause="the sampler shuffles by its seed and the epoch",
    cure="call it before each epoch; if you do, see `epoch_in_workers`",
    lesson="06",
)
def no_set_epoch(rank: int, cured: bool) -> str:
    sampler = DistributedSampler(range(64), shuffle=True)
    orders = set()
    for epoch in range(3):
        if cured:
            sampler.set_epoch(epoch)
        orders.add(tuple(sampler))
    return "same order in 3 epochs" if len(orders) == 1 else f"another order in each of {len(orders)} epochs"


@case(
    WRONG,
    says={0: "^the ranks draw the same$"},
    right="^the ranks draw differently$",
    symptom="augmentation, dropout or a diffusion's noise is the same on all ranks, or on those of "
    "an FSDP group",
    did="called `torch.manual_seed(0)` on all ranks, or seeded by the replica's number alone",
    cause="they draw the same numbers for different data; FSDP's ranks have different data, too",
    cure="seed + rank, counted along all dimensions that divide data, after the model is made; not the "
    "sampler's seed",
    lesson="06",
)
def one_seed_for_all(rank: int, cured: bool) -> str:
    torch.manual_seed(rank if cured else 0)
    draws = [torch.empty(4) for _ in range(2)]
    dist.all_gather(draws, torch.rand(4))
    return "the ranks draw the same" if torch.equal(*draws) else "the ranks draw differently"


@case(
    WRONG,
    says={0: "^4 of 16 samples twice, 4 never$"},
    right="^0 of 16 samples twice, 0 never$",
    symptom="some samples are read by two ranks, others by none",
    did="seeded the sampler by rank or by time, such as `DistributedSampler(data, seed=seed + rank)`",
    cause="each rank cuts its part out of another order",
    cure="one seed for all samplers; seeds by rank for dropout and augmentation alone "
    "([LongLive #71](https://github.com/NVlabs/LongLive/issues/71))",
    lesson="06",
)
def seed_of_the_sampler(rank: int, cured: bool) -> str:
    own = list(DistributedSampler(range(16), seed=0 if cured else rank))
    everyone: list = [None, None]
    dist.all_gather_object(everyone, own)
    twice = set(everyone[0]) & set(everyone[1])
    never = set(range(16)) - {*everyone[0], *everyone[1]}
    return f"{len(twice)} of 16 samples twice, {len(never)} never"


class Stream(IterableDataset):
    """Eight numbers, from somewhere that has no indices."""

    def __init__(self, split: bool) -> None:
        self.split = split

    def __iter__(self) -> Iterator[int]:
        for number in range(8):
            if not self.split or number % 2 == dist.get_rank():
                yield number


@case(
    WRONG,
    says={0: "^8 of 16 are doubles$"},
    right="^0 of 8 are doubles$",
    symptom="an epoch has N times as many samples; the ranks' losses are equal",
    did="read an `IterableDataset` on several ranks",
    cause="it takes no sampler: each rank reads all of it",
    cure="split the stream by rank, and by worker",
    lesson="12",
)
def stream_on_all_ranks(rank: int, cured: bool) -> str:
    own = [int(x) for x in DataLoader(Stream(split=cured), batch_size=None)]
    everything: list = [None, None]
    dist.all_gather_object(everything, own)
    read = everything[0] + everything[1]
    return f"{len(read) - len(set(read))} of {len(read)} are doubles"


@case(
    WRONG,
    says={0: "^loss 1.0, 1.0, 1.0$"},
    right="^loss 1.0, 0.64, 0.41$",
    symptom="the loss does not move after `fully_shard`",
    did="made the optimizer before `fully_shard`",
    cause="it holds the parameters that are no longer those of the model",
    cure="shard first, then make the optimizer",
    lesson="19",
)
def optimizer_before_sharding(rank: int, cured: bool) -> str:
    layer = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        layer.weight.fill_(0.5)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    if cured:
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    losses = []
    for _ in range(3):
        loss = layer(torch.ones(1, 2)).square().mean()
        losses.append(str(round(loss.item(), 2)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return f"loss {', '.join(losses)}"


@case(
    WRONG,
    says={0: "^8 all-reduces$"},
    right="^1 all-reduces$",
    symptom="right numbers, but accumulation is as slow as no accumulation",
    did="accumulated 8 micro-batches without `no_sync()`",
    cause="DDP all-reduces after each of them",
    cure="`no_sync()` for all but the last",
    lesson="08",
)
def reduces_too_often(rank: int, cured: bool) -> str:
    ddp = DistributedDataParallel(nn.Linear(4, 1))
    with record() as log:
        for micro_batch in range(8):
            with ddp.no_sync() if cured and micro_batch < 7 else nullcontext():
                ddp(torch.ones(2, 4)).sum().backward()
    return f"{log.counts()['all_reduce']} all-reduces"


@case(
    WRONG,
    says={0: "^2.0$"},
    right="^1.5$",
    symptom="the loss depends on how sequences are packed into micro-batches",
    did="averaged the mean losses of micro-batches with unequal numbers of tokens",
    cause="a token of a short batch weighs more",
    cure="sum over tokens; divide by the tokens of all micro-batches and ranks",
    lesson="12",
)
def tokens_weigh_differently(rank: int, cured: bool) -> float:
    micro_batches = [torch.tensor([1.0, 1, 1, 1]), torch.tensor([4.0])]
    if rank == 1:
        micro_batches = [torch.tensor([1.0, 1, 1]), torch.tensor([3.0, 1.0])]
    if not cured:
        mean = torch.stack([losses.mean() for losses in micro_batches]).mean()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        return round(mean.item(), 4)
    losses = torch.cat(micro_batches)
    total = torch.tensor([losses.sum(), float(len(losses))])
    dist.all_reduce(total)
    return round((total[0] / total[1]).item(), 4)


@case(
    WRONG,
    says={0: "^gradient 1.0$", 1: "^gradient 2.0$"},
    right="^gradient 3.0$",
    symptom="`c10d::allreduce_: an autograd kernel was not registered`, a warning, and wrong gradients, such "
    "as 1/N of one process's",
    did="called `dist.all_reduce` in a model's forward, and each rank has a loss of its own",
    cause="autograd does not see it: what the other rank's loss owes to this x is lost",
    cure='torch 2.11 or newer: `_functional_collectives.all_reduce(x, "sum", group)` (older: no gradient, '
    "[#168140](https://github.com/pytorch/pytorch/pull/168140); there "
    "`torch.distributed.nn.functional.all_reduce`); where all ranks share one loss, use lesson 17's `g` "
    "(all-reduce forward, identity backward)",
    lesson="17",
)
def all_reduce_in_forward(rank: int, cured: bool) -> str:
    x = torch.ones(1, requires_grad=True)
    y = x * 1.0
    if cured:
        y = functional.all_reduce(y, "sum", dist.group.WORLD)
    else:
        dist.all_reduce(y)
    ((1 + rank) * y).sum().backward()
    return f"gradient {x.grad.item()}"


class SumOfRanks(torch.autograd.Function):
    """The all-reduce behind a row-parallel layer: all ranks have one loss, so backward changes nothing."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


@case(
    WRONG,
    says={0: "^gradient 2.0$"},
    right="^gradient 1.0$",
    symptom="gradients of a row-parallel layer are N times too large",
    did="used a functional all-reduce in tensor parallelism by hand, where all ranks compute one loss",
    cause="its backward pass adds up N equal gradients",
    cure="an autograd function that returns the gradient unchanged, or DTensor",
    lesson="17",
)
def all_reduce_before_one_loss(rank: int, cured: bool) -> str:
    x = torch.ones(1, requires_grad=True)
    y = SumOfRanks.apply(x) if cured else functional.all_reduce(x, "sum", dist.group.WORLD)
    y.sum().backward()
    return f"gradient {x.grad.item()}"


@case(
    WRONG,
    says={0: "^gradient 0.50$"},
    right="^gradient 1.00$",
    symptom="gradients are smaller than the clipping norm says; the loss, or the logged norm (grad_norm), "
    "depends on N",
    did="clipped gradients before they were averaged",
    cause="each rank clips by its own norm",
    cure="average first, then clip",
    lesson="10",
)
def clipped_before_averaged(rank: int, cured: bool) -> str:
    p = nn.Parameter(torch.zeros(1))
    p.grad = torch.tensor([4.0 if rank == 0 else 0.0])
    if not cured:
        nn.utils.clip_grad_norm_([p], 1.0)
    dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
    if cured:
        nn.utils.clip_grad_norm_([p], 1.0)
    return f"gradient {p.grad.item():.2f}"
