"""Half precision as a hook of DDP, by hand and torch's: the same bits, half of the bytes, and its limits.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_14/proof_hooks.py
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.data import batch, load_images
from shared.training.models import BlockNet
from shared.training.parity import assert_all_equal, gradients

Hook = Callable[[object, dist.GradBucket], torch.futures.Future[torch.Tensor]]


@dataclass(frozen=True)
class Config:
    images: int = 40  # of each rank
    bucket_mb: float = 0.05  # so that there are several buckets
    blocks: int = 2


def sent_as(dtype: torch.dtype, divide_first: bool = True) -> Hook:
    """A hook that sends gradients as numbers of ``dtype`` and gives back their mean in their own dtype."""

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        ranks = dist.get_world_size()
        small = bucket.buffer().to(dtype)
        if divide_first:
            small /= ranks
        arrived = dist.all_reduce(small, async_op=True).get_future()

        def back(done: torch.futures.Future) -> torch.Tensor:
            mean = bucket.buffer().copy_(done.value()[0])
            return mean if divide_first else mean.div_(ranks)

        return arrived.then(back)

    return hook


def torchs_bf16(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """torch's hook under another name: register_comm_hook refuses its own where torch has no GPU support."""
    return default_hooks.bf16_compress_hook(state, bucket)


WAYS: dict[str, tuple[Hook | None, torch.dtype]] = {
    "float32": (None, torch.float32),
    "fp16, ours": (sent_as(torch.float16), torch.float16),
    "fp16, torch's": (default_hooks.fp16_compress_hook, torch.float16),
    "bf16, ours": (sent_as(torch.bfloat16), torch.bfloat16),
    "bf16, torch's": (torchs_bf16, torch.bfloat16),
}


def with_hook(model: nn.Module, hook: Hook | None, cfg: Config) -> DDP:
    ddp = DDP(model, bucket_cap_mb=cfg.bucket_mb)
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    return ddp


def one_backward(hook: Hook | None, group: Group, cfg: Config) -> dict:
    """{"gradients", "bytes" and "calls" of the second of two backward passes, when the buckets are final}."""
    torch.manual_seed(0)
    ddp = with_hook(BlockNet(blocks=cfg.blocks).to(group.device), hook, cfg)
    x, y = batch(load_images("digits"), group.rank, cfg.images, group.device, torch.float32)
    for _ in range(2):
        ddp.zero_grad()
        with record() as log:
            nn.functional.cross_entropy(ddp(x), y).backward()
    return {"gradients": gradients(ddp), "bytes": log.bytes("all_reduce"), "calls": log.count()}


def error_of(found: dict, exact: dict) -> float:
    """The largest difference of a number, as a fraction of the largest number in its tensor."""
    worst = 0.0
    for (_, mine), (_, truth) in zip(found["gradients"], exact["gradients"], strict=True):
        worst = max(worst, ((mine - truth).abs().max() / truth.abs().max()).item())
    return worst


def compare(group: Group, cfg: Config) -> None:
    results = {name: one_backward(hook, group, cfg) for name, (hook, _) in WAYS.items()}
    exact = results["float32"]
    errors = {}
    for name, (_, dtype) in WAYS.items():
        share = results[name]["bytes"] / exact["bytes"]
        if share != dtype.itemsize / 4 or results[name]["calls"] != exact["calls"]:
            raise CourseError(f"{name}: {results[name]['bytes']:,} of {exact['bytes']:,} bytes")
        error = error_of(results[name], exact)
        # What comes in, each partial sum and the result are rounded by half of eps at most. Summands cancel
        # out, so that they are larger than the mean.
        limit = 4 * group.world_size * torch.finfo(dtype).eps
        if name != "float32" and not 0 < error < limit:
            raise CourseError(f"{name}: off by {error:.1e}, allowed is {limit:.1e}")
        print_on_rank_0(f"{name:14} {results[name]['bytes']:>9,} bytes in {results[name]['calls']} calls")
        errors[name] = error
    for kind in ("fp16", "bf16"):
        ours = results[f"{kind}, ours"]["gradients"]
        assert_all_equal(f"{kind}:", ours, results[f"{kind}, torch's"]["gradients"], 0.0)
        print_on_rank_0(f"{kind}: ours and torch's are equal to the bit")
    if errors["fp16, ours"] >= errors["bf16, ours"]:
        raise CourseError("bf16 has fewer digits than fp16, and should have been farther off")


def gradient_of(size: float, hook: Hook, group: Group, cfg: Config) -> float:
    """What becomes of a gradient that is ``size`` on all ranks."""
    layer = nn.Linear(8, 1, bias=False).to(group.device)
    ddp = with_hook(layer, hook, cfg)
    (size * ddp(torch.ones(1, 8, device=group.device))).sum().backward()
    return layer.weight.grad[0, 0].item()


def show_limits(group: Group, cfg: Config) -> None:
    """fp16 ends at 65,504 and below 6e-8; a sum leaves it before a mean does."""
    fp16 = default_hooks.fp16_compress_hook
    cases = [
        ("40,000, fp16, summed, then divided", 4e4, sent_as(torch.float16, divide_first=False), float("inf")),
        ("40,000, fp16, divided, then summed", 4e4, fp16, 4e4),
        ("40,000, bf16", 4e4, torchs_bf16, 4e4),
        ("0.00000001, fp16", 1e-8, fp16, 0.0),
        ("0.00000001, bf16", 1e-8, torchs_bf16, 1e-8),
    ]
    for name, size, hook, expected in cases:
        gradient = gradient_of(size, hook, group, cfg)
        print_on_rank_0(f"a gradient of {name}: {gradient:.3g}")
        if gradient != expected and abs(gradient - expected) > 0.01 * expected:
            raise CourseError(f"{name}: {gradient}, expected {expected}")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        compare(group, cfg)
        show_limits(group, cfg)


if __name__ == "__main__":
    run(main, Config())
