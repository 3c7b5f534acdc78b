"""Ways to send less, on real images: accuracy and bytes of each, and what a network makes of them.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_14_ways.py
Written by:  notebooks/14_less_communication.ipynb
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from lab_14_local import DiLoCo, LocalSGD
from lab_14_power_sgd import PowerSGD
from lab_14_top_k import TopK
from torch import nn

from shared.comm.broadcast import broadcast_from_rank_0
from shared.comm.paced import Wire, on_wire
from shared.comm.record import CommRecord, least_bytes, record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import batch, load_images
from shared.training.parity import assert_same_on_every_rank

MESSAGES = {"all_reduce": 2, "all_gather": 1}  # {operation: messages of a ring, for each other rank}


@dataclass(frozen=True)
class Config:
    steps: int = 192
    images: int = 32  # of each rank, in a step
    lr: float = 0.05
    momentum: float = 0.9
    look: int = 16  # steps between two measurements of accuracy; each H divides it
    target: float = 0.9  # accuracy to be reached
    good: float = 0.9  # accuracy in the end of the ways that work
    near: float = 0.05  # accuracy that may be lost by sending little
    compute_s: float = 4e-3  # of a step, on the paced network
    paced_steps: int = 2


class Net(nn.Module):
    """(batch, 1, 8, 8) to (batch, 10) scores, in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 256)
        self.second = nn.Linear(256, 128)
        self.last = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x.flatten(1)))
        x = torch.relu(self.second(x))
        return self.last(x)


class EachStep:
    """Gradients are averaged in each step, by ``average``: (numel,) to the same, the mean over the ranks."""

    def __init__(self, params: list[nn.Parameter], average: Callable) -> None:
        self.params = params
        self.average = average

    def after_backward(self) -> None:
        flat = torch.cat([p.grad.flatten() for p in self.params])
        parts = self.average(flat).split([p.numel() for p in self.params])
        for p, part in zip(self.params, parts, strict=True):
            p.grad.copy_(part.view_as(p))

    def after_step(self) -> None:
        pass


class LowRank(EachStep):
    """Gradients are averaged by PowerSGD, which has to know their shapes."""

    def __init__(self, params: list[nn.Parameter], rank: int) -> None:
        self.params = params
        self.power_sgd = PowerSGD(rank)

    def after_backward(self) -> None:
        self.power_sgd.average(self.params, [p.grad for p in self.params])


class NowAndThen:
    """Nothing is averaged in a step; ``meeting`` decides when the ranks meet."""

    def __init__(self, meeting: LocalSGD | DiLoCo) -> None:
        self.meeting = meeting

    def after_backward(self) -> None:
        pass

    def after_step(self) -> None:
        self.meeting.after_step()


def all_reduce_as(dtype: torch.dtype) -> Callable:
    def average(flat: torch.Tensor) -> torch.Tensor:
        small = flat.to(dtype).div_(dist.get_world_size())
        dist.all_reduce(small)
        return small.to(flat.dtype)

    return lambda params: EachStep(params, average)


def top_k(share: float, feedback: bool = True) -> Callable:
    def build(params: list[nn.Parameter]) -> EachStep:
        like = torch.cat([torch.zeros_like(p).flatten() for p in params])
        return EachStep(params, TopK(like, int(share * len(like)), feedback).average)

    return build


# {way: (its kind, what makes of a model's parameters an object with after_backward and after_step)}
WAYS: dict[str, tuple[str, Callable]] = {
    "all-reduce": ("all-reduce", all_reduce_as(torch.float32)),
    "bf16": ("bf16", all_reduce_as(torch.bfloat16)),
    "PowerSGD, rank 4": ("PowerSGD", lambda params: LowRank(params, 4)),
    "PowerSGD, rank 1": ("PowerSGD", lambda params: LowRank(params, 1)),
    "top 10 %": ("top-k", top_k(0.1)),
    "top 1 %": ("top-k", top_k(0.01)),
    "top 0.1 %": ("top-k", top_k(0.001)),
    "top 0.1 %, no feedback": ("top-k, no feedback", top_k(0.001, feedback=False)),
    "local SGD, H = 4": ("local SGD", lambda params: NowAndThen(LocalSGD(params, 4))),
    "local SGD, H = 16": ("local SGD", lambda params: NowAndThen(LocalSGD(params, 16))),
    "DiLoCo, H = 4": ("DiLoCo", lambda params: NowAndThen(DiLoCo(params, 4))),
    "DiLoCo, H = 16": ("DiLoCo", lambda params: NowAndThen(DiLoCo(params, 16))),
}


