"""Planted faults of lesson 05; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("05_ring", "target += incoming", "target.copy_(incoming)", "the ring is off by"),
    Fault(  # the sum is right, the traffic is not
        "05_ring",
        "send_right(outgoing, target, group)",
        "send_right(outgoing, target, group)\n        send_right(outgoing, target, group)",
        "messages sent: 3; a ring of 2 sends 2",
        run="05_traffic",
    ),
    Fault(
        "05_other_ways",
        "        x += incoming\n        passing = incoming",
        "        x += passing\n        passing = incoming",
        "whole-tensor ring: [",
    ),
    Fault(
        "05_traffic",
        "        assert_ring_traffic(sent, whole, n)\n    except",
        "        pass\n    except",
        "the check took gather and broadcast over 2 ranks for a ring",
    ),
    Fault(  # an image that no rank has
        "05_traffic",
        "slice(group.rank, None, group.world_size)",
        "slice(group.rank + 1, None, group.world_size)",
        "ring and one process",
    ),
    Fault(
        "05_cost",
        "Plan(2 * (n - 1), 2 * (n - 1) / n * size,",
        "Plan(n - 1, (n - 1) / n * size,",
        "ring: 2 messages, not Plan(messages=1",
    ),
    Fault("05_cost", "[[1, size] for size in sizes]", "[[1, 2 * size] for size in sizes]", "fitted Link("),
    Fault(
        "05_deadlock",
        "dist.send(mine, right, group=ring)",
        "request = dist.isend(mine, right, group=ring)",  # a handle that is kept, or the message may get lost
        "the messages arrived, but the ranks should have waited for each other",
    ),
]
