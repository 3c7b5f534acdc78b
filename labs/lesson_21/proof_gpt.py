"""A GPT whose MLPs are mixtures of experts, equal to one process after each step; calls, bytes, gradients.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_21/proof_gpt.py
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

from shared.comm.flat import sum_over_ranks
from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.gpt import GPT, GPTConfig, loss_sum
from shared.training.one_process import PartOf, Step, assert_same_training
from shared.training.parity import assert_all_equal, assert_equal, gradients
from shared.training.trial import Trial

from lab_21_moe import ExchangeRows, ExpertParallelMoE, Experts, MoE, Router, plan_of

CALLS_RECOMPUTED = 8  # 3 forward, 3 once more, 2 backward


@dataclass(frozen=True)
class Config:
    layers: int = 2
    experts_per_rank: int = 2  # on the largest group; a smaller group has more of them on each rank
    k: int = 2
    rows: int = 3  # sequences on each rank
    steps: int = 3
    lr: float = 0.5
    largest_norm: float = 0.2  # gradients are clipped to it, so that the norm matters
    margin: float = 1e-9  # between the last chosen probability and the next one
    tolerance: float = 1e-12
    float32_tolerance: float = 1e-5


def use_experts(model: GPT, experts: int, k: int = 2) -> GPT:
    """Replace the MLP of each block by a ``MoE`` of ``experts`` MLPs; all of it in one process."""
    cfg = model.cfg
    for block in model.blocks:
        block.mlp = MoE(cfg.width, 4 * cfg.width, experts, k, cfg.dtype)
    return model


def spread_experts(model: GPT, group: dist.ProcessGroup, exchange_rows: Callable = ExchangeRows.apply) -> GPT:
    """Leave this rank its experts of each block of ``use_experts``; the names of parameters stay."""
    for block in model.blocks:
        block.mlp = ExpertParallelMoE(block.mlp, group, exchange_rows)
    return model


def is_expert(name: str) -> bool:
    return "experts" in name.split(".")


def part_in(group: dist.ProcessGroup) -> PartOf:
    """What this rank holds of the whole tensor of that name."""

    def part(name: str, whole: torch.Tensor) -> torch.Tensor:
        if not is_expert(name):
            return whole
        return whole.chunk(dist.get_world_size(group))[dist.get_rank(group)]

    return part


def reduce_gradients(
    model: nn.Module,
    everyone: dist.ProcessGroup,
    replicas: dist.ProcessGroup | None = None,
    scale: float = 1.0,
) -> None:
    """Make each gradient that of the loss of all ranks' tokens.

    Args:
        everyone: all ranks that have tokens of their own. Dense gradients are summed over it.
        replicas: the ranks that have the same experts as this one; None: nobody else has them. What has come
            back to an expert is the sum over the tokens of its own expert group. The sum over the replicas
            adds those of the other groups.
        scale: 1 if each rank's loss is divided by the number of tokens of *all* ranks, 1 / ranks if it is
            divided by the number of its own, as with DDP. It is the same for dense parameters and experts.
    """
    dense = [p.grad for name, p in model.named_parameters() if not is_expert(name)]
    experts = [p.grad for name, p in model.named_parameters() if is_expert(name)]
    sum_over_ranks(dense, everyone)
    if replicas is not None and dist.get_world_size(replicas) > 1:
        sum_over_ranks(experts, replicas)
    for gradient in (*dense, *experts):
        gradient.mul_(scale)


def global_norm(model: nn.Module, expert_group: dist.ProcessGroup) -> torch.Tensor:
    """The norm of all gradients: dense ones, which all ranks have, count once; experts are summed up."""
    dense = [p.grad for name, p in model.named_parameters() if not is_expert(name)]
    experts = [p.grad for name, p in model.named_parameters() if is_expert(name)]
    of_experts = torch.stack([gradient.square().sum() for gradient in experts]).sum()
    dist.all_reduce(of_experts, group=expert_group)
    return (torch.stack([gradient.square().sum() for gradient in dense]).sum() + of_experts).sqrt()


def clip_gradients(model: nn.Module, largest_norm: float, expert_group: dist.ProcessGroup) -> torch.Tensor:
    """As ``nn.utils.clip_grad_norm_`` does it in one process; returns the norm before."""
    norm = global_norm(model, expert_group)
    factor = (largest_norm / (norm + 1e-6)).clamp(max=1.0)
    for p in model.parameters():
        p.grad.mul_(factor)
    return norm


class ExpertTrial(Trial):
    """A GPT with experts; a rank takes its chunk of the rows of all ranks."""

    def __init__(self, group: Group, cfg: Config) -> None:
        self.experts = cfg.experts_per_rank * group.world_size
        self.k = cfg.k
        sizes = GPTConfig(vocabulary=32, context=16, width=16, heads=2, layers=cfg.layers)
        super().__init__(sizes, group, replace(cfg, rows=cfg.rows * group.world_size))

    def new(self) -> GPT:
        return use_experts(GPT(self.sizes), self.experts, self.k).to(self.group.device)

    def loss_here(self, model: GPT, step: int) -> torch.Tensor:
        """This rank's part of the mean: the sum over its own tokens, divided by the number of all tokens."""
        tokens, labels = self.batch(step)
        own_tokens = tokens.chunk(self.group.world_size)[self.group.rank]
        own_labels = labels.chunk(self.group.world_size)[self.group.rank]
        return loss_sum(model(own_tokens), own_labels) / labels.numel()


