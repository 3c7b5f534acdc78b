"""The words: who waits for whom, who is awaited and waits for nobody, and what that one does instead."""

import re
import signal
from dataclasses import dataclass, field, replace

from .calls import DEFAULT, KINDS, MISSING, SHAPES, STUCK, Difference, differences
from .ranks import FOR_ALL, Call, Place, Rank

NOT_SEEN = (
    "All ranks have made the same calls so far. Two calls of one kind and shape that are swapped on a rank "
    "look the same here."
)
STACKS_ALONE = (
    "py-spy sees stacks, not calls. To learn which call is missing, start the job by rank-doctor -- COMMAND."
)
ROOTS = ("src", "group_src", "dst", "group_dst")


@dataclass(frozen=True)
class Verdict:
    """``may_move``: a rank works, or waits for a person. ``is_proof``: nobody is left to come."""

    kind: str
    lines: tuple[str, ...]
    may_move: bool = False
    is_proof: bool = False

    def __str__(self) -> str:
        return "\n".join(f"  {line}" for line in self.lines)


@dataclass(frozen=True)
class Wait:
    """What a rank waits in, and for which ranks."""

    rank: int
    what: str
    place: str
    awaited: tuple[int, ...]
    difference: Difference | None = None
    is_message: bool = False

    def line(self) -> str:
        return f"Rank {self.rank} waits in {self.what}: {self.place}"


@dataclass
class Job:
    """All ranks that are seen, and what follows from their calls and stacks."""

    ranks: dict[int, Rank]
    world_size: int
    found: list[Difference] = field(default_factory=list)
    waits: dict[int, Wait] = field(default_factory=dict)

    @property
    def unseen(self) -> list[int]:
        return [number for number in range(self.world_size) if number not in self.ranks]

    def roots(self) -> list[int]:
        """Those that are awaited, by way of others too, and wait for nobody."""
        awaited = {number for wait in self.waits.values() for number in wait.awaited}
        return sorted(awaited - self.waits.keys())

    def is_proof(self) -> bool:
        """Whether every rank is seen, and none of them is free to come."""
        return not self.unseen and all(
            not rank.works and (rank.is_dead or (number in self.waits and rank.state == "alive"))
            for number, rank in self.ranks.items()
        )


def verdict(ranks: dict[int, Rank], world_size: int) -> Verdict:
    """What holds the ranks up. ``world_size``: how many there should be, as far as known."""
    found = cause(ranks, world_size)
    handled = [
        f"Rank {number} handles an exception: {rank.handles}"
        for number, rank in ranks.items()
        if rank.handles
    ]
    return replace(found, lines=(*found.lines, *handled))


def cause(ranks: dict[int, Rank], world_size: int) -> Verdict:
    job = Job(ranks, world_size, differences(ranks, world_size))
    job.waits = waits_of(job)
    roots = job.roots()
    dead = [number for number in roots if number in ranks and ranks[number].is_dead]
    if dead:
        return missing_ranks(job, dead)
    if job.found and job.found[0].what in (KINDS, SHAPES):
        return other_calls(job.found[0], job)
    seen = [number for number in roots if number in ranks]
    if seen:
        return missing_ranks(job, seen)
    if not roots and any(wait.awaited for wait in job.waits.values()):
        return circle(job)
    if roots:
        return missing_ranks(job, roots)
    if job.found and job.found[0].what == STUCK:
        return all_in_one_call(job.found[0], job)
    return without_calls(job)


