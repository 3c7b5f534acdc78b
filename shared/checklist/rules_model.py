"""Questions about the model: whether its gradients are averaged, and how it learns."""

import ast

from .conditions import Condition, Leaf, apart, both, negate
from .machine import Machine
from .names import words
from .rule import (
    Answers,
    Found,
    Unasked,
    at,
    compatible,
    escaped,
    everyone,
    in_turn,
    is_managed,
    is_together,
    line,
    rule,
    trains,
    ways,
    who,
)
from .rules_data import is_data, is_local, t_has_grad
from .rules_hangs import lonely
from .state import Call, Event, Guard
from .values import (
    GRADIENT,
    HALF,
    OWN,
    RANK,
    UNKNOWN,
    Choice,
    Const,
    Items,
    Role,
    Thing,
    Value,
    each,
    inside,
    plain,
    things,
)

WRAPS = words("ddp fsdp fully_shard replicate accelerator fabric trainer deepspeed parallelize_module")


@rule("RC301", "wrong", "08", (1, 3), by_default=False)
def group(t: Machine) -> Answers:
    """Does each process join a group? Else the first collective fails, or each process trains alone.

    Wrong:
        ddp = DDP(model)
    Right:
        dist.init_process_group()
        ddp = DDP(model)
    """
    if t.joined or is_managed(t) or t.unread or not is_whole_program(t):
        return
    for event in t.events:
        if event.frame.source is not t.main:
            continue
        needs = event.name in ("ddp", "fsdp") or (
            event.meets and event.name in ("all_reduce", "barrier", "broadcast", "all_gather")
        )
        if needs and not event.uncalled:
            yield at(event, "nothing joins the processes: there is no init_process_group")
            return


def is_whole_program(t: Machine) -> bool:
    return not t.main.cells


@rule("RC302", "wrong", "08", (4, 4))
def wrap(t: Machine) -> Answers:
    """Are the gradients averaged? Else each rank trains a model of its own.

    Wrong:
        dist.init_process_group()
        model(x).sum().backward()
        optimizer.step()
    Right:
        ddp = DDP(model)
        ddp(x).sum().backward()
        optimizer.step()
    """
    joins = t.named["init_process_group"]
    if not joins or is_managed(t) or any(name in t.named for name in WRAPS):
        return
    mine = bool(t.named["sampler"])
    steps = [
        step
        for step in t.named["optimizer.step"] + t.named["scaler.step"]
        if everyone(t, step) and step.number > joins[0].number
    ]
    backward = [
        event
        for event in t.named["backward"]
        if everyone(t, event) and event.number > joins[0].number and event.loops
    ]
    backward = [
        event
        for event in backward
        if mine or event.of is not None and event.of.vary & OWN and not event.of.vary & UNKNOWN
    ]
    if (
        not steps
        or not backward
        or by_hand(t)
        or any(is_activation(event) for name in SENDING for event in t.named[name])
    ):
        return
    hidden = next((name for name in t.unread if any(word in name.lower() for word in WRAPPING)), "")
    models = [escaped(forward.model) for forward in backward[0].of.src] if backward[0].of is not None else []
    hidden = hidden or next(filter(None, models), "")
    if hidden:
        yield Unasked(f"{hidden} is not read, and may wrap the model")
    else:
        yield at(backward[0], "no DistributedDataParallel, FSDP or fully_shard averages these gradients")


AVERAGING = words("""
    all_reduce reduce_scatter_tensor all_reduce_coalesced broadcast all_gather all_gather_into_tensor
    reduce reduce_scatter all_to_all_single
    """)


SENDING = ("send", "isend", "P2POp")


def is_activation(event: Event) -> bool:
    """Whether a part of a forward goes to another rank: then ranks share the model."""
    sent = event.call.get("tensor", 1 if event.name == "P2POp" else 0)
    return sent is not None and bool(sent.src or sent.vary & (UNKNOWN | GRADIENT))


WRAPPING = words("ddp parallel wrap distribut fsdp shard engine prepare")


