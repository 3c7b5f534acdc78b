"""Check of exercise 19. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py"""

import copy
import gc
import tempfile
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakIdKeyDictionary

from shared.comm.broadcast import broadcast_from_rank_0
from shared.comm.record import CommRecord, record
from shared.comm.same_calls import DifferentCalls, SameCalls
from shared.runtime.errors import ParityError
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.parity import assert_equal

TOLERANCE = 1e-12  # float64
STEPS = 3
PARTS = 2  # micro-batches
VOCABULARY, WIDTH, BLOCKS, LENGTH = 12, 12, 2, 6


class Watched(nn.Linear):
    """A layer that remembers in which storages its parameters were when it computed."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.used = WeakIdKeyDictionary()  # forgets a storage when torch frees it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for p in self.parameters():
            if p.requires_grad:
                if p.untyped_storage().nbytes() < p.nbytes:
                    raise Wrong("in the forward pass a parameter has no memory: unshard it before")
                self.used[p.untyped_storage()] = None
        output = super().forward(x)
        if output.requires_grad:
            output.register_hook(self.before_backward)
        return output

    def before_backward(self, gradient: torch.Tensor) -> None:
        """Computing with a storage that was emptied would crash this process."""
        if any(storage.nbytes() == 0 for storage in self.used):
            raise Wrong(
                "the backward pass has reached a layer whose storage of the forward pass is still empty; "
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


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.qkv(self.norm(x)) * table).chunk(3, dim=-1)
        return x + self.down(F.scaled_dot_product_attention(q, k, v, is_causal=True).tanh())


class GPT(nn.Module):
    """The head is the embedding; the table of positions is in no state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("table", torch.empty(LENGTH, 1), persistent=False)
        self.fill_buffers()

    def fill_buffers(self) -> None:
        self.table.copy_(1 + torch.arange(LENGTH).view(-1, 1) / LENGTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.table)
        return self.head(x)


def rows_of(seed: int, group: Group) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (2, LENGTH + 1), generator=generator).to(group.device)


