"""Messages on paper: each rank of a ring sends to the right and receives from the left, by calls that block.

A message is delivered when its sender is in ``send`` and its receiver is in ``recv``. All messages that are
delivered at the same time are a round.
"""

Call = tuple[str, int]  # send or recv, and the other rank


def calls_of(rank: int, n: int, sends_first: bool) -> list[Call]:
    """What a rank does, in order."""
    calls = [("send", (rank + 1) % n), ("recv", (rank - 1) % n)]
    return calls if sends_first else calls[::-1]


def meetings(waiting: list[list[Call]]) -> list[tuple[int, int]]:
    """(sender, receiver) of each message whose two ranks are in their call now."""
    now = [calls[0] if calls else ("nothing", -1) for calls in waiting]
    return [(rank, to) for rank, (what, to) in enumerate(now) if what == "send" and now[to] == ("recv", rank)]


def deliver(sends_first: list[bool]) -> tuple[list[list[dict]], int]:
    """Return (the events of each rank, with rounds as time; how many rounds), until nothing moves.

    ``sends_first[rank]`` says which call a rank makes first. A rank with fewer than two events is stuck.
    """
    n = len(sends_first)
    waiting = [calls_of(rank, n, first) for rank, first in enumerate(sends_first)]
    events: list[list[dict]] = [[] for _ in range(n)]
    rounds = 0
    while pairs := meetings(waiting):
        rounds += 1
        for rank in (member for pair in pairs for member in pair):
            what, peer = waiting[rank].pop(0)
            begin = events[rank][-1]["end"] if events[rank] else 0
            events[rank].append({"what": what, "peer": peer, "begin": begin, "end": rounds})
    return events, rounds
