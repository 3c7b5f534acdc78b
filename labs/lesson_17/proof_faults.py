"""Mistakes of tensor parallelism that raise no error where they are made, so something has to look.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_17/proof_faults.py
"""

import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from shared.runtime.errors import CourseError, ParityError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.gpt import GPT, loss_sum
from shared.training.one_process import assert_same_training
from shared.training.parity import assert_same_on_every_rank
from shared.training.trial import LossOf, Trial

from lesson_17 import proof_gpt as tp
from lesson_17 import proof_plans as plans
from lesson_17.proof_gpt import Config


class Setting(Trial):
    """What each mistake starts from: a truth that all ranks have, and how one process trains from it."""

    def __init__(self, group: Group, mesh: DeviceMesh, cfg: Config) -> None:
        # All the heads fit into a rank's width, so that forgetting to divide them raises no error.
        super().__init__(
            replace(tp.gpt_config(group.world_size, cfg), width=2 * group.world_size**2), group, cfg
        )
        self.mesh = mesh

    def batch_of(self, rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Another batch for each rank."""
        return self.batch(100 * rank + step)

    def outcome(self, model: GPT, loss_of: LossOf | None = None, loss_of_one: LossOf | None = None) -> str:
        """What parity says of a model that is split by hand, after each of some steps."""
        ours = self.train(model, loss_of or tp.loss_split(dist.group.WORLD, self))
        alone = self.train(self.model(), loss_of_one or self.loss_alone)
        return self.verdict(ours, alone, tp.part_in(dist.group.WORLD))


def no_f(here: Setting) -> str:
    model = tp.split_gpt(here.model(), dist.group.WORLD, enter=lambda x, _: x)
    return here.outcome(model)


def no_division_of_heads(here: Setting) -> str:
    model = tp.split_gpt(here.model(), dist.group.WORLD)
    for block in model.blocks:
        block.attention.heads = here.sizes.heads  # as many as before, each 1/N as wide
    return here.outcome(model)


def a_batch_per_rank(here: Setting) -> str:
    """Neither the training on rank 0's batch nor that on all batches, as in data parallel training."""
    ranks = here.group.world_size

    def split(model: GPT, step: int) -> torch.Tensor:
        tokens, labels = here.batch_of(here.group.rank, step)
        return tp.vocabulary_parallel_loss_sum(model(tokens), labels, dist.group.WORLD) / labels.numel()

    def of_rank_0(model: GPT, step: int) -> torch.Tensor:
        tokens, labels = here.batch_of(0, step)
        return loss_sum(model(tokens), labels) / labels.numel()

    def of_all(model: GPT, step: int) -> torch.Tensor:
        batches = [here.batch_of(rank, step) for rank in range(ranks)]
        losses = [loss_sum(model(tokens), labels) / labels.numel() for tokens, labels in batches]
        return torch.stack(losses).mean()

    verdicts = []
    for alone in (of_rank_0, of_all):
        model = tp.split_gpt(here.model(), dist.group.WORLD)
        verdicts.append(here.outcome(model, split, alone))
    if verdicts[0] != verdicts[1]:
        return f"{verdicts[0]}; {verdicts[1]}"
    return f"{verdicts[0]}, beside rank 0's batch and beside all"


def with_a_typo(here: Setting, layers: Sequence[str]) -> tuple[GPT, set[str]]:
    """A model by a plan that misnames the MLP of these layers, and what torch warned of."""
    plan = plans.plan_of(sequence=False)
    for layer in layers:
        plan[f"blocks.*.mpl.{layer}"] = plan.pop(f"blocks.*.mlp.{layer}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = plans.parallelized(here.model(), here.mesh, plan)
    warned = {str(warning.message).split(":")[1].split(" in module")[0].strip() for warning in caught}
    return model, warned


def a_typo_in_one_layer(here: Setting) -> str:
    """Then whole and cut activations meet."""
    raised = []
    logging.disable(logging.ERROR)  # torch also logs what it raises
    for layer in ("up", "down"):
        model, _ = with_a_typo(here, [layer])
        try:
            model(here.batch(0)[0])
        except RuntimeError:
            raised.append(layer)
    logging.disable(logging.NOTSET)
    return f"the first forward pass raises: {', '.join(raised) or 'never'}"


def a_typo_in_the_plan(here: Setting) -> str:
    """In both layers of an MLP: nothing is split, and only the memory is wrong."""
    model, warned = with_a_typo(here, ("up", "down"))
    ours, _ = plans.train(model, here.loss_alone, here.cfg.steps, here.cfg.lr)
    assert_same_training("a typo", ours, here.alone(), here.cfg.tolerance)
    try:
        plans.assert_carried_out(model)
        complaint = "nothing"
    except CourseError as error:
        complaint = str(error)
    return f"warns: {', '.join(warned)}; parity: equal; our check: {complaint}"


def a_tie_that_is_not_made_again(here: Setting) -> str:
    """One weight becomes two parameters, each with the gradient of its own use."""
    model = here.model()
    assert model.head.weight is model.tokens.weight
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plans.parallelize_module(model, here.mesh, plans.plan_of(sequence=False))
    for block in model.blocks:
        block.attention.heads //= here.group.world_size
    before = "one parameter" if model.head.weight is model.tokens.weight else "two parameters"
    plans.train(model, here.loss_alone, 1, here.cfg.lr)
    apart = not torch.equal(plans.full(model.head.weight), plans.full(model.tokens.weight))
    return f"{before}, {len(caught)} warnings; after a step {'they differ' if apart else 'they are equal'}"


def what_the_plan_does_not_name(here: Setting) -> str:
    """Each rank has a seed of its own. A plan sends rank 0's numbers of what it splits, and no others."""
    torch.manual_seed(here.group.rank)
    model = plans.parallelized(here.new(), here.mesh, plans.plan_of(sequence=False))
    assert_same_on_every_rank("parameter", [("norm.weight", model.norm.weight)])  # ones
    assert_same_on_every_rank("parameter", [("tokens.weight", plans.full(model.tokens.weight))])
    try:
        assert_same_on_every_rank("parameter", [("positions.weight", model.positions.weight)])
    except ParityError as error:
        return str(error).replace(str(list(range(1, here.group.world_size))), "1 and up")
    return "no difference"


def a_norm_that_the_plan_does_not_name(here: Setting) -> str:
    """Under sequence parallelism its gradient is that of this rank's tokens alone."""
    plan = plans.plan_of(sequence=True)
    del plan["norm"]
    model = plans.parallelized(here.model(), here.mesh, plan)
    plans.train(model, here.loss_alone, 1, here.cfg.lr)  # with foreach=False, and without clipping
    try:
        assert_same_on_every_rank("after a step", [("norm.weight", plans.full(model.norm.weight))])
        return "no difference"
    except ParityError as error:
        verdict = str(error).replace(str(list(range(1, here.group.world_size))), "1 and up")
    try:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    except RuntimeError as error:
        if "mixed torch.Tensor and DTensor" in str(error):
            return f"{verdict}; clip_grad_norm_ raises: mixed torch.Tensor and DTensor"
    return f"{verdict}; clip_grad_norm_ does not mind"


def log_softmax_inside_of_loss_parallel(here: Setting) -> str:
    """A loss of log-probabilities that is no cross-entropy: pytorch#190746."""
    ranks = here.group.world_size
    generator = torch.Generator().manual_seed(17)
    logits, weights = torch.randn(2, 4, 8 * ranks, dtype=torch.float64, generator=generator).to(
        here.group.device
    )
    alone = logits.clone().requires_grad_()
    loss_alone = (F.log_softmax(alone, -1) * weights).sum()
    loss_alone.backward()
    verdicts = []
    for where, context in (("outside", nullcontext()), ("inside", plans.loss_parallel())):
        split = distribute_tensor(logits, here.mesh, [Shard(1)]).requires_grad_()
        with context:
            loss = (F.log_softmax(split, -1) * distribute_tensor(weights, here.mesh, [Shard(1)])).sum()
            loss.backward()
        assert torch.allclose(plans.full(loss), loss_alone, rtol=0, atol=1e-12)
        gradient = plans.full(split.grad)
        off = (gradient - alone.grad).abs().max().item()
        verdict = "right" if off < 1e-12 else f"off by {off:.2f}"
        if torch.equal(gradient, weights):
            verdict += ", it went through log_softmax unchanged"
        verdicts.append(f"{where} loss right, gradient {verdict}")
    return "; ".join(verdicts)


# {mistake: (how to make it, words that must be in what is said)}
MISTAKES: dict[str, tuple[Callable[[Setting], str], str]] = {
    "f forgotten": (no_f, "step 0: gradient of"),
    "heads not divided": (no_division_of_heads, "parity, step 0: loss: differs"),
    "a batch of its own for each rank": (a_batch_per_rank, "differs, beside rank 0's batch and beside all"),
    "a typo in the plan": (a_typo_in_the_plan, "mlp.up.weight is whole on each rank"),
    "a typo in one layer of two": (a_typo_in_one_layer, "the first forward pass raises: up, down"),
    "a tied weight": (a_tie_that_is_not_made_again, "two parameters, 0 warnings; after a step they differ"),
    "what the plan does not name": (what_the_plan_does_not_name, "positions.weight: ranks 1 and up differ"),
    "a norm that it does not name, in sequence parallelism": (
        a_norm_that_the_plan_does_not_name,
        "norm.weight: ranks 1 and up differ from rank 0; clip_grad_norm_ raises",
    ),
    "log_softmax in loss_parallel": (
        log_softmax_inside_of_loss_parallel,
        "outside loss right, gradient right; inside loss right, gradient off by",
    ),
}


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        mesh = init_device_mesh(group.device.type, (group.world_size,))
        here = Setting(group, mesh, cfg)
        for name, (make, words) in MISTAKES.items():
            outcome = make(here)
            print_on_rank_0(f"{name}: {outcome}")
            if words not in outcome:
                raise CourseError(f"{name}: {outcome!r} is not what this lab shows")


if __name__ == "__main__":
    run(main, Config())
