"""Questions about files: who writes them, what is in them, and who reads them."""

import ast
import re

from .conditions import leaves
from .machine import Machine
from .rule import (
    Answers,
    at,
    compatible,
    everyone,
    is_managed,
    is_together,
    line,
    rule,
    ways,
    who,
)
from .rules_data import is_resumed
from .state import Event
from .values import DIFFERS, OWN, ROUND, UNKNOWN, Pairs, Thing, Value, each, inside, things

COUNTS = ("epoch", "step", "iter")
CHOOSING = re.compile(r"rank|(^|_)(main|master|primary|leader|chief|writer)(_|$)")


def states(value: Value | None) -> list[Thing]:
    """The states that are in what is saved."""
    held = []
    for part in inside(value):
        if isinstance(part, Thing) and part.kind in ("state", "full state"):
            held.append(part)
    return held


@rule("RC401", "wrong", "11", (50, 68))
def save(t: Machine) -> Answers:
    """Does one rank alone save? Else N processes write into one file at the same time.

    Wrong:
        torch.save(state, "model.pt")
    Right:
        if rank == 0:
            torch.save(state, "model.pt")
    """
    if not is_together(t):
        return
    told: set[int] = set()
    for event in t.named["save file"]:
        target = event.of
        if target is None or target.vary & (DIFFERS | UNKNOWN):
            continue
        kind = who(t, event)
        if kind in ("all", "others") and not is_chosen_by_name(event):
            yield at(event, "every rank writes this file: save on rank 0")
        elif kind == "local one" and not by_remainder(t, event) and "init_process_group" in t.named:
            # A cache is for the ranks of one machine; a checkpoint is for all.
            is_checkpoint = bool(states(event.call.args[0] if event.call.args else None))
            if is_checkpoint and id(event.frame.function) not in told:
                told.add(id(event.frame.function))
                yield at(event, "one rank of each machine writes this file: save on the global rank 0")


def is_chosen_by_name(event: Event) -> bool:
    """Whether a condition around it speaks of ranks, though it could not be read as one."""
    tests = [guard.node.test for guard in event.guards if isinstance(guard.node, ast.If | ast.IfExp)]
    names = {getattr(node, "id", getattr(node, "attr", "")) for test in tests for node in ast.walk(test)}
    return any(CHOOSING.search(name.lower()) for name in names)


def by_remainder(t: Machine, event: Event) -> bool:
    """``rank % gpus == 0``: one of each machine, on purpose."""
    return any(leaf.key == "remainder" for _, condition in ways(t, event) or () for leaf in leaves(condition))


@rule("RC402", "wrong", "11", (23, 28))
def saved(t: Machine) -> Answers:
    """Is all in the checkpoint that a run needs to go on? Else it goes on with an optimizer that is new.

    Wrong:
        {"epoch": epoch, "model": model.state_dict()}
    Right:
        {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    """
    if is_managed(t) or not is_together(t) or not t.named["backward"]:
        return
    writes = [write for write in t.named["save file"] if not write.again]
    holding = [write for write in writes if holds(t, write, "optimizer", "optim", "opt")]
    seen: list[Value] = []
    for event in writes:
        what = event.call.args[0] if event.call.args else event.call.get("obj", 0)
        if (
            not isinstance(what, Pairs)
            or ... in what.items
            or not states(what)
            or any(what is other for other in seen)
        ):
            continue
        seen.append(what)
        counts = any(
            isinstance(key, str) and any(word in key.lower() for word in COUNTS) for key in what.items
        )
        if not counts and not (event in holding and resumes(t)):
            continue
        if (
            counts
            and not holding
            and resumes(t)
            and (t.named["optimizer"] or t.named["optimizer.step"])
            and any(loop.over is not None and is_resumed(loop.over) for loop in event.loops)
        ):
            yield at(
                event, "the state of the optimizer is not saved, though the run can go on from this file"
            )
        elif (
            event in holding
            and t.named["scaler.step"]
            and not holds(t, event, "scaler", "scaler", "amp")
            and any(not made.loops for made in t.named["scaler"])  # else each epoch has its own
        ):
            yield at(event, "the state of the GradScaler is not saved")


