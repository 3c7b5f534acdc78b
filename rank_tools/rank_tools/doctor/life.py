"""Signs of life: processor time and bytes, of a rank's process and of those below it."""

from .answer import Answer
from .ranks import BUSY, MOVES, nearest_rank

Use = dict[
    str, tuple[float, int]
]  # {where the numbers come from: (processor seconds, bytes), since it began}
ANSWERED, SEEN, SOCKETS = "answered", "seen", "sockets"
COMPUTING, MOVING = "computes", "reads or writes"


def use_of(answers: list[Answer]) -> dict[int, Use]:
    """{process: what it has used}, of all processes of the job that live."""
    uses: dict[int, Use] = {}
    for answer in answers:
        if answer.alive:
            uses[answer.pid] = {SEEN: answer.use}
            if answer.answered:
                uses[answer.pid][ANSWERED] = (answer.cpu_s, answer.moved)
            if answer.answered and answer.sockets is not None:
                uses[answer.pid][SOCKETS] = (0.0, answer.sockets)
        for child in answer.children:
            uses[child.pid] = {SEEN: (child.cpu_s, child.moved)}
    return uses


def activity(now: Use, before: Use, seconds: float) -> str:
    """What a process has done in this time. What it says itself leaves the doctor's own thread out."""
    source = ANSWERED if ANSWERED in now and ANSWERED in before else SEEN
    cpu_s = now[source][0] - before[source][0] if source in before else 0.0
    moved = 0
    for key in (source, SOCKETS):
        if key in now and key in before:
            moved += abs(now[key][1] - before[key][1])
    if cpu_s > BUSY * seconds:
        return COMPUTING
    return MOVING if moved > MOVES * seconds else ""


def life(
    answers: list[Answer], rank_pids: set[int], now: dict, before: dict, seconds: float
) -> dict[int, str]:
    """{process of a rank: by what it shows life}; a rank without any sign is not in it."""
    signs: dict[int, str] = {}
    for answer in answers:
        rank = answer.pid if answer.pid in rank_pids else nearest_rank(answer, rank_pids)
        if rank is None:
            continue
        for pid in [answer.pid, *(child.pid for child in answer.children)]:
            does = activity(now[pid], before[pid], seconds) if pid in now and pid in before else ""
            if does and pid == rank:
                signs[rank] = does
            elif does:
                signs.setdefault(rank, f"waits for a process of its own, which {does}")
    return signs
