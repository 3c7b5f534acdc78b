"""The verdict on a job that does not move: what was found, in words."""

from dataclasses import dataclass

from .calls import detours
from .findings import Job, find
from .ranks import Place, Rank
from .words import detour_words, lines_of


@dataclass(frozen=True)
class Verdict:
    """``may_move`` and ``is_proof`` are those of the finding."""

    kind: str
    lines: tuple[str, ...]
    may_move: bool = False
    is_proof: bool = False

    def __str__(self) -> str:
        return "\n".join(f"  {line}" for line in self.lines)


def verdict(ranks: dict[int, Rank], world_size: int) -> Verdict:
    """What holds the ranks up. ``world_size``: how many there should be, as far as known."""
    job = Job(ranks, world_size)
    found = find(job)
    causes = [
        f"Rank {number} {thread}"
        for number, rank in ranks.items()
        if not rank.is_dead and not rank.works
        for thread in rank.dead_threads
    ]
    hints = [detour_words(detour, ranks) for detour in detours(ranks, world_size)]
    handled = [
        f"Rank {number} handles an exception: {rank.handles}"
        for number, rank in ranks.items()
        if rank.handles
    ]
    lines = (*causes, *lines_of(found, job), *hints, *handled)
    return Verdict(found.kind, lines, found.may_move, found.is_proof)


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