def resumes(t: Machine) -> bool:
    """Whether the script goes on from a file: it loads the state of a model, and a number."""
    return bool(t.named["load_state_dict"]) and any(has_number(read.result) for read in t.named["load file"])


def has_number(loaded: Value | None) -> bool:
    """Whether the number of an epoch is read from what was loaded, or may be where it is handed to."""
    return any(
        choice.note("escaped") or any(word in name.lower() for name in choice.attrs or () for word in COUNTS)
        for choice in each(loaded)
    )


def holds(t: Machine, event: Event, kind: str, *words: str) -> bool:
    what = event.call.args[0] if event.call.args else None
    for part in inside(what):
        if not isinstance(part, Pairs):
            continue
        for key, value in part.items.items():
            if key is ... or isinstance(key, str) and any(word in key.lower() for word in words):
                return True
            for state in states(value):
                for owner in each(state.inner):
                    if isinstance(owner, Thing) and owner.kind in (kind, "instance"):
                        return True
                    if any(word in owner.name.lower() for word in words):
                        return True
    return False


@rule("RC403", "wrong", "11", (2, 5), by_default=False)
def prefix(t: Machine) -> Answers:
    """Is the model's own state saved? Else its names begin with "module." and fit a wrapper alone.

    Wrong:
        torch.save(ddp.state_dict(), "model.pt")
    Right:
        torch.save(ddp.module.state_dict(), "model.pt")
    """
    if is_managed(t):
        return
    for event in t.named["save file"]:
        if event.again:
            continue
        what = event.call.args[0] if event.call.args else None
        for part in what.items.values() if isinstance(what, Pairs) else [what]:
            owners = [owner for state in states(part) for owner in each(state.inner)]
            ours = all(
                isinstance(owner, Thing) and owner.kind == "ddp" and owner.made is None for owner in owners
            )
            if owners and ours and not loads_into_wrapper(t):
                text = (
                    'its names begin with "module.", as those of the wrapper: save the state of its .module'
                )
                yield at(event, text)


def loads_into_wrapper(t: Machine) -> bool:
    """Whether the script loads a state into a wrapper, or takes the prefix away."""
    for event in t.named["load_state_dict"]:
        if things(event.of, "ddp"):
            return True
        name = event.of.name.lower() if event.of is not None else "opt"
        unknown = type(event.of) is Value and event.of.note("wrapper") is None
        if unknown and not any(word in name for word in ("opt", "sched", "scal")):
            return True
    return any(
        "module." in str(getattr(node, "value", ""))
        for module in t.modules.values()
        for node in ast.walk(module.source.tree)
        if isinstance(node, ast.Constant)
    )


@rule("RC404", "wrong", "11", (27, 47))
def load(t: Machine) -> Answers:
    """Does each rank load onto its own device? Else all load onto the GPU of the rank that saved.

    Wrong:
        model.load_state_dict(torch.load(path))
    Right:
        model.load_state_dict(torch.load(path, map_location=device))
    """
    saves = t.named["save file"]
    if not is_together(t) or is_managed(t) or saves and all(map(moves_to_cpu, saves)):
        return
    loaded = {
        id(value)
        for event in t.named["load_state_dict"]
        if not of_numbers(event)
        for part in inside(event.result)
        for value in chain(part)
    }
    for event in t.named["load file"]:
        if event.call.get("map_location", 1) is not None or event.call.more or not everyone(t, event):
            continue
        if event.of is not None and event.of.vary & (DIFFERS | UNKNOWN) or not uses_gpu(t):
            continue
        if event.result is not None and id(event.result) in loaded and is_of_the_run(t, event):
            yield at(
                event, "torch.load without map_location: all ranks load onto the GPU of the rank that saved"
            )


