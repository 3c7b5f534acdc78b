"""A DDP of one's own beside torch's and beside one process, step by step. Lesson 08 taught the comparison."""

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.comm.record import record
from shared.runtime.errors import ParityError
from shared.runtime.group import Group
from shared.runtime.report import print_on_rank_0
from shared.training.data import Images, load_images
from shared.training.models import AwkwardNet
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, gradients, parameters

SEED = 100
BATCH = 24  # images per rank and step


class SideBySide(NamedTuple):
    """The largest difference, and for each step how many all-reduces and bytes our own wrapper launched."""

    largest: float
    calls: list[int]
    bytes: list[int]


class UsedNet(AwkwardNet):
    """The same net without layers that go unused: (batch, 1, 8, 8) to (batch, 10) scores."""

    def __init__(self) -> None:
        super().__init__()
        del self.spare

    def forward(self, x: torch.Tensor, use_branch: bool) -> torch.Tensor:
        return super().forward(x, use_branch=True)


def loss_of(model: nn.Module, data: Images, rank: int, step: int) -> torch.Tensor:
    """The loss of a rank's own images. An ``AwkwardNet``'s branch is used by nobody, by rank 0 alone, by all,
    in turns.
    """
    first = (8 * step + rank) * BATCH  # 8 ranks at most
    chosen = torch.arange(first, first + BATCH) % len(data.train_x)
    device = next(model.parameters()).device
    x = data.train_x[chosen].double().to(device)
    y = data.train_y[chosen].to(device)
    use_branch = step % 3 == 2 or (step % 3 == 1 and rank == 0)
    return F.cross_entropy(model(x, use_branch), y)


def mean_loss(model: nn.Module, data: Images, ranks: int, step: int) -> torch.Tensor:
    """The mean of the losses of all ranks, computed in one process."""
    losses = [loss_of(model, data, rank, step) for rank in range(ranks)]
    return torch.stack(losses).mean()


def train_side_by_side(
    wrap: Callable[[nn.Module], nn.Module],
    group: Group,
    steps: int = 6,
    tolerance: float = 1e-12,
    unused: bool = True,
) -> SideBySide:
    """Train ``wrap(net)``, torch's DDP and one process side by side. Collective.

    The ranks begin with different parameters and have different images, in float64. The net has a tied
    weight and a frozen layer; with ``unused`` also layers that no rank or only rank 0 uses. A method
    ``reduce_gradients`` of the wrapper, if there is one, is called after each backward.

    Raises:
        ParityError: after some step, a gradient or parameter differs from DDP's or from one process's,
            one has a gradient where the other has none, or two ranks differ.
    """
    data = load_images("digits")
    torch.manual_seed(SEED + group.rank)
    kind = AwkwardNet if unused else UsedNet
    net = kind().double().to(group.device)
    torch.manual_seed(SEED)
    alone = kind().double().to(group.device)
    ours = wrap(copy.deepcopy(net))
    theirs = DistributedDataParallel(net, find_unused_parameters=unused)
    assert_all_equal("after construction", parameters(ours), parameters(alone), 0.0)

    others = {"torch's DDP": theirs, "one process": alone}
    optimizers = [torch.optim.SGD(model.parameters(), 0.5, momentum=0.9) for model in (ours, theirs, alone)]
    reduce_gradients = getattr(ours, "reduce_gradients", None)
    largest = 0.0
    calls = []
    sent = []
    for step in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        with record() as log:
            loss_of(ours, data, group.rank, step).backward()
            if reduce_gradients is not None:
                reduce_gradients()
        calls.append(log.count("all_reduce"))
        sent.append(log.bytes("all_reduce"))
        loss_of(theirs, data, group.rank, step).backward()
        mean_loss(alone, data, group.world_size, step).backward()
        for name, other in others.items():
            what = f"step {step}, ours and {name}: gradient"
            largest = max(largest, assert_all_equal(what, gradients(ours), gradients(other), tolerance))
        for optimizer in optimizers:
            optimizer.step()
        for name, other in others.items():
            what = f"step {step}, ours and {name}: parameter"
            largest = max(largest, assert_all_equal(what, parameters(ours), parameters(other), tolerance))
        assert_same_on_every_rank(f"step {step}", parameters(ours))
    print_on_rank_0(f"{steps} steps equal to torch's DDP and to one process, to {tolerance:.0e}")
    print_on_rank_0(f"all-reduces in each step: {calls}")
    return SideBySide(largest, calls, sent)


def same_buckets(wrap: Callable, group: Group, caps: Sequence[float | None]) -> dict[str, list[list[int]]]:
    """Compare our buckets with those that torch's DDP reports for the same ``bucket_cap_mb``. Collective.

    The net has 8 layers of 1 MiB, and is compared once more with every other layer in bfloat16. Returns, for
    each cap, the buckets of the first in the order of their all-reduces, each a list of layers. DDP has one
    bucket for each dtype in its first step, fills its buckets anew in the second, and reports them from the
    third on.

    Raises:
        ParityError: the buckets differ, or DDP began with more than one of a dtype.
    """
    layouts = {}
    for cap in caps:
        buckets = _same_buckets(wrap, group, cap, torch.float32)
        _same_buckets(wrap, group, cap, torch.bfloat16)
        layers = [list(dict.fromkeys(index // 2 for index in bucket)) for bucket in buckets]
        layouts[str(cap)] = layers
        shown = " | ".join(" ".join(map(str, bucket)) for bucket in layers)
        print_on_rank_0(f"bucket_cap_mb {cap!s:>4}: the layers of DDP's buckets and of ours: {shown}")
    return layouts


def _same_buckets(
    wrap: Callable, group: Group, cap: float | None, other_dtype: torch.dtype
) -> list[list[int]]:
    x = torch.ones(2, 512, device=group.device)
    ours = wrap(EightLayers(other_dtype).to(group.device), bucket_cap_mb=cap)
    theirs = DistributedDataParallel(EightLayers(other_dtype).to(group.device), bucket_cap_mb=cap)
    for _ in range(3):
        for ddp in (ours, theirs):
            ddp(x).sum().backward()
    log = theirs._get_ddp_logging_data()
    reported = log["rebuilt_per_bucket_param_indices"].split(",")
    buckets = [[int(index) for index in bucket.split()] for bucket in reported]
    own = [bucket.indices for bucket in ours.buckets]
    dtypes = len({torch.float32, other_dtype})
    if dtypes > 1:  # which of those that stay open comes last is up to a hash map
        own.sort()
        buckets.sort()
    if own != buckets or len(log["bucket_sizes"].split(",")) != dtypes:
        net = "float32" if dtypes == 1 else "float32 and bfloat16"
        raise ParityError(f"{net}, bucket_cap_mb {cap}: ours are {own}, DDP's {buckets}")
    return buckets


class EightLayers(nn.Module):
    """Of 512 x 512, every other one of ``other_dtype``: (batch, 512) to (batch, 512)."""

    def __init__(self, other_dtype: torch.dtype) -> None:
        super().__init__()
        self.dtypes = [torch.float32, other_dtype] * 4
        self.layers = nn.ModuleList(nn.Linear(512, 512, dtype=dtype) for dtype in self.dtypes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, dtype in zip(self.layers, self.dtypes, strict=True):
            x = layer(x.to(dtype))
        return x
