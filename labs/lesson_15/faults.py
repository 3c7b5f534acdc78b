"""Planted faults of lesson 15."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="15_stages",
        old="dist.send(x.grad,",
        new="dist.send(x.grad / 2,",
        told="gradient 0.0.weight: differs",
        run="15_equal",
    ),
    Fault(
        lab="15_stages",
        old='with torch.device("meta")',
        new='with torch.device("cpu")',
        told="bytes of parameters took",
        run="15_equal",
    ),
    Fault(lab="15_stages", old="        optimizer.step()\n", new="", told="the model has not learned"),
    Fault(
        lab="15_ddp",
        old="self.back(hidden.to(self.back.weight.device))",
        new="self.back(hidden.detach().to(self.back.weight.device))",
        told="gradient back.weight: differs by",
    ),
    Fault(
        lab="15_idle",
        old="places = [0] * cut + [1] * (cfg.layers - cut)",
        new="places = [0] * cfg.layers",
        told="micro-batches: the devices should have worked at once",
        ranks=0,
    ),
    Fault(
        lab="15_idle",
        old="train(4, pieces, cfg)",
        new="train(4, 2, cfg)",
        told="micro-batches: idle is 33.3% of the time, expected 20.0%",
        ranks=0,
    ),
    Fault(
        lab="15_idle",
        old="self.y.backward(gradient)",
        new="self.y.backward(gradient / 2)",
        told="cut 4 0.weight: differs by",
        ranks=0,
    ),
]
