"""Planted faults of lesson 03; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "03_tags",
        "((0, BIAS), (0, WEIGHT), (None, 0)",
        "((0, WEIGHT), (0, BIAS), (None, 0)",
        "AssertionError: [(0, 1.0), (0, 2.0), (2, 9.0), (0, 3.0)]",
        ranks=3,
    ),
    Fault(
        "03_messages",
        "mine = torch.full((3,), float(rank)",
        "mine = torch.full((3,), float(right)",
        "assert box.tolist() == [left, left, left]",
    ),
    Fault("03_ring", "held += mine", "held -= mine", "sum of ranks 0 to 1: differs by"),
    Fault("03_ring", "held = mine.clone()", "held = mine", "sum of ranks 0 to 1: differs by"),
    Fault(
        "03_in_flight",
        "    dist.send(torch.ones(1), to, group=mail, tag=GO)\n    work.wait()\n    x.fill_(2.0)\n",
        "    x.fill_(2.0)\n    dist.send(torch.ones(1), to, group=mail, tag=GO)\n    work.wait()\n",
        "patient, 1 numbers: 2.0 arrived, expected 1.0",
    ),
    Fault("03_in_flight", "dist.isend(x.clone(), to", "dist.isend(x, to", "copied, 1 numbers: 2.0 arrived"),
    Fault(  # the handle lives on
        "03_in_flight",
        "    dist.isend(torch.full(",
        "    lose_the_handle.kept = dist.isend(torch.full(",
        "this call was to wait in vain, but it returned",
    ),
    Fault(
        "03_deadlock",
        "in_two_calls(stuck, True, stuck_in)",
        "in_two_calls(stuck, rank != 0, stuck_in)",
        "there was to be a deadlock, but the messages arrived",
    ),
    Fault(
        "03_deadlock",
        "dist.P2POp(dist.isend, task.outgoing,",
        "dist.P2POp(dist.isend, task.incoming,",
        "batch, send listed first: differs by",
    ),
    Fault(  # a cure that nccl's queue stops
        "03_deadlock",
        "in_two_calls(task, rank != 0, log)",
        "by_isend(task)",
        "nccl was to wait in the second cure alone",
    ),
    Fault(
        "03_mismatch",
        "[1065353216, 1073741824]",
        "[1, 2]",
        "AssertionError: ('another dtype', tensor([1065353216, 1073741824]",
    ),
]