def waits_of(job: Job) -> dict[int, Wait]:
    """{rank: what it waits in}, for all that wait in something of torch.distributed and are alive."""
    waits: dict[int, Wait] = {}
    for problem in job.found:
        if problem.what == MISSING:
            for number in problem.waiting:
                what = call_words(problem.made[number], problem)
                place = place_of(problem, number, job.ranks)
                waits.setdefault(number, Wait(number, what, place, tuple(problem.missing), problem))
        elif problem.what in (KINDS, SHAPES):
            for number in problem.waiting:
                others = tuple(n for n in problem.made if n != number and n in problem.waiting)
                what, place = call_words(problem.made[number], problem), place_of(problem, number, job.ranks)
                waits.setdefault(number, Wait(number, what, place, others, problem))
    for number, rank in job.ranks.items():
        if rank.is_dead or rank.state == "stopped" or number in waits:
            continue
        peers = tuple(peer for _, peer in rank.messages if peer is not None)
        if rank.messages:
            waits[number] = Wait(number, rank.waits_in, str(rank.place), peers, None, True)
        elif rank.waits_in in FOR_ALL:
            others = tuple(
                other
                for other in range(job.world_size)
                if other not in job.ranks or job.ranks[other].waits_in != rank.waits_in
            )
            waits[number] = Wait(number, rank.waits_in, str(rank.place), others)
    return {number: wait for number, wait in waits.items() if not job.ranks[number].is_dead}


def missing_ranks(job: Job, roots: list[int]) -> Verdict:
    """``roots`` do not come: what waits for them, where they are, and who waits behind."""
    direct = [wait for wait in job.waits.values() if set(wait.awaited) & set(roots)]
    first_wait = direct[0]
    together = [wait.rank for wait in direct if wait.what == first_wait.what]
    unseen = [number for number in roots if number not in job.ranks]
    seen = [number for number in roots if number in job.ranks]
    kinds = [whereabouts(number, job.ranks) for number in seen]
    may_come = any(kind in ("computes", "keyboard") for kind, _ in kinds)
    have = "has" if len(roots) == 1 else "have"
    are = "is" if len(roots) == 1 else "are"
    lines = []
    if first_wait.difference is not None and seen:
        missing = f"{have} not yet come to" if may_come else f"{are} missing in"
        lines.append(f"{names(roots).capitalize()} {missing} {first_wait.what}.")
        lines.append(f"{names(together).capitalize()} {wait_word(together)} there: {first_wait.place}")
    else:
        lines.append(f"{names(together).capitalize()} {wait_word(together)} in {first_wait.what}.")
        lines.append(f"{names(together[:1]).capitalize()} is there: {first_wait.place}")
    lines += dict.fromkeys(text for _, text in kinds)
    if unseen:
        lines.append(not_seen(unseen, job))
    lines += behind(job, together, roots)
    lines += [f"  {helper}" for number in seen for helper in job.ranks[number].helpers]
    is_dead = any(job.ranks[number].is_dead for number in seen)
    kind = kinds[0][0] if kinds else "not seen"
    return Verdict(kind, tuple(lines), may_come, is_dead and job.is_proof())


def not_seen(numbers: list[int], job: Job) -> str:
    here = {number for rank in job.ranks.values() for number in rank.on_this_machine}
    elsewhere = [number for number in numbers if here and number not in here]
    if elsewhere:
        are = "is" if len(elsewhere) == 1 else "are"
        only = names(sorted(job.ranks))
        return (
            f"{names(elsewhere).capitalize()} {are} on other machines and not seen from here. This doctor "
            f"sees {only} only: read what the doctors of the other machines say."
        )
    never = "has never come" if len(numbers) == 1 else "have never come"
    who = f"it is {names(numbers)}" if len(numbers) == 1 else f"it is one of {names(numbers)}"
    return f"{names(numbers).capitalize()} {never}: not seen, no process here says that {who}."


def behind(job: Job, told: list[int], roots: list[int]) -> list[str]:
    """The ranks that wait elsewhere, one line for each call."""
    groups: dict[tuple[str, str], list[int]] = {}
    for number, wait in job.waits.items():
        if number not in told and number not in roots:
            groups.setdefault((wait.what, wait.place), []).append(number)
    return [
        f"{names(members).capitalize()} {wait_word(members)} in {what}: {place}"
        for (what, place), members in groups.items()
    ]