def check_layout(model: nn.Module, first: dict, group: Group) -> None:
    if isinstance(model, DistributedDataParallel):
        raise Wrong("prepare still returns DDP, so each rank keeps the whole model")
    for name, p in model.named_parameters():
        if not isinstance(p, DTensor):
            raise Wrong(
                f"{name} is in no unit: each rank would train a copy of its own; shard the model, too"
            )
        most = -(-len(p) // group.world_size)
        if len(p.to_local()) > most:
            raise Wrong(
                f"a rank keeps {len(p.to_local())} of {len(p)} rows of {name}, expected at most {most}"
            )
    for number, block in enumerate(model.blocks):
        if not isinstance(block, FSDPModule):
            raise Wrong(f"block {number} is no unit, so the whole model is gathered at once")
    for name, p in model.named_parameters():
        if not torch.equal(p.full_tensor(), first[name]):
            raise Wrong(f"{name} does not begin with the values of rank 0, on all ranks")
    if not torch.equal(model.table, GPT().table.to(group.device, torch.float64)):
        raise Wrong("the table of positions has other values: it is in no state dict, so fill it again")


def in_float64() -> GPT:
    return GPT().double()


class Builds:
    """``build`` of the exercise, which notes who builds the whole, and its first values."""

    def __init__(self) -> None:
        self.whole = 0
        self.first: dict[str, torch.Tensor] = {}

    def __call__(self) -> GPT:
        model = in_float64()
        if not model.tokens.weight.is_meta:
            self.whole += 1
            self.first = {name: p.detach().clone() for name, p in model.named_parameters()}
        return model


def check_script(answer: ModuleType, group: Group, folder: Path) -> str:
    """The script in FSDP2 beside one process: start, layout, calls, steps, evaluation, file."""
    torch.manual_seed(100 + group.rank)  # each rank would build another model
    build = Builds()
    model, optimizer = answer.prepare(build)
    if group.rank > 0 and build.whole:
        raise Wrong("a rank other than 0 has built the whole model: build it on the meta device there")
    alone = in_float64().to(group.device)
    if group.rank == 0 and build.first:
        with torch.no_grad():
            for name, p in alone.named_parameters():
                p.copy_(build.first[name])
    broadcast_from_rank_0(alone.parameters())
    check_layout(model, {name: p.detach() for name, p in alone.named_parameters()}, group)
    plain = torch.optim.AdamW(alone.parameters(), lr=0.01, eps=1e-4)
    for step in range(STEPS):
        seeds = [[100 * step + 10 * rank + part for part in range(PARTS)] for rank in range(group.world_size)]
        plain.zero_grad()
        for seed in sum(seeds, []):
            loss = answer.loss_of(alone, rows_of(seed, group))
            (loss / (PARTS * group.world_size)).backward()
        nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
        plain.step()
        with record() as log:
            answer.train_step(model, optimizer, [rows_of(seed, group) for seed in seeds[group.rank]])
        check_calls(step, log)
        for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
            compare(f"step {step}", name, p.full_tensor().detach(), q.detach())
    check_evaluation(answer, model, alone, group)
    check_file(answer, model, alone, group, folder / "model.pt")
    return f"the script trains as one process with 1/{group.world_size} of the model on each rank"


def check_calls(step: int, log: CommRecord) -> None:
    """One reduce-scatter for each unit in a step, and no whole gradient in an all-reduce."""
    units = BLOCKS + 1
    reduced = log.count("reduce_scatter")
    if reduced != units:
        raise Wrong(
            f"step {step}: {reduced} reduce-scatters in {PARTS} micro-batches, expected {units}, "
            "one for each unit: only the last micro-batch sends gradients"
        )
    most = PARTS * (2 * units - 1)
    if log.count("all_gather") > most:
        raise Wrong(f"step {step}: {log.count('all_gather')} all-gathers, at most {most} are needed")


def check_evaluation(answer: ModuleType, model: nn.Module, alone: nn.Module, group: Group) -> None:
    """Rank 0 has one batch more than the others."""
    seeds = [[1000 + 10 * rank + n for n in range(2 + (rank == 0))] for rank in range(group.world_size)]
    with torch.no_grad():
        losses = [answer.loss_of(alone, rows_of(seed, group)).item() for seed in sum(seeds, [])]
    found = answer.evaluate(model, [rows_of(seed, group) for seed in seeds[group.rank]])
    expected = sum(losses) / len(losses)
    if abs(found - expected) > 1e-9:
        raise Wrong(f"evaluate returns {found:.6f}, the mean loss of all batches is {expected:.6f}")


def check_file(answer: ModuleType, model: nn.Module, alone: nn.Module, group: Group, path: Path) -> None:
    answer.save(model, path)
    dist.barrier()
    if group.rank > 0:
        return
    saved = torch.load(path, weights_only=False)
    expected = alone.state_dict()
    if set(saved) != set(expected):
        raise Wrong(f"the file has {sorted(saved)[:2]}..., expected {sorted(expected)[:2]}...")
    for name, value in saved.items():
        if isinstance(value, DTensor):
            raise Wrong(f"the file has only rank 0's shard of {name}: all ranks gather, rank 0 writes")
        compare("the file", name, value.to(group.device), expected[name])


def verify(answer: ModuleType, group: Group) -> str:
    with tempfile.TemporaryDirectory() as folder:
        of_script = check_script(answer, group, Path(folder))
    dist.barrier()
    try:
        counts = train(answer, group)
    except NotImplementedError:
        return f"{of_script}. Well done. The second half, ShardedUnit, is not started."
    made = ", ".join(f"{number} x {call}" for call, number in counts.items())
    return (
        f"{of_script}; and {STEPS} steps of 3 units equal to one process, nothing whole between; in each "
        f"{made}. Well done."
    )


if __name__ == "__main__":
    check_exercise("19_sharded", verify, ranks=3)
