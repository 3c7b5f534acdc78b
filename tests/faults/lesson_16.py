"""Planted faults of lesson 16; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    # The mean of each micro-batch instead of its share of the whole batch's.
    Fault("16_gpipe", 'reduction="sum") / ROWS', 'reduction="mean")', "the loss is"),
    # The gradient of another micro-batch.
    Fault(
        "16_gpipe",
        "    for x, y in kept:  # then backward of all\n",
        "    if rank == 0:\n        kept.reverse()\n    for x, y in kept:  # then backward of all\n",
        "gradient of layer 0",
    ),
    # 1F1B that begins with one forward pass too many.
    Fault(
        "16_executor",
        "warm_up = min(ranks - rank, micro_batches)",
        "warm_up = min(ranks - rank + 1, micro_batches)",
        "2.0 micro-batches at once, 1.0 simulated",
        run="16_broken",
    ),
    Fault(
        "16_executor",
        'self.send("gradients", stage - 1, number, x.grad)',
        'self.send("gradients", stage - 1, number, 2 * x.grad)',
        "gpipe: a gradient",
    ),
    # Two neighbours that send to each other, and wait.
    Fault(
        "16_schedules",
        "self.tied.make_equal()",
        "pass",
        "step 0: loss: differs by",
    ),
    Fault(
        "16_schedules",
        "dist.all_reduce(self.weight.grad, group=self.group)",
        "pass",
        "step 0: gradient of tokens.weight: differs by",
    ),
    Fault("16_schedules", "/ batch.counted", "/ batch.labels[number].numel()", "step 0: loss: differs by"),
    Fault(
        "16_timeline", '"GPipe": (p - 1) / (m + p - 1)', '"GPipe": (p - 1) / m', "by formula 0.3750", ranks=0
    ),
    Fault("16_torch", "for scale in (False, True):", "for scale in (True, False):", "x"),
]

STILL_WITHOUT: list[str] = []
