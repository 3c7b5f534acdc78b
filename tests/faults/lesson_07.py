"""Planted faults of lesson 07; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "07_by_hand",
        '"parameters", parameter, 0, device',
        '"parameters", parameter if device == 0 else parameter.detach(), 0, device',
        "gradient ",
        ranks=0,
    ),
    Fault("07_by_hand", "torch.cat(arrived)", "torch.cat(arrived[::-1])", "gradient ", ranks=0),
    Fault("07_by_hand", "torch.cat(arrived)", "torch.cat(arrived) / len(arrived)", "gradient ", ranks=0),
    Fault(
        "07_by_hand",
        "bytes_held(tensors) for tensors in self.tensors",
        "bytes_held(tensors) for tensors in self.tensors[1:]",
        "device 0 should hold more than each other",
        ranks=0,
    ),
    Fault(
        "07_ddp", "ddp = DistributedDataParallel(", "ddp = (lambda net, device_ids: net)(", "the ranks hold"
    ),
    Fault("07_ddp", "    optimizer.step()\n", "    pass\n", "the model has not learned"),
    Fault("07_ddp", "tensor.chunk(world_size)[rank]", "tensor", "which is not its part", run="07_traffic"),
    Fault("07_traffic", "    ddp = DistributedDataParallel(net)\n", "    ddp = net\n", "gradient "),
    Fault("07_traffic", "(net, device_ids=[0, 1])", "(net)", "DDP with two devices should be refused"),
    Fault("07_traffic", "ring = 2 * (n - 1)", "ring = (n - 1)", "bytes per step, a ring"),
    Fault(
        "07_traffic",
        "process_group=members)",
        "process_group=members, broadcast_buffers=False)",
        "bytes handed to collectives by 1 ranks",
    ),
]
