"""Planted faults of lesson 07; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("07_here", "output = wrapped(x)", "output = wrapped(1.001 * x)", "output: differs by", ranks=0),
    Fault(
        "07_by_hand",
        '"parameters", p, 0, d',
        '"parameters", p if d == 0 else p.detach(), 0, d',
        "gradient ",
        ranks=0,
    ),
    Fault("07_by_hand", "torch.cat(arrived)", "torch.cat(arrived[::-1])", "gradient ", ranks=0),
    Fault("07_by_hand", "torch.cat(arrived)", "torch.cat(arrived) / len(arrived)", "gradient ", ranks=0),
    Fault(
        "07_limits",
        "model._replicate_for_data_parallel()",
        "model",
        "replicas should lose the calls",
        ranks=0,
    ),
    Fault("07_limits", 'device="meta"', 'device="cpu"', "a model on two devices should be refused", ranks=0),
    Fault("07_ddp", "ring = 2 * (n - 1)", "ring = (n - 1)", "sent"),
    Fault("07_ddp", "ddp = DistributedDataParallel(net)", "ddp = net", "gradient "),
]

STILL_WITHOUT = []
