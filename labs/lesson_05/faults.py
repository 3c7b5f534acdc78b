"""Planted faults of lesson 05."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(lab="05_ring", old="target += incoming", new="target.copy_(incoming)", told="the ring is off by"),
    Fault(  # the sum is right, the traffic is not
        lab="05_ring",
        old="send_right(outgoing, target, group)",
        new="send_right(outgoing, target, group)\n        send_right(outgoing, target, group)",
        told="messages sent: 3; a ring of 2 sends 2",
        run="05_traffic",
    ),
    Fault(
        lab="05_other_ways",
        old="        x += incoming\n        passing = incoming",
        new="        x += passing\n        passing = incoming",
        told="whole-tensor ring: differs by",
    ),
    Fault(
        lab="05_other_ways",
        old="        passing = incoming\n",
        new="        passing = incoming\n    dist.broadcast(x, group=group, group_src=0)\n",
        told="whole-tensor ring: the same bits on the ranks",
        ranks=3,
    ),
    Fault(
        lab="05_ring",
        old="    ring_all_reduce(x)\n    off",
        new="    ring_all_reduce(x)\n    x *= 1 + 1e-15 * dist.get_rank()\n    off",
        told="the ranks hold different bits",
    ),
    Fault(  # an image that no rank has
        lab="05_traffic",
        old="slice(group.rank, None, group.world_size)",
        new="slice(group.rank + 1, None, group.world_size)",
        told="ring and one process",
    ),
    Fault(
        lab="05_cost",
        old="Plan(2 * (n - 1), 2 * (n - 1) / n * size,",
        new="Plan(n - 1, (n - 1) / n * size,",
        told="ring: 2 messages, not Plan(messages=1",
    ),
    Fault(
        lab="05_cost",
        old="[[1, size] for size in sizes]",
        new="[[1, 2 * size] for size in sizes]",
        told="fitted Link(",
    ),
]
