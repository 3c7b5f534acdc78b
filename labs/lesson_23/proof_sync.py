"""The two moves of lesson 23: equal bit for bit, bytes as by formula, and answers while trainers train.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_23/proof_sync.py
"""

import time
from dataclasses import dataclass
from threading import Event

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import rpc

from shared.comm.kernel import wire_bytes
from shared.comm.rpc import rpc_workers
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run

import lab_23_weights as weights
from lab_23_weights import (
    Jobs,
    all_boxes,
    ask_all,
    build,
    divide_jobs,
    generate,
    results_of,
    serve,
    to_call,
)


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, int, int] = (192, 768, 384)  # so large that what calls add is small
    at_most: float = 1.1  # bytes on the wire for each byte of weights
    settle_s: float = 0.2
    versions: int = 4


HERE: dict[str, nn.Module] = {}  # the policy of this process
BEGUN = Event()
SEEN = Event()


def watched_generate(policy: nn.Module, version: int, number: int) -> dict:
    """Answers that are not the first end only after a trainer has asked, in its step, whether they began."""
    BEGUN.set()
    if number > 0 and not SEEN.wait(timeout=10):
        raise CourseError(f"nobody trained while answers number {number} were made")
    BEGUN.clear()
    SEEN.clear()
    return generate(policy, version, number)


def look() -> bool:
    """Whether this process makes answers. Runs in the thread of the call."""
    begun = BEGUN.wait(timeout=10)
    SEEN.set()
    return begun


def parts_here() -> dict[str, torch.Tensor]:
    """This process's parts of the weights."""
    return {name: p.to_local().detach().cpu() for name, p in HERE["policy"].named_parameters()}


def expected_bytes(policy: nn.Module, jobs: Jobs, what: str) -> int:
    """Bytes that arrive at all ranks together, if T trainers and G generators do no more than they must."""
    whole = sum(p.numel() * p.element_size() for p in policy.parameters())
    on_each = policy[2].bias.nbytes  # which each generator holds whole; all else is divided
    if what == "move_whole":
        return (len(jobs.trainers) - 1 + len(jobs.generators)) * whole
    return whole + (len(jobs.generators) - 1) * on_each


def total(number: int, jobs: Jobs, device: torch.device) -> int:
    """The sum over the trainers. Collective."""
    tensor = torch.tensor(number, device=device)
    dist.all_reduce(tensor, group=jobs.training)
    return int(tensor)


def bytes_sent(workers: list[str], jobs: Jobs, device: torch.device, cfg: Config) -> int | None:
    """What all ranks have sent by TCP so far. Collective among the trainers."""
    time.sleep(cfg.settle_s)  # the kernel counts bytes when the other side has confirmed them
    mine = wire_bytes()
    if mine is None:
        return None
    return total(mine + sum(rpc.rpc_sync(worker, wire_bytes) for worker in workers), jobs, device)


@torch.no_grad()
def check_arrival(policy: nn.Module, boxes: list, jobs: Jobs, workers: list[str], version: int) -> None:
    """Each generator must hold, bit for bit, its part of what the trainers have. Collective among them."""
    whole = {name: parameter.full_tensor().cpu() for name, parameter in policy.named_parameters()}
    answers = results_of(ask_all(workers, "generate", 0))
    for rank, worker, answer in zip(jobs.generators, workers, answers, strict=False):
        for name, part in rpc.rpc_sync(worker, parts_here).items():
            if answer["version"] != version or not torch.equal(part, whole[name][boxes[rank][name]]):
                raise CourseError(f"{worker}: {name} of version {version} is not what the trainers have")


