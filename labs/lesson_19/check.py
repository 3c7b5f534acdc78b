"""Check of exercise 19. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py"""

import copy
import gc
from types import ModuleType

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from shared.comm.same_calls import DifferentCalls, SameCalls
from shared.runtime.errors import ParityError
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.parity import assert_equal

TOLERANCE = 1e-12  # float64
STEPS = 3


class Watched(nn.Linear):
    """A layer that remembers in which storages its parameters were when it computed."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.used = WeakIdKeyDictionary()  # forgets a storage when torch frees it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for p in self.parameters():
            if p.requires_grad:
                if p.untyped_storage().nbytes() < p.nbytes:
                    raise Wrong("in forward, a parameter has no memory: unshard it before")
                self.used[p.untyped_storage()] = None
        output = super().forward(x)
        if output.requires_grad:
            output.register_hook(self.before_backward)
        return output

    def before_backward(self, gradient: torch.Tensor) -> None:
        """Computing with a storage that was emptied would crash this process."""
        if any(storage.nbytes() == 0 for storage in self.used):
            raise Wrong(
                "backward has reached a layer, and the storage that it used in forward is still empty; "
                "autograd points there: fill the same storage again"
            )

    def still_held(self) -> int:
        return sum(storage.nbytes() for storage in self.used)


class LastFirst(nn.Module):
    """Its layers are registered in another order than they compute."""

    def __init__(self) -> None:
        super().__init__()
        self.last = Watched(9, 7)
        self.first = Watched(6, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.last(torch.tanh(self.first(x))))


def net() -> nn.ModuleList:
    """Three units: of an awkward size and order, with a layer used twice, with a frozen layer."""
    twice = Watched(7, 7)
    frozen = nn.Linear(7, 5).requires_grad_(False)
    second = nn.Sequential(twice, nn.Tanh(), twice, nn.Tanh())
    third = nn.Sequential(frozen, nn.Tanh(), Watched(5, 3), nn.Tanh())
    return nn.ModuleList([LastFirst(), second, third])


def trainable(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


def shard_of(tensors: list[torch.Tensor], group: Group) -> torch.Tensor:
    """What the shard of this rank has to be."""
    flat = torch.cat([t.detach().flatten() for t in tensors])
    padded = torch.cat([flat, flat.new_zeros(-len(flat) % group.world_size)])
    return padded.chunk(group.world_size)[group.rank].clone()


def own_loss(modules: nn.ModuleList, rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(4, 6, dtype=torch.float64, generator=generator)
    x = x.to(next(modules.parameters()).device)
    for module in modules:
        x = module(x)
    return x.square().sum()


def freed(moment: str, name: str, module: nn.Module) -> None:
    """Raise ``Wrong`` unless the whole parameters, and whole gradients, are gone."""
    held = sum(layer.still_held() for layer in module.modules() if isinstance(layer, Watched))
    if held:
        raise Wrong(f"{name}: {moment}, {held} bytes of whole parameters are still held: reshard")
    alive = sum(p.untyped_storage().nbytes() for p in trainable(module))
    if alive:
        raise Wrong(f"{name}: {moment}, its parameters still have {alive} bytes: reshard")


def bytes_beside_shard(unit: object) -> int:
    """Of all tensors that are attributes of the unit, also in lists and dicts, but its shard and gradient."""
    own = {t.untyped_storage().data_ptr() for t in (unit.shard, unit.shard.grad) if t is not None}
    sizes: dict[int, int] = {}
    todo: list = [vars(unit)]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, list | tuple | set):
            todo += value
        elif torch.is_tensor(value) and value.untyped_storage().data_ptr() not in own:
            sizes[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
    return sum(sizes.values())


def look_at_start(name: str, unit: object, module: nn.Module, expected: torch.Tensor) -> None:
    shard = getattr(unit, "shard", None)
    if not torch.is_tensor(shard) or not shard.is_leaf or shard.dim() != 1:
        raise Wrong(f"{name}: .shard must be a tensor of one dimension, which an optimizer takes")
    if len(shard) != len(expected):
        raise Wrong(f"{name}: the shard has {len(shard)} elements, expected {len(expected)}")
    compare(name, "the shard", shard.detach(), expected)
    held = shard.untyped_storage().nbytes()
    if held != shard.nbytes:
        raise Wrong(f"{name}: the shard has {shard.nbytes} bytes, but keeps {held} alive: it is a view")
    freed("after the constructor", name, module)


def compare(name: str, what: str, found: torch.Tensor, expected: torch.Tensor, ranks: int = 1) -> None:
    try:
        assert_equal(what, found, expected, TOLERANCE)
    except ParityError as error:
        sums = found.dtype == expected.dtype and torch.allclose(
            found, ranks * expected, rtol=0, atol=TOLERANCE
        )
        hint = ""
        if ranks > 1 and sums:
            hint = "; it is the sum over the ranks, not the mean"
        elif found.dtype == expected.dtype and torch.allclose(found, expected, rtol=1e-5, atol=1e-7):
            hint = "; that is the rounding of float32: keep the dtype"
        raise Wrong(f"{name}: {error}{hint}") from None


def train(answer: ModuleType, group: Group) -> dict[str, int]:
    torch.manual_seed(19)
    alone = net().double().to(group.device)
    ours = copy.deepcopy(alone)
    expected = [shard_of(trainable(module), group) for module in alone]
    units = [answer.ShardedUnit(module) for module in ours]
    names = [f"unit {index}" for index in range(len(units))]
    for name, unit, module, shard in zip(names, units, ours, expected, strict=True):
        look_at_start(name, unit, module, shard)
    for name, module in zip(names, ours, strict=True):
        module.register_forward_hook(
            lambda *_, name=name, module=module: freed("after forward", name, module)
        )
    mine = torch.optim.Adam([unit.shard for unit in units], lr=0.01, eps=1e-3)
    plain = torch.optim.Adam([p for p in alone.parameters() if p.requires_grad], lr=0.01, eps=1e-3)
    made: list[str] = []
    for step in range(STEPS):
        mine.zero_grad()
        plain.zero_grad()
        for part in range(2 if step == 1 else 1):  # once two backwards before the step
            losses = [own_loss(alone, rank, step + part) for rank in range(group.world_size)]
            (sum(losses) / group.world_size).backward()
            try:
                with SameCalls() as log:
                    loss = own_loss(ours, group.rank, step + part)
                    loss.backward()
            except DifferentCalls as error:
                raise Wrong(f"step {step}: {error}; all ranks must make the same calls") from None
            del loss
            gc.collect()
            made = log.order()
            look_at_calls(step, made, len(units))
        for name, unit, module, whole in zip(names, units, ours, alone, strict=True):
            name = f"step {step}, {name}"
            freed("after backward", name, module)
            if any(p.grad is not None for p in module.parameters()):
                raise Wrong(f"{name}: after backward a parameter still has its whole gradient")
            if unit.shard.grad is None:
                raise Wrong(f"{name}: after backward the shard has no gradient")
            held = unit.shard.grad.untyped_storage().nbytes()
            if held != unit.shard.grad.nbytes:
                raise Wrong(f"{name}: the gradient of the shard keeps {held} bytes alive: it is a view")
            beside = bytes_beside_shard(unit)
            if group.world_size > 1 and beside >= group.world_size * unit.shard.nbytes:
                raise Wrong(f"{name}: after backward it keeps {beside} bytes beside its shard: a whole copy")
            gradient = shard_of([p.grad for p in trainable(whole)], group)
            compare(name, "gradient of the shard", unit.shard.grad, gradient, group.world_size)
        mine.step()
        plain.step()
        for name, unit, whole in zip(names, units, alone, strict=True):
            compare(f"step {step}, {name}", "shard", unit.shard.detach(), shard_of(trainable(whole), group))
    evaluate(alone, ours, group)
    return {call: made.count(call) for call in made}


def evaluate(alone: nn.ModuleList, ours: nn.ModuleList, group: Group) -> None:
    with torch.no_grad():
        expected = own_loss(alone, group.rank, STEPS)
        try:
            found = own_loss(ours, group.rank, STEPS)
        except RuntimeError as error:
            raise Wrong(f"under torch.no_grad(): {error}") from None
    compare("under torch.no_grad()", "loss", found, expected)


def look_at_calls(step: int, made: list[str], units: int) -> None:
    wanted = ["all_gather"] * units + ["all_gather", "reduce_scatter"] * units
    if made == wanted:
        return
    counts = {call: made.count(call) for call in made}
    if counts == {"all_gather": 2 * units, "reduce_scatter": units}:
        raise Wrong(f"step {step}: the calls are the right ones, but in the order {', '.join(made)}")
    raise Wrong(
        f"step {step}: forward and backward of {units} units made the calls {counts}, "
        f"expected were {2 * units} all-gathers and {units} reduce-scatters"
    )


def verify(answer: ModuleType, group: Group) -> str:
    counts = train(answer, group)
    made = ", ".join(f"{number} x {call}" for call, number in counts.items())
    return f"{STEPS} steps of 3 units equal to one process, nothing whole between; in each {made}. Well done."


if __name__ == "__main__":
    check_exercise("19_sharded_unit", verify, ranks=3)
