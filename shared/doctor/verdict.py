"""The words: what keeps the ranks from getting on, in three lines."""

from dataclasses import dataclass

from .calls import DEFAULT, KINDS, MISSING, Difference, differences
from .ranks import Call, Rank

NOT_SEEN = (
    "All ranks have made the same calls so far. Two calls of one kind and shape that are swapped on a rank "
    "look the same here."
)
STACKS_ALONE = (
    "py-spy sees stacks, not calls. To learn which call is missing, start the job by rank-doctor -- COMMAND."
)


@dataclass(frozen=True)
class Verdict:
    """``lines``: three of them. ``hangs``: False if a rank still computes and may come."""

    kind: str
    lines: tuple[str, str, str]
    hangs: bool = True

    def __str__(self) -> str:
        return "\n".join(f"  {line}" for line in self.lines)


def verdict(ranks: dict[int, Rank], world_size: int) -> Verdict:
    """What holds the ranks up. ``world_size``: how many there should be on this machine, as far as known."""
    found = differences(ranks, world_size)
    if found and found[0].what != MISSING:
        return other_calls(found[0], ranks)
    crossed = two_groups(found, ranks)
    if crossed is not None:
        return crossed
    if found:
        return missing_ranks(found[0], ranks)
    messages = {number: rank.message for number, rank in ranks.items() if rank.message}
    if messages:
        return open_messages(messages, ranks)
    absent = [number for number in range(world_size) if number not in ranks]
    return without_calls(ranks, absent)


def other_calls(one: Difference, ranks: dict[int, Rank]) -> Verdict:
    """The call with one number differs by rank in kind or in shape."""
    of_kinds: dict[str, list[int]] = {}
    for rank, call in sorted(one.made.items()):
        key = call.kind if one.what == KINDS else call.shape
        of_kinds.setdefault(key, []).append(rank)
    said = " and ".join(f"{key} on {names(members)}" for key, members in of_kinds.items())
    if one.what == KINDS:
        first = f"Not the same call: number {one.number} of {group_words(one.group)} is {said}."
    else:
        kind = next(iter(one.made.values())).kind
        first = f"Not the same shape: {kind}, call {one.number} of {group_words(one.group)}, has {said}."
    groups = list(of_kinds.values())[:2]
    lines = [f"{names(members).capitalize()}: {place_of(one, members[0], ranks)}" for members in groups]
    return Verdict(one.what, (first, lines[0], lines[1]))


def missing_ranks(one: Difference, ranks: dict[int, Rank]) -> Verdict:
    call = one.made[one.waiting[0]]
    is_or_are = "is" if len(one.missing) == 1 else "are"
    shape = f" of {call.shape}" if call.shape else ""
    first = (
        f"{names(one.missing).capitalize()} {is_or_are} missing in {call.kind}{shape}, "
        f"call {one.number} of {group_words(one.group)}."
    )
    wait = "waits" if len(one.waiting) == 1 else "wait"
    second = f"{names(one.waiting).capitalize()} {wait} there: {place_of(one, one.waiting[0], ranks)}"
    kinds = [whereabouts(number, ranks) for number in one.missing]
    third = "; ".join(dict.fromkeys(text for _, text in kinds))
    hangs = not all(kind == "computes" for kind, _ in kinds)
    return Verdict(kinds[0][0], (first, second, third), hangs)


def whereabouts(number: int, ranks: dict[int, Rank]) -> tuple[str, str]:
    """(kind of absence, what a rank does that is missing)."""
    who = f"Rank {number}"
    if number not in ranks:
        return "never came", f"{who} has never come: no process here says that it is rank {number}."
    rank = ranks[number]
    if rank.state == "gone":
        return "died", f"{who} is dead: its process has gone without a word, as by a signal or os._exit."
    if rank.state == "failed":
        return "failed", f"{who} has failed: {rank.error}, at {rank.place}"
    if rank.state == "ended":
        return "ended", f"{who} has ended: it has come to the end of its script."
    if rank.state == "stopped":
        return "stopped", f"{who} is stopped by a signal; kill -CONT {rank.pid} lets it go on."
    if rank.state == "silent":
        return (
            "silent",
            f"{who} does not answer: a function in C holds the interpreter. Last seen: {rank.place}",
        )
    if rank.open_calls:
        call = rank.open_calls[-1]
        return (
            "waits",
            f"{who} waits elsewhere, in {call.kind} of {group_words_of(call)}: {place_at(rank, call)}",
        )
    if rank.waits_in:
        return "waits", f"{who} waits in {rank.waits_in}: {rank.place}"
    if rank.busy:
        return "computes", f"{who} computes, so it may come: {rank.place}"
    return "elsewhere", f"{who} is elsewhere: {rank.place}"


