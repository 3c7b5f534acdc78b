"""Planted faults of lesson 16; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    # The mean of each micro-batch instead of its share of the whole batch's.
    Fault("16_gpipe", 'reduction="sum") / ROWS', 'reduction="mean")', "the loss is"),
    # Gradients that belong to other micro-batches.
    Fault(
        "16_gpipe",
        "    for x, y in kept:  # then backward of all\n",
        "    if first:\n        kept.reverse()\n    for x, y in kept:  # then backward of all\n",
        "gradient of layer 0",
    ),
    Fault(
        "16_executor",
        'self.send("gradients", stage - 1, number, x.grad)',
        'self.send("gradients", stage - 1, number, 2 * x.grad)',
        "gpipe: a gradient",
    ),
    # 1F1B that begins with one forward pass too many.
    Fault(
        "16_executor",
        "warm_up = min(ranks - rank, micro_batches)",
        "warm_up = min(ranks - rank + 1, micro_batches)",
        "1F1B holds 3 micro-batches at once, expected are 2",
        run="16_schedules",
    ),
    # Two neighbours that send to each other, and wait.
    Fault(
        "16_executor",
        "        self.sends[what, target, number] = (work, tensor)\n",
        "        self.sends[what, target, number] = (work, tensor)\n        work.wait()\n",
        "Timed out waiting",
        run="16_schedules",
    ),
    # W forgets the micro-batches before.
    Fault(
        "16_executor",
        "parameter.grad = part if parameter.grad is None else parameter.grad + part",
        "parameter.grad = part",
        "InterleavedZeroBubble, step 0: gradient of",
        run="16_schedules",
    ),
    # W that goes through the whole stage once more, as ours did.
    Fault(
        "16_schedules",
        "torch.autograd.grad(edge, parameters, part)",
        "torch.autograd.grad(y, list(stage.parameters()), gradient, retain_graph=True)",
        "I and W cost",
    ),
    Fault("16_schedules", "self.tied.make_equal()", "pass", "GPipe, step 0: loss: differs by"),
    Fault(
        "16_schedules",
        "dist.all_reduce(self.weight.grad, group=self.group)",
        "pass",
        "GPipe, step 0: gradient of tokens.weight: differs by",
    ),
    Fault(
        "16_schedules",
        "/ batch.counted",
        "/ batch.labels[number].numel()",
        "GPipe, step 0: loss: differs by",
    ),
    # The bubble measured by the work, the formula by the whole step.
    Fault(
        "16_timeline",
        '"GPipe": (p - 1) / (m + p - 1)',
        '"GPipe": (p - 1) / m',
        "by formula 0.3750",
        ranks=0,
    ),
    Fault("16_timeline", "first_of, *needed)", "first_of)", "the devices is 0.0000, not 0.7500", ranks=0),
    Fault(
        "16_torch",
        "factor = micro_batches if scale else 1",
        "factor = 1",
        "GPipe, scale_grads=True 0.weight: differs by",
    ),
]
