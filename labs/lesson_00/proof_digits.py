"""Ranks have different images and the same model: their gradients differ, until all_reduce adds them up.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_00/proof_digits.py
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F

from shared.runtime.errors import ParityError
from shared.runtime.group import process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import load_images

from lab_00_hello import share_of


@dataclass(frozen=True)
class Config:
    images_per_rank: int = 8
    tolerance: float = 1e-12  # float64


def after_backward(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The weights of a linear model, zeros, float64 (10, 64), a row for each digit; with their gradient.

    The gradient is that of the images' losses, added up.

    Args:
        images: float64 (n, 1, 8, 8).
        labels: int64 (n,), digits 0 to 9.
    """
    weight = torch.zeros(10, 64, dtype=images.dtype, device=images.device, requires_grad=True)
    scores = images.flatten(1) @ weight.T
    loss = F.cross_entropy(scores, labels, reduction="sum")
    loss.backward()
    return weight


def main(cfg: Config) -> None:
    with process_group() as group:
        data = load_images("digits")
        number_of_images = cfg.images_per_rank * group.world_size
        images = data.train_x[:number_of_images].double().to(group.device)
        labels = data.train_y[:number_of_images].to(group.device)

        my_images = share_of(images, group.rank, group.world_size)
        my_labels = share_of(labels, group.rank, group.world_size)
        weight = after_backward(my_images, my_labels)
        own = weight.grad / number_of_images  # all that a rank has without all_reduce
        dist.all_reduce(weight.grad)  # the sum over the ranks
        weight.grad /= number_of_images
        together = weight.grad
        print_in_rank_order(
            f"digits {my_labels.tolist()}: gradient of norm {own.norm():.4f}, together {together.norm():.4f}"
        )

        alone = after_backward(images, labels).grad / number_of_images
        error = (together - alone).abs().max().item()
        if error > cfg.tolerance:
            raise ParityError(f"the gradient is off by {error:.1e} from what one process finds")
        print_on_rank_0(f"One process finds the same on all {number_of_images} images.")

        # Without the share every rank computes on all images.
        not_shared = after_backward(images, labels).grad
        dist.all_reduce(not_shared)
        not_shared /= number_of_images
        factor = (not_shared / alone)[alone != 0]
        if (factor - group.world_size).abs().max() > cfg.tolerance * group.world_size:
            raise ParityError(f"without the share the gradient is {factor.mean():.3f} times as large")
        print_on_rank_0(f"Without the share it is {group.world_size} times as large.")
        # Without all_reduce each rank keeps its own part.
        if group.world_size > 1 and (own - alone).abs().max() <= cfg.tolerance:
            raise ParityError("without all_reduce a rank has the gradient of all images")

        record_results(
            "00_digits",
            {
                "rank": group.rank,
                "digits": my_labels.tolist(),
                "images": my_images.squeeze(1).tolist(),
                "own": own.tolist(),
                "together": together.tolist(),
                "not_shared": not_shared.tolist(),
            },
        )


if __name__ == "__main__":
    run(main, Config())
