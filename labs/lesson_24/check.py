"""Check of exercise 24. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py"""

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from threading import Thread
from types import ModuleType

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import autograd as dist_autograd
from torch.distributed import rpc

from shared.comm.rpc import start_workers
from shared.runtime.errors import CourseError
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.parity import assert_equal

WIDTHS = ((16, 12), (12, 8), (8, 5))  # three stages
TOLERANCE = 1e-12
PATIENCE_S = 7.0  # for an answer; for the other ranks, who may wait for theirs
LONG_PATIENCE_S = 30.0
NEVER_SENT = "backward waits for a gradient that nobody sends: the loss does not use a call's result"
NO_CONTEXT = (
    "stage {} ran in no context: forward was called before the context began, or through "
    "`stage.rpc_async()`, whose first call for a reference is sent by a thread that has no context; "
    "rpc.rpc_sync and rpc.rpc_async take the context along"
)
HELD: list[rpc.RRef] = []


class Stage(nn.Module):
    """One layer, which counts how often it runs in its process."""

    def __init__(self, number: int) -> None:
        super().__init__()
        torch.manual_seed(number)
        self.layer = nn.Linear(*WIDTHS[number], dtype=torch.float64)
        self.runs = []  # calls may run at the same time: `+= 1` would lose some
        self.outside = []  # those in no context

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs.append(1)
        if not in_a_context():
            self.outside.append(1)
        return torch.tanh(self.layer(x))


def in_a_context() -> bool:
    """Whether the call that this thread runs came with a context."""
    try:
        dist_autograd._current_context()
    except RuntimeError:
        return False
    return True


def held() -> list[rpc.RRef]:
    """The stages, as worker0 hands them to the others."""
    return HELD


def state_of(stage: rpc.RRef) -> tuple[int, int, bool]:
    """(how often the stage ran on its owner, how often in no context, whether a .grad was filled)."""
    module = stage.local_value()
    filled = any(parameter.grad is not None for parameter in module.parameters())
    return len(module.runs), len(module.outside), filled


def reference(x: torch.Tensor, y: torch.Tensor) -> tuple[float, list[dict[str, torch.Tensor]]]:
    """What one process finds."""
    stages = [Stage(number) for number in range(len(WIDTHS))]
    loss = F.cross_entropy(nn.Sequential(*stages)(x), y)
    loss.backward()
    return loss.item(), [{name: p.grad for name, p in stage.named_parameters()} for stage in stages]


