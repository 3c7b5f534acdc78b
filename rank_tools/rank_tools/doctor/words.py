"""The words: each finding as sentences for the reader."""

import re
import signal
from functools import singledispatch

from .calls import DEFAULT, KINDS, Detour, Difference, not_made
from .findings import ROOTS, Circle, Finding, InTorch, Job, Missing, OtherCall, Outside, Stuck, Wait
from .ranks import Call, Rank

NOT_SEEN = "All ranks have made the same calls so far, as far as kind, shape and line tell."
STACKS_ALONE = (
    "py-spy sees stacks, not calls. To learn which call is missing, start the job by rank-doctor -- COMMAND."
)


@singledispatch
def lines_of(finding: Finding, job: Job) -> list[str]:
    """The sentences of a finding; the first one says what it is."""
    raise NotImplementedError(type(finding))


@lines_of.register
def _(finding: Missing, job: Job) -> list[str]:
    """What waits for them, where they are, and who waits behind."""
    roots, together = finding.roots, finding.together
    seen = [job.ranks[number] for number in roots if number in job.ranks]
    unseen = [number for number in roots if number not in job.ranks]
    what, place, wait = what_words(finding.wait), where_words(finding.wait, job), wait_word(together)
    if finding.wait.difference is not None and seen:
        not_come = plural(roots, "has", "have") + " not yet come to"
        absent = not_come if finding.may_move else plural(roots, "is", "are") + " missing in"
        lines = [f"{who(roots)} {absent} {what}.", f"{who(together)} {wait} there: {place}"]
    else:
        lines = [f"{who(together)} {wait} in {what}.", f"{who(together[:1])} is there: {place}"]
    lines += dict.fromkeys(whereabouts(rank) for rank in seen)
    lines += [not_seen(unseen, job)] if unseen else []
    lines += behind(job, [*together, *roots])
    return [*lines, *(f"  {helper}" for rank in seen for helper in rank.helpers)]


def not_seen(numbers: list[int], job: Job) -> str:
    here = {number for rank in job.ranks.values() for number in rank.on_this_machine}
    elsewhere = [number for number in numbers if here and number not in here]
    if elsewhere:
        only = names(sorted(job.ranks))
        return (
            f"{who(elsewhere)} {plural(elsewhere, 'is', 'are')} on other machines and not seen from here. "
            f"This doctor sees {only} only: read what the doctors of the other machines say."
        )
    have, it_is = plural(numbers, "has", "have"), plural(numbers, "it is", "it is one of")
    return f"{who(numbers)} {have} never come: not seen, no process here says that {it_is} {names(numbers)}."


def behind(job: Job, told: list[int]) -> list[str]:
    """The ranks that wait elsewhere, one line for each call."""
    groups = by_call([wait for number, wait in job.waits.items() if number not in told], job)
    return [f"{who(some)} {wait_word(some)} in {what}" for what, some in groups.items()]


def by_call(waits: list[Wait], job: Job) -> dict[str, list[int]]:
    """{call and its line: the ranks that wait there}."""
    groups: dict[str, list[int]] = {}
    for wait in waits:
        groups.setdefault(f"{what_words(wait)}: {where_words(wait, job)}", []).append(wait.rank)
    return groups


@lines_of.register
def _(finding: OtherCall, job: Job) -> list[str]:
    difference = finding.difference
    group = group_words(difference)
    variants = " and ".join(f"{key} on {names(members)}" for key, members in finding.variants.items())
    if difference.what == KINDS:
        first = f"Not the same call: number {difference.number} of {group} is {variants}."
    else:
        kind = next(iter(difference.made.values())).kind
        sizes = {re.sub(r"\w+\[", "[", call.shape) for call in difference.made.values()}
        what = "shape" if len(sizes) > 1 else "dtype"
        first = f"Not the same {what}: {kind}, call {difference.number} of {group}, has {variants}."
    places = [f"{who(some)}: {place_of(difference, some[0], job)}" for some in finding.variants.values()]
    absent = [whereabouts(job.ranks[number]) for number in difference.missing if number in job.ranks]
    return [first, *places, *absent]


@lines_of.register
def _(finding: Circle, job: Job) -> list[str]:
    """Those that wait for them in turn come last."""
    members = finding.members
    first = f"{who(members)} wait for each other."
    if finding.kind == "groups":
        first = f"{who(members)} wait for each other: each is in another call."
    elif finding.kind != "circle":
        opposite = "receives" if finding.kind == "send" else "sends"
        first = f"{who(members)} are both in {finding.kind}, and neither {opposite}."
    waits = sorted((job.waits[member] for member in members), key=lambda wait: not wait.is_message)
    lines = [f"{who(some)}: {what}" for what, some in by_call(waits, job).items()]
    return [first, *lines, *unanswered(job), *behind(job, members)]


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


@lines_of.register
def _(finding: Stuck, job: Job) -> list[str]:
    difference = finding.difference
    kind, group = next(iter(difference.made.values())).kind, group_words(difference)
    places: dict[str, list[int]] = {}
    for number in difference.made:
        place = place_of(difference, number, job) + arguments_words(job.ranks[number])
        places.setdefault(place, []).append(number)
    last = "The ranks do not name the same root."
    if finding.is_one_root:
        last = "Its arguments differ in what is not recorded, or the network does not carry it."
    return [
        f"All ranks of {group} are in {kind}, call {difference.number}, and it does not end.",
        *(f"{who(members)}: {place}" for place, members in places.items()),
        last,
    ]


