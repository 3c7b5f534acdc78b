"""Check of exercise 08. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py"""

from types import ModuleType

import torch
import torch.distributed as dist
from torch import nn

from shared.comm.late import late_all_reduces
from shared.comm.record import record
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)
ROWS = 5  # of a rank's batch
ALLOWED_BROADCASTS = 1 + len(DTYPES)  # one for each dtype, and float64
TOLERANCE = 1e-12  # float64


class Net(nn.Module):
    """Two tied layers, a frozen one, a batch norm, and a buffer of each dtype: (5, 6) to (5, 6).

    ``shift`` is the first parameter, and its gradient is ready before that of ``first``. It has the shape of
    an activation: in backward both share one tensor as their gradient. One buffer is not persistent: it is
    no part of the state dict.

    All dtypes have equally many bytes: if two ranks send them in different orders, the values are wrong,
    and nothing hangs.
    """

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(100 + rank)
        self.shift = nn.Parameter(torch.randn(ROWS, 6, dtype=torch.float64))
        self.first = nn.Linear(6, 6).double()
        self.second = nn.Linear(6, 6).double()
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(6, 6).double().requires_grad_(False)
        self.norm = nn.BatchNorm1d(6).double()
        self.norm.running_mean.normal_()
        self.norm.num_batches_tracked.fill_(2**53 + 1 + rank)  # float64 cannot hold it
        in_float64 = sum(t.nbytes for t in self.parameters()) + self.norm.running_mean.nbytes * 2
        for dtype in DTYPES:
            size = in_float64 // dtype.itemsize
            if dtype == torch.int64:
                size -= 1  # beside the batch norm's counter
            values = torch.randint(0, 2 if dtype == torch.bool else 100, (size,)).to(dtype)
            name = str(dtype).replace("torch.", "in_")
            self.register_buffer(name, values, persistent=dtype != torch.uint8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x)) + self.shift))
        return self.frozen(x) + x


def named(net: nn.Module) -> dict[str, torch.Tensor]:
    """{such as "parameter first.weight": tensor}."""
    tensors = {f"parameter {name}": tensor for name, tensor in net.named_parameters()}
    return tensors | {f"buffer {name}": tensor for name, tensor in net.named_buffers()}


def verify_start(answer: ModuleType, group: Group) -> tuple[nn.Module, int]:
    """Return the module and how many broadcasts made it equal to rank 0's."""
    net, truth, untouched = (Net(rank).to(group.device) for rank in (group.rank, 0, group.rank))
    storages = {name: tensor.data_ptr() for name, tensor in named(net).items()}
    with record() as log:
        answer.start_equal(net)
    broadcasts = log.count("broadcast")
    others = log.count() - broadcasts

    if net.first.weight is not net.second.weight:
        raise Wrong("the tied weights are two parameters now")
    expected, own = named(truth), named(untouched)
    for name, tensor in named(net).items():
        if tensor.dtype != expected[name].dtype:
            raise Wrong(f"{name} has the dtype {tensor.dtype}, it had {expected[name].dtype}")
        if torch.equal(tensor, expected[name]):
            continue
        text = f"{name} ({tensor.dtype}) on rank {group.rank} is not rank 0's"
        if torch.equal(tensor, own[name]):
            raise Wrong(f"{text}, it is still this rank's own")
        raise Wrong(f"{text}, nor this rank's own: was it rounded, or sent in another order on another rank?")
    moved = [name for name, tensor in named(net).items() if tensor.data_ptr() != storages[name]]
    if moved:
        raise Wrong(f"{moved[0]} has a new storage; whoever held it before does not know that")
    if others or broadcasts > ALLOWED_BROADCASTS:
        raise Wrong(
            f"the values are right, but took {broadcasts} broadcasts and {others} other operations; "
            f"allowed are {ALLOWED_BROADCASTS} broadcasts, one for each dtype"
        )
    return net, broadcasts


def verify_backward(answer: ModuleType, net: nn.Module, group: Group) -> int:
    """Two backward passes without clearing gradients in between; return the all-reduces of one."""
    try:
        answer.average_in_backward(net)
    except NotImplementedError:
        raise Wrong("start_equal is right; average_in_backward is still to be written") from None
    alone = Net(0).to(group.device)  # one process with all data
    own = Net(0).to(group.device)  # this rank without communication
    calls = 0
    for step in range(2):
        shape = (group.world_size, ROWS, 6)
        x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        x = x.to(group.device)
        with record() as log, late_all_reduces() as works:
            net(x[group.rank]).square().mean().backward()
        calls = log.count("all_reduce")
        unfinished = [work for work in works if not work.delivered]
        if unfinished:
            raise Wrong(f"backward {step + 1} ended without waiting for {len(unfinished)} of its all-reduces")
        torch.stack([alone(part).square().mean() for part in x]).mean().backward()
        own(x[group.rank]).square().mean().backward()
        told = f"backward {step + 1}: the gradient of"
        for (name, p), truth in zip(net.named_parameters(), alone.parameters(), strict=True):
            if (p.grad is None) != (truth.grad is None):
                raise Wrong(f"{told} {name} is {'missing' if p.grad is None else 'there, but must be None'}")
            if p.grad is None:
                continue
            off = (p.grad - truth.grad).abs().max().item()
            if off > TOLERANCE:
                kind = hint(name, p.grad, truth.grad, own, group.world_size)
                raise Wrong(f"{told} {name} is off by {off:.1e} ({p.grad.dtype}); {kind}")
        learning = sum(p.grad is not None for p in net.parameters())
        if calls > learning:
            raise Wrong(f"backward {step + 1} made {calls} all-reduces for {learning} gradients")
    dist.barrier()
    return calls


def hint(name: str, gradient: torch.Tensor, mean: torch.Tensor, own: nn.Module, ranks: int) -> str:
    """What kind of wrong gradient this is."""
    if torch.allclose(gradient, ranks * mean):
        return "it is the sum over the ranks"
    if torch.allclose(gradient, own.get_parameter(name).grad):
        return "it is this rank's own: nothing was averaged"
    return (
        "it is neither the mean over the ranks, nor their sum, nor this rank's own: "
        "did a hook change in place a gradient that another tensor shares?"
    )


def verify(answer: ModuleType, group: Group) -> str:
    net, broadcasts = verify_start(answer, group)
    calls = verify_backward(answer, net, group)
    return (
        f"{len(named(net))} tensors equal on {group.world_size} ranks after {broadcasts} broadcasts, "
        f"gradients averaged by {calls} all-reduces in each backward. Well done."
    )


if __name__ == "__main__":
    check_exercise("08_small_ddp", verify, ranks=3)
