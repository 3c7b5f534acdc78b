"""Three ranks do everything a group can do; what they record, and what the kernel counts, is written down."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial
from torch.nn.parallel import DistributedDataParallel

from shared.comm.kernel import wire_bytes
from shared.comm.record import CommRecord, record
from shared.runtime.errors import ParityError
from shared.runtime.group import Group, process_group
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.parity import assert_same_on_every_rank

NUMEL = 600_000  # elements of float32; divides by 3


def ways(group: Group) -> dict[str, Callable[[], object]]:
    """{name: a call of torch.distributed with NUMEL elements, or a third of them for each rank}."""
    n, rank = group.world_size, group.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    whole, other = torch.ones(NUMEL), torch.empty(NUMEL)
    part, parts = torch.ones(NUMEL // n), list(torch.ones(NUMEL).chunk(n))
    several = [torch.empty(NUMEL // n) for _ in range(n)]
    uneven = [NUMEL // 6 * (r + 1) for r in range(n)]  # rank r gets r + 1 shares from each
    mine = [uneven[rank]] * n

    def by_isend() -> None:
        work = dist.isend(whole, right)
        dist.recv(other, left)
        work.wait()

    def by_send() -> None:
        steps = [lambda: dist.send(whole, dst=right), lambda: dist.recv(other, left)]
        for step in steps if rank else reversed(steps):  # rank 0 receives first: no deadlock
            step()

    def by_batch() -> None:
        operations = [dist.P2POp(dist.isend, whole, right), dist.P2POp(dist.irecv, other, left)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return {
        "isend": by_isend,
        "send": by_send,
        "batch_isend_irecv": by_batch,
        "broadcast": lambda: dist.broadcast(whole, src=1),
        "all_reduce": lambda: dist.all_reduce(whole),
        "reduce": lambda: dist.reduce(whole, dst=2),
        "all_gather": lambda: dist.all_gather(several, part),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(other, part),
        "gather": lambda: dist.gather(part, several if rank == 0 else None, dst=0),
        "scatter": lambda: dist.scatter(part, parts if rank == 0 else None, src=0),
        "reduce_scatter": lambda: dist.reduce_scatter(part, parts),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_to_all_single": lambda: dist.all_to_all_single(other, whole),
        "all_to_all": lambda: dist.all_to_all(several, parts),
        "uneven all_to_all_single": lambda: dist.all_to_all_single(
            torch.empty(sum(mine)), torch.ones(sum(uneven)), mine, uneven
        ),
        "functional all_reduce": lambda: functional.wait_tensor(
            functional.all_reduce(whole, "sum", dist.group.WORLD)
        ),
        "barrier": dist.barrier,
    }


def both(call: Callable[[], object]) -> dict:
    """What this rank records of a call, and how many bytes it really sends meanwhile."""
    dist.barrier()
    before = wire_bytes()
    with record() as log:
        call()
    dist.barrier()
    after = wire_bytes()
    kernel = None if before is None or after is None else after - before
    return {"calls": seen(log), "by_rule": log.by_rule(), "kernel": kernel}


def seen(log: CommRecord) -> list:
    return [[call.op, call.bytes, list(call.ranks), call.peer] for call in log.calls]


def from_cpp(group: Group) -> dict[str, list]:
    """What DDP and FSDP begin in their hooks."""
    model = nn.Linear(10, 4, dtype=torch.float64)
    ddp = DistributedDataParallel(model)
    x = torch.ones(2, 10, dtype=torch.float64) * group.rank
    with record() as log:
        ddp(x).sum().backward()
    calls = {"DDP": seen(log)}
    with ddp.no_sync(), record() as log:
        ddp(x).sum().backward()
    calls["DDP, no_sync"] = seen(log)
    unit = fully_shard(nn.Linear(8, 3, bias=False))
    with record() as log:
        unit(torch.ones(2, 8)).sum().backward()
    calls["FSDP"] = seen(log)
    summand = DTensor.from_local(torch.ones(5), unit.weight.device_mesh, [Partial()])
    with record() as log:
        summand.relu()  # needs the sum: DTensor calls for it inside of the operation
    calls["DTensor"] = seen(log)
    return calls


def with_marks() -> list[str]:
    with record() as log:
        log.mark("first")
        dist.all_reduce(torch.ones(1))
        log.mark("second")
        dist.barrier()
    dist.all_reduce(torch.ones(1))  # the context has ended: it is not seen
    return log.order()


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
        results: dict = {name: both(call) for name, call in ways(group).items()}
        pair = dist.new_group([0, 2])
        with record() as log:
            if group.rank != 1:
                dist.broadcast(torch.ones(5), src=2, group=pair)
        results["of a pair"] = seen(log)
        with record() as log:
            dist.all_gather_object([None] * group.world_size, "text")
        results["object"] = [call.op for call in log.calls]
        results["hooks"] = from_cpp(group)
        results["marks"] = with_marks()
        assert_same_on_every_rank("equal", [("ones", torch.ones(3))])
        results["differing"] = differing(group)
        record_results("record_and_kernel", results)


if __name__ == "__main__":
    run(main)