def of_numbers(event: Event) -> bool:
    """Whether what loads it holds numbers alone, and no tensors on a GPU: a scheduler."""
    return bool(things(event.of, "scheduler", "plateau")) or event.of is not None and "sched" in event.of.name


def is_of_the_run(t: Machine, load: Event) -> bool:
    """Whether a run may have saved that file, rather than someone else who publishes it."""
    saved = {write.of.key for write in t.named["save file"] if write.of is not None}
    named = load.of is not None and load.of.key in saved
    into = [
        event
        for event in t.named["load_state_dict"]
        if not of_numbers(event) and not things(event.of, "module", "ddp", "fsdp", "dp")
    ]
    return (
        named
        or has_number(load.result)
        or any(part is load.result for event in into for part in inside(event.result))
    )


def moves_to_cpu(save: Event) -> bool:
    """Whether the function that saves moves the tensors to the CPU before."""
    function = save.frame.function.body if save.frame.function is not None else ast.Pass()
    return any(isinstance(node, ast.Attribute) and node.attr == "cpu" for node in ast.walk(function))


def chain(value: Value) -> list[Value]:
    """A value, and what it is a part of."""
    links = [value]
    while isinstance(links[-1].note("of"), Value) and len(links) < 10:
        links.append(links[-1].note("of"))
    return links


def uses_gpu(t: Machine) -> bool:
    return bool(t.named["set_device"] or t.named["move"])


@rule("RC405", "wrong", "11", (1, 1))
def race(t: Machine) -> Answers:
    """Do the others wait until rank 0 has saved? Else they read a file that is not whole, or not there.

    Wrong:
        if rank == 0:
            torch.save(state, path)
        state = torch.load(path)
    Right:
        if rank == 0:
            torch.save(state, path)
        dist.barrier()
        state = torch.load(path)
    """
    written = [write for write in t.named["save file"] if who(t, write) == "one"]
    for event in t.named["load file"]:
        if event.of is None or not everyone(t, event):
            continue
        for save in written:
            target = save.of
            if target is None or save.again or target.vary & (DIFFERS | UNKNOWN):
                continue
            if target.key != event.of.key or save.number > event.number:
                continue
            between = any(other.meets and save.number < other.number < event.number for other in t.events)
            if not between and compatible(save, event):
                yield at(event, f"rank 0 may still be writing it in line {line(save.node)}: let all wait")


@rule("RC406", "wrong", "19")
def shards(t: Machine) -> Answers:
    """Do all ranks gather a sharded state before one saves it? Else the file holds one rank's shards.

    Wrong:
        if rank == 0:
            torch.save(sharded.state_dict(), path)
    Right:
        state = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True))
        if rank == 0:
            torch.save(state, path)
    """
    for event in t.named["save file"]:
        if who(t, event) != "one" or event.again:
            continue
        what = event.call.args[0] if event.call.args else None
        for state in states(what):
            if state.kind == "state" and any(owner.note("sharded") for owner in each(state.inner)):
                yield at(
                    event, "rank 0 saves its own shards alone: gather the whole state on all ranks first"
                )


@rule("RC407", "wrong", "11", (28, 29))
def overwrite(t: Machine) -> Answers:
    """Is a checkpoint written beside the old one? Else a run that dies while it saves cannot be resumed.

    Wrong:
        torch.save(state, latest)
    Right:
        torch.save(state, f"{latest}.part")
        os.replace(f"{latest}.part", latest)
    """
    if not is_together(t) or is_managed(t) or t.named["rename"]:
        return
    resumed = [read for read in t.named["load file"] if read.of is not None]
    for event in t.named["save file"]:
        if event.again or not event.loops or event.of is None or event.of.vary & (ROUND | OWN | UNKNOWN):
            continue
        what = event.call.args[0] if event.call.args else None
        if not isinstance(what, Pairs) or not states(what):
            continue
        same = [one for one in resumed if one.of and one.of.key == event.of.key and one.number < event.number]
        if same:
            yield at(event, "the file that is resumed is overwritten: save beside it, then os.replace")


RULES = (save, saved, prefix, load, race, shards, overwrite)
