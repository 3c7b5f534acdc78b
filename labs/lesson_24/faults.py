"""Planted faults of lesson 24."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="24_context",
        old="loss = F.cross_entropy(scores, y)",
        new='loss = F.cross_entropy(scores, y, reduction="sum")',
        told="gradients are not those of one process",
    ),
    Fault(
        lab="24_context",
        old="trained = [parameter.to_here() for parameter in references]",
        new="trained = [*build(64, 16, seed=1).parameters(), *build(16, 10, seed=2).parameters()]",
        told="parameters are not those of one process",
    ),
    Fault(
        lab="24_faults",
        old="return self.back.rpc_async().forward(self.front(self.x)).wait()",
        new="return self.by_call()",
        told="gradients here and there (2, 2), expected (0, 0)",
    ),
]