@rule("RC303", "wrong", "08", (1, 1))
def order(t: Machine) -> Answers:
    """Is the model complete when wrapped, and sharded before the optimizer? Else old tensors are held.

    Wrong:
        optimizer = Adam(model.parameters())
        fully_shard(model)
    Right:
        fully_shard(model)
        optimizer = Adam(model.parameters())
    """
    for event in t.events:
        if event.name in ("fsdp", "fully_shard") and plain(event.call.get("use_orig_params")) is not True:
            yield from made_too_early(t, event)
        elif event.name in ("set attribute", "set item"):
            yield from replaced(t, event)
        elif event.name == "requires_grad" and event.of is not None:
            root = t.root(event.of)
            if plain(event.result) is not False and was_frozen(t, root, event):
                yield at(event, "unfrozen after the model was wrapped: DDP does not average its gradients")
        elif event.name == "convert_sync_batchnorm" and wrapper_before(t, event) is not None:
            yield at(event, "converted after it was wrapped: convert first")


def made_too_early(t: Machine, shard: Event) -> Answers:
    roots = [t.root(model) for model in each(shard.of)]
    for event in t.named["optimizer"]:
        if event.number > shard.number or event.again:
            continue
        held = [part for part in inside(event.call.get("params", 0)) if things(part, "parameters")]
        if any(t.root(part) is root for part in held for root in roots) and compatible(event, shard):
            text = "the optimizer is made before the model is sharded: its parameters are replaced later"
            yield at(event, text)


def wrapper_before(t: Machine, event: Event) -> Thing | None:
    """The wrapper of the model that something happens to, if it was made before."""
    for model in each(event.of):
        if isinstance(model, Thing) and model.kind == "ddp" and not model.note("managed"):
            return model
        wrapped = model.note("wrapper")
        if isinstance(wrapped, Thing) and wrapped.kind == "ddp":
            made = [other for other in t.named["ddp"] if other.result is wrapped]
            if made and made[0].number < event.number and compatible(made[0], event):
                return wrapped
    return None


def was_wrapped(t: Machine, root: Value, event: Event) -> bool:
    wrapped = root.note("wrapper")
    made = [other for other in t.named["ddp"] if other.result is wrapped]
    return bool(made) and made[0].number < event.number and compatible(made[0], event)


def was_frozen(t: Machine, root: Value, event: Event) -> bool:
    """Whether the parameters were frozen when the model was wrapped, before an event."""
    if not was_wrapped(t, root, event):
        return False
    wrapped = next(other.number for other in t.named["ddp"] if other.result is root.note("wrapper"))
    set_by = [*t.named["requires_grad"], *t.named["set attribute"]]
    before = [
        change
        for change in set_by
        if change.number < wrapped and change.of is not None and t.root(change.of) is root
    ]
    asked = [
        change.result if change.name == "requires_grad" else change.call.args[0]
        for change in before
        if is_switch(change)
    ]
    return bool(asked) and plain(asked[-1]) is False


def is_switch(event: Event) -> bool:
    return event.name == "requires_grad" or plain(event.call.get("name")) == "requires_grad"


def replaced(t: Machine, event: Event) -> Answers:
    """Layers that a model is given after it was wrapped: ``model.fc = nn.Linear(...)``; unfrozen ones."""
    if event.of is None or event.frame.function is not None and event.frame.function.name == "__init__":
        return
    value = event.call.args[0]
    root = t.root(event.of)
    name = plain(event.call.get("name"))
    if name == "requires_grad":
        if plain(value) is True and was_frozen(t, root, event):
            yield at(event, "unfrozen after the model was wrapped: DDP does not average its gradients")
    elif (
        isinstance(value, Thing)
        and value.kind == "module"
        and value.made is None
        and was_wrapped(t, root, event)
    ):
        yield at(event, "a layer is replaced after the model was wrapped: its gradients are not averaged")


