"""Local SGD and DiLoCo by hand: what they equal exactly, what they do not equal, and what they send.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_14/proof_local.py
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from shared.comm.broadcast import broadcast_from_rank_0
from shared.comm.flat import mean_over_ranks
from shared.comm.record import record
from shared.runtime.errors import CourseError, ParityError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.data import batch, load_images
from shared.training.parity import assert_all_equal, assert_same_on_every_rank


@dataclass(frozen=True)
class Config:
    every: int = 4  # H: steps between two synchronizations
    steps: int = 12
    images: int = 20  # of each rank, in a step
    lr: float = 0.05
    tolerance: float = 1e-12  # float64
    apart: float = 1e-4  # what is not equal differs by more


class LocalSGD:
    """Each rank trains alone; after each ``every`` steps all parameters become their mean over the ranks.

    Source: Stich, Local SGD Converges Fast and Communicates Little, 2018, arXiv 1805.09767.
    """

    def __init__(self, params: Iterable[nn.Parameter], every: int) -> None:
        self.params = list(params)
        self.every = every
        self.step = 0

    def after_step(self) -> None:
        self.step += 1
        if self.step % self.every == 0:
            mean_over_ranks(self.params)


class DiLoCo:
    """Each rank trains alone; after each ``every`` steps an outer optimizer makes one step for all ranks.

    ``shared`` is the model on which the ranks agreed last. A rank's *pseudo-gradient* is shared - own: its
    way since then, backwards. The outer optimizer takes the mean of these for a gradient, and its step leads
    to the next ``shared``, where all ranks go on. The inner optimizer's state stays on its rank, untouched.
    ``shared`` and the state of ``outer`` belong in the checkpoint. Source: Douillard et al., 2023, arXiv
    2311.08105.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        every: int,
        lr: float = 0.7,
        momentum: float = 0.9,
        mean: Callable[[list[torch.Tensor]], None] = mean_over_ranks,
    ) -> None:
        self.params = list(params)
        self.every = every
        self.mean = mean
        self.shared = [nn.Parameter(p.detach().clone()) for p in self.params]
        self.outer = torch.optim.SGD(self.shared, lr, momentum=momentum, nesterov=momentum > 0)
        self.step = 0

    @torch.no_grad()
    def after_step(self) -> None:
        self.step += 1
        if self.step % self.every:
            return
        for shared, own in zip(self.shared, self.params, strict=True):
            shared.grad = shared - own
        self.mean([shared.grad for shared in self.shared])
        self.outer.step()
        for shared, own in zip(self.shared, self.params, strict=True):
            own.copy_(shared)


class Nobody:
    """Never communicates."""

    def after_step(self) -> None:
        pass


