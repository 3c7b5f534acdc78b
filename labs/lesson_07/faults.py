"""Planted faults of lesson 07."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="07_by_hand",
        old="torch.cat(arrived)",
        new="torch.cat(arrived[::-1])",
        told="gradient 0.weight: differs by",
        ranks=0,
    ),
    Fault(
        lab="07_by_hand",
        old="bytes_held(tensors) for tensors in self.tensors",
        new="bytes_held(tensors) for tensors in self.tensors[1:]",
        told="device 0 should hold more than each other",
        ranks=0,
    ),
]
