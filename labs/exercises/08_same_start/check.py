"""Check of exercise 08. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

from types import ModuleType

import torch
from torch import nn

from shared.comm.record import record
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

ALLOWED_BROADCASTS = 2  # one for float64, one for int64


def build(rank: int) -> nn.Module:
    """Two tied layers and a batch norm, all values made by this rank's seed."""
    torch.manual_seed(100 + rank)
    module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.BatchNorm1d(6)).double()
    module[1].weight = module[0].weight
    module[2].running_mean.normal_()
    module[2].num_batches_tracked.fill_(rank + 5)
    return module


def verify(answer: ModuleType, group: Group) -> str:
    module, truth = build(group.rank).to(group.device), build(0).to(group.device)
    storages = {name: p.data_ptr() for name, p in module.named_parameters()}
    with record() as log:
        answer.start_equal(module)
    broadcasts = log.count("broadcast")
    others = log.count() - broadcasts

    for kind, tensors in (("parameter", truth.named_parameters()), ("buffer", truth.named_buffers())):
        for name, expected in tensors:
            actual = module.get_parameter(name) if kind == "parameter" else module.get_buffer(name)
            if not torch.equal(actual, expected):
                raise Wrong(f"{kind} {name} on rank {group.rank} is not rank 0's")
    if module[0].weight is not module[1].weight:
        raise Wrong("the tied weights are two parameters now")
    if moved := [name for name, p in module.named_parameters() if p.data_ptr() != storages[name]]:
        raise Wrong(f"parameter {moved[0]} has a new storage; an optimizer made before would not know it")
    if others or broadcasts > ALLOWED_BROADCASTS:
        raise Wrong(
            f"the values are right, but took {broadcasts} broadcasts and {others} others; "
            f"allowed are {ALLOWED_BROADCASTS} broadcasts"
        )
    count = sum(t.numel() for t in [*module.parameters(), *module.buffers()])
    return f"{count} values equal on {group.world_size} ranks after {broadcasts} broadcasts. Well done."


if __name__ == "__main__":
    check_exercise("08_same_start", verify)
