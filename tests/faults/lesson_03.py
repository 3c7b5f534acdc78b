"""Planted faults of lesson 03."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="03_tags",
        old="((0, BIAS), (0, WEIGHT), (None, 0)",
        new="((0, WEIGHT), (0, BIAS), (None, 0)",
        told="AssertionError: [(0, 1.0), (0, 2.0), (2, 9.0), (0, 3.0)]",
        ranks=3,
    ),
    Fault(
        lab="03_messages",
        old="mine = torch.full((3,), float(rank)",
        new="mine = torch.full((3,), float(right)",
        told="assert box.tolist() == [left, left, left]",
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
        told="this call was to wait in vain, but it returned",
    ),
    Fault(
        lab="03_deadlock",
        old="in_two_calls(stuck, True, stuck_in)",
        new="in_two_calls(stuck, rank != 0, stuck_in)",
        told="there was to be a deadlock, but the messages arrived",
    ),
    Fault(
        lab="03_deadlock",
        old="dist.P2POp(dist.isend, task.outgoing,",
        new="dist.P2POp(dist.isend, task.incoming,",
        told="batch, send listed first: differs by",
    ),
    Fault(
        lab="03_mismatch",
        old="[1065353216, 1073741824]",
        new="[1, 2]",
        told="AssertionError: ('another dtype', tensor([1065353216, 1073741824]",
    ),
]