@rule("RC304", "wrong", "08", (2, 7))
def bypass(t: Machine) -> Answers:
    """Does training call the wrapper? Else nothing is averaged, and no error tells.

    Wrong:
        loss = ddp.module(x).sum()
    Right:
        loss = ddp(x).sum()
    """
    for event in t.named["backward"]:
        loss = event.of
        if loss is None or event.again or who(t, event) not in ("all", "unknown"):
            continue
        used = [use for use in loss.src if use.grad]
        through = {id(use.by) for use in used if use.through}
        for use in used:
            wrapper = use.model.note("wrapper")
            if (
                use.through
                or id(wrapper) in through
                or not isinstance(wrapper, Thing)
                or wrapper.kind != "ddp"
                or wrapper.note("part")
            ):
                continue
            made = [other for other in t.named["ddp"] if other.result is wrapper]
            forward = next((other for other in t.events if other.number == use.number - 1), None)
            if made and made[0].number < use.number and is_stepped(t, event):
                place = (
                    forward
                    if forward is not None and forward.name in ("forward", "method of model")
                    else event
                )
                yield at(place, "the model inside the wrapper computes this loss: call the wrapper")


def is_stepped(t: Machine, backward: Event) -> bool:
    """Whether an optimizer steps after it: then it is training, and no measurement."""
    return any(
        step.number > backward.number for step in t.named["optimizer.step"] + t.named["scaler.step"]
    ) and not by_hand(t)


def by_hand(t: Machine) -> bool:
    """Whether the script averages gradients by a collective of its own."""
    for event in [call for name in AVERAGING for call in t.named[name] if not call.uncalled]:
        sent = event.result.vary if event.result is not None else 0
        if sent & GRADIENT or sent & UNKNOWN and t_has_grad(event):
            return True
        function = event.frame.function.body if event.frame.function is not None else ast.Pass()
        if any(isinstance(node, ast.Attribute) and node.attr == "grad" for node in ast.walk(function)):
            return True
    return False


@rule("RC305", "wrong", "12", (1, 3))
def drift(t: Machine) -> Answers:
    """Do all ranks change the model and the learning rate alike? Else their copies drift apart.

    Wrong:
        if rank == 0:
            scheduler.step()
    Right:
        scheduler.step()
    """
    for event in [*t.named["optimizer.step"], *t.named["scheduler.step"], *t.named["scaler.step"]]:
        if in_turn(event):
            continue
        around = [way for way in ways(t, event) or () if way[0].kind in ("if", "exit")]
        if around and shares_model(t, event) and not is_covered(t, around[0][0]):
            kinds = {leaf.kind for leaf in apart(around[0][1])}
            reasons = {leaf.key[0] for leaf in apart(around[0][1]) if isinstance(leaf.key, tuple)}
            if kinds & {"one", "local one", "some"} and who(t, event) in ("one", "local one", "others"):
                yield at(event, f"only some ranks call {event.name}: the copies of the model drift apart")
            elif "own" in kinds and "except" not in reasons and event.name != "scheduler.step":
                text = f"each rank decides by itself whether to call {event.name}: the copies drift apart"
                yield at(event, text)
        if things(event.of, "plateau") and not around and everyone(t, event):
            given = event.call.get("metrics", 0)
            if given is not None and given.vary & OWN and not given.vary & UNKNOWN:
                text = "each rank sets its learning rate by a loss of its own: all_reduce it before"
                yield at(event, text)
    for event in t.named["load_state_dict"]:
        wrapped = (
            any(was_wrapped(t, t.root(model), event) for model in each(event.of)) and not t.named["fsdp"]
        )
        if wrapped and who(t, event) == "one" and not in_turn(event) and not sent_later(t, event):
            text = (
                "only one rank loads this, and DDP sends no parameters after it was made: load on all ranks"
            )
            yield at(event, text)


def sent_later(t: Machine, event: Event) -> bool:
    return any(other.number > event.number and other.name.startswith("broadcast") for other in t.events)


def shares_model(t: Machine, event: Event) -> bool:
    """Whether the optimizer holds the parameters of a model that all ranks train together."""
    held = list(each(event.of)) if event.name != "scaler.step" else first_argument(event.call)
    if event.name == "scheduler.step":
        held = [
            part
            for scheduler in held
            if isinstance(scheduler, Thing) and scheduler.call
            for part in first_argument(scheduler.call)
        ]
    for optimizer in held:
        given = (
            optimizer.call.get("params", 0)
            if isinstance(optimizer, Thing) and optimizer.call is not None
            else None
        )
        for part in inside(given):
            notes = [t.root(part).note(name) for name in ("wrapper", "sharded", "replicated")]
            if any(notes) or t.is_together(part):
                return True
    return False


