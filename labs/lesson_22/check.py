"""Check of exercise 22. Run it: torchrun --standalone --nproc-per-node=4 CHECK.py"""

import copy
from types import ModuleType

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from shared.comm.broadcast import broadcast_from_rank_0
from shared.comm.record import CommRecord, record
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

TOLERANCE = 1e-12  # float64
STEPS = 2
LR = 0.5
ROWS, LENGTH, VOCABULARY, WIDTH = 12, 12, 12, 24
IGNORED = -100
FEW_BYTES = 64  # a count and a loss
MOST_CALLS = {"all_gather": 3 + 2, "reduce_scatter": 3}  # of FSDP, for two blocks and the root
Sizes = dict[str, int]


class Net(nn.Module):
    """Tokens (rows, length) to logits (rows, length, vocabulary), each position by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, dtype=torch.float64)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=torch.float64) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, dtype=torch.float64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = x + block(x).tanh()
        return self.head(x)


def meshes(ranks: int) -> list[Sizes]:
    """All of the ranks along each dimension alone, then two dimensions of two."""
    alone = {"dp": 1, "cp": 1, "tp": 1}
    shapes = [{**alone, name: ranks} for name in alone]
    if ranks == 4:
        shapes += [{"dp": 2, "cp": 2, "tp": 1}, {"dp": 1, "cp": 2, "tp": 2}]
    return shapes


def batch_of(step: int, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator)
    labels = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator)
    for row in range(ROWS):
        labels[row, : 3 + row // 2] = IGNORED  # a question, which is not to be learned
    return tokens.to(group.device), labels.to(group.device)


def mean_loss(model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def expected_part(batch: torch.Tensor, mesh: DeviceMesh, names: tuple[str, str]) -> torch.Tensor:
    for dim, name in enumerate(names):
        batch = batch.chunk(mesh[name].size(), dim)[mesh.get_local_rank(name)]
    return batch


def check_part(what: str, found: torch.Tensor, batch: torch.Tensor, mesh: DeviceMesh, group: Group) -> None:
    expected = expected_part(batch, mesh, ("dp", "cp"))
    if isinstance(found, torch.Tensor) and torch.equal(found, expected):
        return
    shape = tuple(found.shape) if isinstance(found, torch.Tensor) else found
    if not isinstance(found, torch.Tensor) or found.shape != expected.shape:
        raise Wrong(
            f"{what}: own_part returns {shape}, expected are {tuple(expected.shape)} of {tuple(batch.shape)}"
        )
    raise Wrong(f"{what}: own_part returns other rows or positions than those of this rank's place")


def check_shards(what: str, model: nn.Module, whole: dict, sizes: Sizes) -> None:
    ranks = sizes["dp"] * sizes["cp"]
    for name, p in model.named_parameters():
        if not isinstance(p, DTensor):
            raise Wrong(f"{what}: {name} is not sharded")
        rows = len(whole[name])
        most = -(-rows // ranks)
        if len(p.to_local()) > most:
            raise Wrong(
                f"{what}: a rank keeps {len(p.to_local())} of {rows} rows of {name}, expected are at most "
                f"{most}: shard over dp and cp together"
            )
        numbers = torch.tensor(p.to_local().numel(), device=p.device)
        dist.all_reduce(numbers)
        copies = numbers.item() / p.numel()
        if copies != sizes["tp"]:
            raise Wrong(
                f"{what}: all ranks together hold {copies:g} times {name}, expected {sizes['tp']}: "
                "ranks along tp keep the same"
            )
    for number, block in enumerate(model.blocks):
        if not isinstance(block, FSDPModule):
            raise Wrong(f"{what}: block {number} is no unit, so it is gathered with everything else")


def ratio_of(ours: torch.Tensor, truth: torch.Tensor) -> float | None:
    """The number by which ``truth`` is to be multiplied to give ``ours``, if there is one."""
    ratio = ((ours * truth).sum() / truth.square().sum()).item()
    return ratio if torch.allclose(ours, ratio * truth, rtol=0, atol=1e-9) else None


def check_gradient(what: str, name: str, ours: torch.Tensor, truth: torch.Tensor, sizes: Sizes) -> None:
    if torch.allclose(ours, truth, rtol=0, atol=TOLERANCE):
        return
    ratio = ratio_of(ours, truth)
    over = sizes["dp"] * sizes["cp"]
    if ratio is None:
        off = (ours - truth).abs().max().item()
        raise Wrong(f"{what}: the gradient of {name} differs from that of one process by {off:.1e}")
    reason = ""
    if abs(ratio - 1 / over) < 1e-6:
        reason = ": FSDP divides by the ranks of its mesh, too"
    elif abs(ratio - 1 / sizes["tp"]) < 1e-6:
        reason = ": ranks along tp have the same tokens, which count once"
    elif abs(ratio - sizes["tp"]) < 1e-6:
        reason = ": FSDP divides by the ranks of its own mesh, not by those along tp"
    raise Wrong(f"{what}: the gradient of {name} is {ratio:.3g} times that of one process{reason}")


def check_loss(what: str, found: torch.Tensor, truth: torch.Tensor, own: torch.Tensor, group: Group) -> None:
    everyone: list = [None] * group.world_size
    dist.all_gather_object(everyone, own.item())
    if not isinstance(found, torch.Tensor) or found.shape != () or found.requires_grad:
        raise Wrong(f"{what}: backward returns {found!r}, expected a 0-dim tensor without a graph")
    if abs(found - truth).item() <= TOLERANCE:
        return
    if found.isnan():
        raise Wrong(f"{what}: the loss is nan; on some rank no label counts, so its own mean is 0 / 0")
    if abs(found.item() - sum(everyone) / group.world_size) < 1e-9:
        raise Wrong(
            f"{what}: the loss is the mean of the ranks' means, and they have different numbers of labels"
        )
    raise Wrong(f"{what}: the loss is {found.item():.6f}, that of one process is {truth.item():.6f}")


def check_work(what: str, seen: list[int], part: torch.Tensor, log: CommRecord) -> None:
    """That this rank computes its part alone, and that beside FSDP's own calls only two numbers travel."""
    if sum(seen) != part.numel():
        raise Wrong(
            f"{what}: in backward the model computes {sum(seen)} tokens on this rank, and its part has "
            f"{part.numel()}: the ranks share the work"
        )
    for call in log.calls:
        if call.op not in MOST_CALLS and call.bytes > FEW_BYTES:
            raise Wrong(
                f"{what}: backward calls {call.op} with {call.bytes:,} bytes; beside FSDP's calls only a "
                "count and a loss have to travel"
            )
    for op, most in MOST_CALLS.items():
        if log.count(op) > most:
            raise Wrong(f"{what}: backward makes {log.count(op)} {op} calls, FSDP needs {most}")


