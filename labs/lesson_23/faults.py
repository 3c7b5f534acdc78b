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
        told="a task failed on worker1, and its caller was not told",
        run="23_sync",
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
