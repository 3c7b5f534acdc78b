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
    Fault(
        lab="07_ddp",
        old="ddp = DistributedDataParallel(",
        new="ddp = (lambda net, device_ids: net)(",
        told="the ranks hold",
    ),
    Fault(lab="07_ddp", old="    optimizer.step()\n", new="    pass\n", told="the model has not learned"),
    Fault(
        lab="07_ddp",
        old="tensor.chunk(world_size)[rank]",
        new="tensor",
        told="which is not its part",
        run="07_traffic",
    ),
    Fault(
        lab="07_traffic",
        old="    ddp = DistributedDataParallel(net)\n",
        new="    ddp = net\n",
        told="gradient 0.weight: differs by",
    ),
    Fault(
        lab="07_traffic",
        old="(net, device_ids=[0, 1])",
        new="(net)",
        told="DDP with two devices should be refused",
    ),
    Fault(lab="07_traffic", old="ring = 2 * (n - 1)", new="ring = (n - 1)", told="bytes per step, a ring"),
]