def first_argument(call: Call) -> list[Value]:
    return [value for given in call.args[:1] for value in each(given)]


def is_covered(t: Machine, guard: Guard) -> bool:
    """Whether a meeting under the same condition is reported already."""
    return any(meeting.guard.node is guard.node for meeting in lonely(t))


@rule("RC306", "wrong", "10", (2, 3))
def scaler(t: Machine) -> Answers:
    """Is the GradScaler used as a whole? Else fp16 gradients vanish, or are clipped at another scale.

    Wrong:
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
    Right:
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
    """
    if is_managed(t):
        return
    for made in t.named["scaler"]:
        if made.again or plain(made.call.get("enabled")) is False:
            continue
        mine = {
            name: [event for event in t.named[f"scaler.{name}"] if uses(event, made)]
            for name in ("scale", "step", "update", "unscale_")
        }
        if not mine["scale"] and not mine["step"]:
            continue
        if escaped(made.of):
            yield Unasked(f"the scaler is handed to {escaped(made.of)}")
            continue
        lacks = [name for name in ("scale", "step", "update") if not mine[name]]
        if any(f".{name}" in calls_of_scalers(t) for name in lacks):
            yield Unasked("it is not seen what calls a GradScaler")
        elif lacks:
            yield at(made, f"a GradScaler without {' and without '.join(lacks)}")
        else:
            yield from clipped_too_early(t, made, mine)


def calls_of_scalers(t: Machine) -> set[str]:
    """The methods that are called of something named a scaler, in all files that were read."""
    methods = set()
    for module in t.modules.values():
        for node in ast.walk(module.source.tree):
            if isinstance(node, ast.Attribute) and "scaler" in ast.unparse(node.value).lower():
                methods.add(f".{node.attr}")
    return methods


def uses(event: Event, made: Event) -> bool:
    known = things(event.of, "scaler")
    return not known or made.of in known


def clipped_too_early(t: Machine, made: Event, mine: dict[str, list[Event]]) -> Answers:
    """Gradients that are clipped while they are still scaled."""
    scaled = [
        backward
        for backward in t.named["backward"]
        if backward.of is not None and backward.of.note("scaled") is made.of
    ]
    for clip in t.named["clip"] if scaled else ():
        before = [backward for backward in scaled if backward.number < clip.number]
        after = [step for step in mine["step"] if step.number > clip.number]
        if not before or not after or clip.again:
            continue
        between = [call for call in mine["unscale_"] if before[-1].number < call.number < clip.number]
        if not between and compatible(before[-1], clip) and compatible(clip, after[0]):
            yield at(
                clip, "these gradients are still scaled: call scaler.unscale_(optimizer) before clipping"
            )


@rule("RC307", "wrong", "09", (0, 1))
def no_sync(t: Machine) -> Answers:
    """Are gradients averaged in the micro-batch before the step? Else each rank steps by its own.

    Wrong:
        with ddp.no_sync() if last else nullcontext():
            ddp(x).sum().backward()
    Right:
        with nullcontext() if last else ddp.no_sync():
            ddp(x).sum().backward()
    """
    turn = "turn the condition round"
    for step in [*t.named["optimizer.step"], *t.named["scaler.step"]]:
        before = [
            backward
            for backward in t.named["backward"]
            if backward.number < step.number and same_loop(backward, step)
        ]
        if not before or step.again:
            continue
        condition = waiting(t, before[-1])
        if condition is None:
            continue
        condition = both(condition, own_way(before[-1], step))
        stepping = steps_when(step, before[-1])
        if is_last(condition, positive=True):
            yield at(before[-1], f"no_sync is on in the last micro-batch, before the step: {turn}")
        elif condition is True or (stepping is not True and condition == stepping):
            yield at(before[-1], f"no_sync is on just when the optimizer steps: {turn}")
    yield from switched_off(t, turn)


