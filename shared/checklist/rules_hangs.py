"""Questions about meetings: do all ranks come to each?"""

import ast

from .conditions import Condition, Leaf, Some, apart, both, leaves, negate, simplify
from .library import OBJECT_COLLECTIVES
from .machine import Machine
from .objects import BUFFERS
from .rule import Answers, Found, at, call_in, everyone, in_turn, line, rule, ways
from .state import ALWAYS, Event, Guard
from .values import each, plain

NOT_WAITED = ("init_process_group",)


class Lonely:
    """A meeting to which not all ranks come: the condition that parts them."""

    def __init__(self, event: Event, guard: Guard, condition: Condition) -> None:
        self.event, self.guard, self.condition = event, guard, condition
        self.leaf = apart(condition)[0]
        self.kind = "own" if any(leaf.kind == "own" for leaf in apart(condition)) else "rank"
        key = next((leaf.key for leaf in leaves(condition) if leaf.kind == "own"), None)
        self.why = key[0] if isinstance(key, tuple) else ""  # "except", "uneven"

    @property
    def place(self) -> ast.AST:
        if self.guard.kind in ("exit", "loop"):
            return self.guard.node
        return call_in(self.event, self.guard.frame)

    @property
    def who(self) -> str:
        leaf = self.leaf
        if isinstance(self.condition, Leaf) or type(self.condition).__name__ == "All":
            if leaf.kind == "one" and isinstance(leaf.key, int):
                return f"only rank {leaf.key} comes" if leaf.positive else f"rank {leaf.key} does not come"
            if leaf.kind == "local one":
                return (
                    "only one rank of each machine comes"
                    if leaf.positive
                    else "one rank of each machine does not come"
                )
        return "only some ranks come"

    def what(self) -> str:
        """The meeting, and where it is if that is elsewhere."""
        place = self.place
        node = self.event.node
        if place is node or (
            line(place) == line(node) and self.guard.frame.source is self.event.frame.source
        ):
            return self.event.meets
        where = f"line {line(node)}"
        if self.guard.frame.source is not self.event.frame.source:
            where = self.event.frame.source.place(line(node))
        return f"{self.event.meets} in {where}"

    def found(self, text: str) -> Found:
        return Found(self.place, self.guard.frame.source, text)

    def missed(self) -> Found:
        """Who comes, by rank."""
        if self.guard.kind == "exit":
            return self.found(f"not all ranks leave here: {self.who} to {self.what()}")
        return self.found(f"{self.who} to {self.what()}; the others are waited for")


def lonely(t: Machine) -> list[Lonely]:
    """The meetings that some ranks miss, without those that the others come to elsewhere."""
    known = t.notes.get("lonely")
    if known is None:
        meetings: list[Lonely] = []
        for event in [] if forms_groups_anew(t) else t.events:
            if not event.meets or event.name in NOT_WAITED or in_turn(event):
                continue
            around = ways(t, event)
            if not around:
                continue
            meeting = Lonely(event, *around[0])
            if event.meets == BUFFERS and any(other.kind == "choice" for other in event.guards):
                continue  # an option says what is called, and that may be the model without its wrapper
            joins = meeting.guard.kind == "loop" and t.is_under("join", "Join", contexts=event.contexts)
            of_part = is_of_a_part(t, event) and meeting.leaf.kind == "some"
            if not joins and not of_part:
                meetings.append(meeting)
        meetings = [meeting for meeting in unmatched(meetings) if not is_vague(meeting)]
        known = t.notes["lonely"] = [
            meeting for meeting in meetings if not has_left(t, meeting) and not may_pass_by(meeting)
        ]
    return known


def has_left(t: Machine, one: Lonely) -> bool:
    """Whether the ranks that come have left the process group before."""
    return any(
        left.number < one.event.number and one.guard in left.guards
        for left in t.named["destroy_process_group"]
    )


def may_pass_by(one: Lonely) -> bool:
    """Whether a function that is called there asks something else before the meeting: none may come to it."""
    deeper = one.event.guards[one.event.guards.index(one.guard) + 1 :]
    return any(
        guard.frame is not one.guard.frame and not isinstance(simplify(guard.condition, ALWAYS), bool)
        for guard in deeper
    )


def forms_groups_anew(t: Machine) -> bool:
    """Whether ranks that are left form another group: then they agree by a store, outside of collectives."""
    asked = [join.call.get("enable_reconfigure") for join in t.named["init_process_group"]]
    return bool(t.named["shrink_group"]) or any(plain(value) is True for value in asked)


def is_vague(one: Lonely) -> bool:
    """Whether it is not clear who comes: an option may let all ranks come, ``if on_all or rank == 0:``."""
    questions = list(leaves(one.condition))
    if any(isinstance(leaf.key, tuple) and leaf.key[0] == "long" for leaf in questions) or len(questions) > 4:
        return True
    mixed = type(one.condition) is Some and any(leaf.kind == "option" for leaf in questions)
    return mixed and one.guard.kind != "exit"


