"""Planted faults of lesson 02."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(lab="02_ways", old="= dist.get_rank() + 1", new="= 1", told="env://: heard [1, 1]"),
    Fault(
        lab="02_who_waits",
        old="done = requests[-1].end",
        new="done = requests[0].end",
        told="a rank was done before the last",
    ),
    Fault(
        lab="02_mistakes",
        old="here, elsewhere = free_address(), free_address()",
        new="here = elsewhere = free_address()",
        told="a wrong address: rank 0 said 'met rank 0 and rank 1', expected '1/2 clients joined'",
        ranks=0,
    ),
    Fault(
        lab="02_agents",
        old='"--nnodes=2"',
        new='"--nnodes=1"',
        told="other node missing: torchrun said",
        ranks=0,
    ),
]
