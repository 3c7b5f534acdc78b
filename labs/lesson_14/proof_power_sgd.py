"""PowerSGD by hand as a hook of DDP, equal to torch's, and its state in a checkpoint.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_14/proof_power_sgd.py
"""

import io
import logging
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torchs
from torch.nn.parallel import DistributedDataParallel as DDP

from shared.comm.broadcast import broadcast_from_rank_0
from shared.comm.flat import mean_over_ranks
from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import batch, load_images
from shared.training.parity import assert_equal

ONE_BUCKET = 100  # MB; with several, torch's hook may hang over gloo


@dataclass(frozen=True)
class Config:
    rank: int = 2  # of the matrices that are sent
    start: int = 2  # steps before compression begins
    steps: int = 10
    stop: int = 6  # steps before the checkpoint
    images: int = 40  # of each rank, in a step
    lr: float = 0.1
    tolerance: float = 1e-10  # float64; ours and torch's orthogonalize in different ways


def orthonormal(matrix: torch.Tensor) -> torch.Tensor:
    """(n, r): columns of length 1, at right angles to each other, that span what ``matrix`` spans."""
    return torch.linalg.qr(matrix).Q


class PowerSGD:
    """Sends a gradient (n, m) as two thin matrices, (n, r) and (m, r). Vogels et al., 2019, arXiv 1905.13727.

    Register it: ``ddp.register_comm_hook(PowerSGD(r), power_sgd)``. A vector, or a matrix that would not
    shrink to half its size, is all-reduced as it is.

    Attributes:
        errors: {parameter: (n, m)}, what this rank's gradients lost by compression so far.
        qs: {parameter: (m, r)}, from the last step: the next one starts with it.

    Both belong in the checkpoint of each rank. The keys are parameters, because DDP changes its buckets
    after the first step.
    """

    def __init__(self, rank: int, seed: int = 0, start: int = 0, feedback: bool = True) -> None:
        self.rank = rank
        self.start = start
        self.feedback = feedback
        self.random = torch.Generator().manual_seed(seed)  # the same on all ranks
        self.errors: dict[nn.Parameter, torch.Tensor] = {}
        self.qs: dict[nn.Parameter, torch.Tensor] = {}
        self.step = 0

    def shrinks(self, gradient: torch.Tensor) -> bool:
        n, m = len(gradient), gradient.numel() // len(gradient)
        return gradient.dim() > 1 and 2 * self.rank * (n + m) < n * m

    def first_q(self, matrix: torch.Tensor) -> torch.Tensor:
        """Random, (m, r), the same on all ranks."""
        size = (matrix.shape[1], self.rank)
        return torch.randn(*size, generator=self.random, dtype=matrix.dtype).to(matrix.device)

    def average(self, names: list[nn.Parameter], gradients: list[torch.Tensor]) -> None:
        """Replace the gradients of these parameters by their mean over the ranks, compressed."""
        pairs = list(zip(names, gradients, strict=True))
        whole = [gradient for _, gradient in pairs if not self.shrinks(gradient)]
        thin = [(p, gradient.view(len(gradient), -1)) for p, gradient in pairs if self.shrinks(gradient)]
        mean_over_ranks(whole)
        ps = []
        for p, matrix in thin:
            if self.feedback and p in self.errors:
                matrix += self.errors[p]
            q = self.qs[p] if p in self.qs else self.first_q(matrix)
            ps.append(matrix @ orthonormal(q))
        mean_over_ranks(ps)
        ps = [orthonormal(factor) for factor in ps]
        own_qs = [matrix.T @ basis for (_, matrix), basis in zip(thin, ps, strict=True)]
        qs = [q.clone() for q in own_qs]
        mean_over_ranks(qs)
        for (p, matrix), basis, own_q, q in zip(thin, ps, own_qs, qs, strict=True):
            self.errors[p] = matrix - basis @ own_q.T
            self.qs[p] = q
            matrix.copy_(basis @ q.T)

    def state_dict(self, model: nn.Module) -> dict:
        """By the parameters' names in ``model``, for a checkpoint of this rank."""
        names = {p: name for name, p in model.named_parameters()}
        return {
            "errors": {names[p]: error for p, error in self.errors.items()},
            "qs": {names[p]: q for p, q in self.qs.items()},
            "step": self.step,
        }

    def load_state_dict(self, state: dict, model: nn.Module) -> None:
        by_name = dict(model.named_parameters())
        self.errors = {by_name[name]: error for name, error in state["errors"].items()}
        self.qs = {by_name[name]: q for name, q in state["qs"].items()}
        self.step = state["step"]


