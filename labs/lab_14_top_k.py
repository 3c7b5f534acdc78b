"""Top-k compression with error feedback: a rank sends the largest numbers of its gradient and keeps the rest.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_14_top_k.py
Written by:  notebooks/14_less_communication.ipynb (edit it there)
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU


class TopK:
    """Averages gradients over ``group``; of each gradient only the ``k`` largest numbers are sent.

    ``residual``, (numel,), is what this rank has not sent yet. With error feedback it is added to the next
    gradient, so it is late but not lost. It belongs in the checkpoint, and each rank has its own. Source:
    Stich, Cordonnier, Jaggi, Sparsified SGD with Memory, 2018, arXiv 1809.07599.

    Args:
        like: a flat gradient, (numel,), for size, dtype and device.
        k: how many numbers a rank sends, 1 to numel.
    """

    def __init__(
        self, like: torch.Tensor, k: int, feedback: bool = True, group: dist.ProcessGroup | None = None
    ) -> None:
        self.residual = torch.zeros_like(like)
        self.k = k
        self.feedback = feedback
        self.group = group

    def average(self, gradient: torch.Tensor) -> torch.Tensor:
        """The mean over the ranks of what each of them sends, (numel,), the same on all ranks."""
        corrected = gradient + self.residual
        indices = corrected.abs().topk(self.k, sorted=False).indices
        values = corrected[indices]
        if self.feedback:
            self.residual = corrected.index_fill(0, indices, 0)
        return self.mean_of_all(values, indices.int())

    def mean_of_all(self, values: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Each rank has chosen other places, so there is nothing to all-reduce: all ranks get all pairs."""
        ranks = dist.get_world_size(self.group)
        all_values = values.new_empty(ranks * self.k)
        all_indices = indices.new_empty(ranks * self.k)
        dist.all_gather_into_tensor(all_values, values, group=self.group)
        dist.all_gather_into_tensor(all_indices, indices, group=self.group)
        total = torch.zeros_like(self.residual)
        # Rank by rank, so that all ranks add in one order and get the same bits, on a GPU, too.
        for theirs, places in zip(all_values.chunk(ranks), all_indices.chunk(ranks), strict=True):
            total[places] += theirs
        return total / ranks


def all_reduced(gradient: torch.Tensor) -> torch.Tensor:
    """The mean over the ranks, without compression."""
    total = gradient.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def train(average: Callable, truth: torch.Tensor, pull: torch.Tensor, steps: int = 300) -> dict:
    """Rank r's loss is least at ``truth + pull``, (numel,). Over all ranks ``pull`` cancels out.

    Returns the distance to ``truth``, as a fraction of that at the start, and sums over all steps: of this
    rank's gradients and of the means that came back, (numel,) each.
    """
    weight = nn.Parameter(torch.zeros_like(truth))
    sgd = torch.optim.SGD([weight], lr=0.02)
    given = torch.zeros_like(truth)
    came_back = torch.zeros_like(truth)
    for _ in range(steps):
        sgd.zero_grad()
        loss = (weight - truth - pull).square().sum() / 2
        loss.backward()
        gradient = weight.grad
        weight.grad = average(gradient)
        given += gradient
        came_back += weight.grad
        sgd.step()
    distance = (weight.detach() - truth).norm() / truth.norm()
    return {"distance": distance.item(), "given": given, "came back": came_back}


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    numel, k = 200, 10
    truth = torch.randn(numel, dtype=torch.float64, device=device)
    pull = torch.zeros_like(truth)
    pull[:k] = 10 * (2 * rank - ranks + 1) / max(1, ranks - 1)  # from -10 to 10
    with_feedback = TopK(truth, k)
    without = TopK(truth, k, feedback=False)
    ways = {
        "all-reduce": all_reduced,
        f"top {k} of {numel}, error feedback": with_feedback.average,
        f"top {k} of {numel}, no feedback": without.average,
    }
    handed_in = [truth.nbytes, k * (truth.itemsize + 4), k * (truth.itemsize + 4)]  # an index is an int32
    done = {}
    for (name, average), size in zip(ways.items(), handed_in, strict=True):
        done[name] = train(average, truth, pull)
        if rank == 0:
            print(f"{name}: {size:,} bytes a step; error {done[name]['distance']:.0%} of that at the start")
    dense, good, bad = done.values()
    assert dense["distance"] < 0.1, "the all-reduce does not learn"
    assert good["distance"] < 0.2, "with error feedback it does not learn"
    if ranks > 1:
        assert bad["distance"] > 0.5, "without error feedback it learns, too"

    assert with_feedback.residual.nbytes == truth.nbytes  # memory that compression costs
    waiting = all_reduced(with_feedback.residual)
    lost = (good["came back"] + waiting - all_reduced(good["given"])).abs().max()
    assert lost < 1e-9, f"{lost:.1e} of the gradients is neither sent nor kept"
    if rank == 0:
        print("with feedback, what came back and what still waits add up to all gradients")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
