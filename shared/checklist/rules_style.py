"""Questions of style and of speed: asked when they are selected."""

from .machine import Machine
from .rule import Answers, at, everyone, is_managed, is_together, rule
from .values import RANK, each, plain, role


@rule("RC501", "slow", "10")
def no_grad(t: Machine) -> Answers:
    """Is evaluation free of gradients? Else it keeps every activation for a backward that never comes.

    Wrong:
        def evaluate(model): ...
    Right:
        @torch.no_grad()
        def evaluate(model): ...
    """
    if not is_together(t):
        return
    for event in t.named["iterate"]:
        if event.again or not event.loops:
            continue
        loop = event.loops[-1].node
        inside_loop = [
            other for other in t.events if any(each_loop.node is loop for each_loop in other.loops)
        ]
        forwards = [other for other in inside_loop if other.name == "forward"]
        evaluates = any(
            other.name == "eval" and other.number < event.number and other.frame is event.frame
            for other in t.events
        )
        if not forwards or not evaluates or any(other.name == "backward" for other in inside_loop):
            continue
        if not t.is_under("no_grad", "inference_mode", contexts=forwards[0].contexts):
            yield at(event, "this evaluation keeps activations: put it under torch.no_grad()")


@rule("RC502", "slow", "02")
def backend(t: Machine) -> Answers:
    """Does the device choose the backend? Else gloo is slow on GPUs.

    Wrong:
        dist.init_process_group("gloo")
    Right:
        dist.init_process_group("nccl")
    """
    for event in t.named["init_process_group"]:
        given = event.call.get("backend", 0)
        names = {plain(choice) for choice in each(given)} if given is not None else set()
        if names == {"gloo"} and t.named["set_device"] and not t.named["new_group"]:
            yield at(event, "gloo, though the script uses GPUs: nccl is faster there")


@rule("RC601", "style", "01")
def talk(t: Machine) -> Answers:
    """Does one rank speak for all? Else each line comes N times, and bars mix.

    Wrong:
        print(loss)
    Right:
        if rank == 0:
            print(loss)
    """
    if not is_together(t):
        return
    for event in [*t.named["say"], *t.named["show"]]:
        if (
            event.result is not None
            and event.result.name in ("print", "init", "SummaryWriter", "tqdm", "trange")
            and everyone(t, event)
        ) and (
            not any(argument.vary & RANK or role(argument) for argument in event.call.given())
            and not event.call.get("disable")
            and not event.call.get("file")
        ):
            yield at(event, "every rank speaks: let rank 0 do it, or say which rank it is")


@rule("RC602", "style", "08")
def leave(t: Machine) -> Answers:
    """Does each process leave the group? Else the run ends with a warning, and may hang at its end.

    Wrong:
        dist.init_process_group()
        train()
    Right:
        dist.init_process_group()
        train()
        dist.destroy_process_group()
    """
    joins = [join for join in t.named["init_process_group"] if everyone(t, join)]
    if joins and not t.named["destroy_process_group"] and not is_managed(t) and not t.unread:
        yield at(joins[0], "there is no destroy_process_group for it")


RULES = (no_grad, backend, talk, leave)
