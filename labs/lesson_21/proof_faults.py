"""Mistakes of expert parallelism: calls that a rank leaves out, counts, and gradients.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_21/proof_faults.py
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from shared.comm.broadcast import broadcast_from_rank_0
from shared.comm.record import record
from shared.runtime.errors import CourseError, ParityError, waited_in_vain
from shared.runtime.group import Group, process_group
from shared.runtime.report import gather_on_rank_0, print_on_rank_0
from shared.runtime.run import run
from shared.training.gpt import GPT
from shared.training.one_process import Step
from shared.training.parity import assert_same_on_every_rank

from lab_21_fsdp import Block, exchange_rows, shard
from lab_21_moe import ExchangeRows, ExpertParallelMoE, Experts, MoE, Router, exchange
from lesson_21 import proof_gpt as ep


@dataclass(frozen=True)
class Config(ep.Config):
    timeout_s: int = 4  # how long the others wait for a rank that leaves out a call
    width: int = 8
    tokens: int = 16


def all_to_rank_0(probabilities: torch.Tensor) -> torch.Tensor:
    """A router that chooses experts 0 and 1 for all tokens. Both are on rank 0."""
    return torch.arange(2, device=probabilities.device).expand(len(probabilities), 2)


class LeavesEarly(ExpertParallelMoE):
    """Without tokens there is nothing to do, it seems."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.numel() else x


class FreshTensor(Experts):
    """Without rows it returns an empty tensor that autograd knows nothing of."""

    def forward(self, rows: torch.Tensor, load: list[int]) -> torch.Tensor:
        return super().forward(rows, load) if len(rows) else torch.empty_like(rows)


class BackwardNotSwapped(ExchangeRows):
    """Sends gradients by the counts of forward."""

    @staticmethod
    def backward(ctx, gradient):
        return exchange(gradient, ctx.send, ctx.receive, ctx.group), None, None, None


