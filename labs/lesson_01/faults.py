"""Planted faults of lesson 01."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="01_join",
        old="store=store, rank=rank, world_size",
        new="store=store, rank=world_size - 1 - rank, world_size",
        told="the group says 1",
        run="01_who",
    ),
    Fault(
        lab="01_who",
        old='return offset + me["LOCAL_RANK"]',
        new="return offset",
        told="counting does not give",
    ),
    Fault(
        lab="01_reports",
        old='"rank": me["RANK"]',
        new='"rank": me["LOCAL_RANK"] + 1',
        told="not true: ranks count from 0",
    ),
    Fault(
        lab="01_launchers",
        old='"LOCAL_RANK": index,',
        new='"LOCAL_RANK": index + 1,',
        told="counting does not give rank",
        ranks=0,
        launch="python",
        arguments=("2",),
    ),
    Fault(
        lab="01_launchers",
        old="processes.append(process)",
        new="processes = [process]",
        told="the ranks of Process left with exit codes [3]",
        ranks=0,
        arguments=("2",),
    ),
]
