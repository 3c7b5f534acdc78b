"""Planted faults of lesson 15; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "15_two_devices",
        "torch.manual_seed(15)\n    model",
        "torch.manual_seed(16)\n    model",
        "differs by",
        ranks=0,
    ),
    Fault("15_two_devices", "hidden = cfg.batch * 128", "hidden = cfg.batch * 64", "AssertionError", ranks=0),
    Fault("15_two_devices", 'torch.device("meta")', "devices.first", "torch was to complain", ranks=0),
    Fault("15_ddp", "slice(rank, None, world_size)", "slice(0, None, world_size)", "differs by"),
    Fault(
        "15_ddp",
        "TwoDevices.of_process(local_rank",
        "TwoDevices.of_process(0",
        "two processes share a device",
    ),
    Fault("15_ddp", "wrap(output_device=second)", "wrap()", "DDP(model, output_device=second): accepted"),
    Fault(
        "15_toy",
        "self.back(hidden.to(self.second))",
        "self.back(hidden.detach().to(self.second))",
        "gradient back.weight: differs by",
        run="15_ddp",
    ),
    Fault(
        "15_idle",
        "build(cfg), [device] * cfg.layers",
        "build(cfg), [0] * cfg.layers",
        "two independent models: the devices were to work at once at times",
        ranks=0,
    ),
    Fault(
        "15_idle",
        "(0, COMPUTE), (1, COMPUTE)",
        "(0, COMPUTE), (0, COMPUTE)",
        "4 of 8 layers on device 0: the devices were never to work at once",
        ranks=0,
    ),
    Fault(
        "15_idle",
        "train(4, pieces, cfg)",
        "train(4, 2, cfg)",
        "micro-batches: idle is 33.3% of the time, expected 20.0%",
        ranks=0,
    ),
    Fault(
        "15_idle",
        "self.y.backward(gradient)",
        "self.y.backward(gradient / 2)",
        "differs by",
        ranks=0,
    ),
]

STILL_WITHOUT = []
