"""Questions about data: whose it is, in which order, and what an evaluation reports."""

import ast

from .machine import Machine
from .rule import (
    Answers,
    Found,
    Unasked,
    at,
    escaped,
    everyone,
    is_managed,
    is_together,
    managing,
    rule,
    trains,
    who,
)
from .state import Event
from .values import (
    DIFFERS,
    DIVIDED,
    MEASURED,
    OWN,
    RANK,
    ROUND,
    SAVED,
    UNKNOWN,
    Const,
    Lib,
    Thing,
    Value,
    each,
    inside,
    is_none,
    plain,
    role,
    things,
)

SHARED_OTHERWISE = ("parallelize_module", "init_device_mesh", "DeviceMesh", "pipeline")


def is_split(t: Machine) -> bool:
    """Whether ranks share a model in another way than by copies: some of them need the same data."""
    return any(name in t.named for name in SHARED_OTHERWISE) or bool(managing(t))


def loaders_of(t: Machine, sampler: Thing) -> list[Thing]:
    loaders = []
    for event in t.named["DataLoader"]:
        for name, place in (("sampler", 3), ("batch_sampler", 4)):
            given = event.call.get(name, place)
            if isinstance(event.of, Thing) and any(
                choice is sampler or samples(choice, sampler) for choice in each(given)
            ):
                loaders.append(event.of)
    return loaders


def samples(batches: Value, sampler: Thing) -> bool:
    """Whether a batch sampler of the script was made with a sampler."""
    return (
        isinstance(batches, Thing)
        and batches.call is not None
        and any(choice is sampler for given in batches.call.given() for choice in each(given))
    )


def goes_through(t: Machine, loader: Thing) -> list[Event]:
    return [event for event in t.named["iterate"] if event.of is loader]


def trained_on(t: Machine, event: Event) -> bool:
    """Whether a loader that is gone through there is trained on."""
    own = [loop for loop in event.loops if is_over(loop.over, event.of)] or list(event.loops[-1:])
    if any(trains(t, loop.node) for loop in own):
        return True
    return any(is_over(loop.over, event.of) for backward in t.named["backward"] for loop in backward.loops)


def training_rounds(t: Machine, event: Event) -> bool:
    """Whether it is, more than once."""
    if not trained_on(t, event):
        return False
    outer = event.loops[:-1] if event.loops and is_over(event.loops[-1].over, event.of) else event.loops
    return any(is_many(loop.over) for loop in outer)


def is_over(over: Value | None, loader: Value | None) -> bool:
    """Whether a loop goes through that loader, perhaps counted or shown."""
    for choice in each(over):
        if choice is loader or any(part is loader for part in choice.note("loaders") or ()):
            return True
        inner = [choice.inner] if isinstance(choice, Thing) and choice.kind in ("enumerate", "iter") else []
        inner += choice.call.args if isinstance(choice, Thing) and choice.kind == "zip" else []
        if any(is_over(part, loader) for part in inner):
            return True
    return False


def is_many(over: Value | None) -> bool:
    if isinstance(over, Thing) and over.kind == "range":
        return plain(over.call.args[-1] if over.call.args else None) != 1
    return True


@rule("RC201", "wrong", "08", (4, 8))
def sampler(t: Machine) -> Answers:
    """Has each rank its own part of the data? Else all train on the same images, N times for nothing.

    Wrong:
        loader = DataLoader(data, shuffle=True)
    Right:
        sampler = DistributedSampler(data)
        loader = DataLoader(data, sampler=sampler)
    """
    if is_managed(t) or is_split(t) or not t.together:
        return
    for event in t.named["DataLoader"]:
        loader = event.of
        assert isinstance(loader, Thing)
        used = [use for use in goes_through(t, loader) if trained_on(t, use)]
        if not used or not everyone(t, event):
            continue
        given = event.call.get("sampler", 3)
        whole_batches = "batch_size" in event.call.keywords and is_none(event.call.get("batch_size"))
        if not is_none(event.call.get("batch_sampler", 4)) or not takes_all(given) or event.call.more:
            continue
        if whole_batches or not t.named["optimizer.step"] + t.named["scaler.step"]:
            continue
        if things(given, "other sampler") and t.seeds.get("torch") == "differs":
            continue  # each rank draws in an order of its own, on purpose
        data = event.call.get("dataset", 0)
        if not is_whole(data) and not is_by_index(event, data):
            if data is not None and data.note("unread"):
                yield Unasked(f"the data set is made by {data.note('unread')}")
            continue
        yield at(event, "each rank gets all the data: pass sampler=DistributedSampler(...)")


