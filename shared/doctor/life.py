"""Signs of life: processor time and bytes, of a rank's process and of those below it."""

from .ranks import BUSY, MOVES, nearest_rank

Use = dict[
    str, tuple[float, int]
]  # {where the numbers come from: (processor seconds, bytes), since it began}
ANSWERED, SEEN, SOCKETS = "answered", "seen", "sockets"
COMPUTING, MOVING = "computes", "reads or writes"


def use_of(answers: list[dict]) -> dict[int, Use]:
    """{process: what it has used}, of all processes of the job that live."""
    found: dict[int, Use] = {}
    for said in answers:
        if said["alive"]:
            found[said["pid"]] = {SEEN: tuple(said["use"])}
            if said["answered"]:
                found[said["pid"]][ANSWERED] = (said["cpu_s"], said["moved"])
            if said["answered"] and "sockets" in said:
                found[said["pid"]][SOCKETS] = (0.0, said["sockets"])
        for pid, _, cpu_s, moved in said["children"]:
            found[pid] = {SEEN: (cpu_s, moved)}
    return found


def activity(now: Use, before: Use, seconds: float) -> str:
    """What a process has done in this time. What it says itself leaves the doctor's own thread out."""
    source = ANSWERED if ANSWERED in now and ANSWERED in before else SEEN
    cpu_s = now[source][0] - before[source][0] if source in before else 0.0
    moved = 0
    for one in (source, SOCKETS):
        if one in now and one in before:
            moved += abs(now[one][1] - before[one][1])
    if cpu_s > BUSY * seconds:
        return COMPUTING
    return MOVING if moved > MOVES * seconds else ""


def life(answers: list[dict], rank_pids: set[int], now: dict, before: dict, seconds: float) -> dict[int, str]:
    """{process of a rank: by what it shows life}; a rank without any sign is not in it."""
    found: dict[int, str] = {}
    for said in answers:
        rank = said["pid"] if said["pid"] in rank_pids else nearest_rank(said, rank_pids)
        if rank is None:
            continue
        for pid in [said["pid"], *(child[0] for child in said["children"])]:
            does = activity(now[pid], before[pid], seconds) if pid in now and pid in before else ""
            if does and pid == rank:
                found[rank] = does
            elif does:
                found.setdefault(rank, f"waits for a process of its own, which {does}")
    return found