class Digits:
    """The images, and a model that is the same at the start on all ranks and in all ways."""

    def __init__(self, group: Group, cfg: Config) -> None:
        self.group = group
        self.cfg = cfg
        self.data = load_images("digits")
        self.test_x = self.data.test_x.to(group.device)
        self.test_y = self.data.test_y.to(group.device)
        model = Net().to(group.device)
        broadcast_from_rank_0(model.parameters())
        self.truth = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def model(self) -> Net:
        model = Net().to(self.group.device)
        model.load_state_dict(self.truth)
        return model

    def own(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Another part of the images for each rank."""
        number = step * self.group.world_size + self.group.rank
        return batch(self.data, number, self.cfg.images, self.group.device, torch.float32)

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        return (model(self.test_x).argmax(1) == self.test_y).float().mean().item()


def train(build: Callable, digits: Digits, cfg: Config) -> dict:
    """Train in one way; returns accuracies, the step at which the target was reached, and the traffic."""
    model = digits.model()
    way = build(list(model.parameters()))
    sgd = torch.optim.SGD(model.parameters(), cfg.lr, momentum=cfg.momentum)
    accuracies = []
    log = record()
    for step in range(1, cfg.steps + 1):
        x, y = digits.own(step - 1)
        sgd.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with log:
            way.after_backward()
        sgd.step()
        with log:
            way.after_step()
        if step % cfg.look == 0:
            accuracies.append(digits.accuracy(model))
    assert_same_on_every_rank("after training, parameter", model.named_parameters())
    reached = [cfg.look * (i + 1) for i, accuracy in enumerate(accuracies) if accuracy >= cfg.target]
    return {
        "accuracies": accuracies,
        "steps to target": reached[0] if reached else None,
        "bytes": log.by_rule() / cfg.steps,
        "messages": messages_of(log) / cfg.steps,
    }


def messages_of(log: CommRecord) -> int:
    """Messages that a rank sends one after the other, if each call is a ring."""
    return sum(MESSAGES[call.op] * (len(call.ranks) - 1) for call in log.calls)


@dataclass(frozen=True)
class Network:
    """A wire, measured in what a step's computation takes, so that it does not depend on the machine.

    Attributes:
        latency: of a message; alpha, divided by the time of a step's computation.
        gradient: what the bytes of all gradients take by all-reduce, without latency, divided by the same.
    """

    latency: float
    gradient: float

    def seconds(self, row: dict, dense: dict) -> float:
        """Of a step with its computation, if that is 1 and nothing overlaps."""
        return 1 + row["messages"] * self.latency + row["bytes"] / dense["bytes"] * self.gradient

    def to_target(self, row: dict, dense: dict) -> float:
        """Until the target is reached, in the same unit; the way must have reached it."""
        return row["steps to target"] * self.seconds(row, dense)


NETWORKS = {
    "inside a machine": Network(latency=1e-4, gradient=0.02),
    "data center": Network(latency=1e-3, gradient=0.5),
    "slow Ethernet": Network(latency=1e-2, gradient=20.0),
    "between cities": Network(latency=5.0, gradient=5.0),
}
PACED = ("slow Ethernet", "between cities")  # so slow that a CPU's own time shows little
# A way of each kind that reaches the target.
GOOD = ("all-reduce", "bf16", "PowerSGD, rank 4", "top 1 %", "local SGD, H = 4", "DiLoCo, H = 16")


@contextmanager
def on_network(network: Network, dense: dict, ranks: int, cfg: Config) -> Iterator[Wire]:
    """All-reduces and all-gathers of this process take as long as on ``network``, at least."""
    alpha_s = network.latency * cfg.compute_s
    wire = Wire(alpha_s, dense["bytes"] / (network.gradient * cfg.compute_s))
    gather = dist.all_gather_into_tensor

    def paced_gather(whole: torch.Tensor, part: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
        start = time.perf_counter()
        gather(whole, part, group=group)
        end = start + (ranks - 1) * (alpha_s + part.nbytes / wire.bytes_per_s)
        time.sleep(max(0.0, end - time.perf_counter()))

    dist.all_gather_into_tensor = paced_gather
    try:
        with on_wire(wire):
            yield wire
    finally:
        dist.all_gather_into_tensor = gather


def paced_step(build: Callable, steps: int, digits: Digits, cfg: Config) -> float:
    """Seconds of a step whose computation is a sleep, on the network that is in use."""
    params = list(digits.model().parameters())
    way = build(params)
    for p in params:
        p.grad = torch.randn_like(p)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        time.sleep(cfg.compute_s)
        way.after_backward()
        way.after_step()
    return (time.perf_counter() - start) / steps


def check_on_paced_network(rows: dict, digits: Digits, cfg: Config) -> dict:
    """{network: {way: (predicted, measured)}}, in times of a step's computation."""
    dense = rows["all-reduce"]
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for name in PACED:
        network = NETWORKS[name]
        found[name] = {}
        for way in GOOD:
            _, build = WAYS[way]
            steps = cfg.look if rows[way]["kind"] in ("local SGD", "DiLoCo") else cfg.paced_steps
            with on_network(network, dense, digits.group.world_size, cfg):
                measured = paced_step(build, steps, digits, cfg) / cfg.compute_s
            predicted = network.seconds(rows[way], dense)
            if measured < 0.999 * predicted:
                raise CourseError(
                    f"{name}, {way}: {measured:.2f}, but the model says {predicted:.2f} at least"
                )
            found[name][way] = (predicted, measured)
    return found


def check_bytes(rows: dict, digits: Digits) -> None:
    """What the record counted is what the formulas say, for one way of each kind."""
    n = digits.group.world_size
    params = list(digits.model().parameters())
    numel = sum(p.numel() for p in params)
    thin = sum(sum(p.shape) for p in params)  # of a matrix n + m numbers, of a vector all
    dense = least_bytes("all_reduce", 4 * numel, n)
    expected = {
        "all-reduce": dense,
        "bf16": dense / 2,
        "PowerSGD, rank 1": least_bytes("all_reduce", 4 * thin, n),
        "top 1 %": least_bytes("all_gather", (4 + 4) * int(0.01 * numel), n),
        "local SGD, H = 16": dense / 16,
        "DiLoCo, H = 16": dense / 16,
    }
    for way, size in expected.items():
        if abs(rows[way]["bytes"] - size) > 1e-6 * size:
            raise CourseError(f"{way}: {rows[way]['bytes']:,.0f} bytes a step, the formula says {size:,.0f}")


def check_accuracies(rows: dict, cfg: Config) -> None:
    last = {way: row["accuracies"][-1] for way, row in rows.items()}
    for way in GOOD:
        if last[way] < cfg.good:
            raise CourseError(f"{way}: accuracy {last[way]:.1%}, at least {cfg.good:.0%} were expected")
    for way in ("PowerSGD, rank 1", "local SGD, H = 16", "DiLoCo, H = 16"):
        if last[way] < last["all-reduce"] - cfg.near:
            raise CourseError(f"{way}: accuracy {last[way]:.1%}, all-reduce {last['all-reduce']:.1%}")
    if last["top 0.1 %"] <= last["top 0.1 %, no feedback"]:
        raise CourseError(f"error feedback was to help: {last}")
    if last["top 0.1 %"] >= min(last[way] for way in GOOD):
        raise CourseError(f"top 0.1 % was to be worse than the others: {last}")
    if last["DiLoCo, H = 4"] >= last["DiLoCo, H = 16"]:
        raise CourseError(f"DiLoCo was to be worse with H = 4 than with H = 16: {last}")


def check_networks(rows: dict) -> dict[str, dict[str, float]]:
    """{network: {way: time to the target}}, in times of a step's computation, and what is claimed of them."""
    dense = rows["all-reduce"]
    times = {}
    for name, network in NETWORKS.items():
        times[name] = {way: network.to_target(rows[way], dense) for way in GOOD}
        faster = times[name]["all-reduce"] / min(times[name].values())
        print_on_rank_0(f"{name}: the best is {faster:.1f} x as fast as all-reduce")
    a_step = {name: network.seconds(dense, dense) for name, network in NETWORKS.items()}
    if a_step["inside a machine"] > 1.05:
        raise CourseError("inside a machine there was to be nothing to gain")
    if times["slow Ethernet"]["PowerSGD, rank 4"] > times["slow Ethernet"]["all-reduce"] / 3:
        raise CourseError("on slow Ethernet PowerSGD was to win")
    if times["between cities"]["PowerSGD, rank 4"] < times["between cities"]["all-reduce"]:
        raise CourseError("between cities PowerSGD was to lose: it sends three messages for one")
    return times


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        digits = Digits(group, cfg)
        rows = {}
        for way, (kind, build) in WAYS.items():
            row = {"kind": kind} | train(build, digits, cfg)
            rows[way] = row
            steps = row["steps to target"]
            reached = "not reached" if steps is None else f"after {steps} steps"
            print_on_rank_0(
                f"{way:23} {row['bytes']:>9,.0f} bytes a step, accuracy {row['accuracies'][-1]:.1%}, "
                f"{cfg.target:.0%} {reached}"
            )
        check_bytes(rows, digits)
        check_accuracies(rows, cfg)
        times = check_networks(rows)
        paced = check_on_paced_network(rows, digits, cfg)
        print_on_rank_0(
            f"on the paced network a step never takes less than the model says: {', '.join(PACED)}"
        )
        record_results("lab_14_ways", {"rows": rows, "times": times, "paced": paced})


if __name__ == "__main__":
    run(main, Config())
