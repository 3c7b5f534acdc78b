"""Planted faults of lesson 04."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="04_collectives",
        old="dist.all_reduce(x, group=group)",
        new="dist.all_reduce(x, op=dist.ReduceOp.MAX, group=group)",
        told="all_reduce leaves [20, 21]",
    ),
    Fault(
        lab="04_collectives",
        old="return torch.cat(pieces)",
        new="return torch.cat(pieces).flatten()",
        told="gather of a matrix leaves",
        run="04_before_after",
    ),
    Fault(
        lab="04_before_after",
        old='words_before("all_gather_object", r, n)[0]',
        new='words_before("all_gather_object", 0, n)[0]',
        told="scatter_object_list leaves ['bb'] here, one process computes",
    ),
    Fault(
        lab="04_before_after",
        old="    dist.barrier()\n    after",
        new="    after",
        told="a rank left the barrier when 1 of 2",
    ),
    Fault(
        lab="04_by_hand",
        old="received.chunk(n)",
        new="received.flip(0).chunk(n)",
        told="all_to_all over ranks ",
    ),
    Fault(  # the leftovers of a reduce are no result
        lab="04_by_hand",
        old='("all_reduce", ("reduce", "broadcast"))',
        new='("all_reduce", ("reduce", "nothing"))',
        told="all_reduce is not ('reduce', 'nothing')",
    ),
    Fault(
        lab="04_groups",
        old="    if group.rank > 0:\n        store.add",
        new="    work.wait()\n    if group.rank > 0:\n        store.add",
        told="the calls of the other ranks wait for rank 0",
    ),
    Fault(
        lab="04_groups",
        old="torch.full((sum(to_send),), rank, device",
        new="torch.full((sum(to_send),), 0, device",
        told="arrived, expected is",
    ),
    Fault(
        lab="04_mispaired",
        old="names if group.rank == 0 else names[::-1]",
        new="names",
        told="the sums are right: nothing was mispaired",
    ),
]