def switched_off(t: Machine, turn: str) -> Answers:
    """The averaging is switched by an attribute of DDP, or by a method of FSDP."""
    text = f"gradients are averaged in all micro-batches but the last: {turn}"
    for event in t.named["set attribute"]:
        switches = plain(event.call.get("name")) == "require_backward_grad_sync" and not event.again
        if switches and is_last(t.truth(event.call.args[0]), positive=False):
            yield at(event, text)
    for event in t.named["gradient sync"]:
        steps = [step for step in t.named["optimizer.step"] if step.number > event.number]
        steps = [step for step in steps if same_loop(event, step)]
        if not steps or event.result is None or event.again:
            continue
        condition, stepping = t.truth(event.result), steps_when(steps[0], event)
        if not isinstance(condition, bool) and stepping is not True and condition == negate(stepping):
            yield at(event, text)


def is_last(condition: Condition, positive: bool) -> bool:
    """Whether it asks for the last round of a loop, or for all but that."""
    last = (
        isinstance(condition, Leaf) and isinstance(condition.key, tuple) and condition.key[0] == "last round"
    )
    return last and condition.positive is positive  # type: ignore[union-attr]


def same_loop(first: Event, second: Event) -> bool:
    inner = [loop.node for loop in first.loops]
    return (
        bool(second.loops)
        and second.loops[-1].node in inner
        or not second.loops
        and first.frame is second.frame
    )


def waiting(t: Machine, backward: Event) -> Condition | None:
    """When a backward averages nothing; None if it always does."""
    for guard in backward.guards:
        if guard.kind == "context":
            return guard.condition
    for item in backward.contexts:
        for way, context in item.choices if isinstance(item, Choice) else [(True, item)]:
            if t.context_name(context) in ("no_sync", "no_backward_sync"):
                return way
    return None


def steps_when(step: Event, backward: Event) -> Condition:
    """The condition under which the optimizer steps, where the backward does not stand under it, too."""
    return own_way(step, backward)


def own_way(event: Event, other: Event) -> Condition:
    """The condition of one event that is none of the other."""
    shared = {id(guard.node) for guard in other.guards}
    return both(
        *(guard.condition for guard in event.guards if id(guard.node) not in shared and guard.kind == "if")
    )


@rule("RC308", "wrong", "05", (0, 3), by_default=False)
def early(t: Machine) -> Answers:
    """Is the result of an async collective used after wait()? Else it is read while it is being written.

    Wrong:
        work = dist.all_reduce(x, async_op=True)
        print(x.sum())
    Right:
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        print(x.sum())
    """
    for event in t.named["read too early"]:
        made = event.of.call.node if isinstance(event.of, Thing) and event.of.call else None
        where = f" of line {line(made)}" if made is not None else ""
        yield at(event, f"read before the collective{where} is done: call wait() on its work first")


@rule("RC309", "wrong", "01", (13, 22))
def device(t: Machine) -> Answers:
    """Has each rank its own GPU, by its local rank? Else all share GPU 0, or node 2 finds none.

    Wrong:
        torch.cuda.set_device(dist.get_rank())
    Right:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    """
    if is_managed(t) or not is_together(t):
        return
    places = [place for place in t.events if place.name in ("set_device", "device", "move", "ddp")]
    places = [place for place in places if who(t, place) == "all"]
    for event in places if ranks_are_global(t) else ():
        chosen = [index for index in gpu_of(t, event) if not isinstance(index, Const)]
        if chosen and all(map(is_told, chosen)):
            yield at(event, "the second machine has no GPU with the number of a global rank: use LOCAL_RANK")
            break
    if hides_gpus(t) or not joins(t):
        return
    for event in places:
        numbers = [type(plain(index)) is int for index in gpu_of(t, event)]
        is_written = not any(isinstance(argument, ast.Attribute) for argument in arguments(event))
        if (
            numbers
            and all(numbers)
            and is_written
            and (event.name in ("set_device", "ddp") or is_model(t, event))
        ):
            made = event.call.args[0].node if event.call.args else None
            text = "the same GPU on each rank: take its number from LOCAL_RANK"
            yield Found(made, event.frame.source, text) if made is not None else at(event, text)
            return
    if not t.named["set_device"] and not chosen_elsewhere(t):
        for event in places:
            if is_model(t, event) and is_any_gpu(event):
                made = event.call.args[0].node if event.call.args else None
                text = "cuda without a number is GPU 0 on each rank: call set_device(local_rank) before"
                yield Found(made, event.frame.source, text) if made is not None else at(event, text)
                return


