"""Planted faults of lesson 03."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(  # the classical one: a rank of the job where one of the group is meant, right on two ranks
        lab="03_messages",
        old="other = dist.get_global_rank(pair, 1 - me)",
        new="other = 1 - me",
        told="of the group: [",
        ranks=3,
    ),
    Fault(
        lab="03_tags",
        old="((BIAS, 2.0), (WEIGHT, 1.0))",
        new="((WEIGHT, 2.0), (BIAS, 1.0))",
        told="AssertionError: tag 1 brought 1.0",
    ),
    Fault(
        lab="03_messages",
        old="mine = torch.full((3,), float(rank)",
        new="mine = torch.full((3,), float(right)",
        told="assert buffer.tolist() == [left, left, left]",
    ),
    Fault(
        lab="03_stuck",
        old="dist.send(mine, right, group=mail)",
        new="work = dist.isend(mine, right, group=mail)",
        told="there was no deadlock",
    ),
    Fault(lab="03_ring", old="held += mine", new="held -= mine", told="sum of ranks 0 to 1: differs by"),
    Fault(
        lab="03_in_flight",
        old="dist.isend(x.clone(), to",
        new="dist.isend(x, to",
        told="copied, 1 numbers: 2.0 arrived",
    ),
    Fault(  # the handle lives on
        lab="03_in_flight",
        old="    dist.isend(torch.full(",
        new="    lose_the_handle.kept = dist.isend(torch.full(",
        told="this call should have waited in vain, but it returned",
    ),
    Fault(
        lab="03_deadlock",
        old="in_two_calls(task, SEND_FIRST, begun)",
        new="in_two_calls(task, SEND_FIRST if task.right else RECEIVE_FIRST, begun)",
        told="expected a deadlock, but the messages arrived",
    ),
    Fault(
        lab="03_deadlock",
        old="dist.P2POp(dist.isend, task.outgoing,",
        new="dist.P2POp(dist.isend, task.incoming,",
        told="batch, send listed first: differs by",
    ),
    Fault(
        lab="03_deadlock",
        old="lambda task: by_batch(task, send_first=False)",
        new="lambda task: by_isend(task)",
        told="batch, recv listed first: by nccl's rules, isend alone should have hung",
    ),
    Fault(
        lab="03_mismatch",
        old="[1065353216, 1073741824]",
        new="[1, 2]",
        told="AssertionError: ('another dtype', tensor([1065353216, 1073741824]",
    ),
]
