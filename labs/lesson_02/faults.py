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
        lab="01_join",
        old="    if rank == 0:\n        found",
        new="    if True:\n        found",
        told="no GPU: 4 writes, 6 reads; expected 3 and 4",
        run="02_join",
    ),
    Fault(lab="02_join", old="return sum(len(request.keys)", new="return sum(1", told="expected 3 and 4"),
    Fault(lab="02_missing_rank", old="world_size=3", new="world_size=2", told=" should have said '", ranks=0),
    Fault(lab="02_wrong_address", old="ports[rank]}", new="ports[0]}", told=" should have said '", ranks=0),
    Fault(
        lab="02_taken_port",
        old='"A": port, ',
        new='"A": get_free_port(), ',
        told=" should have said '",
        ranks=0,
    ),
    Fault(
        lab="02_reused_file",
        old="shutil.copy(file, left)",
        new="pass",
        told="should have said 'connectFullMesh",
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