def ranks_are_global(t: Machine) -> bool:
    """Whether the launcher tells the ranks: else the script may be for one machine."""
    given = [join.call.get("rank", 4) for join in t.named["init_process_group"]]
    return all(is_told(part) or isinstance(part, Const) for rank in given for part in each(rank))


def is_told(value: Value) -> bool:
    """Whether it is the rank that the launcher tells, rather than something that is called so."""
    return isinstance(value, Role) and value.name == "rank" and not value.note("hinted")


def arguments(event: Event) -> list[ast.expr]:
    """The arguments of a call, as they are written."""
    node = event.node
    return [*node.args, *(keyword.value for keyword in node.keywords)] if isinstance(node, ast.Call) else []


def is_model(t: Machine, event: Event) -> bool:
    """Whether it is a model that is moved there."""
    if event.name != "move":
        return False
    return any(
        t.root(moved).note("wrapper") is not None or isinstance(moved, Thing) and moved.kind == "module"
        for moved in each(event.of)
    )


def is_any_gpu(event: Event) -> bool:
    given = event.call.args[0] if event.call.args else event.call.get("device")
    if given is None:
        return event.result is not None and event.result.name == "cuda"
    names = [
        plain(target) if plain(target) is not None else plain(target.note("device"))
        for target in each(given)
        if target.note("index") is None
    ]
    return "cuda" in names


def chosen_elsewhere(t: Machine) -> bool:
    """Whether the current GPU may be set where it cannot be seen."""
    words = ("dist", "init", "setup", "device", "launch", "env")
    return any(word in name.lower() for name in t.unread for word in words)


def joins(t: Machine) -> bool:
    return bool(t.named["init_process_group"])


def gpu_of(t: Machine, event: Event) -> list[Value]:
    """The numbers of the GPUs that a line chooses."""
    if event.name == "set_device":
        given = event.of
    elif event.name == "ddp":
        ids = event.call.get("device_ids", 1)
        lists = [value.items[0] for value in each(ids) if isinstance(value, Items) and len(value.items) == 1]
        given = lists[0] if lists else None
    elif event.name == "device":
        given = event.of.note("index") if event.of is not None else None
        kind = event.of.note("device") if event.of is not None else None
        if given is None and kind is not None:
            given = kind.note("index")
    else:
        given = event.call.get("device", 0)
    numbers: list[Value] = []
    for gpu in each(given):
        index = gpu.note("index")
        if isinstance(index, Value):
            numbers += each(index)
        elif isinstance(gpu.note("device") or gpu, Const):
            number = str(plain(gpu.note("device") or gpu)).partition(":")[2]
            numbers += [Const(int(number))] if number.isdigit() else [gpu] if type(plain(gpu)) is int else []
        else:
            numbers.append(gpu)
    return numbers


def hides_gpus(t: Machine) -> bool:
    """Whether a process may see a GPU of its own alone."""
    set_by = [event for event in t.named["set item"] if plain(event.call.args[1]) == "CUDA_VISIBLE_DEVICES"]
    return any(event.call.args[0].vary & (RANK | UNKNOWN) for event in set_by)


@rule("RC310", "wrong", "01", (7, 7))
def number(t: Machine) -> Answers:
    """Is the rank that joins the group the global one? Else two machines have two ranks 0.

    Wrong:
        dist.init_process_group("nccl", rank=local_rank, world_size=world_size)
    Right:
        dist.init_process_group("nccl", rank=rank, world_size=world_size)
    """
    for event in t.named["init_process_group"]:
        rank, world = event.call.get("rank"), event.call.get("world_size")
        if is_local(t, rank, world):
            yield at(event, "its rank is a local rank: on two machines two processes have the same")


@rule("RC311", "wrong", "19", (0, 2), by_default=False)
def norm(t: Machine) -> Answers:
    """Is the norm of sharded gradients that of all shards? Else each rank clips by its own part.

    Wrong:
        torch.nn.utils.clip_grad_norm_(fsdp.parameters(), 1.0)
    Right:
        fsdp.clip_grad_norm_(1.0)
    """
    for event in t.named["clip"]:
        given = event.call.args[0] if event.call.args else None
        own_method = event.result is not None
        if given is None or own_method:
            continue
        for parameters in things(given, "parameters"):
            if any(isinstance(part, Thing) and part.kind == "fsdp" for part in each(parameters.inner)):
                yield at(
                    event,
                    "torch's clip_grad_norm_ sees only this rank's shards: call model.clip_grad_norm_()",
                )