def check_mesh(answer: ModuleType, sizes: Sizes, group: Group) -> None:
    """Two steps on one mesh, beside one process."""
    what = f"mesh {sizes}"
    mesh = init_device_mesh(group.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    dist.barrier()  # nobody leaves while another one connects
    alone = Net().to(group.device)
    broadcast_from_rank_0(alone.parameters())
    model = copy.deepcopy(alone)
    whole = {name: p.detach().clone() for name, p in alone.named_parameters()}
    answer.shard(model, mesh)
    check_shards(what, model, whole, sizes)
    for step in range(STEPS):
        tokens, labels = batch_of(step, group)
        parts = [answer.own_part(tensor.clone(), mesh) for tensor in (tokens, labels)]
        for part, batch in zip(parts, (tokens, labels), strict=True):
            check_part(what, part, batch, mesh, group)
        own = mean_loss(alone, *(expected_part(tensor, mesh, ("dp", "cp")) for tensor in (tokens, labels)))
        alone.zero_grad()
        model.zero_grad()
        truth = mean_loss(alone, tokens, labels)
        truth.backward()
        seen: list[int] = []
        hook = model.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0].numel()))
        with record() as log:
            loss = answer.backward(model, *parts, mesh)
        hook.remove()
        check_work(what, seen, parts[0], log)
        check_loss(what, loss, truth.detach(), own.detach(), group)
        for (name, p), (_, theirs) in zip(model.named_parameters(), alone.named_parameters(), strict=True):
            if p.grad is None:
                raise Wrong(f"{what}: {name} has no gradient")
            check_gradient(what, name, p.grad.full_tensor(), theirs.grad, sizes)
        with torch.no_grad():
            for p in (*model.parameters(), *alone.parameters()):
                p.sub_(p.grad, alpha=LR)


def verify(answer: ModuleType, group: Group) -> str:
    shapes = meshes(group.world_size)
    for sizes in shapes:
        check_mesh(answer, sizes, group)
    return (
        f"{len(shapes)} meshes of {group.world_size} ranks, {STEPS} steps each: loss and gradients are those "
        "of one process, and a rank keeps 1 / (dp * cp) of each parameter. Well done."
    )


if __name__ == "__main__":
    check_exercise("22_mesh", verify, ranks=4)