def other_calls(difference: Difference, job: Job) -> Verdict:
    """The call with one number differs by rank in kind or in shape."""
    of_kinds: dict[str, list[int]] = {}
    for rank, call in sorted(difference.made.items()):
        key = call.kind if difference.what == KINDS else call.shape
        of_kinds.setdefault(key, []).append(rank)
    variants = " and ".join(f"{key} on {names(members)}" for key, members in of_kinds.items())
    if difference.what == KINDS:
        first = f"Not the same call: number {difference.number} of {group_words(difference)} is {variants}."
    else:
        kind = next(iter(difference.made.values())).kind
        group = group_words(difference)
        sizes = {re.sub(r"\w+\[", "[", call.shape) for call in difference.made.values()}
        what = "shape" if len(sizes) > 1 else "dtype"
        first = f"Not the same {what}: {kind}, call {difference.number} of {group}, has {variants}."
    lines = [first]
    for members in of_kinds.values():
        lines.append(f"{names(members).capitalize()}: {place_of(difference, members[0], job.ranks)}")
    absent = [whereabouts(number, job.ranks)[1] for number in difference.missing if number in job.ranks]
    works = any(rank.works for rank in job.ranks.values())
    return Verdict(difference.what, (*lines, *absent), works, job.is_proof())


def circle(job: Job) -> Verdict:
    """Ranks wait for each other; those that wait for them in turn come last."""
    members = min((cycle for number in job.waits if (cycle := way_back(number, job))), key=len)
    members = sorted(members)
    calls = {job.waits[member].what for member in members}
    messages = {member: job.ranks[member].messages for member in members if job.waits[member].is_message}
    first = f"{names(members).capitalize()} wait for each other."
    kind = "circle"
    if len(messages) == len(members) == 2 and all(len(ops) == 1 for ops in messages.values()):
        kinds = {ops[0][0].lstrip("i") for ops in messages.values()}
        if len(kinds) == 1:
            kind = kinds.pop()
            opposite = "receives" if kind == "send" else "sends"
            first = f"{names(members).capitalize()} are both in {kind}, and neither {opposite}."
    elif not messages and len(calls) > 1:
        kind = "groups"
        first = f"{names(members).capitalize()} wait for each other: each is in another call."
    by_call: dict[tuple[str, str], list[int]] = {}
    for member in sorted(members, key=lambda member: not job.waits[member].is_message):
        wait = job.waits[member]
        by_call.setdefault((wait.what, wait.place), []).append(member)
    lines = [first]
    for (what, place), some in by_call.items():
        lines.append(f"{names(some).capitalize()}: {what}: {place}")
    lines += unanswered(job)
    lines += behind(job, members, [])
    works = any(rank.works for rank in job.ranks.values())
    return Verdict(kind, tuple(lines), works, job.is_proof())


def way_back(number: int, job: Job) -> list[int]:
    """The shortest way from a rank over those that are awaited to itself; empty if there is none."""
    ways = [[number]]
    seen: set[int] = set()
    while ways:
        way = ways.pop(0)
        for other in job.waits[way[-1]].awaited:
            if other == number:
                return way
            if other in job.waits and other not in seen:
                seen.add(other)
                ways.append([*way, other])
    return []


def unanswered(job: Job) -> list[str]:
    """Receives for which the other rank, as far as its messages are known, has no send."""
    lines = []
    for number, rank in job.ranks.items():
        for kind, peer in rank.messages:
            if "recv" in kind and peer in job.waits:
                sends = [other for what, other in job.ranks[peer].messages if "send" in what]
                if number not in sends:
                    known = sorted(other for other in sends if other is not None)
                    instead = f" it sends to {names(known)}" if known else ""
                    lines.append(
                        f"Rank {number} receives from rank {peer}, which does not send to rank {number}"
                        + (f":{instead}." if instead else ".")
                    )
    return lines


def all_in_one_call(difference: Difference, job: Job) -> Verdict:
    """All members have made the call, with one shape, and it does not end."""
    call = next(iter(difference.made.values()))
    group = group_words(difference)
    first = f"All ranks of {group} are in {call.kind}, call {difference.number}, and it does not end."
    lines = [first]
    places: dict[str, list[int]] = {}
    for number in difference.made:
        place = place_of(difference, number, job.ranks) + arguments_words(job.ranks[number])
        places.setdefault(place, []).append(number)
    lines += [f"{names(members).capitalize()}: {place}" for place, members in places.items()]
    roots = {root for number in difference.made if (root := root_of(job.ranks[number])) is not None}
    if len(roots) > 1:
        lines.append("The ranks do not name the same root.")
    else:
        lines.append("Its arguments differ in what is not recorded, or the network does not carry it.")
    works = any(rank.works for rank in job.ranks.values())
    return Verdict(STUCK, tuple(lines), works, len(roots) > 1 and not works)