class Digits:
    """A classifier in float64, the same at the start on all ranks, and batches of real images.

    In a step each rank has ``images`` of its own; ``joined`` are those of all ranks.
    """

    def __init__(self, group: Group, cfg: Config) -> None:
        self.group = group
        self.cfg = cfg
        self.data = load_images("digits")
        net = self.net()
        broadcast_from_rank_0(net.parameters())
        self.truth = {name: tensor.clone() for name, tensor in net.state_dict().items()}

    def net(self) -> nn.Module:
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
        return net.double().to(self.group.device)

    def start(self) -> nn.Module:
        net = self.net()
        net.load_state_dict(self.truth)
        return net

    def own(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        number = step * self.group.world_size + self.group.rank
        return batch(self.data, number, self.cfg.images, self.group.device)

    def joined(self, step: int, steps: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """All images of all ranks in ``steps`` consecutive steps."""
        size = self.cfg.images * self.group.world_size * steps
        return batch(self.data, step // steps, size, self.group.device)

    def train(
        self, build: Callable, meet: Callable, steps: int, images: Callable | None = None
    ) -> tuple[list[list], nn.Module, torch.optim.Optimizer]:
        """Returns the parameters after each step, the model and its optimizer.

        Args:
            build: makes the inner optimizer of parameters.
            meet: makes of parameters what is called after each step.
            images: step -> (images, labels); this rank's own by default.
        """
        net = self.start()
        optimizer = build(net.parameters())
        meeting = meet(net.parameters())
        done = []
        for step in range(steps):
            x, y = (images or self.own)(step)
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            meeting.after_step()
            done.append([(name, p.detach().clone()) for name, p in net.named_parameters()])
        return done, net, optimizer


def nobody(params: Iterable[nn.Parameter]) -> Nobody:
    return Nobody()


def sgd(lr: float, momentum: float = 0.0, nesterov: bool = False) -> Callable:
    return lambda params: torch.optim.SGD(params, lr, momentum=momentum, nesterov=nesterov)


def adam(lr: float) -> Callable:
    return lambda params: torch.optim.Adam(params, lr)


def local(every: int) -> Callable:
    return lambda params: LocalSGD(params, every)


def diloco(every: int, lr: float = 0.7, momentum: float = 0.9) -> Callable:
    return lambda params: DiLoCo(params, every, lr, momentum)


def check(name: str, expected: str, ours: list, other: list, cfg: Config) -> None:
    """Compare the parameters after each step; ``expected`` is "equal" or "different"."""
    outcome = "equal"
    for step, (mine, theirs) in enumerate(zip(ours, other, strict=True)):
        try:
            assert_all_equal(f"{name}, step {step}:", mine, theirs, cfg.tolerance)
        except ParityError:
            outcome = "different"
            if expected == "equal":
                raise
    if outcome != expected:
        raise CourseError(f"{name}: {outcome}, expected is {expected}")
    print_on_rank_0(f"{name}: {outcome}")


def farthest(ours: list, other: list) -> float:
    """The largest difference of two lists of (name, parameter)."""
    pairs = zip(ours, other, strict=True)
    return max((mine - theirs).abs().max().item() for (_, mine), (_, theirs) in pairs)


def with_every_step(digits: Digits, cfg: Config) -> None:
    """H = 1, beside one process that trains on the images of all ranks."""
    pairs = {
        "local SGD, H = 1, and SGD on the images of all": (sgd(cfg.lr), local(1), sgd(cfg.lr), "equal"),
        "the same with momentum": (sgd(cfg.lr, 0.9), local(1), sgd(cfg.lr, 0.9), "equal"),
        "the same with Adam": (adam(0.01), local(1), adam(0.01), "different"),
        "DiLoCo, H = 1, and Nesterov's SGD with 0.7 of the learning rate": (
            sgd(cfg.lr),
            diloco(1),
            sgd(0.7 * cfg.lr, 0.9, nesterov=True),
            "equal",
        ),
    }
    for name, (build, meet, alone, expected) in pairs.items():
        ours, _, _ = digits.train(build, meet, cfg.steps)
        truth, _, _ = digits.train(alone, nobody, cfg.steps, digits.joined)
        check(name, expected, ours, truth, cfg)


def beside_a_large_batch(digits: Digits, cfg: Config) -> None:
    """One round of H local steps, beside one step of H times the learning rate on all images of the round."""
    differences = []
    for lr in (cfg.lr, cfg.lr / 2):
        ours, _, _ = digits.train(sgd(lr), local(cfg.every), cfg.every)
        large, _, _ = digits.train(
            sgd(cfg.every * lr), nobody, 1, lambda step: digits.joined(step, cfg.every)
        )
        differences.append(farthest(ours[-1], large[-1]))
    ratio = differences[0] / differences[1]
    print_on_rank_0(
        f"a round of {cfg.every} local steps and one large batch differ by {differences[0]:.1e}; "
        f"with half of the learning rate {ratio:.1f} times less"
    )
    if differences[0] < cfg.apart or not 3 < ratio < 5:
        raise CourseError(f"large batch: differences {differences}, expected is 4 times less")


def what_stays_at_home(digits: Digits, cfg: Config) -> None:
    """After a meeting all ranks have the same parameters, and each its own inner momentum."""
    _, net, optimizer = digits.train(sgd(cfg.lr, 0.9), diloco(cfg.every), cfg.steps)
    assert_same_on_every_rank("parameter", net.named_parameters())
    buffers = [(name, optimizer.state[p]["momentum_buffer"]) for name, p in net.named_parameters()]
    try:
        assert_same_on_every_rank("momentum of", buffers)
    except ParityError:
        print_on_rank_0("after a meeting: the same parameters, and each rank has its own inner momentum")
        return
    raise CourseError("the inner momentum should have stayed on its rank")


def count_traffic(digits: Digits, cfg: Config) -> None:
    """All bytes of a training: one all-reduce of all parameters in each round."""
    size = sum(tensor.nbytes for tensor in digits.truth.values())
    rounds = cfg.steps // cfg.every
    for name, meet in (("local SGD", local(cfg.every)), ("DiLoCo", diloco(cfg.every))):
        with record() as log:
            digits.train(adam(0.01), meet, cfg.steps)
        if dict(log.counts()) != {"all_reduce": rounds} or log.bytes() != rounds * size:
            raise CourseError(f"{name}: {log.counts()}, {log.bytes():,} bytes, not {rounds} times {size:,}")
        print_on_rank_0(
            f"{name}, {cfg.steps} steps: {rounds} all-reduces of {size:,} bytes; "
            f"a gradient for each step would be {cfg.steps}"
        )


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        digits = Digits(group, cfg)
        with_every_step(digits, cfg)
        beside_a_large_batch(digits, cfg)
        what_stays_at_home(digits, cfg)
        count_traffic(digits, cfg)


if __name__ == "__main__":
    run(main, Config())
