"""Errors that DDP, FSDP, DTensor and the collectives raise while training."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler

from lesson_26.stage import ERROR, Case, collector

CASES: list[Case] = []
case = collector(CASES)


class TwoHeads(nn.Module):
    """A model of which one part may go unused."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


@case(
    ERROR,
    says={0: "Expected to have finished reduction in the prior iteration before starting a new one"},
    right="^2 steps$",
    did="left a parameter out of the loss, such as a layer that forward skips",
    cause="DDP waits for its gradient; the error comes one step late",
    cure="remove or freeze it, or `find_unused_parameters=True`",
    lesson="08",
)
def unused_parameter(rank: int, cured: bool) -> str:
    ddp = DistributedDataParallel(TwoHeads(), find_unused_parameters=cured)
    for _ in range(2):
        ddp(torch.ones(2, 4)).sum().backward()
    return "2 steps"


@case(
    ERROR,
    says={0: "Expected to mark a variable ready only once"},
    right="^a step$",
    did="checkpointed activations with `use_reentrant=True` and `find_unused_parameters=True`",
    cause="DDP does not see the layer in the graph, marks it as unused, and then its gradient comes",
    cure="`use_reentrant=False`; or `static_graph=True`, if the graph is the same in each step",
    lesson="08",
)
def ready_twice(rank: int, cured: bool) -> str:
    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.layer, x, use_reentrant=not cured)

    ddp = DistributedDataParallel(Recomputed(), find_unused_parameters=True)
    ddp(torch.ones(2, 4, requires_grad=True)).sum().backward()
    return "a step"


@case(
    ERROR,
    says={1: "appears not to match"},
    right="^built$",
    did="built models of different shapes on the ranks",
    cause="each is built from what its rank has read, such as its own vocabulary",
    cure="build it from what all ranks share",
    lesson="08",
)
def other_shapes(rank: int, cured: bool) -> str:
    words = 5 if cured else 5 + rank
    DistributedDataParallel(nn.Embedding(words, 4))
    return "built"


if not torch.cuda.is_available():

    @case(
        ERROR,
        says={0: "SyncBatchNorm layers only work with GPU modules"},
        right="^built$",
        did="used `SyncBatchNorm` on a CPU",
        cause="torch's needs a GPU",
        cure="GroupNorm, BatchNorm per rank, or the one that lesson 10 writes",
        lesson="10",
    )
    def sync_batch_norm_on_cpu(rank: int, cured: bool) -> str:
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        if not cured:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        DistributedDataParallel(model)
        return "built"


@case(
    ERROR,
    says={0: "got mixed torch.Tensor and DTensor"},
    symptom="`RuntimeError: aten.mul.Tensor got mixed torch.Tensor and DTensor`, or with "
    "`aten._foreach_norm.Scalar`",
    right="^summed$",
    did="used a plain tensor and a parameter of FSDP or TP in one operation, or clipped both in one call",
    cause="the parameter is a DTensor: its operation runs on all ranks",
    cure="a tensor that is the same on each rank: `DTensor.from_local(x, mesh)`; one to divide: "
    "`distribute_tensor`; only this rank's part: `p.to_local()`; to clip both, combine the norms of all "
    "meshes first (`clip_by_mesh`, lesson 22); in a method other than `forward`: the row above",
    lesson="17",
)
def mixed_with_dtensor(rank: int, cured: bool) -> str:
    mesh = init_device_mesh("cpu", (2,))
    layer = fully_shard(nn.Linear(8, 8), mesh=mesh)
    decay = torch.full((8, 8), 0.1)
    if cured:
        decay = DTensor.from_local(decay, mesh)
    (layer.weight * decay).sum()
    return "summed"


@case(
    ERROR,
    says={0: "invalid tensor size at index 1"},
    right=r"^\[2, 3\]$",
    did="called `all_gather` with parts of different lengths",
    cause="it needs equal shapes",
    cure="send the lengths, pad, cut; or `all_gather_object`",
    lesson="04",
)
def parts_of_other_lengths(rank: int, cured: bool) -> list[int]:
    x = torch.ones(2 + rank)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
    dist.all_gather(lengths, torch.tensor([len(x)]))
    expected = [int(length) for length in lengths]
    if cured:
        padded = torch.zeros(max(expected))
        padded[: len(x)] = x
        parts = [torch.zeros(max(expected)) for _ in range(2)]
        dist.all_gather(parts, padded)
        return [len(part[:length]) for part, length in zip(parts, expected, strict=True)]
    parts = [torch.zeros(length) for length in expected]
    dist.all_gather(parts, x)
    return expected


@case(
    ERROR,
    says={0: "division by zero"},
    right="^loss 1.0$",
    did="had fewer samples than batch × ranks, with `drop_last=True`",
    cause="a loader of length 0: the mean over its batches divides by nothing",
    cure="assert that each rank has a batch",
    lesson="12",
)
def no_batch_at_all(rank: int, cured: bool) -> str:
    data = torch.ones(40 if cured else 6)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data), drop_last=True)
    total = sum(batch.mean().item() for batch in loader)
    return f"loss {total / len(loader)}"


@case(
    ERROR,
    says={0: "size mismatch for weight: copying a param with shape"},
    right="^loaded$",
    did="loaded a rank's shard as if it were the whole checkpoint",
    cause="each file holds a rank's part",
    cure="gather before saving, or DCP, which knows the layout",
    lesson="19",
)
def shard_loaded_as_whole(rank: int, cured: bool) -> str:
    layer = fully_shard(nn.Linear(8, 8), mesh=init_device_mesh("cpu", (2,)))
    state = {}
    for name, value in layer.state_dict().items():
        state[name] = value.full_tensor() if cured else value.to_local()
    nn.Linear(8, 8).load_state_dict(state)
    return "loaded"
