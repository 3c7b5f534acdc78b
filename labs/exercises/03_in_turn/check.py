"""Check of exercise 03. Run it: torchrun --standalone --nproc-per-node=4 CHECK.py"""

import contextlib
import io
import os
import time
from collections.abc import Callable, Iterator
from types import ModuleType

import torch
import torch.distributed as dist

from shared.comm.record import CommRecord, record
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

COLLECTIVES = (
    *("barrier", "monitored_barrier", "all_reduce", "reduce", "broadcast", "scatter", "gather", "all_gather"),
    *("all_to_all", "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("send_object_list", "recv_object_list"),
)
HEAD_START_S = 2.0  # at most so long does a rank wait before it begins


class Stage(io.StringIO):
    """A stdout that numbers the lines of all ranks as they come: the store counts, no clock is asked."""

    def __init__(self, store: dist.Store, log: CommRecord) -> None:
        super().__init__()
        self.store = store
        self.log = log
        self.lines: list[tuple[int, str, int]] = []

    def write(self, text: str) -> int:
        for line in text.splitlines():
            if line.strip():
                self.lines.append((self.store.add("lines", 1), line.strip(), self.log.count("send")))
        return len(text)


@contextlib.contextmanager
def forbid(names: tuple[str, ...]) -> Iterator[None]:
    """Let the functions of torch.distributed with these names complain when they are called."""

    def complaint(name: str) -> Callable:
        def function(*args, **kwargs):
            raise Wrong(f"dist.{name} was called; allowed are send and recv")

        return function

    originals = {name: getattr(dist, name) for name in names}
    try:
        for name in names:
            setattr(dist, name, complaint(name))
        yield
    finally:
        for name, function in originals.items():
            setattr(dist, name, function)


def verify(answer: ModuleType, group: Group) -> str:
    rank, n = group.rank, group.world_size
    texts = [f"[rank {r}] my turn" for r in range(n)]
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store = dist.PrefixStore("exercise 03", store)
    with record() as log:
        stage = Stage(store, log)
        token = torch.zeros(1, device=group.device)
        dist.barrier()
        # Without a token the order is 0, n - 1, ..., 1: each waits for the line before its own.
        place, end = (n - rank) % n, time.monotonic() + HEAD_START_S
        while store.add("lines", 0) < place and time.monotonic() < end:
            time.sleep(0.01)
        with contextlib.redirect_stdout(stage), forbid(COLLECTIVES):
            answer.print_in_turn(texts[rank], token)
    ranks: list[dict] = [{}] * n
    dist.all_gather_object(ranks, {"lines": stage.lines, "to": [call.peer for call in log.of("send")]})

    lines = sorted((*line, printer) for printer, seen in enumerate(ranks) for line in seen["lines"])
    messages = sum(len(seen["to"]) for seen in ranks)
    owners = [texts.index(text) if text in texts else None for _, text, _, _ in lines]
    for owner in range(n):
        if owners.count(owner) != 1:
            times = "missing" if owner not in owners else "printed more than once"
            raise Wrong(f"the line of rank {owner} is {times}")
    if None in owners:
        raise Wrong(f"{lines[owners.index(None)][1]!r} was printed; print text and nothing else")
    early = [printer for _, _, sent_before, printer in lines if sent_before]
    if early and ranks[min(early)]["to"] == [min(early) + 1]:
        raise Wrong(f"rank {min(early)} handed the token on before it had printed")
    if owners != list(range(n)):
        raise Wrong(f"the lines came in the order of ranks {owners}; {messages} messages were sent")
    for owner, (_, _, _, printer) in zip(owners, lines, strict=True):
        if printer != owner:
            raise Wrong(f"rank {printer} printed the line of rank {owner}; each rank prints its own")
    if messages != n - 1:
        raise Wrong(f"the lines are in order, but {messages} messages were sent; {n - 1} are enough")
    return f"{n} line{'s' * (n != 1)} in rank order, {messages} message{'s' * (messages != 1)}. Well done."


if __name__ == "__main__":
    check_exercise("03_in_turn", verify)
