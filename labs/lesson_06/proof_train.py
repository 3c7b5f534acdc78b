"""The functions of lab_06_by_hand.py on real images: after every step N ranks equal one process.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_06/proof_train.py
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0, progress
from shared.runtime.run import run
from shared.training.data import Images, load_images
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, gradients, parameters

from lab_06_by_hand import accuracy, average_gradients, broadcast_parameters, partition_dataset


@dataclass(frozen=True)
class Config:
    seed: int = 3
    epochs: int = 6
    about_batch: int = 48  # images of all ranks together, rounded down to a multiple of the ranks
    learning_rate: float = 0.1
    momentum: float = 0.9
    test_images: int = 359  # a prime number: the ranks' parts differ
    accuracy: float = 0.95  # what the run must reach on images it has not seen
    rounding: float = 1e-6  # of a ratio in float32
    tolerance: float = 1e-12  # float64


class Net(nn.Module):
    """A classifier of digits with a layer that does not learn, a weight used twice, and a random buffer.

    Input (batch, 1, 8, 8), output (batch, 10) scores.
    """

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Conv2d(1, 16, 3, padding=1).requires_grad_(False)
        self.first = nn.Conv2d(16, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.second.weight = self.first.weight  # tied
        self.head = nn.Linear(16 * 4 * 4, 10)
        self.register_buffer("scale", torch.rand(()) + 0.5, persistent=False)  # is in no state_dict

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.frozen(self.scale * x))
        x = F.max_pool2d(torch.relu(self.first(x)), 2)
        x = torch.relu(self.second(x))
        return self.head(x.flatten(1))


class Trainer:
    """A model, its optimizer, and the losses of its steps: one list per epoch."""

    def __init__(self, model: nn.Module, cfg: Config) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), cfg.learning_rate, cfg.momentum)
        self.losses: list[list[float]] = []

    def backward(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Fill the gradients with those of the mean loss over ``x`` (n, 1, 8, 8) and ``y`` (n,)."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.losses[-1].append(loss.item())


def reference(cfg: Config, device: torch.device) -> Trainer:
    """What a single process trains: the model that rank 0's seed gives."""
    torch.manual_seed(cfg.seed)
    return Trainer(Net().double().to(device), cfg)


def joined_batch(mine: torch.Tensor, group: Group) -> torch.Tensor:
    """The indices that all ranks use in this step. Collective.

    Raises:
        CourseError: two ranks use the same image.
    """
    mine = mine.to(group.device)
    parts = [torch.empty_like(mine) for _ in range(group.world_size)]
    dist.all_gather(parts, mine)
    joined = torch.cat(parts)
    if len(joined.unique()) < len(joined):
        raise CourseError("an image is in the parts of two ranks")
    return joined


def tested(ours: nn.Module, alone: nn.Module, data: Images, cfg: Config, group: Group) -> float:
    """The accuracy on images that were not in training: that of all ranks equals one process. Collective."""
    x = data.test_x[: cfg.test_images].double().to(group.device)
    y = data.test_y[: cfg.test_images].to(group.device)
    modes: list[bool] = []
    ours.register_forward_pre_hook(lambda net, _: modes.append(net.training))
    found = accuracy(ours, x, y)
    if any(modes):
        raise CourseError("the model is still in training mode")
    for training in (False, True):
        ours.train(training)
        accuracy(ours, x, y)
        if ours.training != training:
            raise CourseError(f"accuracy left a model in training mode {ours.training}, not {training}")
    with torch.no_grad():
        expected = (alone(x).argmax(1) == y).double().mean().item()
    if abs(found - expected) > cfg.rounding:
        raise CourseError(f"{found:.2%} recognised by the ranks, {expected:.2%} by one process")
    if found < cfg.accuracy:
        raise CourseError(f"{found:.1%} recognised, expected {cfg.accuracy:.0%}")
    return found


def train(ours: Trainer, alone: Trainer, data: Images, cfg: Config, group: Group) -> float:
    """Train on N ranks, and beside it on each rank as one process would. Returns the largest difference.

    Raises:
        ParityError: after some step a gradient or a parameter is not that of one process.
    """
    x, y = data.train_x.double().to(group.device), data.train_y.to(group.device)
    global_batch = cfg.about_batch // group.world_size * group.world_size
    largest = 0.0
    for epoch in progress(range(cfg.epochs), "epochs"):
        ours.losses.append([])
        alone.losses.append([])
        for mine in partition_dataset(len(x), epoch, global_batch):
            ours.backward(x[mine], y[mine])
            average_gradients(ours.model)
            ours.optimizer.step()

            joined = joined_batch(mine, group)
            alone.backward(x[joined], y[joined])
            alone.optimizer.step()

            for what, named in (("gradient", gradients), ("parameter", parameters)):
                off = assert_all_equal(what, named(ours.model), named(alone.model), cfg.tolerance)
                largest = max(largest, off)
        assert_same_on_every_rank(f"after epoch {epoch}", parameters(ours.model))
    return largest


def main(cfg: Config) -> None:
    with process_group(seed=cfg.seed, timeout_s=60) as group:  # each rank has a seed of its own
        data = load_images("digits")
        ours = Trainer(Net().double().to(group.device), cfg)
        alone = reference(cfg, group.device)
        before = sum(p.sum().item() for p in ours.model.parameters())
        broadcast_parameters(ours.model)
        after = sum(p.sum().item() for p in ours.model.parameters())
        print_in_rank_order(f"sum of parameters: {before:8.4f} before the broadcast, {after:8.4f} after")
        assert_all_equal("at the start", parameters(ours.model), parameters(alone.model), 0.0)

        if partition_dataset(cfg.about_batch - 1, 0, cfg.about_batch):
            raise CourseError("too few images for a global batch should give no batch, not an empty one")
        largest = train(ours, alone, data, cfg, group)
        mean_losses = torch.tensor(ours.losses, dtype=torch.float64, device=group.device)
        dist.all_reduce(mean_losses)
        mean_losses /= group.world_size
        losses_alone = torch.tensor(alone.losses, dtype=torch.float64, device=group.device)
        assert_all_equal("loss", [("of a step", mean_losses)], [("of a step", losses_alone)], cfg.tolerance)
        for epoch in (0, 1, 3, cfg.epochs - 1):
            print_on_rank_0(f"epoch {epoch}: mean loss over all ranks {mean_losses[epoch].mean():.4f}")
        steps = mean_losses.numel()
        print_on_rank_0(
            f"after each of {steps} steps: gradients and parameters of one process, to {largest:.0e}"
        )

        recognised = tested(ours.model, alone.model, data, cfg, group)
        print_on_rank_0(f"{cfg.test_images} images never seen in training: {recognised:.1%} recognised")


if __name__ == "__main__":
    run(main, Config())