def watched_margins(model: GPT) -> list[float]:
    """Filled in each forward: how near a token's next expert came to being chosen, by probability."""
    margins: list[float] = []

    def watch(router: nn.Module) -> None:
        chooses = router.choose

        def choose(probabilities: torch.Tensor) -> torch.Tensor:
            highest = probabilities.detach().topk(router.k + 1).values
            margins.append((highest[:, -2] - highest[:, -1]).min().item())
            return chooses(probabilities)

        router.choose = choose

    for block in model.blocks:
        watch(block.mlp.router)
    return margins


def reference(trial: ExpertTrial, cfg: Config) -> list[Step]:
    """Training in one process, with torch's clipping.

    Raises:
        CourseError: a choice hangs on a difference so small that another order of addition could turn it.
    """
    model = trial.model()
    margins = watched_margins(model)
    norms = []

    def clip(gpt: GPT, _: torch.Tensor) -> None:
        norms.append(nn.utils.clip_grad_norm_(gpt.parameters(), cfg.largest_norm).item())

    steps = trial.train(model, trial.loss_alone, clip)
    if min(margins) < cfg.margin:
        raise CourseError(f"two probabilities are {min(margins):.0e} apart: choose another seed")
    if min(norms) < cfg.largest_norm:
        raise CourseError(f"norms are {norms}: nothing was clipped, so the norm was not put to the test")
    return steps


def check_layer(layer: ExpertParallelMoE, x: torch.Tensor) -> dict[str, dict[str, float]]:
    """Calls and bytes of one layer, in each direction, beside the formula.

    Returns:
        {direction: {"calls": number of all-to-alls, "bytes": what this rank sends to others}}
    """
    rank, ranks = dist.get_rank(layer.group), dist.get_world_size(layer.group)
    with torch.no_grad():
        plan = plan_of(layer.router(x.flatten(0, -2))[1], layer.expert_count, layer.group)
    x = x.clone().requires_grad_()
    with record() as forward:
        y = layer(x)
    with record() as backward:
        y.square().sum().backward()
    to_others = sum(plan.send) - plan.send[rank]
    from_others = sum(plan.receive) - plan.receive[rank]
    rows = (to_others + from_others) * x.shape[-1] * x.element_size()
    counts = layer.expert_count * 8 * (ranks - 1) / ranks
    measured = {
        "forward": {"calls": forward.count("all_to_all"), "bytes": forward.by_rule()},
        "backward": {"calls": backward.count("all_to_all"), "bytes": backward.by_rule()},
    }
    expected = {
        "forward": {"calls": 3, "bytes": counts + rows},
        "backward": {"calls": 2, "bytes": rows},
    }
    if measured != expected or set(forward.counts() + backward.counts()) != {"all_to_all"}:
        raise CourseError(f"a layer calls {measured}, expected {expected}")
    return measured


