"""Seven mistakes around context parallelism, each on the GPT. All but the last raise no error.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_20/proof_faults.py
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.gpt import GPT, IGNORED, GPTConfig, loss_sum
from shared.training.trial import LossOf

from lab_20_ring import ring_attention
from lesson_20 import proof_gpt as cp

WAY = "ring"


@dataclass(frozen=True)
class Config(cp.Config):
    layers: int = 1
    steps: int = 2


class Setting(cp.ContextTrial):
    """One truth, and the verdict of parity."""

    def __init__(self, group: Group, cfg: Config) -> None:
        super().__init__(cp.gpt_config(group.world_size, cfg), group, cfg)

    def split(self) -> GPT:
        return cp.split_context(self.model(), WAY, dist.group.WORLD)

    def outcome(
        self,
        model: GPT,
        loss_of: LossOf | None = None,
        alone: LossOf | None = None,
        reduce: Callable[[GPT, torch.Tensor], None] = cp.reduce,
    ) -> str:
        """What parity says after some steps of ``loss_of`` on a part, beside ``alone`` on the whole."""
        ours = self.train(model, loss_of or cp.loss_of_part(WAY, dist.group.WORLD, self.batch), reduce)
        return self.verdict(ours, self.train(self.model(), alone or self.loss_alone))


def positions_from_0(here: Setting) -> str:
    """The pre-hook that gives each rank its own positions is forgotten."""
    model = here.split()
    model.positions._forward_pre_hooks.clear()
    return here.outcome(model)


def another_layout(here: Setting) -> str:
    """Tokens and positions are cut as a zigzag; attention takes the parts to be in order."""
    model = here.split()
    for block in model.blocks:
        block.attention.attend = lambda q, k, v: ring_attention(q, k, v, zigzag=False)
    return here.outcome(model)


def shifted_after_the_cut(here: Setting) -> str:
    """Each rank takes its own next token for the label, as a model does that shifts inside of its loss."""

    def loss_of(model: GPT, step: int) -> torch.Tensor:
        tokens, labels = here.batch(step)
        count = (labels != IGNORED).sum()
        tokens, labels = cp.part_of_batch(tokens, labels, WAY, dist.group.WORLD)
        following = torch.full_like(labels, IGNORED)  # nobody knows the label of the last one
        following[:, :-1] = tokens[:, 1:]
        return loss_sum(model(tokens), following.masked_fill(labels == IGNORED, IGNORED)) / count

    return here.outcome(here.split(), loss_of)


def mean_of_means(here: Setting) -> str:
    """Each rank divides by its own number of labels: wrong, and right where all have the same number."""
    ranks = here.group.world_size

    def all_labels(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, _ = here.batch(step)
        return tokens, tokens.flip(0)  # any labels, none of them ignored

    def mean(batch_of: Callable) -> LossOf:
        def loss_of(model: GPT, step: int) -> torch.Tensor:
            tokens, labels = cp.part_of_batch(*batch_of(step), WAY, dist.group.WORLD)
            own = (labels != IGNORED).sum().clamp(min=1)
            return loss_sum(model(tokens), labels) / own / ranks

        return loss_of

    def of_all(model: GPT, step: int) -> torch.Tensor:
        tokens, labels = all_labels(step)
        return loss_sum(model(tokens), labels) / labels.numel()

    uneven = here.outcome(here.split(), mean(here.batch))
    even = here.outcome(here.split(), mean(all_labels), of_all)
    return f"{uneven}; with equal numbers of labels {even}"


def documents_leak(here: Setting) -> str:
    """Packed documents, with positions and labels of their own, under a mask that is only causal."""
    model = cp.split_context(here.model(), "gather", dist.group.WORLD, here.documents)
    for block in model.blocks:
        block.attention.attend = ring_attention
    packed = cp.loss_of_part(WAY, dist.group.WORLD, here.packed_batch)
    return here.outcome(model, packed, here.loss_of_documents)


def gradients_not_summed(here: Setting) -> str:
    """The loss is right, and each rank learns from its own part of the sequence alone."""
    return here.outcome(here.split(), reduce=lambda _, loss: dist.all_reduce(loss))


def heads_and_length(here: Setting) -> str:
    """Ulysses with one head more than ranks; a ring with one position too many."""
    ranks = here.group.world_size
    world = dist.group.WORLD
    sizes = GPTConfig(16 * ranks, 2 * ranks, 8 * (ranks + 1), ranks + 1, 1)
    model = cp.split_context(GPT(sizes).to(here.group.device), "Ulysses", world)
    tokens = torch.zeros(1, 2, dtype=torch.int64, device=here.group.device)
    too_long = torch.zeros(1, 2 * ranks + 1, dtype=torch.int64, device=here.group.device)
    errors = [
        error_of(model, tokens),
        error_of(cp.part_of_batch, too_long, too_long, WAY, world),
    ]
    return "; ".join(errors)


def error_of(function: Callable, *args) -> str:
    """The first line of the error that ``function`` is to raise."""
    try:
        function(*args)
    except (ValueError, RuntimeError, CourseError) as error:
        return str(error).splitlines()[0]
    return "no error"


# {mistake: (how to make it, words that must be in what is said)}
MISTAKES: dict[str, tuple[Callable[[Setting], str], str]] = {
    "positions that begin at 0 on each rank": (positions_from_0, "step 0: loss: differs"),
    "cut in one layout, attended in another": (another_layout, "step 0: loss: differs"),
    "labels shifted after the cut": (shifted_after_the_cut, "step 0: loss: differs"),
    "mean of means": (mean_of_means, "loss: differs; with equal numbers of labels parity: equal"),
    "packed documents under a causal mask": (documents_leak, "step 0: loss: differs"),
    "gradients not summed": (gradients_not_summed, "step 0: gradient of"),
    "heads and lengths that do not divide": (heads_and_length, "cannot be divided by"),
}


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        here = Setting(group, cfg)
        for name, (make, words) in MISTAKES.items():
            outcome = make(here)
            print_on_rank_0(f"{name}: {outcome}")
            if words not in outcome:
                raise CourseError(f"{name}: {outcome!r} is not what this lab shows")


if __name__ == "__main__":
    run(main, Config())
