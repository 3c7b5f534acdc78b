"""Planted faults of lesson 24."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="24_context",
        old="loss = F.cross_entropy(scores, y)",
        new='loss = F.cross_entropy(scores, y, reduction="sum")',
        told="front.0.weight: differs by",
        run="24_gradients",
    ),
    Fault(lab="24_train", old="lr=rate, momentum", new="lr=2 * rate, momentum", told="losses: differs by"),
    Fault(
        lab="24_faults",
        old="return module.rpc_async().forward(x)",
        new="return rpc.rpc_async(module.owner(), forward, args=(module, x))",
        told="gradients here and there: (2, 2)",
    ),
]
