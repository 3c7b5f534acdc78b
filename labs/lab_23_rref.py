"""An RRef keeps an object alive on its owner until the last user lets go.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_23_rref.py
Written by:  notebooks/23_rpc.ipynb (edit it there)
"""

import gc
import time
import weakref
from dataclasses import dataclass

import torch
from torch.distributed import rpc

from shared.comm.rpc import rpc_workers
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    rows: int = 4
    patience_s: float = 10.0  # how long the message that deletes may take


ALIVE = weakref.WeakSet()  # tables made in this process that something still refers to
KEPT: list[rpc.RRef] = []


class Table:
    """Numbers that live in one process: ``rows`` is float64 (rows,)."""

    def __init__(self, rows: int) -> None:
        self.rows = torch.zeros(rows, dtype=torch.float64)
        ALIVE.add(self)

    def add(self, row: int, value: float) -> list[float]:
        self.rows[row] += value
        return self.rows.tolist()


def alive() -> int:
    gc.collect()
    return len(ALIVE)


def keep(table: rpc.RRef) -> bool:
    """Hold on to a reference that another worker passes on. Returns whether the table lives here."""
    KEPT.append(table)
    return table.is_owner()


def let_go() -> None:
    KEPT.clear()


def use(owner: str, keeper: str, cfg: Config) -> list[tuple[str, int]]:
    """Make a table on ``owner``, use it from here, pass it to ``keeper``. Returns (event, tables alive)."""
    events = [("before", rpc.rpc_sync(owner, alive))]
    table = rpc.remote(owner, Table, args=(cfg.rows,))  # the table stays there, we hold a reference
    print(f"is worker0 the owner? {table.is_owner()}; the owner is {table.owner_name()}")
    print(f"add() on the owner: {table.rpc_sync().add(2, 1.5)}")

    copy = table.to_here()
    copy.rows[0] = 99.0
    unchanged = table.rpc_sync().add(3, 0.0)
    print(f"our copy: {copy.rows.tolist()}, the owner's: {unchanged}")
    assert unchanged == [0.0, 0.0, 1.5, 0.0]
    try:
        table.local_value()
    except RuntimeError as error:
        text = str(error)
        at = text.index("can't call")
        print(f"local_value(): {text[at:]}")
    else:
        raise CourseError("local_value() worked on a user")

    events.append(("worker0 made it", rpc.rpc_sync(owner, alive)))
    here = rpc.rpc_sync(keeper, keep, args=(table,))
    print(f"{keeper} keeps a reference too, as {'the owner' if here else 'another user'}")
    events.append((f"{keeper} keeps it", rpc.rpc_sync(owner, alive)))
    return events


def wait_for(count: int, owner: str, cfg: Config) -> int:
    """Ask the owner until ``count`` tables are alive there: that nobody needs one arrives as a message."""
    end = time.monotonic() + cfg.patience_s
    while (current := rpc.rpc_sync(owner, alive)) != count:
        if time.monotonic() > end:
            raise CourseError(f"{current} tables are alive on {owner}, expected {count}")
    return current


def main(cfg: Config) -> None:
    with process_group(smallest=2) as group, rpc_workers(group) as workers:
        owner = workers[1]
        keeper = workers[-1]
        events = []
        if group.rank == 0:
            events = use(owner, keeper, cfg)  # what we held is gone when it returns
            time.sleep(0.5)  # time enough for a deletion, were there one
            events.append(("worker0 let go", rpc.rpc_sync(owner, alive)))
            rpc.rpc_sync(keeper, let_go)
            events.append((f"{keeper} let go", wait_for(0, owner, cfg)))
            if [count for _, count in events] != [0, 1, 1, 1, 0]:
                raise CourseError(f"tables alive: {events}")
        for event, count in events:
            print_on_rank_0(f"{event:17} tables alive on {owner}: {count}")


if __name__ == "__main__":
    run(main, Config())