def rows_beside_balanced(calls: dict, ranks: int, x: torch.Tensor, trial: ExpertTrial) -> tuple[float, float]:
    """Bytes of rows that a rank sends, on average, both ways, and by the formula for a balanced load."""
    counts = trial.experts * 8 * (ranks - 1) / ranks
    sent = x.new_tensor(calls["forward"]["bytes"] + calls["backward"]["bytes"] - counts)
    dist.all_reduce(sent)
    mean = sent.item() / trial.group.world_size
    balanced = 4 * trial.k * x.nbytes * (ranks - 1) / ranks
    if abs(mean / balanced - 1) > 0.3:
        raise CourseError(f"rows of {mean:,.0f} bytes, balanced {balanced:,.0f}")
    return mean, balanced


def check_recomputed(layer: ExpertParallelMoE, x: torch.Tensor) -> int:
    """All-to-alls of a layer that is recomputed: counts, dispatch and combine travel twice."""
    with record() as log:
        checkpoint(layer, x.clone().requires_grad_(), use_reentrant=False).square().sum().backward()
    calls = log.count("all_to_all")
    if calls != CALLS_RECOMPUTED:
        raise CourseError(f"a layer under checkpointing makes {calls} all-to-alls, expected 8")
    layer.zero_grad()
    return calls


def check_scale(trial: ExpertTrial, cfg: Config) -> None:
    """With losses divided by a rank's *own* tokens, an expert's gradient is N times too large."""
    whole = trial.model()
    trial.loss_alone(whole, 0).backward()
    alone = {name: p.grad for name, p in whole.named_parameters()}
    model = spread_experts(trial.model(), dist.group.WORLD)
    ranks = trial.group.world_size
    (ranks * trial.loss_here(model, 0)).backward()  # the mean over own tokens, as DDP has it
    part = part_in(dist.group.WORLD)
    for name, p in model.named_parameters():
        if is_expert(name):
            what = f"mean of own tokens, before anything is summed: {name}"
            assert_equal(what, p.grad, ranks * part(name, alone[name]), ranks * cfg.tolerance)
    reduce_gradients(model, dist.group.WORLD, scale=1 / ranks)
    for name, p in model.named_parameters():
        assert_equal(f"mean of own tokens: {name}", p.grad, part(name, alone[name]), cfg.tolerance)


def by_functional(rows: torch.Tensor, send: list[int], receive: list[int], group) -> torch.Tensor:
    """torch's exchange with a backward; what the compiler understands, too."""
    return functional.all_to_all_single_autograd(rows, receive, send, group)


def check_exchange(layer: ExpertParallelMoE, x: torch.Tensor) -> None:
    """torch's exchange gives the same result and the same gradients as ours, to the bit."""

    def outcome(exchange_rows: Callable) -> list[tuple[str, torch.Tensor]]:
        layer.exchange_rows = exchange_rows
        layer.zero_grad()
        x_here = x.clone().requires_grad_()
        y = layer(x_here)
        y.square().sum().backward()
        parameters = [(name, gradient.clone()) for name, gradient in gradients(layer)]
        return [("output", y.detach()), ("gradient of the tokens", x_here.grad), *parameters]

    theirs = outcome(by_functional)
    assert_all_equal("exchange by functional:", theirs, outcome(ExchangeRows.apply), tolerance=0.0)


class GroupedExperts(Experts):
    """The same MLPs by torch's grouped matrix product: one call for all experts of this rank."""

    def forward(self, rows: torch.Tensor, load: list[int]) -> torch.Tensor:
        ends = torch.tensor(load, device=rows.device).cumsum(0, dtype=torch.int32)
        hidden = F.gelu(F.grouped_mm(rows, self.up, offs=ends))
        return F.grouped_mm(hidden, self.down, offs=ends)


def check_grouped(experts: Experts, cfg: Config) -> None:
    """``F.grouped_mm`` beside the loop over experts, in float32, the last expert without a row."""
    number, width, _ = experts.up.shape
    loop = Experts(experts.up.detach().float(), experts.down.detach().float())
    grouped = GroupedExperts(loop.up.detach().clone(), loop.down.detach().clone())
    load = [8 * (place + 1) for place in range(number - 1)] + [0]
    rows = torch.randn(sum(load), width, device=experts.up.device)
    outcomes = []
    for module in (grouped, loop):
        leaf = rows.clone().requires_grad_()
        y = module(leaf, load)
        y.square().sum().backward()
        outcomes.append([y.detach(), leaf.grad, module.up.grad, module.down.grad])
    names = ("output", "gradient of the rows", "gradient of up", "gradient of down")
    for name, ours, expected in zip(names, *outcomes, strict=True):
        largest = expected.abs().max().item()
        assert_equal(f"grouped_mm: {name}", ours / largest, expected / largest, cfg.float32_tolerance)