def takes_all(given: Value | None) -> bool:
    if given is None:
        return True
    return all(
        is_none(choice)
        or isinstance(choice, Thing)
        and choice.kind == "other sampler"
        and not choice.vary & DIFFERS
        for choice in each(given)
    ) and not any(isinstance(choice, Thing) and choice.kind == "sampler" for choice in each(given))


def is_by_index(event: Event, data: Value | None) -> bool:
    """Whether a data set that is not read is shuffled by its loader, so that it is no part and no stream."""
    shuffles = plain(event.call.get("shuffle", 2)) is True or bool(
        things(event.call.get("sampler", 3), "other sampler")
    )
    if data is None or not shuffles or data.vary & DIFFERS:
        return False
    return all(bool(dataset.note("unread")) for dataset in each(data))


def is_whole(data: Value | None) -> bool:
    """Whether a data set is known to be the same on all ranks, and to be taken by index."""
    if data is None or data.vary & (DIFFERS | UNKNOWN):
        return False
    for dataset in each(data):
        if not isinstance(dataset, Thing) or dataset.kind not in ("dataset", "instance", "subset"):
            return False
        if dataset.made is not None and names_ranks(dataset.made.body):
            return False
        if (
            dataset.kind == "instance"
            and dataset.made is not None
            and not any("__getitem__" in part.frame.locals for part in dataset.made.family())
        ):
            return False
    return True


def names_ranks(body: ast.AST) -> bool:
    words = {getattr(node, "id", getattr(node, "attr", getattr(node, "arg", ""))) for node in ast.walk(body)}
    return any(
        isinstance(word, str) and ("rank" in word or "world" in word or "replica" in word) for word in words
    )


@rule("RC202", "wrong", "08", (13, 13))
def share(t: Machine) -> Answers:
    """Do the samplers of all ranks agree? Else their parts overlap, and some images are never seen.

    Wrong:
        DistributedSampler(data, world_size, rank=local_rank)
    Right:
        DistributedSampler(data, world_size, rank=rank)
    """
    for event in t.named["sampler"]:
        rank, seed = event.call.get("rank", 2), event.call.get("seed", 4)
        if is_local(t, rank, event.call.get("num_replicas", 1)):
            yield at(event, "its rank is a local rank: the second machine gets the images of the first")
        elif rank is not None and is_split_rank(t, event):
            yield at(
                event,
                "its rank is the global one, though ranks of one tensor-parallel group need the same data",
            )
        if seed is not None and seed.vary & DIFFERS:
            yield at(
                event, "its seed depends on the rank: each rank deals from another order, and parts overlap"
            )
    for event in t.named["random shard"]:
        yield at(event, "each rank takes its part of an order of its own: shuffle with one seed for all")


def is_local(t: Machine, rank: Value | None, world: Value | None) -> bool:
    """Whether a rank is that of one machine, though the number of ranks is that of all machines."""
    if role(rank) == "index":
        factors = world.note("factors") or () if world is not None else ()
        return any(number.key in factors for number in t.spawned)
    return role(rank) in ("local rank", "remainder") and role(world) != "local world"


def is_split_rank(t: Machine, event: Event) -> bool:
    return "parallelize_module" in t.named and role(event.call.get("rank", 2)) == "rank"


@rule("RC203", "wrong", "08")
def shuffle(t: Machine) -> Answers:
    """Is it the sampler that shuffles? Else the loader, told twice, ends with a ValueError.

    Wrong:
        DataLoader(data, sampler=sampler, shuffle=True)
    Right:
        DataLoader(data, sampler=sampler)
    """
    for event in t.named["DataLoader"]:
        given = event.call.get("sampler", 3)
        if (
            plain(event.call.get("shuffle", 2)) is True
            and things(given, "sampler", "other sampler")
            and not any(is_none(choice) for choice in each(given))
        ):
            yield at(event, "shuffle=True beside a sampler: leave it out, the sampler shuffles")