def unmatched(found: list[Lonely]) -> list[Lonely]:
    """Those to which no other one is the mirror; each is the mirror of one at most."""
    left = list(range(len(found)))
    for near in (True, False):  # first those in one function
        for place in list(left):
            if place not in left:
                continue
            for other in left:
                same = found[place].guard.frame is found[other].guard.frame
                if other != place and same is near and is_mirror(found[place], found[other]):
                    left.remove(place)
                    left.remove(other)
                    break
    return [found[place] for place in left]


def is_of_a_part(t: Machine, event: Event) -> bool:
    """Whether a part of the ranks meets there: those of a mesh over which a model is sharded."""
    if event.name == "full_tensor" or event.of is None:
        return event.name == "full_tensor"
    models = [*(t.root(model) for model in each(event.of)), *(used.model for used in event.of.src)]
    return any(model.note("sharded") == "part" for model in models)


def is_mirror(one: Lonely, other: Lonely) -> bool:
    """Whether the ranks that miss one meeting come to the other: ``if rank == 0: f() else: f()``."""
    if one is other or one.event.name != other.event.name or one.guard.kind in ("loop", "except"):
        return False
    if one.guard.node is other.guard.node and one.guard.condition == negate(other.guard.condition):
        return True  # if and else, whatever is known on the way
    return one.condition == negate(other.condition) or both(one.condition, other.condition) is False


@rule("RC101", "hangs", "04", (6, 34))
def meet(t: Machine) -> Answers:
    """Do all ranks call each collective? Else those that do wait until the timeout.

    Wrong:
        if rank == 0:
            accuracy = evaluate(model)  # calls all_reduce
    Right:
        accuracy = evaluate(model)
        if rank == 0:
            print(accuracy)
    """
    for meeting in lonely(t):
        if is_named(meeting) and meeting.guard.kind in ("if", "choice"):
            yield meeting.missed()


@rule("RC102", "hangs", "12", (1, 2))
def quits(t: Machine) -> Answers:
    """Do all ranks leave a loop or a function together? Else the others wait in the next collective.

    Wrong:
        if rank != 0:
            return
        dist.barrier()
    Right:
        dist.barrier()
        if rank != 0:
            return
    """
    for meeting in lonely(t):
        if is_named(meeting) and meeting.guard.kind == "exit" and not may_exclude(meeting):
            yield meeting.missed()


def is_named(one: Lonely) -> bool:
    """Whether it is one number of a rank that parts the ranks, ``rank == 0``; one option may let all come."""
    kinds = [leaf.kind for leaf in leaves(one.condition)]
    asked = sorted(kind for kind in kinds if kind != "option")
    return asked in (["one"], ["local one"]) and (
        type(one.condition) is not Some or kinds.count("option") <= 1
    )


def may_exclude(one: Lonely) -> bool:
    """Whether ranks leave only with some option, and the meeting is only come to with another."""
    leaving = {leaf.key for leaf in leaves(one.condition) if leaf.kind == "option"}
    meeting = {
        leaf.key for guard in one.event.guards for leaf in leaves(guard.condition) if leaf.kind == "option"
    }
    return bool(leaving) and bool(meeting - leaving)


@rule("RC103", "hangs", "12", (15, 25))
def skip(t: Machine) -> Answers:
    """Do all ranks decide alike to leave, to skip or to meet? Else the others wait for those that do not.

    Wrong:
        loss = F.cross_entropy(ddp(x), y)
        if torch.isnan(loss):
            continue
        loss.backward()
    Right:
        bad = torch.isnan(loss).float()
        dist.all_reduce(bad)
        if bad.item():
            continue
    """
    told = set()
    for meeting in lonely(t):
        decision = (
            meeting.event.node,
            next((leaf.key for leaf in apart(meeting.condition) if leaf.kind == "own"), 0),
        )
        retries = isinstance(meeting.guard.node, ast.While)
        by_rank = any(leaf.kind == "some" for leaf in leaves(meeting.condition))
        if (
            meeting.kind == "own"
            and not meeting.why
            and meeting.guard.kind != "except"
            and not retries
            and not by_rank
            and decision not in told
        ):
            told.add(decision)
            text = "each rank decides by a value of its own"
            yield meeting.found(f"{text}; the others wait in {meeting.what()}")