def root_of(rank: Rank) -> int | None:
    return next((rank.arguments[name] for name in ROOTS if name in rank.arguments), None)


def arguments_words(rank: Rank) -> str:
    given = [f"{name} = {value}" for name, value in rank.arguments.items() if name in ROOTS]
    return f" ({', '.join(given)})" if given else ""


def whereabouts(number: int, ranks: dict[int, Rank]) -> tuple[str, str]:
    """(kind of absence, what a rank does that is missing)."""
    who = f"Rank {number}"
    rank = ranks[number]
    if rank.state == "gone":
        return "died", f"{who} is dead: {how_it_died(rank)}.{last_seen(rank)}"
    if rank.state == "failed":
        stays = "" if rank.code is not None or rank.died is not None else stays_words(rank)
        return "failed", f"{who} has failed: {rank.error}, at {rank.place}{stays}"
    if rank.state == "ended":
        return "ended", f"{who} has ended: {how_it_ended(rank)}.{last_seen(rank)}"
    if rank.state == "stopped":
        return "stopped", f"{who} is stopped by a signal; kill -CONT {rank.pid} lets it go on."
    if rank.state == "silent":
        works = f" It {rank.works}." if rank.works else ""
        when = f"{rank.place_age:.1f} s ago" if rank.place_age else "at"
        words = f"{who} does not answer: a function in C holds the interpreter.{works}"
        words += f" Seen {when}: {rank.place}" if rank.place else ""
        return "computes" if rank.works else "silent", words
    if rank.keyboard:
        return "keyboard", keyboard_words(who, rank)
    if rank.works:
        return "computes", f"{who} {rank.works}, so it may come: {rank.place}"
    if rank.open_calls:
        call = rank.open_calls[-1]
        words = f"{who} waits elsewhere, in {call.kind} of {group_name(call, rank)}"
        return "waits", f"{words}: {place_at(rank, call)}"
    if rank.waits_in:
        return "waits", f"{who} waits in {rank.waits_in}: {rank.place}"
    return "elsewhere", f"{who} is elsewhere: {rank.place}"


def keyboard_words(who: str, rank: Rank) -> str:
    if rank.keyboard == "a debugger":
        by = rank.breakpoint or "as by breakpoint()"
        return f"{who} waits for the keyboard: a debugger has stopped it, {by}. It is at {rank.place}"
    return f"{who} waits for the keyboard, in {rank.keyboard}(): {rank.place}"


def stays_words(rank: Rank) -> str:
    return "; its process does not end" + (" because of other threads" if rank.helpers else "")


def how_it_died(rank: Rank) -> str:
    if rank.code is None:
        return "its process has gone without a word, as by a signal or os._exit"
    if rank.code < 0:
        return f"its process was ended by {signal_words(-rank.code)}"
    return f"its process has left with exit code {rank.code}, without Python's end, as by os._exit"


def how_it_ended(rank: Rank) -> str:
    if rank.code:
        return f"its script has left with exit code {rank.code}"
    return "it has come to the end of its script"


def last_seen(rank: Rank) -> str:
    """A moment before its end a rank was at this line; it may have been at later ones."""
    if rank.place is None:
        return ""
    when = f" {rank.place_age:.1f} s before" if rank.place_age else ""
    return f" Last seen{when}: {rank.place}"