@rule("RC204", "wrong", "08", (36, 40))
def epoch(t: Machine) -> Answers:
    """Does the sampler hear of each epoch? Else the order of the first one repeats for ever.

    Wrong:
        for epoch in range(epochs):
            for batch in loader: ...
    Right:
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for batch in loader: ...
    """
    told = t.named["set_epoch"]
    for event in t.named["sampler"]:
        sampler = event.of
        assert isinstance(sampler, Thing)
        if plain(event.call.get("shuffle", 3)) is False or event.again:
            continue
        loaders = loaders_of(t, sampler)
        rounds = [use for loader in loaders for use in goes_through(t, loader) if not loader.note("managed")]
        rounds = [use for use in rounds if training_rounds(t, use)]
        if not rounds:
            continue
        mine = [call for call in told if tells(call, sampler, loaders)]
        if any(call.loops and not isinstance(call.result, Const) for call in mine):
            continue
        if mine:
            yield at(mine[0], "the sampler is told the same number in each epoch, so the same order repeats")
        elif any(loop.node in epochs_of(rounds) for loop in event.loops):
            yield Unasked("each epoch has a data set and a sampler of its own")
        elif escaped(sampler, *loaders):
            yield Unasked(f"the sampler is handed to {escaped(sampler, *loaders)}")
        else:
            yield at(event, "call sampler.set_epoch(epoch) at the start of each epoch")


def epochs_of(rounds: list[Event]) -> set[ast.AST]:
    """The loops around those that go through the batches."""
    return {loop.node for event in rounds for loop in event.loops if not is_over(loop.over, event.of)}


def tells(event: Event, sampler: Thing, loaders: list[Thing]) -> bool:
    known = [thing for thing in each(event.of) if isinstance(thing, Thing)] if event.of is not None else []
    return not known or any(
        thing is sampler or thing in loaders or samples(thing, sampler) for thing in known
    )


@rule("RC205", "wrong", "11", (2, 2))
def resumed(t: Machine) -> Answers:
    """Does the sampler go on with the epoch of the checkpoint? Else a resumed run repeats its orders.

    Wrong:
        for count, epoch in enumerate(range(first, epochs)):
            sampler.set_epoch(count)
    Right:
        for epoch in range(first, epochs):
            sampler.set_epoch(epoch)
    """
    for event in t.named["set_epoch"]:
        number = event.result
        if number is None or number.vary & (SAVED | UNKNOWN) or isinstance(number, Const):
            continue
        for loop in event.loops:
            if loop.over is not None and is_resumed(loop.over) and (number.vary & ROUND):
                yield at(
                    event,
                    "after a resume this counts from 0 again, though the epochs go on: pass the epoch itself",
                )
                break


def is_resumed(over: Value) -> bool:
    for choice in each(over):
        if isinstance(choice, Thing) and choice.kind == "range":
            if choice.call.args and (
                choice.call.args[0].note("rest")
                or len(choice.call.args) > 1
                and choice.call.args[0].vary & SAVED
            ):
                return True
        elif isinstance(choice, Thing) and choice.kind == "enumerate" and choice.inner is not None:
            if is_resumed(choice.inner):
                return True
        elif not isinstance(choice, Thing) and choice.vary & SAVED and choice.test is not None:
            return True
    return False