@rule("RC312", "wrong", "10", (3, 5), by_default=False)
def mode(t: Machine) -> Answers:
    """Is evaluation in eval mode, training not? Else dropout blurs the accuracy, or stays off for good.

    Wrong:
        for epoch in range(epochs):
            train(ddp)
            ddp.eval()
            measure(ddp)
    Right:
        for epoch in range(epochs):
            ddp.train()
            train(ddp)
            ddp.eval()
            measure(ddp)
    """
    if not is_together(t):
        return
    yield from measured_in_training(t)
    last: dict[int, Event] = {}
    measured: set[int] = set()  # the models that were used without gradients since the last eval()
    for event in t.events:
        for model in each(event.of):
            root = t.root(model)
            if event.name in ("train", "eval"):
                if event.name == "train" and not isinstance(root, Thing):
                    last.clear()  # it may be any model
                last[id(root)] = event
                measured.discard(id(root))
            elif event.name == "forward" and id(root) in last and last[id(root)].name == "eval":
                before = last[id(root)]
                if not t_has_grad(event):
                    measured.add(id(root))
                elif id(root) in measured and before.loops and shares_loop(before, event):
                    known = not escaped(root) and not escaped(model)
                    known = known and not is_set_to_train(t, root, event)
                    if event.again and known and is_trained(t, event):
                        yield at(
                            before, "nothing calls train() after this eval(): it trains in eval mode then"
                        )


def measured_in_training(t: Machine) -> Answers:
    """An evaluation of a model that is still in training mode."""
    last: dict[int, str] = {}
    for event in t.events:
        for model in each(event.of):
            root = t.root(model)
            if event.name in ("train", "eval"):
                last[id(root)] = event.name
            elif (
                event.name == "forward"
                and last.get(id(root)) == "train"
                and "eval" not in last.values()
                and not t_has_grad(event)
                and event.loops
            ):
                loop = event.loops[-1]
                if (
                    is_data(loop.over)
                    and not trains(t, loop.node)
                    and not any(trains(t, outer.node) and is_data(outer.over) for outer in event.loops)
                ):
                    yield at(event, "measured in training mode: call eval() before")


def is_set_to_train(t: Machine, root: Value, forward: Event) -> bool:
    """Whether train() is called in a loop around a forward: then an option may keep it from the eval()."""
    calls = [call for call in t.named["train"] if any(t.root(part) is root for part in each(call.of))]
    return any(shares_loop(call, forward) for call in calls)


def is_trained(t: Machine, forward: Event) -> bool:
    """Whether a loss of this forward goes backward."""
    return any(
        backward.number > forward.number
        and backward.of is not None
        and any(used.number == forward.number + 1 and used.grad for used in backward.of.src)
        for backward in t.named["backward"]
    )


def shares_loop(first: Event, second: Event) -> bool:
    return bool({id(loop.node) for loop in first.loops} & {id(loop.node) for loop in second.loops})


@rule("RC313", "wrong", "10")
def precision(t: Machine) -> Answers:
    """Is the loss computed under autocast? Else it is computed in half precision, and fp16 overflows.

    Wrong:
        with torch.autocast("cuda"):
            scores = ddp(x)
        loss = F.cross_entropy(scores, y)
    Right:
        with torch.autocast("cuda"):
            loss = F.cross_entropy(ddp(x), y)
    """
    if not is_together(t):
        return
    for event in t.named["loss"]:
        scores = event.of
        if scores is None or not scores.vary & HALF or scores.vary & UNKNOWN:
            continue
        trained = any(forward.grad for forward in scores.src)
        trained = trained and any(trains(t, loop.node) and is_data(loop.over) for loop in event.loops)
        if trained and not t.is_under("autocast", contexts=event.contexts):
            yield at(event, "the loss is computed outside of autocast, from what was computed inside")


RULES = (group, wrap, order, bypass, drift, scaler, no_sync, early, device, number, norm, mode, precision)
