"""Check of exercise 03. Run it: torchrun --standalone --nproc-per-node=4 CHECK.py"""

import contextlib
import io
import os
import time
from dataclasses import dataclass
from types import ModuleType

import torch
import torch.distributed as dist

from shared.comm.record import CommRecord, record
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

HEAD_START_S = 2.0  # at most so long does a rank wait before it begins


class Stage(io.StringIO):
    """A stdout that numbers the lines of all ranks as they come: the store counts, no clock is asked."""

    def __init__(self, store: dist.Store, log: CommRecord) -> None:
        super().__init__()
        self.store = store
        self.log = log
        self.lines: list[tuple[int, str, int]] = []  # (number, text, messages that this rank had sent)

    def write(self, text: str) -> int:
        for line in text.splitlines():
            if line.strip():
                self.lines.append((self.store.add("lines", 1), line.strip(), self.log.count("send")))
        return len(text)


def lines_in_the_store() -> dist.Store:
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    return dist.PrefixStore("exercise 03", store)


def wait_for_my_start(store: dist.Store, group: Group) -> None:
    """Without a token the order is to be 0, n - 1, ..., 1: each rank begins after the line before its own."""
    place = -group.rank % group.world_size
    end = time.monotonic() + HEAD_START_S
    while store.add("lines", 0) < place and time.monotonic() < end:
        time.sleep(0.01)


def play(answer: ModuleType, group: Group, text: str) -> dict:
    """Let this rank take its turn; return the lines that it printed, and the ranks that it sent to."""
    store = lines_in_the_store()
    with record() as log:
        stage = Stage(store, log)
        token = torch.zeros(1, device=group.device)
        dist.barrier()
        before = len(log.calls)
        wait_for_my_start(store, group)
        try:
            with contextlib.redirect_stdout(stage):
                answer.print_in_turn(text, token)
        finally:
            for call in log.calls[before:]:
                if call.op not in ("send", "recv"):
                    raise Wrong(f"a {call.op} was called; allowed are send and recv")
    return {"lines": stage.lines, "to": [call.peer for call in log.of("send")]}


@dataclass(frozen=True)
class Line:
    """A line in the order of printing. ``owner`` is the rank whose text it is, None for another text."""

    number: int
    text: str
    owner: int | None
    printer: int
    sent_before: int  # messages that the printer had sent by then


def lines_of(ranks: list[dict], texts: list[str]) -> list[Line]:
    """All lines, in the order in which they came."""
    lines = []
    for printer, seen in enumerate(ranks):
        for number, text, sent_before in seen["lines"]:
            owner = texts.index(text) if text in texts else None
            lines.append(Line(number, text, owner, printer, sent_before))
    return sorted(lines, key=lambda line: line.number)


def text_problem(lines: list[Line], n: int) -> str | None:
    """Each text is to come once, and no other."""
    for line in lines:
        if line.owner is None:
            return f"{line.text!r} was printed; print text and nothing else"
    owners = [line.owner for line in lines]
    for owner in range(n):
        if owner not in owners:
            return f"the line of rank {owner} is missing"
        if owners.count(owner) > 1:
            return f"the line of rank {owner} was printed more than once"
    return None


def early_problem(lines: list[Line], to: list[list[int]]) -> str | None:
    """A rank is to print before it tells the next one."""
    early = [line.printer for line in lines if line.sent_before and to[line.printer] == [line.printer + 1]]
    return f"rank {min(early)} handed the token on before it had printed" if early else None


def order_problem(lines: list[Line], to: list[list[int]]) -> str | None:
    owners = [line.owner for line in lines]
    if owners == sorted(owners):
        return None
    messages = sum(len(ranks) for ranks in to)
    return f"the lines came in the order of ranks {owners}; {messages} messages were sent"


def printer_problem(lines: list[Line]) -> str | None:
    for line in lines:
        if line.printer != line.owner:
            return f"rank {line.printer} printed the line of rank {line.owner}; each rank prints its own"
    return None


def count_problem(to: list[list[int]]) -> str | None:
    n = len(to)
    messages = sum(len(ranks) for ranks in to)
    if messages > n - 1:
        return f"the lines are in order, but {messages} messages were sent; {n - 1} are enough"
    if messages < n - 1:
        return f"the lines are in order, but with {messages} messages that is luck; {n - 1} are needed"
    return None


def path_problem(to: list[list[int]]) -> str | None:
    """``to``: for each rank the ranks that it sent messages to.

    With n - 1 messages each rank but the first gets one, and may print only after the rank before it has. So
    nobody but that rank can send it.
    """
    for rank, ranks in enumerate(to):
        expected = [rank + 1] if rank + 1 < len(to) else []
        if ranks != expected:
            return (
                f"rank {rank} sent to {ranks}, expected {expected}: a rank may print when the rank before it "
                "has, and nobody else knows when that is; in another way the order is luck"
            )
    return None


def first_problem(lines: list[Line], to: list[list[int]]) -> str | None:
    problem = text_problem(lines, len(to)) or early_problem(lines, to)
    if problem:
        return problem
    if printer_problem(lines) is None and count_problem(to) is None:
        return path_problem(to) or order_problem(lines, to)  # the order may be right, by luck
    return order_problem(lines, to) or printer_problem(lines) or count_problem(to)


def verify(answer: ModuleType, group: Group) -> str:
    n = group.world_size
    texts = [f"[rank {r}] my turn" for r in range(n)]
    ranks: list[dict] = [{}] * n
    dist.all_gather_object(ranks, play(answer, group, texts[group.rank]))
    problem = first_problem(lines_of(ranks, texts), [seen["to"] for seen in ranks])
    if problem:
        raise Wrong(problem)
    return f"{n} line{'s' * (n != 1)} in rank order, {n - 1} message{'s' * (n != 2)}. Well done."


if __name__ == "__main__":
    check_exercise("03_in_turn", verify)