@rule("RC206", "wrong", "10", (43, 53))
def seeds(t: Machine) -> Answers:
    """Has each rank its own random numbers? Else all ranks and their workers augment alike.

    Copies of a model get the parameters of rank 0, so ranks may differ. A model that is sharded or split is
    initialized in parts: there all ranks need the same seed, and nothing is asked.

    Wrong:
        torch.manual_seed(seed)
        ddp = DDP(model)
    Right:
        torch.manual_seed(seed + rank)
        ddp = DDP(model)
    """
    for event in t.named["DataLoader"] if is_together(t) else ():
        loader = event.of
        assert loader is not None
        for seed in loader.note("seeds") or ():
            if seed.of is not None and not seed.of.vary & (DIFFERS | UNKNOWN):
                yield Found(
                    seed.node,
                    seed.frame.source,
                    "worker k of each rank gets the same seed: add the rank, or use torch.initial_seed()",
                )
        generator = event.call.get("generator")
        if (
            things(generator, "generator")
            and generator is not None
            and not generator.vary & (DIFFERS | UNKNOWN)
        ):
            workers = event.call.get("num_workers", 5)
            if (
                workers is not None
                and plain(workers) != 0
                and things(event.call.get("sampler", 3), "sampler")
            ):
                yield at(event, "its generator has the same seed on each rank, and so have the workers")
    if is_managed(t) or is_split(t) or "fully_shard" in t.named or "fsdp" in t.named or "ddp" not in t.named:
        return
    draws = [draw for draw in t.named["draw"] if not (in_worker(draw) and are_workers_apart(t))]
    if not any((is_layer(draw) or is_step(t, draw)) for draw in draws):
        return
    seeded = [
        seed for seed in t.named["seed"] if seed.of is not None and everyone(t, seed) and not is_none(seed.of)
    ]
    ours = [seed for seed in seeded if is_of_torch(seed)]
    if (
        ours
        and t.seeds.get("torch") == "same"
        and not any(seed.of is not None and seed.of.vary & (DIFFERS | UNKNOWN) for seed in ours)
    ):
        yield at(
            ours[0],
            "all ranks draw the same random numbers: add the rank to the seed once the model is built",
        )


def are_workers_apart(t: Machine) -> bool:
    """Whether a worker_init_fn gives the workers of each rank seeds of their own."""
    seeds = [seed for event in t.named["DataLoader"] if event.of for seed in event.of.note("seeds") or ()]
    return any(seed.of.vary & DIFFERS for seed in seeds if is_of_torch(seed) and seed.of)


def in_worker(draw: Event) -> bool:
    return draw.result is not None and draw.result.name == "worker"


def is_of_torch(seed: Event) -> bool:
    return seed.result is not None and seed.result.name in ("torch", "all")


def is_layer(draw: Event) -> bool:
    """Dropout, or a transform that augments: used in each step."""
    return draw.of is None


def is_step(t: Machine, draw: Event) -> bool:
    """Whether torch draws there, in the loop that trains."""
    of_torch = draw.result is not None and draw.result.name == "torch"
    trained = of_torch and t_has_grad(draw) and any(trains(t, loop.node) for loop in draw.loops)
    return trained and everyone(t, draw)


@rule("RC207", "wrong", "10", (1, 1))
def split(t: Machine) -> Answers:
    """Is data split alike on all ranks? Else one rank trains on what another one tests.

    Wrong:
        torch.manual_seed(seed + rank)
        train, test = random_split(data, [0.9, 0.1])
    Right:
        train, test = random_split(data, [0.9, 0.1], torch.Generator().manual_seed(seed))
    """
    for event in t.named["random_split"]:
        if not everyone(t, event) or not is_together(t) or event.result is None:
            continue
        if event.result.name == "differs":
            yield at(event, "random_split after a seed that differs by rank: each rank splits in another way")
        elif event.result.name == "none" and not t.unread_seed():
            yield at(event, "random_split without a seed: each rank splits the data in another way")
        elif event.result.name == "none":
            yield Unasked("a function that is not read may set the seed")


@rule("RC208", "wrong", "08", (44, 44))
def download(t: Machine) -> Answers:
    """Does one rank download, and do the others wait? Else files are written twice, or read too early.

    Wrong:
        data = CIFAR10(root, download=True)
    Right:
        if local_rank == 0:
            CIFAR10(root, download=True)
        dist.barrier()
        data = CIFAR10(root)
    """
    if not is_together(t):
        return
    fetched: list[Event] = []
    meetings = [meeting for meeting in t.events if meeting.meets and meeting.name != "init_process_group"]
    in_order = [meeting.number for meeting in meetings if who(t, meeting) in ("others", "one", "local one")]
    for event in t.named["dataset"]:
        fetches = plain(event.call.get("download")) is True
        kinds = who(t, event)
        earlier = [other for other in fetched if same_data(other, event)]
        between = bool(earlier) and any(
            earlier[0].number < meeting.number < event.number for meeting in meetings
        )
        ordered = bool(in_order) and in_order[0] < event.number
        if fetches and kinds == "all" and not ordered and not between:
            text = "every rank downloads: let one of each machine do it, and the others wait at a barrier"
            yield at(event, text)
        elif not fetches and kinds == "all" and earlier and not between and event.frame is earlier[0].frame:
            text = "the other ranks may read before the one that downloads is done: let all wait at a barrier"
            yield at(event, text)
        if fetches and kinds in ("one", "local one"):
            fetched.append(event)