def power_sgd(state: PowerSGD, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook. It waits for each all-reduce, so all ranks call them in the order of the buckets."""
    if state.step < state.start:
        mean_over_ranks([bucket.buffer()])
    else:
        state.average(bucket.parameters(), bucket.gradients())
    state.step += int(bucket.is_last())
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


class Net(nn.Module):
    """(batch, 64) to (batch, 10) scores, in float64. Its matrices have different shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 48, dtype=torch.float64)
        self.second = nn.Linear(48, 40, dtype=torch.float64)
        self.last = nn.Linear(40, 10, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.second(x))
        return self.last(x)


class Training:
    """DDP with a hook on real images; another part of them for each rank and step.

    Attributes:
        given: {parameter: sum over the steps of this rank's gradients}.
        came_back: {parameter: sum over the steps of what DDP made of them}.
    """

    def __init__(self, truth: dict, hook: "Ours | Torchs", group: Group, cfg: Config) -> None:
        self.group = group
        self.cfg = cfg
        self.data = load_images("digits")
        self.model = Net().to(group.device)
        self.model.load_state_dict(truth)
        self.ddp = DDP(self.model, bucket_cap_mb=ONE_BUCKET)
        self.hook = hook
        hook.register(self.ddp)
        self.sgd = torch.optim.SGD(self.model.parameters(), cfg.lr)
        self.done = 0
        self.given = {p: torch.zeros_like(p) for p in self.model.parameters()}
        self.came_back = {p: torch.zeros_like(p) for p in self.model.parameters()}
        for p in self.model.parameters():
            p.register_hook(partial(self.note, p))  # before DDP adds it to its bucket

    def note(self, p: nn.Parameter, gradient: torch.Tensor) -> None:
        self.given[p] += gradient

    def step(self) -> None:
        number = self.done * self.group.world_size + self.group.rank
        x, y = batch(self.data, number, self.cfg.images, self.group.device)
        self.sgd.zero_grad()
        F.cross_entropy(self.ddp(x.flatten(1)), y).backward()
        for p in self.model.parameters():
            self.came_back[p] += p.grad
        self.sgd.step()
        self.done += 1

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()


class Ours:
    """Our hook, and how its state is saved."""

    name = "ours"

    def __init__(self, cfg: Config) -> None:
        seed = np.random.RandomState(0).randint(1_000_000_000)  # torch's first q comes from this, too
        self.state = PowerSGD(cfg.rank, int(seed), cfg.start)

    def register(self, ddp: DDP) -> None:
        ddp.register_comm_hook(self.state, power_sgd)

    def save(self, model: nn.Module) -> dict:
        return self.state.state_dict(model)

    def waiting(self, p: nn.Parameter) -> torch.Tensor:
        """What error feedback holds back of a parameter's gradients, in its shape."""
        return self.state.errors[p].view_as(p) if p in self.state.errors else torch.zeros_like(p)


