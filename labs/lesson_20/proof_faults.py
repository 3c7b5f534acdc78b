"""Seven mistakes around context parallelism, each on the GPT. All but the last raise no error.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_20/proof_faults.py
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from shared.runtime.errors import CourseError, ParityError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.gpt import GPT, IGNORED, GPTConfig, loss_sum
from shared.training.one_process import PlainSGD, assert_same_training, train_alone

from lab_20_ring import ring_attention
from lesson_20 import proof_gpt as cp

WAY = "ring"


@dataclass(frozen=True)
class Config(cp.Config):
    layers: int = 1
    steps: int = 2


class Setting:
    """One truth, and the verdict of parity."""

    def __init__(self, group: Group, cfg: Config) -> None:
        self.group = group
        self.cfg = cfg
        self.sizes = cp.gpt_config(group.world_size, cfg)
        self.truth = cp.one_truth(self.sizes, group)

    def model(self) -> GPT:
        return cp.fresh(self.sizes, self.truth, self.group)

    def split(self) -> GPT:
        return cp.split_context(self.model(), WAY, dist.group.WORLD)

    def verdict(self, model: GPT, loss_of: Callable | None = None, alone: Callable | None = None) -> str:
        """What parity says after some steps of ``loss_of`` on a part, beside ``alone`` on the whole."""
        world, cfg = dist.group.WORLD, self.cfg
        ours = cp.train(model, loss_of or cp.loss_of_part(WAY, world, cfg), world, cfg)
        whole = self.model()
        sgd = PlainSGD(whole.parameters(), cfg.lr)
        truth = train_alone(whole, sgd, alone or cp.loss_alone(cfg), cfg.steps)
        try:
            assert_same_training("parity", ours, truth, cfg.tolerance)
        except ParityError as error:
            return str(error).split(" by ")[0]
        return "parity: equal"


def positions_from_0(here: Setting) -> str:
    """The pre-hook that gives each rank its own positions is forgotten."""
    model = here.split()
    model.positions._forward_pre_hooks.clear()
    return here.verdict(model)


def another_layout(here: Setting) -> str:
    """Tokens and positions are cut as a zigzag; attention takes the parts to lie in order."""
    model = here.split()
    for block in model.blocks:
        block.attention.attend = lambda q, k, v: ring_attention(q, k, v, zigzag=False)
    return here.verdict(model)


def shifted_after_the_cut(here: Setting) -> str:
    """Each rank takes its own next token for the label, as a model does that shifts inside of its loss."""

    def loss_of(model: GPT, step: int) -> torch.Tensor:
        tokens, labels = cp.batch_of(model, step, here.cfg)
        count = (labels != IGNORED).sum()
        tokens, labels = cp.part_of_batch(tokens, labels, WAY, dist.group.WORLD)
        following = torch.full_like(labels, IGNORED)  # nobody knows the label of the last one
        following[:, :-1] = tokens[:, 1:]
        return loss_sum(model(tokens), following.masked_fill(labels == IGNORED, IGNORED)) / count

    return here.verdict(here.split(), loss_of)


def mean_of_means(here: Setting) -> str:
    """Each rank divides by its own number of labels: wrong, and right where all have equally many."""
    ranks = here.group.world_size

    def all_labels(model: GPT, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, _ = cp.batch_of(model, step, here.cfg)
        return tokens, tokens.flip(0)  # any labels, none of them ignored

    def mean(batch_of: Callable) -> Callable:
        def loss_of(model: GPT, step: int) -> torch.Tensor:
            tokens, labels = cp.part_of_batch(*batch_of(model, step), WAY, dist.group.WORLD)
            own = (labels != IGNORED).sum().clamp(min=1)
            return loss_sum(model(tokens), labels) / own / ranks

        return loss_of

    def of_all(model: GPT, step: int) -> torch.Tensor:
        tokens, labels = all_labels(model, step)
        return loss_sum(model(tokens), labels) / labels.numel()

    uneven = here.verdict(here.split(), mean(lambda model, step: cp.batch_of(model, step, here.cfg)))
    even = here.verdict(here.split(), mean(all_labels), of_all)
    return f"{uneven}; with equally many labels {even}"


def documents_leak(here: Setting) -> str:
    """Packed documents, with positions and labels of their own, under a mask that is only causal."""
    model = here.model()
    cp.split_context(model, WAY, dist.group.WORLD, cp.documents_of(model))
    for block in model.blocks:
        block.attention.attend = ring_attention
    packed = cp.loss_of_packed_part(dist.group.WORLD, here.cfg)
    return here.verdict(model, packed, cp.loss_of_documents(here.cfg))


def gradients_not_summed(here: Setting) -> str:
    """The loss is right, and each rank learns from its own part of the sequence alone."""
    sum_gradients = cp.sum_gradients
    cp.sum_gradients = lambda model, group: None
    try:
        return here.verdict(here.split())
    finally:
        cp.sum_gradients = sum_gradients


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
    "mean of means": (mean_of_means, "loss: differs; with equally many labels parity: equal"),
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