class LeftAsArrived(ExpertParallelMoE):
    """Takes the rows as they have arrived, rank by rank, for rows that are sorted by expert."""

    def dispatch(self, tokens: torch.Tensor, plan) -> torch.Tensor:
        rows = tokens[plan.slots // self.router.k]
        return self.exchange_rows(rows, plan.send, plan.receive, self.group)

    def combine(self, rows: torch.Tensor, weights: torch.Tensor, plan) -> torch.Tensor:
        return super().combine(rows[plan.by_expert], weights, plan)


def one_layer(group: Group, cfg: Config) -> MoE:
    """The same whole layer on all ranks."""
    experts = cfg.experts_per_rank * group.world_size
    whole = MoE(cfg.width, 4 * cfg.width, experts, cfg.k, torch.float64).to(group.device)
    broadcast_from_rank_0(whole.parameters())
    return whole


def own_tokens(group: Group, cfg: Config) -> torch.Tensor:
    return torch.randn(cfg.tokens, cfg.width, dtype=torch.float64, device=group.device, requires_grad=True)


def what_happens(layer: nn.Module, x: torch.Tensor) -> str:
    """In which pass this rank waits until the time-out, or which error it gets."""
    passes = "the forward pass"
    try:
        y = layer(x)
        passes = "the backward pass"
        y.square().sum().backward()
    except RuntimeError as error:
        text = str(error).splitlines()[0]
        return f"waits in {passes}" if waited_in_vain(text) else text
    return "returns"


def on_each_rank(layer: nn.Module, x: torch.Tensor) -> str:
    """``what_happens`` of all ranks: "rank 0: ...; rank 1: ...", on rank 0."""
    outcomes = gather_on_rank_0(what_happens(layer, x))
    return "; ".join(f"rank {rank}: {outcome}" for rank, outcome in enumerate(outcomes))


def short_patience(cfg: Config) -> dist.ProcessGroup:
    """All ranks, in a group whose calls give up soon. After that it is of no use to anybody."""
    return dist.new_group(timeout=timedelta(seconds=cfg.timeout_s))


def no_tokens_no_rows(group: Group, cfg: Config) -> str:
    """Rank 1 has no tokens and gets no rows. It makes the same calls as all others."""
    layer = ExpertParallelMoE(one_layer(group, cfg))
    layer.router.choose = all_to_rank_0
    x = own_tokens(group, cfg)
    if group.rank == 1:
        x = x[:0]
    with record() as log:
        layer(x).square().sum().backward()
    counts = set(gather_on_rank_0(log.count("all_to_all")))
    grads = all(p.grad is not None for p in layer.parameters())
    return f"all-to-alls of a rank: {sorted(counts)}; each parameter has a gradient: {grads}"


def leaves_early(group: Group, cfg: Config) -> str:
    layer = LeavesEarly(one_layer(group, cfg), short_patience(cfg))
    x = own_tokens(group, cfg)
    return on_each_rank(layer, x[:0] if group.rank == 1 else x)


def fresh_tensor(group: Group, cfg: Config) -> str:
    layer = ExpertParallelMoE(one_layer(group, cfg), short_patience(cfg))
    layer.router.choose = all_to_rank_0
    layer.experts = FreshTensor(layer.experts.up.detach(), layer.experts.down.detach())
    return on_each_rank(layer, own_tokens(group, cfg))


def counts_not_swapped(group: Group, cfg: Config) -> str:
    layer = ExpertParallelMoE(one_layer(group, cfg), short_patience(cfg), BackwardNotSwapped.apply)
    layer.router.choose = all_to_rank_0
    return on_each_rank(layer, own_tokens(group, cfg))


def left_as_arrived(group: Group, cfg: Config) -> str:
    """The first layer's sums are those of other experts, and nothing complains."""
    whole = one_layer(group, cfg)
    x = own_tokens(group, cfg)
    right = torch.allclose(ExpertParallelMoE(whole)(x), whole(x))
    wrong = torch.allclose(LeftAsArrived(whole)(x), whole(x))
    return f"sorted by expert, equal to one process: {right}; as they arrived: {wrong}"


def gathered_before_counts(blocks: nn.Sequential, x: torch.Tensor) -> int:
    """In how many blocks the experts' shards are gathered before the counts, for which the host waits."""
    experts = blocks[0].mlp.experts
    size = sum(p.to_local().nbytes for p in experts.parameters())
    counts = 8 * blocks[0].mlp.expert_count
    with record() as log:
        blocks(x)
    gathers = 0
    exchanges = 0
    early = 0
    for call in log.calls:
        if (call.op, call.bytes) == ("all_gather", size):
            gathers += 1
        if (call.op, call.bytes) == ("all_to_all", counts):
            exchanges += 1
            early += gathers >= exchanges
    return early


def no_prefetch_lists(group: Group, cfg: Config) -> str:
    """Under FSDP the host launches the gather of a block's experts when it has waited for the counts."""
    blocks = nn.Sequential(*[Block(cfg.width, 2 * group.world_size) for _ in range(3)]).to(group.device)
    shard(blocks, 1, group.device.type)
    x = own_tokens(group, cfg)
    with_lists = gathered_before_counts(blocks, x)
    for module in (blocks, *blocks):
        module.set_modules_to_forward_prefetch([])
    return f"gathered before the counts: {gathered_before_counts(blocks, x)} of 3; with lists: {with_lists}"


class ChoosesAgain(Router):
    """Its second choice, in recomputation, is ``again`` of the first one."""

    def __init__(self, whole: Router, again: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__(whole.weight.shape[1], len(whole.weight), whole.k, whole.weight.dtype)
        self.weight = whole.weight
        self.again = again
        self.calls = 0

    def choose(self, probabilities: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        second = torch.tensor(self.calls > 1)  # the same operations in both: selective checkpointing counts
        return torch.where(second, self.again(probabilities), probabilities).topk(self.k).indices


def other_tokens(probabilities: torch.Tensor) -> torch.Tensor:
    """Each expert gets the same number of rows, but from different tokens."""
    return probabilities.flip(0)


def moved_bias(probabilities: torch.Tensor) -> torch.Tensor:
    """The forward pass has moved a bias: the busiest experts are chosen less."""
    return probabilities - 2 * probabilities.mean(0)


def moved_on_rank_0(probabilities: torch.Tensor) -> torch.Tensor:
    """On rank 0 some tokens change between its own two experts: the other ranks see no difference."""
    order = probabilities.clone()
    if dist.get_rank() == 0:
        some = len(order) // 2
        order[:some, :2] = order[:some, :2].flip(1)
    return order


SAVED = {torch.ops.aten.topk.default, torch.ops._c10d_functional.all_to_all_single.default}


def policy_of(context, operation, *args, **kwargs) -> CheckpointPolicy:
    """Selective checkpointing as in lesson 19: the choice is kept, and what has travelled."""
    return CheckpointPolicy.MUST_SAVE if operation in SAVED else CheckpointPolicy.PREFER_RECOMPUTE


def recomputed(group: Group, cfg: Config, again: Callable, selective: bool) -> str:
    """What a checkpointed layer does when its router chooses another time, beside the plain layer."""
    whole = one_layer(group, cfg)
    x = own_tokens(group, cfg)
    ExpertParallelMoE(copy.deepcopy(whole))(x).square().sum().backward()
    expected = x.grad.clone()
    x.grad = None
    layer = ExpertParallelMoE(whole, short_patience(cfg), exchange_rows)
    layer.router = ChoosesAgain(whole.router, again)
    options = {}
    if selective:
        options["context_fn"] = partial(create_selective_checkpoint_contexts, policy_of)
    with record() as log:
        said = what_happens(partial(checkpoint, layer, use_reentrant=False, **options), x)
    if said == "returns":
        right = torch.allclose(x.grad, expected, rtol=0, atol=1e-12)
        said = f"{'right' if right else 'wrong'} gradients, {log.count('all_to_all')} all-to-alls"
    return "; ".join(f"rank {rank}: {told}" for rank, told in enumerate(gather_on_rank_0(said)))


def chooses_other_tokens(group: Group, cfg: Config) -> str:
    return recomputed(group, cfg, other_tokens, selective=False)


def bias_moved_in_forward(group: Group, cfg: Config) -> str:
    return recomputed(group, cfg, moved_bias, selective=False)


def chooses_again_on_rank_0(group: Group, cfg: Config) -> str:
    return recomputed(group, cfg, moved_on_rank_0, selective=False)


def choice_saved(group: Group, cfg: Config) -> str:
    return recomputed(group, cfg, moved_bias, selective=True)


class Training(ep.ExpertTrial):
    """A truth that all ranks have, how one process trains from it, and what parity says of the ranks."""

    def __init__(self, group: Group, cfg: Config) -> None:
        super().__init__(group, cfg)
        self.of_one = self.alone()

    def spread(
        self, reduce: Callable[[GPT], None], clip: Callable[[GPT], None] | None = None, scale: float = 1.0
    ) -> tuple[GPT, list[Step]]:
        """Train with each rank's loss multiplied by ``scale``."""

        def after_backward(gpt: GPT, loss: torch.Tensor) -> None:
            reduce(gpt)
            if clip is not None:
                clip(gpt)
            loss.div_(scale)
            dist.all_reduce(loss)

        model = ep.spread_experts(self.model(), dist.group.WORLD)
        return model, self.train(model, lambda gpt, step: scale * self.loss_here(gpt, step), after_backward)

    def outcome(self, reduce: Callable[[GPT], None], scale: float = 1.0) -> str:
        """Without clipping."""
        _, ours = self.spread(reduce, scale=scale)
        return self.verdict(ours, self.of_one, ep.part_in(dist.group.WORLD))


def experts_not_divided(here: Training) -> str:
    """Losses are means of own tokens. Dense gradients are averaged, and experts are left as they come."""
    ranks = here.group.world_size

    def reduce(model: GPT) -> None:
        ep.reduce_gradients(model, dist.group.WORLD)
        for name, p in model.named_parameters():
            if not ep.is_expert(name):
                p.grad.div_(ranks)

    return here.outcome(reduce, scale=ranks)


def norm_of_what_is_here(here: Training) -> str:
    """Each rank clips by the norm of the gradients that it holds."""

    def clip(model: GPT) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), here.cfg.largest_norm)

    model, _ = here.spread(lambda model: ep.reduce_gradients(model, dist.group.WORLD), clip)
    dense = [(name, p) for name, p in model.named_parameters() if not ep.is_expert(name)]
    try:
        assert_same_on_every_rank("after training,", dense)
    except ParityError as error:
        return str(error).replace(str(list(range(1, here.group.world_size))), "1 and up")
    return "the same on every rank"


# {mistake: (how to make it, words that must be in what is said)}
CALLS: dict[str, tuple[Callable[[Group, Config], str], str]] = {
    "no tokens, no rows, no mistake": (
        no_tokens_no_rows,
        "of a rank: [5]; each parameter has a gradient: True",
    ),
    "returns early without tokens": (leaves_early, "rank 0: waits in the forward pass; rank 1: returns"),
    "a fresh tensor without rows": (fresh_tensor, "rank 0: waits in the backward pass; rank 1: returns"),
    "counts not swapped in the backward pass": (counts_not_swapped, "rank 0: Split sizes"),
    "left as arrived": (left_as_arrived, "equal to one process: True; as they arrived: False"),
    "recomputed, the choice falls on other tokens": (chooses_other_tokens, "rank 0: wrong gradients, 8"),
    "recomputed, a bias has moved": (bias_moved_in_forward, "Recomputed values for the following tensors"),
    "recomputed, rank 0 alone chooses again": (chooses_again_on_rank_0, "rank 1: waits in the backward pass"),
    "recomputed, choice and exchanges saved": (choice_saved, "rank 0: right gradients, 6 all-to-alls"),
    "no prefetch lists": (no_prefetch_lists, "gathered before the counts: 0 of 3; with lists: 3"),
}
GRADIENTS: dict[str, tuple[Callable[[Training], str], str]] = {
    "experts not divided": (experts_not_divided, "step 0: gradient of blocks.0.mlp.experts.up: differs"),
    "the norm of what is here": (norm_of_what_is_here, "differ from rank 0"),
}


ON_THE_PAGE = list(CALLS)[:5]  # the text tells the others elsewhere, with their proof


def tell(name: str, said: str, words: str) -> None:
    if name in ON_THE_PAGE:
        print_on_rank_0(f"{name}: {said}")
    if dist.get_rank() == 0 and words not in said:
        raise CourseError(f"{name}: {said!r} is not what this lab shows")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        for name, (make, words) in CALLS.items():
            tell(name, make(group, cfg), words)
        here = Training(group, cfg)
        for name, (make_with, words) in GRADIENTS.items():
            tell(name, make_with(here), words)
        others = [name for name in CALLS | GRADIENTS if name not in ON_THE_PAGE]
        print_on_rank_0(f"also provoked, as the text describes: {'; '.join(others)}")


if __name__ == "__main__":
    run(main, Config())