class Torchs:
    """torch's hook. It keeps its tensors by bucket; ``layout`` is the order of parameters in the only one."""

    name = "torch's"

    def __init__(self, cfg: Config) -> None:
        self.layout: list[nn.Parameter] = []
        self.state = torchs.PowerSGDState(
            None,
            matrix_approximation_rank=cfg.rank,
            start_powerSGD_iter=cfg.start,
        )

    def register(self, ddp: DDP) -> None:
        def hook(state: torchs.PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            self.layout = bucket.parameters()
            return torchs.powerSGD_hook(state, bucket)

        ddp.register_comm_hook(self.state, hook)

    def save(self, model: nn.Module) -> torchs.PowerSGDState:
        return self.state

    def waiting(self, p: nn.Parameter) -> torch.Tensor:
        sizes = [parameter.numel() for parameter in self.layout]
        (flat,) = self.state.error_dict.values()
        parts = dict(zip(self.layout, flat.split(sizes), strict=True))
        return parts[p].view_as(p)


def compare(truth: dict, group: Group, cfg: Config) -> dict:
    """Ours beside torch's, step by step; bytes by the record, and by torch's own count."""
    ours = Training(truth, Ours(cfg), group, cfg)
    torchs_own = Training(truth, Torchs(cfg), group, cfg)
    for number in range(cfg.steps):
        with record() as log:
            ours.step()
        torchs_own.step()
        for what, of in (("gradient", lambda p: p.grad), ("parameter", lambda p: p.detach())):
            pairs = zip(ours.model.named_parameters(), torchs_own.model.parameters(), strict=True)
            for (name, mine), theirs in pairs:
                where = f"PowerSGD, step {number}: {what} {name}"
                assert_equal(where, of(mine), of(theirs), cfg.tolerance)
    dense = sum(p.nbytes for p in ours.model.parameters())
    sent = bytes_of_a_step(ours.model, ours.hook.state)
    if (log.count(), log.bytes("all_reduce")) != (3, sent):
        raise CourseError(f"a step calls {log.counts()} with {log.bytes():,} bytes, expected 3 with {sent:,}")
    _, _, numbers = torchs_own.hook.state.compression_stats()
    if numbers * 8 != (cfg.steps - cfg.start) * sent:
        raise CourseError(f"torch counts {numbers:,} numbers, expected are {sent // 8:,} a step")
    print_on_rank_0(f"ours and torch's: the same gradients and parameters after each of {cfg.steps} steps")
    print_on_rank_0(f"a step: 3 all-reduces of {sent:,} bytes in all, in place of {dense:,}")
    check_sum("ours", ours, cfg)
    check_sum("torch", torchs_own, cfg)
    print_on_rank_0("what came back and what is held back add up to all gradients, in both")
    return {"sent": sent, "dense": dense}


def bytes_of_a_step(model: nn.Module, state: PowerSGD) -> int:
    """By the formula: r (n + m) numbers for a matrix that shrinks, all numbers of the others."""
    numbers = 0
    for p in model.parameters():
        if state.shrinks(p):
            numbers += state.rank * (len(p) + p.numel() // len(p))
        else:
            numbers += p.numel()
    return 8 * numbers


def check_sum(name: str, training: Training, cfg: Config) -> None:
    """The mean of all gradients given is what came back and what is held back, averaged over the ranks."""
    for key, p in training.model.named_parameters():
        given = training.given[p].clone()
        waiting = training.hook.waiting(p).clone()
        mean_over_ranks([given, waiting])
        assert_equal(f"sums of {name}, {key}", training.came_back[p] + waiting, given, cfg.tolerance)


def checkpoint(training: Training) -> bytes:
    """What this rank saves: the model, and the state of its hook."""
    file = io.BytesIO()
    torch.save({"model": training.model.state_dict(), "hook": training.hook.save(training.model)}, file)
    return file.getvalue()


def resumed(kind: type, whose: str, files: list[bytes], group: Group, cfg: Config) -> Training:
    """Go on from the checkpoint to the end; ``whose`` says which state the hook begins with."""
    saved = torch.load(io.BytesIO(files[group.rank]), weights_only=False)
    if whose == "rank 0's state":
        saved["hook"] = torch.load(io.BytesIO(files[0]), weights_only=False)["hook"]
    hook = kind(cfg)
    if whose != "no state" and kind is Torchs:
        hook.state = saved["hook"]
    training = Training(saved["model"], hook, group, cfg)
    if whose != "no state" and kind is Ours:
        hook.state.load_state_dict(saved["hook"], training.model)
    if whose == "own state, after a throwaway pass":
        build_buckets(training)
    training.done = cfg.stop
    training.steps(cfg.steps - cfg.stop)
    return training


def build_buckets(training: Training) -> None:
    """One pass whose gradients nobody uses, with plain all-reduces: then DDP builds its final buckets.

    Only then does the state of torch's hook, which was saved with such buckets, fit.
    """
    state = training.hook.state
    step, start = state.iter, state.start_powerSGD_iter
    state.start_powerSGD_iter = step + 2
    x = torch.zeros(1, 64, dtype=torch.float64, device=training.group.device)
    training.ddp(x).sum().backward()
    training.sgd.zero_grad()
    state.iter = step
    state.start_powerSGD_iter = start


EQUAL = 1e-13  # a resumed run and one that was not interrupted, float64
# {hook: {the state that it begins with: whether the end is that of the run that was not interrupted}}
RESUMED: dict[type, dict[str, bool]] = {
    Ours: {"own state": True, "rank 0's state": False, "no state": False},
    Torchs: {"own state": False, "no state": False, "own state, after a throwaway pass": True},
}


def check_resumed(kind: type, truth: dict, group: Group, cfg: Config) -> None:
    """Stop, save and resume, beside a run that was not interrupted."""
    unbroken = Training(truth, kind(cfg), group, cfg)
    unbroken.steps(cfg.stop)
    files: list = [None] * group.world_size
    dist.all_gather_object(files, checkpoint(unbroken))
    unbroken.steps(cfg.steps - cfg.stop)
    for whose, expected in RESUMED[kind].items():
        model = resumed(kind, whose, files, group, cfg).model
        pairs = zip(model.parameters(), unbroken.model.parameters(), strict=True)
        difference = max((mine - theirs).abs().max().item() for mine, theirs in pairs)
        ends = "equal" if difference < EQUAL else f"differs by {difference:.0e}"
        print_on_rank_0(f"resumed with {kind.name}, {whose}: {ends}")
        if (ends == "equal") != expected:
            raise CourseError(f"resumed with {kind.name}, {whose}: {ends}, which is not expected")


def main(cfg: Config) -> None:
    logging.getLogger(torchs.__name__).setLevel(logging.ERROR)  # it warns when its state is saved
    with process_group(timeout_s=60, smallest=2) as group:
        net = Net().to(group.device)
        broadcast_from_rank_0(net.parameters())
        truth = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        results = compare(truth, group, cfg)
        for kind in RESUMED:
            check_resumed(kind, truth, group, cfg)
        record_results("14_power_sgd", results)


if __name__ == "__main__":
    run(main, Config())