def signal_words(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "a signal"
    hint: dict[int, str] = {
        signal.SIGKILL: ", as the kernel does when memory runs out",
        signal.SIGABRT: ", as gloo does when the shapes or the dtypes of a call differ",
        signal.SIGBUS: ", as when /dev/shm is full",
    }
    return f"{name} (exit code -{number}){hint.get(number, '')}"


def without_calls(job: Job) -> Verdict:
    """Nobody waits for a rank that is known: the stacks are all there is."""
    ranks = job.ranks
    waiting = {number: rank for number, rank in ranks.items() if rank.waits_in and not rank.is_dead}
    if waiting:
        number, rank = next(iter(waiting.items()))
        same = [other for other, other_rank in waiting.items() if other_rank.waits_in == rank.waits_in]
        lines = [
            f"{names(same).capitalize()} {wait_word(same)} in {rank.waits_in}.",
            f"Rank {number} is there: {rank.place}",
        ]
        others = [other for other in ranks if other not in same]
        kinds = [whereabouts(other, ranks) for other in others]
        lines += dict.fromkeys(text for _, text in kinds)
        lines += [not_seen(job.unseen, job)] if job.unseen else []
        if not others and not job.unseen:
            lines.append(f"All ranks are there. WORLD_SIZE is {job.world_size}.")
        lines += [f"  {helper}" for other in others for helper in ranks[other].helpers]
        works = any(kind in ("computes", "keyboard") for kind, _ in kinds)
        return Verdict(kinds[0][0] if kinds else "waits", tuple(lines), works)
    knows_calls = all(rank.knows_calls for rank in ranks.values())
    first = "No rank waits in a call of torch.distributed."
    if not knows_calls:
        first = "No stack is in a function of torch.distributed; a backward of DDP may wait unseen."
    places: dict[str, list[int]] = {}
    for number in ranks:
        text = whereabouts(number, ranks)[1].removeprefix(f"Rank {number} ").removeprefix("is elsewhere: ")
        places.setdefault(text, []).append(number)
    lines = [first]
    lines += [f"{names(members).capitalize()}: {text}" for text, members in places.items()]
    lines += [f"  rank {number}, {helper}" for number in ranks for helper in ranks[number].helpers]
    lines += [not_seen(job.unseen, job)] if job.unseen else []
    lines.append(NOT_SEEN if knows_calls else STACKS_ALONE)
    works = any(rank.works or rank.keyboard for rank in ranks.values())
    return Verdict("outside", tuple(lines), works)


def nobody(launchers: list[tuple[str, Place]]) -> Verdict:
    """No rank has come. ``launchers``: (functions, place) of the Python processes that are there."""
    lines = ["No rank has come so far."]
    for functions, place in launchers:
        if "next_rendezvous" in functions:
            lines.append("The launcher is at the rendezvous: fewer machines have come than --nnodes.")
        lines.append(f"A process of the job is at {place}")
    if not launchers:
        lines.append("No Python process of the job has answered.")
    return Verdict("nobody", tuple(dict.fromkeys(lines)))


def call_words(call: Call, difference: Difference) -> str:
    shape = f" of {call.shape}" if call.shape else ""
    return f"{call.kind}{shape}, call {difference.number} of {group_words(difference)}"


def place_of(difference: Difference, number: int, ranks: dict[int, Rank]) -> str:
    return place_at(ranks[number], difference.made[number])


def place_at(rank: Rank, call: Call) -> str:
    """Where a rank made a call. The stack knows the text of the line, if the rank is still there."""
    if call.place is None:
        return "its line is not known" if rank.place is None else str(rank.place)
    if rank.place and (rank.place.file, rank.place.line) == (call.place.file, call.place.line):
        return str(rank.place)
    return str(call.place)


def group_words(difference: Difference) -> str:
    if difference.group == DEFAULT:
        return "the default group"
    return f"group {difference.group} ({names(difference.members)})"


def group_name(call: Call, rank: Rank) -> str:
    members = rank.groups.get(call.group)
    who = f" ({names(sorted(members))})" if members else ""
    return "the default group" if call.group_name == DEFAULT else f"group {call.group}{who}"


def wait_word(numbers: list[int]) -> str:
    return "waits" if len(numbers) == 1 else "wait"


def names(numbers: list[int]) -> str:
    """``rank 0``, ``ranks 0 and 2``, ``ranks 0, 1 and 2``."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    *head, last = map(str, numbers)
    return f"ranks {', '.join(head)} and {last}"
