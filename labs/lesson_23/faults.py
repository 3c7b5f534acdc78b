"""Planted faults of lesson 23."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="23_weights",
        old="begin = size * parameter.device_mesh.get_local_rank()",
        new="begin = 0",
        told="is not what the trainers have",
        run="23_sync",
        ranks=4,
    ),
    Fault(
        lab="23_weights",
        old="            dist.broadcast(whole, src=jobs.trainers[0], group=jobs.wire)\n",
        new="            dist.broadcast(whole, src=jobs.trainers[0], group=jobs.wire)\n" * 2,
        told="bytes on the wire for each byte of weights",
        run="23_sync",
    ),
    Fault(
        lab="23_weights",
        old="            arrived -= parameter.to_local().nbytes\n",
        new="",
        told="bytes arrive, expected",
        run="23_sync",
    ),
    Fault(
        lab="23_weights",
        old="result = error",
        new="result = None",
        told="generate failed on worker1, and its caller was not told",
        run="23_sync",
    ),
    Fault(
        lab="23_weights",
        old='                raise ValueError(f"there is no task {task!r}")\n',
        new="                pass\n",
        told="no task failed on worker1, and its caller was not told",
        run="23_sync",
    ),
    Fault(
        lab="23_weights",
        old="                result = move(policy, boxes, jobs)\n                version = arriving",
        new="                version = arriving\n                result = move(policy, boxes, jobs)",
        told="a move failed on worker1, and its answers carry the new version",
        run="23_sync",
    ),
    Fault(
        lab="23_weights",
        old="PROMPT, HIDDEN, ANSWERS = 24, 96, 12",
        new="PROMPT, HIDDEN, ANSWERS = 24, 97, 12",
        told="ranks of a job do not divide 97 hidden units",
        ranks=4,
    ),
    Fault(
        lab="23_weights",
        old="everyone=dist.new_group(timeout=moving)",
        new="everyone=dist.new_group()",
        told="everyone: the group waits 1800 s",
        run="23_sync",
    ),
    Fault(
        lab="23_weights",
        old='"prepare", layout_of(policy)',
        new='"prepare", layout_of(policy)[::-1]',
        told="ValueError: the trainers have",
    ),
    Fault(
        lab="23_sync",
        old="weights.train = train_and_look",
        new="weights.train = train",
        told="nobody trained while answers number 1 were made",
    ),
    Fault(
        lab="23_rpc",
        old="self.weight -= RATE * gradient",
        new="self.weight -= RATE * gradient / 2",
        told="the replay ends with other weights",
    ),
    Fault(
        lab="23_faults",
        old="names = ORDER if group.rank == 0 else sorted(ORDER)",
        new="names = ORDER",
        told="exchanged parameters were expected",
        ranks=3,
    ),
]
