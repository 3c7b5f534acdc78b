"""Planted faults of lesson 15; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "15_stages",
        "dist.send(x.grad,",
        "dist.send(x.grad / 2,",
        "gradient 0.0.weight: differs",
        run="15_equal",
    ),
    Fault("15_stages", "    fill(stage, first)\n", "", "gradient ", run="15_equal"),
    Fault("15_stages", "fill(stage, first)", "fill(stage, 0)", "gradient ", run="15_equal"),
    Fault(
        "15_stages",
        'with torch.device("meta")',
        'with torch.device("cpu")',
        "bytes of parameters took",
        run="15_equal",
    ),
    Fault("15_stages", "        optimizer.step()\n", "", "the model has not learned"),
    Fault("15_equal", "stage.parameters(), cfg", "nn.Linear(1, 1).parameters(), cfg", "differs by"),
    Fault("15_ddp", "slice(rank, None, world_size)", "slice(0, None, world_size)", "differs by"),
    Fault(
        "15_toy",
        "self.back(hidden.to(self.back.weight.device))",
        "self.back(hidden.detach().to(self.back.weight.device))",
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