def two_groups(found: list[Difference], ranks: dict[int, Rank]) -> Verdict | None:
    """Two ranks wait for each other, each in another group."""
    for one in found:
        for other in found:
            if (
                one is not other
                and set(one.waiting) & set(other.missing)
                and set(other.waiting) & set(one.missing)
            ):
                waits_in_one = sorted(set(one.waiting) & set(other.missing))
                waits_in_other = sorted(set(other.waiting) & set(one.missing))
                first = (
                    f"{names(waits_in_one).capitalize()} and {names(waits_in_other)} wait for each other: "
                    "each is in another group."
                )
                lines = []
                for side, members in ((one, waits_in_one), (other, waits_in_other)):
                    call = side.made[members[0]]
                    place = place_of(side, members[0], ranks)
                    lines.append(
                        f"{names(members).capitalize()}: {call.kind} of {group_words(side.group)}: {place}"
                    )
                return Verdict("groups", (first, lines[0], lines[1]))
    return None


def open_messages(messages: dict[int, tuple[str, int | None]], ranks: dict[int, Rank]) -> Verdict:
    """Ranks that send or receive, and nobody does the opposite."""
    number, (kind, peer) = min(messages.items())
    lines = [f"Rank {one} is in {ranks[one].waits_in}: {ranks[one].place}" for one in sorted(messages)]
    if peer in messages and messages[peer][0] == kind:
        opposite = "receives" if kind == "send" else "sends"
        first = f"{names(sorted((number, peer))).capitalize()} are both in {kind}, and neither {opposite}."
        return Verdict(kind, (first, lines[0], lines[1]))
    first = f"Rank {number} waits in {ranks[number].waits_in}, and nobody does the opposite."
    if peer is None or peer == number:
        third = "; ".join(whereabouts(other, ranks)[1] for other in ranks if other != number)
        return Verdict(kind, (first, lines[0], third))
    absence, third = whereabouts(peer, ranks)
    return Verdict(kind, (first, lines[0], third), hangs=absence != "computes")


def without_calls(ranks: dict[int, Rank], absent: list[int]) -> Verdict:
    """No call of the flight recorder is open: the stacks are all there is."""
    waiting = {number: rank for number, rank in ranks.items() if rank.waits_in and rank.state == "alive"}
    if waiting:
        number, rank = next(iter(waiting.items()))
        same = [other for other, one in waiting.items() if one.waits_in == rank.waits_in]
        wait = "waits" if len(same) == 1 else "wait"
        first = f"{names(same).capitalize()} {wait} in {rank.waits_in}."
        second = f"Rank {number} is there: {rank.place}"
        others = [other for other in [*ranks, *absent] if other not in same]
        if not others:
            return Verdict("waits", (first, second, "All ranks of this machine are there." + more(rank)))
        kinds = [whereabouts(other, ranks) for other in others]
        hangs = not all(kind == "computes" for kind, _ in kinds)
        return Verdict(kinds[0][0], (first, second, "; ".join(text for _, text in kinds)), hangs)
    knows_calls = all(rank.knows_calls for rank in ranks.values())
    first = "No rank waits in a call of torch.distributed."
    if not knows_calls:
        first = "No stack is in a function of torch.distributed; a backward of DDP may wait unseen."
    places: dict[str, list[int]] = {}
    for number in [*ranks, *absent]:
        text = whereabouts(number, ranks)[1].removeprefix(f"Rank {number} ").removeprefix("is elsewhere: ")
        places.setdefault(text, []).append(number)
    second = "; ".join(
        f"{names(members).capitalize()}: {said_of(members, text)}" for text, members in places.items()
    )
    return Verdict("outside", (first, second, NOT_SEEN if knows_calls else STACKS_ALONE))


def said_of(members: list[int], text: str) -> str:
    """What is said of one rank, said of several."""
    return text if len(members) == 1 else text.replace("computes, so it may", "compute, so they may")


def more(rank: Rank) -> str:
    """Whether there are ranks that we cannot see."""
    if rank.world_size > 1:
        return f" WORLD_SIZE is {rank.world_size}."
    return ""


def place_of(one: Difference, number: int, ranks: dict[int, Rank]) -> str:
    return place_at(ranks[number], one.made[number])


def place_at(rank: Rank, call: Call) -> str:
    """Where a rank made a call. The stack knows the text of the line, if the rank is still there."""
    if call.place is None:
        return "its line is not known" if rank.place is None else str(rank.place)
    if rank.place and (rank.place.file, rank.place.line) == (call.place.file, call.place.line):
        return str(rank.place)
    return str(call.place)


def group_words(group: str) -> str:
    return "the default group" if group == DEFAULT else f"group {group}"


def group_words_of(call: Call) -> str:
    return group_words(DEFAULT if call.group_name == DEFAULT else call.group)


def names(numbers: list[int]) -> str:
    """``rank 0``, ``ranks 0 and 2``, ``ranks 0, 1 and 2``."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    *head, last = map(str, numbers)
    return f"ranks {', '.join(head)} and {last}"