def check_router(width: int, experts: int, device: torch.device) -> None:
    """The same bits under autocast, and with k = 1 a gradient."""
    router = Router(width, experts, k=1).to(device)
    tokens = torch.randn(256, width, device=device)
    weights, _ = router(tokens)
    with torch.autocast(device.type, torch.bfloat16):
        under_autocast, _ = router(tokens)
    assert_equal("router under autocast", under_autocast, weights, tolerance=0.0)
    (gradient,) = torch.autograd.grad(weights.sum(), router.weight)
    if gradient.abs().max() < 1e-2:
        raise CourseError("router with k = 1: no gradient reaches it")


def compare(ranks: int, trial: ExpertTrial, alone: list[Step], cfg: Config) -> dict:
    """Train with the experts spread over groups of ``ranks``, and hold it against ``alone``."""
    group = trial.group
    mesh = init_device_mesh(group.device.type, (group.world_size // ranks, ranks))
    replicas, members = mesh.get_group(0), mesh.get_group(1)
    everyone = dist.group.WORLD
    model = trial.model()
    whole = sum(p.numel() for p in model.parameters())
    spread_experts(model, members)
    sizes = model.cfg
    x = torch.randn(cfg.rows, sizes.context, sizes.width, dtype=sizes.dtype, device=group.device)
    calls = check_layer(model.blocks[0].mlp, x)
    recomputed = check_recomputed(model.blocks[0].mlp, x)
    check_exchange(model.blocks[0].mlp, x)
    rows = rows_beside_balanced(calls, ranks, x, trial)

    def after_backward(gpt: GPT, loss: torch.Tensor) -> None:
        reduce_gradients(gpt, everyone, replicas)
        clip_gradients(gpt, cfg.largest_norm, members)
        dist.all_reduce(loss)  # each rank has its part of the mean

    ours = trial.train(model, trial.loss_here, after_backward)
    assert_same_training(f"experts over {ranks} ranks", ours, alone, cfg.tolerance, part_in(members))
    held = sum(p.numel() for p in model.parameters())
    return {"layer": calls, "rows": rows, "recomputed": recomputed, "held": held, "whole": whole}


def tell(ranks: int, result: dict, group: Group, cfg: Config) -> None:
    copies = group.world_size // ranks
    print_on_rank_0(
        f"experts over {ranks} ranks, {copies} {'copies' if copies > 1 else 'copy'} of each: "
        f"equal to one process after each of {cfg.steps} steps"
    )
    print_on_rank_0(f"  a rank holds {result['held']:,} of {result['whole']:,} parameters")
    for name, traffic in result["layer"].items():
        calls, sent = traffic["calls"], traffic["bytes"]
        print_on_rank_0(f"  a layer, {name}: {calls} all-to-alls, rank 0 sends {sent:,.0f} bytes")
    sent, balanced = result["rows"]
    print_on_rank_0(
        f"  its rows, both passes: {sent:,.0f} bytes for each rank on average, balanced {balanced:,.0f}"
    )
    print_on_rank_0(f"  a layer under activation checkpointing: {result['recomputed']} all-to-alls")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        trial = ExpertTrial(group, cfg)
        alone = reference(trial, cfg)
        for ranks in range(2, group.world_size + 1):
            if group.world_size % ranks == 0:
                tell(ranks, compare(ranks, trial, alone, cfg), group, cfg)
        check_scale(trial, cfg)
        print_on_rank_0(
            f"mean of own tokens: an expert's gradient is {group.world_size} times too large; divided, equal"
        )
        print_on_rank_0("exchange by torch's functional collectives: the same bits")
        check_grouped(trial.model().blocks[0].mlp.experts, cfg)
        print_on_rank_0("F.grouped_mm: equal to the loop over experts in float32, forward and backward")
        check_router(trial.sizes.width, trial.experts, group.device)
        print_on_rank_0("router: the same bits under autocast; with k = 1 a gradient reaches it")


if __name__ == "__main__":
    run(main, Config())
