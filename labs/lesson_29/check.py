"""Check of exercise 29. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py"""

from types import ModuleType

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from shared.comm.record import record
from shared.runtime.errors import ParityError
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.parity import assert_equal

TOLERANCE = 1e-12  # float64
PIECES = 3
IGNORED = -100


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.silu(self.up(self.norm(x))))


class Tied(nn.Module):
    """Tokens (rows, length) to logits (rows, length, words)."""

    def __init__(self, words: int = 30, width: int = 12, blocks: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def size(module: nn.Module) -> int:
    """Bytes of all parameters; a shared one counts once."""
    return sum(p.nbytes for p in module.parameters())


class MostWhole:
    """The most bytes of parameters that were whole while a layer computed, in either pass."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.bytes = 0
        for layer in model.modules():
            if isinstance(layer, nn.Linear | nn.Embedding | nn.RMSNorm):
                layer.register_forward_pre_hook(self.look)
                layer.register_forward_hook(self.after_forward)

    def look(self, *_: object) -> None:
        held = [p for p in self.model.parameters() if not isinstance(p, DTensor)]
        self.bytes = max(self.bytes, sum(p.nbytes for p in held if p.untyped_storage().nbytes() > 0))

    def after_forward(self, layer: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.register_hook(self.look)


def pieces_of(rank: int, step: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What a rank gets; rank 0 has few labels that count, and none in its first piece."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    pieces = []
    for number in range(PIECES):
        tokens = torch.randint(30, (2, 7), generator=generator)
        labels = torch.randint(30, (2, 7), generator=generator)
        if rank == 0:
            labels[:, 3 * number :] = IGNORED
        pieces.append((tokens, labels))
    return pieces


def new_model(group: Group) -> Tied:
    torch.manual_seed(29)  # on all ranks
    return Tied().double().to(group.device)


def check_units(model: Tied) -> None:
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            raise Wrong(
                f"{name} is in no unit: each rank would train it alone, and the ranks would drift apart"
            )
    if model.head.weight is not model.embed.weight:
        raise Wrong("head and embed no longer share one weight: each would be trained by itself")


def check_calls(calls: dict[str, int], blocks: int) -> None:
    gathers = calls["all_gather"] / PIECES
    if not 2 * blocks + 1 <= gathers <= 2 * blocks + 2:
        raise Wrong(
            f"{blocks} blocks and the rest are gathered {gathers:g} times in a piece; "
            f"{2 * blocks + 1} or {2 * blocks + 2} do"
        )
    if calls["reduce_scatter"] > blocks + 1:
        raise Wrong(
            f"a step has {calls['reduce_scatter']} reduce-scatters; with the last piece alone, one a unit, "
            f"there are {blocks + 1}"
        )


def verify(answer: ModuleType, group: Group) -> str:
    alone, model = new_model(group), new_model(group)
    blocks = len(model.blocks)
    most = size(model) - size(model.blocks) + size(model.blocks[0])
    everything = size(model)
    mesh = init_device_mesh(group.device.type, (group.world_size,))
    try:
        answer.shard(model, mesh)
    except ValueError as error:
        raise Wrong(f"fully_shard refuses: {error}") from None
    check_units(model)
    watch = MostWhole(model)
    optimizers = [torch.optim.SGD(one.parameters(), 0.5, momentum=0.9) for one in (alone, model)]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        joined = [piece for rank in range(group.world_size) for piece in pieces_of(rank, step)]
        tokens, labels = (torch.cat(part).to(group.device) for part in zip(*joined, strict=True))
        F.cross_entropy(alone(tokens).flatten(0, 1), labels.flatten(), ignore_index=IGNORED).backward()
        with record() as log:
            answer.backward(model, pieces_of(group.rank, step))
        for (name, expected), parameter in zip(alone.named_parameters(), model.parameters(), strict=True):
            if not isinstance(parameter.grad, DTensor):
                raise Wrong(f"{name} has no gradient in shards when backward returns")
            try:
                assert_equal(name, parameter.grad.full_tensor(), expected.grad, TOLERANCE)
            except ParityError as error:
                raise Wrong(f"step {step + 1}: the gradient of {error}") from None
        if watch.bytes > most:
            raise Wrong(
                f"{watch.bytes:,} bytes of parameters are whole at once, of {everything:,}; "
                f"one block and what is in none have {most:,}"
            )
        check_calls(log.counts(), blocks)
        for optimizer in optimizers:
            optimizer.step()
    return (
        f"equal to one process in 3 steps of {PIECES} pieces, {blocks + 1} reduce-scatters in each, "
        f"{watch.bytes:,} of {everything:,} bytes whole at once. Well done."
    )


if __name__ == "__main__":
    check_exercise("29_units", verify, ranks=3)
