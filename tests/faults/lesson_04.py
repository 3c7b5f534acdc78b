"""Planted faults of lesson 04; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "04_collectives",
        "dist.all_reduce(x, group=group)",
        "dist.all_reduce(x, op=dist.ReduceOp.MAX, group=group)",
        "all_reduce leaves [20, 21]",
    ),
    Fault("04_collectives", "+ torch.arange(n)", "+ torch.arange(n + 1)", "3 numbers do not divide into 2"),
    Fault(
        "04_collectives",
        "dist.scatter(piece, pieces, group_src=0, group=group)",
        "dist.scatter(piece, pieces[::-1], group_src=0, group=group)",
        "scatter leaves",
        run="04_before_after",
    ),
    Fault(
        "04_before_after", "    dist.barrier()\n    after", "    after", "a rank left the barrier when 1 of 2"
    ),
    Fault("04_by_hand", "received.chunk(n)", "received.flip(0).chunk(n)", "all_to_all"),
    Fault("04_by_hand", "dist.send(x, ranks[me + 1])", "dist.send(x * 2, ranks[me + 1])", "broadcast"),
    Fault(  # the leftovers of a reduce are no result
        "04_identities",
        '("all_reduce", ("reduce", "broadcast"))',
        '("all_reduce", ("reduce", "nothing"))',
        "all_reduce is not ('reduce', 'nothing')",
    ),
    Fault(
        "04_identities",
        "scattered = scatter_objects(one_for_each, group)",
        "scattered = scatter_objects(one_for_each[::-1], group)",
        "scattered by hand",
    ),
    Fault(
        "04_identities",
        "list(x.split(len(piece)))",
        "list(x.split(len(piece)))[::-1]",
        "reduce_scatter is not reduce_scatter_single",
    ),
    Fault(
        "04_groups",
        "    if group.rank > 0:\n        store.add",
        "    work.wait()\n    if group.rank > 0:\n        store.add",
        "the calls of the other ranks wait for rank 0",
    ),
    Fault(
        "04_groups",
        "torch.full((sum(to_send),), rank, device",
        "torch.full((sum(to_send),), 0, device",
        "arrived, expected is",
    ),
    Fault(
        "04_groups",
        "dist.all_reduce(x, op=dist.ReduceOp.AVG)",
        "dist.all_reduce(x, op=dist.ReduceOp.SUM)",
        "the mean of 0 to 1 is 0.5",
    ),
    Fault(
        "04_mispaired",
        "names if group.rank == 0 else names[::-1]",
        "names",
        "the sums are right: nothing was mispaired",
    ),
]
