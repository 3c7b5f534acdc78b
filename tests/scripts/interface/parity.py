"""Through the adapters alone: each way of training in parallel equals one process after every step.

Run by tests/test_interface.py on several ranks. ``parity.py FAULT`` plants a fault, which must be noticed.
"""

import copy
import sys
from collections.abc import Callable
from functools import partial

import adapters
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

STEPS = 4
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 1e-3}  # by what is computed with


class Frozen(nn.Module):
    """A bias and a parameter of its own that do not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16, bias=False)
        self.second = nn.Linear(16, 16)
        self.second.bias.requires_grad_(False)
        self.norm = nn.LayerNorm(16)
        self.last = nn.Linear(16, 3, bias=False)
        self.scale = nn.Parameter(torch.tensor([2.0]), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.scale * self.last(self.norm(x.to(self.norm.weight.dtype)))


class Tied(nn.Module):
    """Two layers have one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16, bias=False)
        self.back = nn.Linear(16, 6, bias=False)
        self.again = nn.Linear(6, 16, bias=False)
        self.again.weight = self.first.weight
        self.last = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.back(torch.tanh(self.first(x))))
        return self.last(torch.tanh(self.again(x)))


def new_model(kind: type[nn.Module], seed: int, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(seed)
    return kind().to(dtype)


def computing_in(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Its linear layers cast what they take and their parameters; those keep their own dtype."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.forward = partial(cast_and_compute, layer, dtype)
    return model


def cast_and_compute(layer: nn.Linear, dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    bias = None if layer.bias is None else layer.bias.to(dtype)
    return F.linear(x.to(dtype), layer.weight.to(dtype), bias)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of all ranks: 12 rows each of 6 and of 3 numbers."""
    generator = torch.Generator().manual_seed(step)
    rows = 12 * dist.get_world_size()
    x = torch.randn(rows, 6, dtype=torch.float64, generator=generator)
    y = torch.randn(rows, 3, dtype=torch.float64, generator=generator)
    return x, y


def own(rows: torch.Tensor) -> torch.Tensor:
    return rows.chunk(dist.get_world_size())[dist.get_rank()]


def assert_equal(
    what: str, found: dict[str, torch.Tensor], expected: nn.Module, dtype: torch.dtype = torch.float64
) -> None:
    for name, p in expected.named_parameters():
        error = (found[name] - p).abs().max().item()
        assert error <= TOLERANCE[dtype], f"{what}: {name} differs by {error:.1e} from one process"


def train(
    what: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    alone: nn.Module,
    alone_optimizer: torch.optim.Optimizer,
    after: Callable,
    full: Callable,
    dtype: torch.dtype = torch.float64,
) -> None:
    """``after``: what runs between backward and step; ``full``: the whole parameters by name."""
    for step in range(STEPS):
        x, y = (one.to(next(alone.parameters()).dtype) for one in batch(step))
        alone_optimizer.zero_grad()
        F.mse_loss(alone(x).to(y.dtype), y).backward()
        alone_optimizer.step()
        optimizer.zero_grad()
        F.mse_loss(model(own(x)).to(y.dtype), own(y)).backward()
        after(model, optimizer)
        optimizer.step()
        assert_equal(f"{what}, step {step + 1}", full(model), alone, dtype)


def named(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(getattr(model, "module", model).named_parameters())


def ddp(kind: type[nn.Module]) -> None:
    """Ranks begin from different seeds, and end as rank 0's model does alone."""
    model = adapters.get_ddp(new_model(kind, seed=dist.get_rank()))
    alone = new_model(kind, seed=0)
    assert_equal("DDP, before the first step", named(model), alone)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    of_one = torch.optim.SGD(alone.parameters(), lr=0.1)
    train(f"DDP, {kind.__name__}", model, optimizer, alone, of_one, adapters.ddp_on_after_backward, named)


def sharded_optimizer(kind: type[nn.Module]) -> None:
    model = new_model(kind, seed=1)
    alone = copy.deepcopy(model)
    optimizer = adapters.get_sharded_optimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
    of_one = torch.optim.AdamW(alone.parameters(), lr=0.1)
    train(f"sharded optimizer, {kind.__name__}", model, optimizer, alone, of_one, lambda *_: None, named)
    kept = torch.tensor(sum(len(state) > 0 for state in optimizer.state.values()))
    dist.all_reduce(kept)
    learn = sum(p.requires_grad for p in model.parameters())
    assert kept == learn, f"{kept} states are kept on all ranks together for {learn} parameters that learn"


def assert_gradients(what: str, model: nn.Module) -> None:
    """What learns has a gradient of its own shape and dtype; what is whole has the same on all ranks."""
    for name, p in model.module.named_parameters():
        if p.requires_grad:
            assert p.grad is not None, f"{what}: {name} has no gradient"
            assert (p.grad.shape, p.grad.dtype) == (p.shape, p.dtype), f"{what}: gradient of {name}"
    for name, p in model.whole.items():
        if p.requires_grad:
            everyones = [torch.empty_like(p.grad) for _ in range(dist.get_world_size())]
            dist.all_gather(everyones, p.grad)
            assert all(torch.equal(one, p.grad) for one in everyones), f"{what}: gradients of {name} differ"


def fsdp(kind: type[nn.Module], master: torch.dtype, compute_dtype: torch.dtype | None = None) -> None:
    what = f"FSDP, {kind.__name__}, {compute_dtype or master}"
    model = adapters.get_fsdp(new_model(kind, 1, master), compute_dtype)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    alone = new_model(kind, 1, master)
    if compute_dtype is not None:
        computing_in(alone, compute_dtype)
    of_one = torch.optim.SGD(alone.parameters(), lr=0.1)

    def after(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        adapters.fsdp_on_after_backward(model, optimizer)
        assert_gradients(what, model)

    full = adapters.fsdp_gather_full_params
    train(what, model, optimizer, alone, of_one, after, full, compute_dtype or master)


def no_average(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A planted fault: what is whole on each rank keeps the gradient of its own data."""


def not_from_rank_0(module: nn.Module) -> nn.Module:
    """A planted fault: each rank keeps the parameters that it drew."""
    before = copy.deepcopy(module.state_dict())
    wrapped = adapters.OverlappedDDP(module)
    module.load_state_dict(before)
    return wrapped


def whole_state(params, optimizer_cls, **kwargs):
    """A planted fault: every rank keeps all states, and no gradient is averaged."""
    return optimizer_cls(params, **kwargs)


def repeated_state(params, optimizer_cls, **kwargs):
    """A planted fault: the numbers are right, but every rank keeps all states."""
    optimizer = optimizer_cls(params, **kwargs)

    def average(*_) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    dist.all_reduce(p.grad)
                    p.grad /= dist.get_world_size()

    optimizer.register_step_pre_hook(average)
    return optimizer


FAULTS = {
    "ddp": partial(setattr, adapters, "get_ddp", not_from_rank_0),
    "optimizer": partial(setattr, adapters, "get_sharded_optimizer", whole_state),
    "state": partial(setattr, adapters, "get_sharded_optimizer", repeated_state),
    "fsdp": partial(setattr, adapters, "fsdp_on_after_backward", no_average),
}


def main() -> None:
    for fault in sys.argv[1:]:
        FAULTS[fault]()
    dist.init_process_group("gloo")
    ddp(Frozen)
    ddp(Tied)
    sharded_optimizer(Frozen)
    sharded_optimizer(Tied)
    fsdp(Frozen, torch.float64)
    fsdp(Frozen, torch.float32)
    fsdp(Frozen, torch.float32, torch.float16)
    if dist.get_rank() == 0:
        print("7 ways equal one process")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
