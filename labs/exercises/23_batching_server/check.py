"""Check of exercise 23. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

import io
import sys
import time
from contextlib import redirect_stderr
from types import ModuleType

import torch
import torch.distributed as dist
from torch.distributed import rpc

from shared.comm.rpc import start_workers
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

ROUNDS = 3  # more trainers than threads that could wait for each other
TRAINERS = 12
THREADS = 4
RATE = 0.5
PATIENCE_S = 5.0
PAUSE_S = 0.001
HELD: list[rpc.RRef] = []


def held() -> rpc.RRef:
    """The server, as worker0 hands it to the others."""
    return HELD[0]


class SlowList(list):
    """A list whose ``append`` and ``len`` take a while."""

    def append(self, item: object) -> None:
        super().append(item)
        time.sleep(PAUSE_S)

    def __len__(self) -> int:
        length = super().__len__()
        time.sleep(PAUSE_S)
        return length


def slowed(server: type) -> type:
    """The same class, but what it reads and sets of itself takes a while, so that a missing lock shows."""

    class SlowServer(server):
        def __getattribute__(self, name: str) -> object:
            value = super().__getattribute__(name)
            time.sleep(PAUSE_S)
            return value

        def __setattr__(self, name: str, value: object) -> None:
            time.sleep(PAUSE_S)
            super().__setattr__(name, SlowList(value) if type(value) is list else value)

    SlowServer.__module__ = server.__module__  # the class travels by its name
    SlowServer.__qualname__ = "SlowServer"
    return SlowServer


def gradient_of(number: int, trainer: int) -> torch.Tensor:
    return torch.full((5,), 10.0 * number + trainer, dtype=torch.float64)


def weights_after(rounds: int, share: float = 1 / TRAINERS) -> torch.Tensor:
    """The weights of one process, whose step is RATE * ``share`` * the sum of a round's gradients."""
    weight = torch.ones(5, dtype=torch.float64)
    for number in range(1, rounds + 1):
        total = sum(gradient_of(number, trainer) for trainer in range(TRAINERS))
        weight = weight - RATE * share * total
    return weight


def answers_of(number: int, server: rpc.RRef, group: Group) -> list[object]:
    """What this rank's trainers get in one round. All their calls are under way at once."""
    calls = [
        server.rpc_async(timeout=0).update(gradient_of(number, trainer))
        for trainer in range(group.rank, TRAINERS, group.world_size)
    ]
    dist.barrier()  # the clock starts when all are under way, however slow a rank is
    end = time.monotonic() + PATIENCE_S
    while not all(call.done() for call in calls) and time.monotonic() < end:
        time.sleep(0.01)
    answered = [call for call in calls if call.done()]
    answers = []
    failed = ""
    for call in answered:
        try:
            answers.append(call.wait())
        except Exception as error:
            text = str(error)
            failed = text.splitlines()["On WorkerInfo" in text]
    if "NotImplementedError" in failed:
        raise NotImplementedError
    late = len(calls) - len(answered)
    if late:
        lot = f"{late} of {len(calls)} calls"
        raise Wrong(f"round {number}: {lot} were not answered within {PATIENCE_S:.0f} s")
    if failed:
        hint = ""
        if "mark a completed Future" in failed or "non-empty TensorList" in failed:
            hint = "; two calls completed the same round: count and change the round under one lock"
        raise Wrong(f"round {number}: a call failed with {failed}{hint}")
    return answers


def look_at(weight: object, number: int) -> None:
    """Raise ``Wrong`` unless ``weight`` is what one process has after this round."""
    right = weights_after(number)
    if not isinstance(weight, torch.Tensor) or weight.shape != right.shape:
        kind = type(weight).__name__
        raise Wrong(f"round {number}: a trainer got {kind}, not the weights as a tensor of shape (5,)")
    if weight.dtype != right.dtype:
        raise Wrong(f"round {number}: a trainer got weights in {weight.dtype}, expected {right.dtype}")
    if torch.allclose(weight, right, rtol=0, atol=1e-12):
        return
    message = f"{weight[0].item():.1f}, expected {right[0].item():.1f}"
    if torch.allclose(weight, weights_after(number, share=1.0)):
        message += "; that is a step by the sum of the gradients, not by their mean"
    elif torch.allclose(weight, weights_after(number, share=-1 / TRAINERS)):
        message += "; that is a step up the gradient, not down"
    elif torch.allclose(weight, weights_after(number - 1)):
        message += "; those are the weights of the round before"
    raise Wrong(f"round {number}: a trainer got weights {message}")


def one_round(number: int, server: rpc.RRef, group: Group) -> None:
    answers = answers_of(number, server, group)
    if group.rank == 0:
        steps = server.local_value().steps
        if steps != number:
            raise Wrong(
                f"after {number} round(s) of {TRAINERS} gradients the server has taken {steps} steps, "
                f"expected {number}: one step for each round, counted and taken under one lock"
            )
    for weight in answers:
        look_at(weight, number)


def found_by_all(problem: Exception | None, group: Group) -> list[str]:
    """What each rank found, such as Wrong, or an empty text. Collective."""
    problems = [None] * group.world_size
    dist.all_gather_object(problems, type(problem).__name__ if problem else "")
    return problems


def verify(answer: ModuleType, group: Group) -> str:
    sys.modules[answer.__name__] = answer  # its functions travel by name
    sys.setswitchinterval(1e-5)  # threads take turns more often: a race shows
    answer.SlowServer = slowed(answer.BatchingServer)
    start_workers(group, threads=THREADS)
    problem = None
    with redirect_stderr(io.StringIO()):  # a worker writes the traceback of what fails on it
        if group.rank == 0:
            weight = torch.ones(5, dtype=torch.float64)
            HELD.append(rpc.RRef(answer.SlowServer(weight, TRAINERS, RATE)))
        dist.barrier()
        server = rpc.rpc_sync("worker0", held)
        dist.barrier()  # a round may take all threads of the server, so that it could not hand itself out
        for number in range(1, ROUNDS + 1):
            try:
                one_round(number, server, group)
            except (Wrong, NotImplementedError) as error:
                problem = error
            problems = found_by_all(problem, group)
            if any(problems):
                break
        if "Wrong" not in problems:  # else a call may be under way for ever
            HELD.clear()
            del server
            rpc.shutdown()
    if problem:
        raise problem
    return (
        f"{ROUNDS} rounds of {TRAINERS} trainers, {ROUNDS} steps, {THREADS} threads; "
        "weights as of one process. Well done."
    )


if __name__ == "__main__":
    check_exercise("23_batching_server", verify)
