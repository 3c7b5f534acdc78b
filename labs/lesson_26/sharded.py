"""Failures of sharded models that raise no error, or hang: units, forward passes, recomputation, seeds."""

import warnings
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from lesson_26.stage import HANG, WRONG, Case, collector

CASES: list[Case] = []
case = collector(CASES)
TIMED_OUT = r"Timed out waiting \d+ms for (recv|send) operation to complete"


def differ(x: torch.Tensor) -> bool:
    """Whether the two ranks hold different values of ``x``."""
    parts = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(parts, x.detach())
    return not torch.equal(*parts)


def net(sharded_root: bool = True) -> nn.Sequential:
    """A block that is a unit, and a head, which only the root's unit has."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    mesh = init_device_mesh("cpu", (2,))
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh) if sharded_root else model


@case(
    WRONG,
    says={0: "^copies of the head differ: True$"},
    right="^copies of the head differ: False$",
    symptom="under FSDP2 the loss falls on each rank, but embedding, final norm or head differ between ranks",
    did="called `fully_shard` on the blocks and not on the model, or left a layer outside every unit",
    cause="a parameter in no unit is a plain tensor, whose gradient nobody averages",
    cure="`fully_shard(model)` last; `assert all(isinstance(p, DTensor) for p in model.parameters())`",
    lesson="19",
)
def layer_outside_every_unit(rank: int, cured: bool) -> str:
    model = net(sharded_root=cured)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(3):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    head = model[1].weight
    return f"copies of the head differ: {differ(head.full_tensor() if cured else head)}"


@case(
    HANG,
    says={0: TIMED_OUT, 1: "^trained$"},
    right="^(evaluated|trained)$",
    stands="one in the forward pass of an evaluation under FSDP, the others past it",
    did="evaluated on rank 0 alone, or gave one rank a batch more",
    cause="each forward pass gathers parameters, so it is a collective",
    cure="the same number of forward passes on all ranks, with padded batches; or gather the model once and "
    "evaluate a plain copy",
    lesson="19",
)
def evaluates_shards_on_rank_0(rank: int, cured: bool) -> str:
    model = net()
    model(torch.ones(2, 4)).sum().backward()
    if rank == 0 or cured:
        with torch.no_grad():
            model(torch.ones(2, 4))
        return "evaluated"
    return "trained"


@case(
    HANG,
    says={0: TIMED_OUT, 1: "^2 tokens$"},
    right="^[23] tokens$",
    stands="one in the forward pass that makes the next token, under FSDP; the others have ended their text",
    did="generated texts of different lengths",
    cause="each token is a forward pass, which gathers from all ranks",
    cure="all ranks run until the last one has ended, as `generate(synced_gpus=True)` of transformers does",
    lesson="19",
)
def generates_longer(rank: int, cured: bool) -> str:
    model = net()
    length = 3 - rank
    made = 0
    with torch.no_grad():
        while True:
            working = torch.tensor(int(made < length))
            if cured:
                dist.all_reduce(working, dist.ReduceOp.MAX)
            if not working:
                return f"{made} tokens"
            model(torch.ones(1, 4))
            made += made < length  # the pass of a rank that has ended is thrown away


SAVED = {torch.ops.aten.topk.default}


def save_the_choice(context, operation, *args, **kwargs) -> CheckpointPolicy:
    """Selective checkpointing: what the forward pass chose is kept, all else is computed again."""
    if operation in SAVED:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


class Mixture(nn.Module):
    """Two experts, of which a token takes one. The bias of the choice moves in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.tensor([1.0, 10.0]))
        self.register_buffer("bias", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = (torch.zeros(2) + self.bias).topk(1).indices
        self.bias += torch.tensor([-1.0, 1.0])
        return (x * self.experts[chosen]).square()


@case(
    WRONG,
    says={0: "^gradients of the experts: \\[0.0, 20.0\\]$"},
    right="^gradients of the experts: \\[2.0, 0.0\\]$",
    symptom="a mixture of experts learns worse with activation checkpointing; or `Recomputed values for the "
    "following tensors have different metadata` on some ranks, and the others wait",
    did="recomputed a block whose router chooses again: its bias has moved, or the choice is not repeatable",
    cause="the gradients are those of other experts, and shapes may differ",
    cure="selective checkpointing that saves `aten.topk`, and the all-to-alls; move the bias after the step",
    lesson="21",
)
def router_chooses_again(rank: int, cured: bool) -> str:
    layer = Mixture()
    contexts = partial(create_selective_checkpoint_contexts, save_the_choice)
    options = {"context_fn": contexts} if cured else {}
    checkpoint(layer, torch.ones(1), use_reentrant=False, **options).sum().backward()
    return f"gradients of the experts: {layer.experts.grad.tolist()}"


@case(
    WRONG,
    says={0: "^shards are equal: True$"},
    right="^shards are equal: False$",
    symptom="a model that starts on a CPU mesh with `to_empty` and `init_weights` begins with equal shards",
    did="gave all ranks the same seed, as DTensor wants it",
    cause="DTensor moves each rank's generator to its shard on GPUs only",
    cure="seed by the rank along the dimensions that divide, or load rank 0's values",
    lesson="22",
)
def equal_shards_at_random(rank: int, cured: bool) -> str:
    warnings.simplefilter("ignore")
    with torch.device("meta"):
        layer = nn.Linear(4, 4, bias=False)
    fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    layer.to_empty(device="cpu")
    torch.manual_seed(rank if cured else 0)
    nn.init.normal_(layer.weight)
    return f"shards are equal: {not differ(layer.weight.to_local())}"
