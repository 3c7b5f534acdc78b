"""Three ranks count what they send, and find the one that differs. The results are recorded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from shared.comm.traffic import count_sent, wire_bytes
from shared.runtime.errors import ParityError
from shared.runtime.group import Group, process_group
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.parity import assert_same_on_every_rank

SMALL, LARGE = 1000, 1_000_000  # elements of float32


def pass_on(group: Group, numel: int, send: Callable) -> None:
    """Send ``numel`` elements to the right neighbour and take as many from the left."""
    right, left = (group.rank + 1) % group.world_size, (group.rank - 1) % group.world_size
    send(torch.ones(numel), torch.empty(numel), right, left)


def by_isend(outgoing: torch.Tensor, incoming: torch.Tensor, right: int, left: int) -> None:
    work = dist.isend(outgoing, right)
    dist.recv(incoming, left)
    work.wait()


def by_send(outgoing: torch.Tensor, incoming: torch.Tensor, right: int, left: int) -> None:
    steps = [lambda: dist.send(outgoing, dst=right), lambda: dist.recv(incoming, left)]
    for step in steps if dist.get_rank() else reversed(steps):  # rank 0 receives first: no deadlock
        step()


def by_batch(outgoing: torch.Tensor, incoming: torch.Tensor, right: int, left: int) -> None:
    operations = [dist.P2POp(dist.isend, outgoing, right), dist.P2POp(dist.irecv, incoming, left)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


@contextmanager
def on_the_wire(found: dict, name: str) -> Iterator[None]:
    before = wire_bytes()
    yield
    dist.barrier()
    if before is not None:
        found[name] = wire_bytes() - before


def differing(group: Group) -> str:
    """What every rank is told when rank 2 holds another value in the last bit."""
    tensor = torch.ones(3)
    if group.rank == 2:
        tensor[1] = torch.nextafter(tensor[1], torch.tensor(2.0))
    try:
        assert_same_on_every_rank("planted", [("same", torch.zeros(2)), ("other", tensor)])
    except ParityError as error:
        return str(error)
    return "nothing"


def main() -> None:
    with process_group() as group:
        found: dict = {}
        before = dist.isend
        for send in (by_isend, by_send, by_batch):
            with count_sent() as sent:
                pass_on(group, SMALL, send)
            found[send.__name__] = sent.messages
        with count_sent() as sent:
            dist.all_reduce(torch.ones(SMALL))
        found["all_reduce"] = sent.messages
        assert dist.isend is before, "the functions are put back"
        with on_the_wire(found, "wire of isend"):
            pass_on(group, LARGE, by_isend)
        with on_the_wire(found, "wire of all_reduce"):
            dist.all_reduce(torch.ones(LARGE))
        assert_same_on_every_rank("equal", [("ones", torch.ones(3))])
        found["differing"] = differing(group)
        record_results("traffic_and_parity", found)


if __name__ == "__main__":
    run(main)
