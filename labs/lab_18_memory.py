"""Bytes of parameters, gradients and optimizer state on each rank, from the tensors' storages; bytes sent.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_18_memory.py
Written by:  notebooks/18_sharded_optimizer.ipynb
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from shared.comm.record import record
from shared.lesson_18.sharded_optimizer import ShardedOptimizer
from shared.runtime.group import Group, process_group
from shared.runtime.results import record_results
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    layers: int = 12  # divides by 1, 2, 3 and 4
    width: int = 128  # a layer has (width + 1) x width parameters of 4 bytes
    bucket_mb: float = 0.05  # less than a layer's weight, so that each one leaves at once
    steps: int = 2


# {way: bytes that a rank sends in a step, by rule, as a multiple of (N - 1) / N * S}
WAYS = {"plain Adam": 2, "torch's ZeRO-1": 3, "ZeRO-1": 3, "ZeRO-2": 2}


def bytes_of(tensors: Iterable[torch.Tensor | None]) -> int:
    """Bytes of memory behind the tensors: each storage once, whole, however many views it has."""
    storages = [tensor.untyped_storage() for tensor in tensors if tensor is not None]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def reference(way: str, n: int, cfg: Config) -> dict[str, float]:
    """What the formula expects on a rank: everything whole, or divided by n."""
    whole = cfg.layers * (cfg.width + 1) * cfg.width * 4
    state = 2 * whole + 2 * cfg.layers * 4  # two moments by element, and a counter by tensor
    return {
        "parameters": whole,
        "gradients": whole / n if way == "ZeRO-2" else whole,
        "state": state if way == "plain Adam" else state / n,
    }


def measure(way: str, group: Group, members: dist.ProcessGroup, cfg: Config) -> dict[str, int]:
    """Train a little; return bytes when backward is over, and the most that gradients took during it."""
    n = dist.get_world_size(members)
    torch.manual_seed(group.rank)
    net = nn.Sequential(*[nn.Linear(cfg.width, cfg.width) for _ in range(cfg.layers)]).to(group.device)
    optimizer = None
    most = 0

    def gradients() -> list[torch.Tensor | None]:
        of_parameters = [p.grad for p in net.parameters()]
        means = getattr(optimizer, "mean", {})  # where stage 2 keeps its own
        return [*of_parameters, *means.values()]

    def look(_) -> None:
        nonlocal most
        most = max(most, bytes_of(gradients()))

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(look)
    model = net
    if not way.startswith("ZeRO"):
        model = DistributedDataParallel(net, process_group=members, gradient_as_bucket_view=True)
    if way == "plain Adam":
        optimizer = torch.optim.Adam(net.parameters())
    elif way == "torch's ZeRO-1":
        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, process_group=members)
    else:
        optimizer = ShardedOptimizer(net.parameters(), torch.optim.Adam, int(way[-1]), members, cfg.bucket_mb)
    for _ in range(cfg.steps):
        with record() as log:
            model(torch.randn(4, cfg.width, device=group.device)).square().mean().backward()
            held = bytes_of(gradients())
            optimizer.step()
        optimizer.zero_grad()
    inner = getattr(optimizer, "optim", optimizer)  # torch keeps the sharded one there
    state = bytes_of(t for tensors in inner.state.values() for t in tensors.values())
    row = {"parameters": bytes_of(net.parameters()), "gradients": held, "state": state, "most": most}
    row["sent"] = log.by_rule()
    check(way, n, row, cfg)
    return row


def check(way: str, n: int, row: dict[str, int], cfg: Config) -> None:
    """Equal to the formula where n divides the layers, else at most one weight and bias above it."""
    layer = (cfg.width + 1) * cfg.width * 4
    for what, expected in reference(way, n, cfg).items():
        slack = 0
        if cfg.layers % n != 0:
            slack = {"state": 2 * layer + 16, "gradients": layer, "parameters": 0}[what]
        assert abs(row[what] - expected) <= slack, f"{way}, {n} ranks: {what} {row[what]}, not {expected}"
    expected = WAYS[way] * (n - 1) / n * row["parameters"]
    assert abs(row["sent"] - expected) <= 0.02 * expected, f"{way}, {n} ranks: sent {row['sent']:,.0f}"
    if way == "ZeRO-2":  # beside what it owns, the layer whose gradient was just computed, and all biases
        assert row["most"] <= row["gradients"] + layer + cfg.layers * cfg.width * 4, row


def main(cfg: Config) -> None:
    with process_group(timeout_s=60) as group:
        rows = {}
        for n in range(1, group.world_size + 1):
            members = dist.new_group(list(range(n)))
            for way in WAYS:
                if group.rank < n:
                    row = measure(way, group, members, cfg)
                    rows[f"{way}, {n}"] = row
                if group.rank == 0 and n == group.world_size:
                    print(
                        f"{n} rank(s), {way:14}: parameters {row['parameters']:9,}, "
                        f"gradients {row['gradients']:9,}, state {row['state']:9,} bytes; "
                        f"sent by rule {row['sent']:9,.0f}"
                    )
        record_results("lab_18_memory", rows)


if __name__ == "__main__":
    run(main, Config())