def same_data(first: Event, second: Event) -> bool:
    one, other = first.of, second.of
    return (
        isinstance(one, Thing)
        and isinstance(other, Thing)
        and one.inner is not None
        and other.inner is not None
        and one.inner.name == other.inner.name
    )


@rule("RC209", "wrong", "07", (7, 23), by_default=False)
def reduce(t: Machine) -> Answers:
    """Are the counts of all ranks joined? Else rank 0 reports the accuracy of its own part.

    Wrong:
        correct += (scores.argmax(1) == y).sum()
        print(correct / total)
    Right:
        dist.all_reduce(correct)
        dist.all_reduce(total)
        print(correct / total)
    """
    if is_managed(t):
        return
    for event in t.named["say"]:
        if who(t, event) not in ("one", "local one", "all"):
            continue
        told = [part for argument in event.call.given() for part in inside(argument)]
        own = [part for part in told if is_measured_alone(part)]
        files = things(event.of, "file")
        given = [*event.call.given(), *(part for file in files for part in file.call.given())]
        says_who = any(argument.vary & RANK for argument in given)
        if own and not says_who and not any(is_data(loop.over) for loop in event.loops):
            yield at(
                event, "this was measured on the part of one rank: all_reduce its sums and counts before"
            )


def is_measured_alone(value: Value) -> bool:
    """Whether it is an evaluation of one rank's part, and no loss of the training."""
    measured = value.vary & MEASURED and value.vary & OWN and not value.vary & (UNKNOWN | RANK)
    return bool(measured) and not any(forward.grad for forward in value.src)


def is_data(over: Value | None) -> bool:
    """Whether a loop goes through batches."""
    for choice in each(over):
        if isinstance(choice, Thing) and (
            choice.kind in ("loader",)
            or choice.kind in ("enumerate", "iter", "zip")
            and (is_data(choice.inner) or any(map(is_data, choice.call.args)))
        ):
            return True
        if choice.vary & OWN:
            return True
    return False


@rule("RC210", "wrong", "12", (0, 1), by_default=False)
def mean(t: Machine) -> Answers:
    """Are sums and counts joined, not means? Else a rank with few items counts as much as others.

    Wrong:
        mean = loss_sum / tokens
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    Right:
        dist.all_reduce(loss_sum)
        dist.all_reduce(tokens)
        mean = loss_sum / tokens
    """
    for event in [
        call for name in ("all_reduce", "reduce", "all_gather", "gather") for call in t.named[name]
    ]:
        sent = event.result.vary if event.result is not None else 0
        if sent & DIVIDED and not sent & UNKNOWN:
            text = "a mean of means: ranks have unequal numbers of items, so join the sums and the counts"
            yield at(event, text)


@rule("RC211", "style", "07")
def once(t: Machine) -> Answers:
    """Does each test image count once? Else DistributedSampler repeats some, to give each rank as many.

    Wrong:
        DataLoader(test, sampler=DistributedSampler(test))
    Right:
        DataLoader(Subset(test, range(rank, len(test), world_size)))
    """
    for event in t.named["sampler"]:
        sampler = event.of
        assert isinstance(sampler, Thing)
        if plain(event.call.get("drop_last", 5)) is True:
            continue
        used = [use for loader in loaders_of(t, sampler) for use in goes_through(t, loader)]
        if (
            used
            and not any(trained_on(t, use) for use in used)
            and any(other.name == "forward" and not t_has_grad(other) for other in t.events)
        ):
            yield at(event, "it pads the test set: give each rank range(rank, len(data), world_size)")


def t_has_grad(event: Event) -> bool:
    return not any(
        (
            context.inner.name
            if isinstance(context, Thing) and isinstance(context.inner, Lib)
            else context.name
        )
        in ("no_grad", "inference_mode")
        for context in event.contexts
    )


RULES = (sampler, share, shuffle, epoch, resumed, seeds, split, download, reduce, mean, once)