def prove_moves(policy: nn.Module, boxes: list, jobs: Jobs, workers: list[str], cfg: Config) -> None:
    device = next(policy.parameters()).device
    for version, move in enumerate((weights.move_whole, weights.move_slices), start=cfg.versions + 1):
        for parameter in policy.parameters():  # what a step of training would change
            parameter.to_local().detach().normal_()
        before = bytes_sent(workers, jobs, device, cfg)
        calls = ask_all(workers, "receive", move, version)
        arrived = move(policy, boxes, jobs)
        arrived = total(arrived + sum(results_of(calls)), jobs, device)
        after = bytes_sent(workers, jobs, device, cfg)
        check_arrival(policy, boxes, jobs, workers, version)
        expected = expected_bytes(policy, jobs, move.__name__)
        if arrived != expected:
            raise CourseError(f"{move.__name__}: {arrived:,} bytes arrive, expected {expected:,}")
        if before is not None and not 1 <= (after - before) / expected < cfg.at_most:
            share = (after - before) / expected
            raise CourseError(f"{move.__name__}: {share:.2f} bytes on the wire for each byte of weights")
        print_on_rank_0(f"{move.__name__:11} {arrived:10,} bytes arrive at all ranks together")
    print_on_rank_0("both: each generator holds its part of the trainers' weights, bit for bit")


def prove_overlap(policy: nn.Module, boxes: list, jobs: Jobs, workers: list[str], cfg: Config) -> None:
    """The trainers' own loop, in which each step asks whether answers are being made."""
    train = weights.train

    def train_and_look(*arguments: object) -> None:
        for worker in workers:
            if not rpc.rpc_sync(worker, look):
                raise CourseError("a step of training began when no answers were being made")
        train(*arguments)

    weights.train = train_and_look
    weights.lead(policy, boxes, jobs, cfg.versions)
    print_on_rank_0(f"{cfg.versions - 1} steps of training, each while the next answers were made")


def prove_errors(workers: list[str]) -> None:
    """A task that fails: its caller raises the error. The generator keeps serving, or nobody would end."""
    failing = (("generate", "no number"), ("receive", "no move", -1), ("no task",))
    for worker in workers:
        for task, *arguments in failing:
            try:
                results_of(ask_all([worker], task, *arguments))
            except (TypeError, ValueError):
                continue
            raise CourseError(f"{task} failed on {worker}, and its caller was not told")
    for worker, answer in zip(workers, results_of(ask_all(workers, "generate", 0)), strict=True):
        if answer["version"] == -1:
            raise CourseError(f"a move failed on {worker}, and its answers carry the new version")
    print_on_rank_0("a task that fails: its caller raises the error, and the generator keeps serving")


def prove_time_outs(jobs: Jobs, device: torch.device) -> None:
    """A group gives up later than the call that it works for, and not as late as torch's default."""
    calls = {"wire": weights.RECEIVE_S, "everyone": weights.RECEIVE_S, "training": weights.CALL_S}
    for name, of_call in calls.items():
        group = getattr(jobs, name)
        if not isinstance(group, dist.ProcessGroup):  # this rank is not in it
            continue
        limit = group._get_backend(device).options._timeout.total_seconds()
        if not of_call < limit <= 2 * weights.CALL_S:
            raise CourseError(f"{name}: the group waits {limit:.0f} s, its call {of_call:.0f} s")
    print_on_rank_0(
        f"a call to receive times out after {weights.RECEIVE_S:.0f} s, its move after {weights.MOVE_S:.0f} s"
    )


def main(cfg: Config) -> None:
    weights.PROMPT, weights.HIDDEN, weights.ANSWERS = cfg.sizes
    weights.generate = watched_generate
    with process_group(smallest=2) as group:
        jobs = divide_jobs()
        prove_time_outs(jobs, group.device)
        policy = build(jobs, group.device, cfg.sizes)
        boxes = all_boxes(policy)
        HERE["policy"] = policy
        with rpc_workers(group, tcp_only=True):
            if group.rank in jobs.generators:
                serve(policy, boxes, jobs)
            else:
                workers = to_call(jobs)
                prove_overlap(policy, boxes, jobs, workers, cfg)
                prove_moves(policy, boxes, jobs, workers, cfg)
                prove_errors(workers)
                results_of(ask_all(workers, "stop"))


if __name__ == "__main__":
    run(main, Config())