@rule("RC104", "hangs", "13", (3, 7), by_default=False)
def error(t: Machine) -> Answers:
    """Does a rank that catches an error stop? Else it goes on alone, and the others wait for it.

    Wrong:
        try:
            ddp(x).sum().backward()
        except RuntimeError:
            continue
    Right:
        ddp(x).sum().backward()  # the job ends, and torchrun starts it again
    """
    for meeting in lonely(t):
        if meeting.why == "except":
            if meeting.guard.kind == "exit":
                yield meeting.found(
                    f"a rank with an error goes on from here; the others wait in {meeting.what()}"
                )
            else:
                yield meeting.found(f"only a rank with an error comes to {meeting.what()}")
    for event in t.named["goes on after an error"]:
        ends = [
            end for end in t.named["process ends"] if end.frame is event.frame and end.number > event.number
        ]
        if not ends and event.result is not None and not forms_groups_anew(t):
            yield at(
                event, f"a rank that catches an error here goes on; the others wait in {event.result.name}"
            )


@rule("RC105", "hangs", "12", (0, 2), by_default=False)
def uneven(t: Machine) -> Answers:
    """Has each rank as many batches as the others? Else the last ones wait for those that are done.

    Wrong:
        mine = Subset(data, range(rank, len(data), world_size))
    Right:
        length = len(data) // world_size * world_size
        mine = Subset(data, range(rank, length, world_size))
    """
    for meeting in lonely(t):
        if (
            meeting.why != "uneven"
            or not isinstance(meeting.guard.node, ast.For)
            or stops_early(t, meeting.guard.node)
        ):
            continue
        if not t.is_under("join", "Join", contexts=meeting.event.contexts):
            text = "ranks have parts of unequal length, so some go round once more than others"
            yield meeting.found(f"{text}; they wait in {meeting.what()}")


def stops_early(t: Machine, loop: ast.For) -> bool:
    """Whether a loop has a break of its own: then it may stop before the parts end."""
    return any(isinstance(node, ast.Break) for node in ast.walk(loop))


@rule("RC106", "hangs", "02")
def objects(t: Machine) -> Answers:
    """Has each rank chosen its GPU before nccl sends objects? Else all use GPU 0, and nccl fails or hangs.

    Wrong:
        dist.init_process_group("nccl")
        dist.all_gather_object(found, mine)
    Right:
        torch.cuda.set_device(local_rank)
        dist.init_process_group("nccl")
        dist.all_gather_object(found, mine)
    """
    joins = [join for join in t.named["init_process_group"] if is_nccl(join)]
    if not joins:
        return
    for event in t.events:
        if (
            event.name in OBJECT_COLLECTIVES
            and event.meets
            and not event.uncalled
            and not chooses_gpu(t, event, joins)
        ):
            yield at(
                event,
                f"{event.name} over nccl sends from the current GPU: call set_device(local_rank) before",
            )
            return


def is_nccl(join: Event) -> bool:
    backend = join.call.get("backend", 0)
    names = [plain(one) or plain(one.note("default")) for one in each(backend)] if backend is not None else []
    return any(isinstance(name, str) and "nccl" in name for name in names)


def chooses_gpu(t: Machine, event: Event, joins: list[Event]) -> bool:
    """Whether something before sets the current GPU, or code that is not read may do so."""
    if (
        event.call.get("device") is not None
        or event.call.get("group") is not None
        and t.is_part(event.call.get("group"))
    ):
        return True
    # `device_id` binds the group to a GPU, but objects are sent from the current one.
    before = [other for other in t.events if other.number < event.number]
    if any(
        other.name in ("set_device", "unread join", "accelerator", "fabric", "deepspeed") for other in before
    ):
        return True
    hides = any(
        other.name == "set item" and plain(other.call.args[1]) == "CUDA_VISIBLE_DEVICES" for other in before
    )
    return hides or any(
        any(word in name.lower() for word in ("dist", "init", "setup", "device", "launch", "env"))
        for name in t.unread
    )


@rule("RC107", "hangs", "03", (0, 1), by_default=False)
def both_send(t: Machine) -> Answers:
    """Does one of two ranks receive while the other sends? Else both wait for the other to receive.

    Wrong:
        dist.send(x, following)
        dist.recv(y, previous)
    Right:
        works = dist.batch_isend_irecv([P2POp(isend, x, following), P2POp(irecv, y, previous)])
        for work in works:
            work.wait()
    """
    for event in t.named["send"]:
        if not everyone(t, event) or not event.of:
            continue
        later = [recv for recv in t.named["recv"] if recv.number > event.number and recv.frame is event.frame]
        if later and everyone(t, later[0]):
            yield at(
                event,
                "all ranks send first and receive then: use batch_isend_irecv, or let some receive first",
            )


@rule("RC108", "hangs", "04", by_default=False)
def parted(t: Machine) -> Answers:
    """Do all ranks come where a condition on more than one rank's number decides? Else some wait.

    Wrong:
        if rank < world_size // 2:
            dist.barrier()
    Right:
        dist.barrier()
    """
    for meeting in lonely(t):
        if (
            meeting.kind == "rank"
            and meeting.guard.kind != "except"
            and not is_named(meeting)
            and not may_exclude(meeting)
        ):
            yield meeting.missed()


RULES = (meet, quits, skip, error, uneven, objects, both_send, parted)