def detour_words(detour: Detour, ranks: dict[int, Rank]) -> str:
    """A hint: the same call from two lines."""
    group = "the default group" if detour.group == DEFAULT else f"group {detour.group}"
    early, late = (
        f"{place_at(ranks[number], call)} on rank {number}"
        for number, call in zip((detour.early, detour.late), detour.calls, strict=True)
    )
    what = f"A hint: call {detour.number} of {group} comes from two lines, {early} and {late}"
    if detour.swapped:
        return f"{what}, and the next call from the same two lines, the other way round: they are swapped."
    return (
        f"{what}: rank {detour.late} has left out the first of them, as after an exception that was caught."
    )


def arguments_words(rank: Rank) -> str:
    given = [f"{name} = {value}" for name, value in rank.arguments.items() if name in ROOTS]
    return f" ({', '.join(given)})" if given else ""


@lines_of.register
def _(finding: InTorch, job: Job) -> list[str]:
    same = finding.members
    rank = job.ranks[same[0]]
    others = [other for number, other in job.ranks.items() if number not in same]
    lines = [f"{who(same)} {wait_word(same)} in {rank.waits_in}.", f"{who(same[:1])} is there: {rank.place}"]
    lines += dict.fromkeys(map(whereabouts, others))
    lines += [not_seen(job.unseen, job)] if job.unseen else []
    if not others and not job.unseen:
        lines.append(f"All ranks are there. WORLD_SIZE is {job.world_size}.")
    return [*lines, *(f"  {helper}" for other in others for helper in other.helpers)]


@lines_of.register
def _(finding: Outside, job: Job) -> list[str]:
    knows_calls = all(rank.knows_calls for rank in job.ranks.values())
    first = "No rank waits in a call of torch.distributed."
    if not knows_calls:
        first = "No stack is in a function of torch.distributed; a backward of DDP may wait unseen."
    places: dict[str, list[int]] = {}
    for number, rank in job.ranks.items():
        text = whereabouts(rank).removeprefix(f"Rank {number} ").removeprefix("is elsewhere: ")
        places.setdefault(text, []).append(number)
    lines = [first, *(f"{who(members)}: {text}" for text, members in places.items())]
    lines += [f"  rank {number}, {helper}" for number, rank in job.ranks.items() for helper in rank.helpers]
    lines += [not_seen(job.unseen, job)] if job.unseen else []
    if not knows_calls:
        return [*lines, STACKS_ALONE]
    late = [not_made_words(one, job) for one in not_made(job.ranks, job.world_size)]
    return [*lines, *(late or [NOT_SEEN])]


def not_made_words(late: Difference, job: Job) -> str:
    """A call that ranks have not made, and that nobody waits in."""
    made = sorted(late.made)
    have = plural(late.missing, "has", "have")
    return (
        f"{who(late.missing)} {have} not made {call_words(late, made[0])}. "
        f"It has timed out on {names(made)}, or needs no other rank there: {place_of(late, made[0], job)}"
    )


def whereabouts(rank: Rank) -> str:
    """What a rank does that is missing; ``findings.absence`` has it in one word."""
    it = f"Rank {rank.rank}"
    if rank.state == "gone":
        return f"{it} is dead: {how_it_died(rank)}.{last_seen(rank)}"
    if rank.state == "failed":
        stays = "" if rank.code is not None or rank.died is not None else stays_words(rank)
        return f"{it} has failed: {rank.error}, at {rank.place}{stays}"
    if rank.state == "ended":
        return f"{it} has ended: {how_it_ended(rank)}.{last_seen(rank)}"
    if rank.state == "stopped":
        return f"{it} is stopped by a signal; kill -CONT {rank.pid} lets it go on."
    if rank.state == "silent":
        works = f" It {rank.works}." if rank.works else ""
        when = f"{rank.place_age:.1f} s ago" if rank.place_age else "at"
        words = f"{it} does not answer: a function in C holds the interpreter.{works}"
        words += f" Seen {when}: {rank.place}" if rank.place else ""
        return words
    if rank.keyboard:
        return keyboard_words(it, rank)
    if rank.works:
        return f"{it} {rank.works}, so it may come: {rank.place}"
    if rank.open_calls:
        call = rank.open_calls[-1]
        words = f"{it} waits elsewhere, in {call.kind} of {group_name(call, rank)}"
        return f"{words}: {place_at(rank, call)}"
    if rank.waits_in:
        return f"{it} waits in {rank.waits_in}: {rank.place}"
    return f"{it} is elsewhere: {rank.place}"


def keyboard_words(it: str, rank: Rank) -> str:
    if rank.keyboard == "a debugger":
        by = rank.breakpoint or "as by breakpoint()"
        return f"{it} waits for the keyboard: a debugger has stopped it, {by}. It is at {rank.place}"
    return f"{it} waits for the keyboard, in {rank.keyboard}(): {rank.place}"


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


def what_words(wait: Wait) -> str:
    difference = wait.difference
    if difference is None:
        return wait.waits_in
    return call_words(difference, wait.rank)


def call_words(difference: Difference, number: int) -> str:
    call = difference.made[number]
    shape = f" of {call.shape}" if call.shape else ""
    return f"{call.kind}{shape}, call {difference.number} of {group_words(difference)}"


def where_words(wait: Wait, job: Job) -> str:
    if wait.difference is None:
        return str(job.ranks[wait.rank].place)
    return place_of(wait.difference, wait.rank, job)


def place_of(difference: Difference, number: int, job: Job) -> str:
    return place_at(job.ranks[number], difference.made[number])


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
    return plural(numbers, "waits", "wait")


def plural(numbers: list[int], one: str, several: str) -> str:
    return one if len(numbers) == 1 else several


def who(numbers: list[int]) -> str:
    """The ranks at the beginning of a sentence."""
    return names(numbers).capitalize()


def names(numbers: list[int]) -> str:
    """``rank 0``, ``ranks 0 and 2``, ``ranks 0, 1 and 2``."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    *head, last = map(str, numbers)
    return f"ranks {', '.join(head)} and {last}"