def look_at(result: object, x: torch.Tensor, y: torch.Tensor) -> None:
    """Raise ``Wrong`` unless ``result`` is what one process finds."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise Wrong("chain_gradients must return the loss and a list of dicts")
    loss, gradients = result
    expected_loss, expected = reference(x, y)
    if not isinstance(loss, float):
        raise Wrong(f"the loss is of type {type(loss).__name__}, expected a float: loss.item()")
    if abs(loss - expected_loss) > TOLERANCE:
        hint = ""
        if abs(loss - len(y) * expected_loss) < TOLERANCE * len(y):
            hint = "; that is the sum over the batch, not the mean"
        raise Wrong(f"the loss is {loss:.4f}, one process finds {expected_loss:.4f}{hint}")
    if len(gradients) != len(expected):
        raise Wrong(f"gradients of {len(gradients)} stages, there are {len(expected)}")
    for number, (by_name, right) in enumerate(zip(gradients, expected, strict=True)):
        if not isinstance(by_name, dict):
            raise Wrong(
                f"stage {number}: its gradients are a {type(by_name).__name__}, expected a dict by name"
            )
        missing = sorted(set(right) - set(by_name))
        if missing:
            raise Wrong(f"stage {number} has no gradient of {missing[0]}")
        for name, gradient in right.items():
            look_at_gradient(f"stage {number}, gradient of {name}", by_name[name], gradient)
            assert_equal(f"stage {number}, gradient of {name}", by_name[name], gradient, TOLERANCE)


def look_at_gradient(what: str, found: object, right: torch.Tensor) -> None:
    """Raise ``Wrong`` with a sentence for the mistakes that have one."""
    if found is None:
        kept = "dist_autograd.get_gradients(context_id) on the owner has it"
        raise Wrong(f"{what} is None: nothing is kept in .grad here, {kept}")
    if not isinstance(found, torch.Tensor) or found.shape != right.shape:
        raise Wrong(f"{what} is no tensor of shape {tuple(right.shape)}: {type(found).__name__}")
    factor = ((found * right).sum() / (right * right).sum()).item()
    if abs(factor - 1) > TOLERANCE and torch.allclose(found, factor * right):
        raise Wrong(
            f"{what} is {factor:.3g} times that of one process: backward is to start at the mean loss"
        )


def in_words(error: Exception) -> str:
    """What is wrong with an answer that failed; the mistakes of the lesson in plain words."""
    text = str(error)
    if "RPC ran for more than" in text:
        return NEVER_SENT
    if "Could not find autograd context" in text:
        return "the context had ended: backward and the reading of gradients both belong inside the `with`"
    if "INTERNAL ASSERT FAILED" in text:
        return "loss.backward() cannot cross processes: call dist_autograd.backward(context_id, [loss])"
    if "does not require grad" in text:
        return "the loss has no graph: a stage ran without gradients, or its result was detached"
    if isinstance(error, KeyError) or "KeyError(Parameter" in text or "KeyError: Parameter" in text:
        return (
            "a parameter has no gradient in this context: the forward ran before the context began, "
            "on a copy, or cut off from the loss"
        )
    lines = text.splitlines() or [repr(error)]
    message = lines[1] if "On WorkerInfo" in lines[0] and len(lines) > 1 else lines[0]
    return f"chain_gradients failed: {message}"


def answer_of(chain_gradients: Callable, *arguments) -> object:
    """What the answer returns. It runs in a thread: its backward may wait for ever. Else raises ``Wrong``."""
    box = []

    def work() -> None:
        try:
            box.append(chain_gradients(*arguments))
        except Exception as error:
            box.append(error)

    thread = Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if box and not isinstance(box[0], Exception):
        return box[0]
    if box and isinstance(box[0], NotImplementedError):
        raise box[0]
    if not box:
        raise Wrong(NEVER_SENT)
    raise Wrong(in_words(box[0]))


def examine(answer: ModuleType, group: Group) -> None:
    """All ranks use the same three stages at the same time, each with data of its own."""
    generator = torch.Generator().manual_seed(100 + group.rank)
    x = torch.randn(7, WIDTHS[0][0], dtype=torch.float64, generator=generator)
    y = torch.randint(WIDTHS[-1][1], (7,), generator=generator)
    problem = None
    try:
        look_at(answer_of(answer.chain_gradients, rpc.rpc_sync("worker0", held), x, y), x, y)
    except (CourseError, NotImplementedError) as error:
        problem = error
    dist.barrier()
    if isinstance(problem, NotImplementedError):
        raise problem
    for number, stage in enumerate(rpc.rpc_sync("worker0", held)):
        runs, outside, filled = rpc.rpc_sync(stage.owner(), state_of, args=(stage,))
        if outside and problem:
            raise Wrong(NO_CONTEXT.format(number))
        if runs < group.world_size and (not problem or "gradient" in str(problem)):
            used = f"{group.world_size} ranks used it"
            raise Wrong(f"stage {number} ran {runs} times on its owner, {stage.owner_name()}; {used}")
        if filled:
            raise Wrong(f"stage {number} has its .grad filled: two ranks that train at once would mix theirs")
    if problem:
        raise problem


def verify(answer: ModuleType, group: Group) -> str:
    sys.modules[answer.__name__] = answer  # its functions travel by name
    workers = start_workers(group)
    problem = None
    with redirect_stderr(io.StringIO()):  # a worker writes the traceback of what fails on it
        if group.rank == 0:
            for number in range(len(WIDTHS)):
                HELD.append(rpc.remote(workers[number % len(workers)], Stage, args=(number,)))
                HELD[-1].to_here()  # one after the other: a process has one generator
        dist.barrier()
        try:
            examine(answer, group)
        except Exception as error:
            problem = error
        problems = [None] * group.world_size
        dist.all_gather_object(problems, type(problem).__name__)
        if set(problems) <= {"NoneType", "NotImplementedError"}:  # else a call may still be under way
            HELD.clear()
            rpc.shutdown()
    if problem:
        raise problem
    owners = min(len(WIDTHS), group.world_size)
    used = f"{len(WIDTHS)} stages on {owners} worker(s), used by {group.world_size} rank(s) at once"
    return f"{used}; gradients as of one process. Well done."


if __name__ == "__main__":
    check_exercise("24_chain", verify, ranks=3, timeout_s=LONG_PATIENCE_S)
