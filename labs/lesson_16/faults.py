"""Planted faults of lesson 16."""

from tests.planted import Fault, group_of

FAULTS: list[Fault] = [
    # The mean of each micro-batch instead of its share of the whole batch's.
    Fault(lab="16_gpipe", old='reduction="sum") / ROWS', new='reduction="mean")', told=", in one process "),
    # Gradients that belong to other micro-batches.
    Fault(
        lab="16_gpipe",
        old="    for x, y in kept:  # then backward of all\n",
        new="    if first:\n        kept.reverse()\n    for x, y in kept:  # then backward of all\n",
        told="layer 0: a gradient",
    ),
    Fault(
        lab="16_executor",
        old='self.send("gradients", stage - 1, number, x.grad)',
        new='self.send("gradients", stage - 1, number, 2 * x.grad)',
        told="layer 0: a gradient",
    ),
    Fault(
        lab="16_schedules",
        old="dist.all_reduce(self.weight.grad, group=self.group)",
        new="pass",
        told="GPipe, step 0: gradient of tokens.weight: differs by",
    ),
    Fault(
        lab="16_schedules",
        old="/ batch.counted",
        new="/ batch.labels[number].numel()",
        told="GPipe, step 0: loss: differs by",
    ),
    Fault(lab="16_torch", old="scale_grads=False", new="scale_grads=True", told="layer 0: a gradient"),
    # Each stage by its own norm, as a script for one process has it.
    Fault(
        lab="16_torch",
        old="    dist.all_reduce(square, group=group)\n",
        new="",
        told="clip_stages: norm: differs by",
        run="16_equal",
    ),
    # The norm of all pipelines, as with data parallelism.
    Fault(
        lab="16_torch",
        old="dist.all_reduce(square, group=group)",
        new="dist.all_reduce(square)",
        told="clip_stages in a group: norm: differs by",
        run="16_equal",
    ),
    Fault(
        lab="16_torch",
        old="own_norm.double().square()",
        new="own_norm.square().double()",
        told="clip_stages in float16: norm: holds a value that is not finite",
        run="16_equal",
    ),
    # One stage stops, the others wait.
    Fault(
        lab="16_torch",
        old="own if p.grad is not None]",
        new="own]",
        told="are supposed to be defined",
        run="16_equal",
    ),
    Fault(
        lab="16_equal",
        old='{"return_outputs": False}',
        new="{}",
        told="with return_outputs=False no output should have been kept",
    ),
    Fault(
        lab="16_torch",
        old="with torch.set_grad_enabled(train):",
        new="with torch.set_grad_enabled(True):",
        told="eval keeps (outputs, graphs):",
        run="16_equal",
    ),
    # schedule.eval alone: no module is told.
    Fault(
        lab="16_torch",
        old="        model.train(train)  # schedule.eval leaves dropout on\n",
        new="        pass\n",
        told="so dropout stays on in validation",
        run="16_equal",
    ),
    Fault(
        lab="16_schedules",
        old="[] if first or trainer.tied.weight is None else [trainer.tied.weight]",
        new="[]",
        told="all stages clip by the norm of the whole model: ranks",
    ),
    Fault(
        lab="16_equal",
        old="factor = micro_batches if scale else 1",
        new="factor = 1",
        told="GPipe, scale_grads=True 0.weight: differs by",
    ),
    *group_of(
        # The gradients of all micro-batches stay in memory until the end of the step.
        Fault(
            lab="16_executor",
            old="if len(gradients) > len(set(self.owner)):",
            new="if False:",
            told="gradients on their way, more than there are ranks",
        ),
        # 1F1B that begins with one forward pass too many.
        Fault(
            lab="16_executor",
            old="warm_up = min(ranks - rank, micro_batches)",
            new="warm_up = min(ranks - rank + 1, micro_batches)",
            told="1F1B holds 3 micro-batches at once, expected are 2",
        ),
        # W forgets the micro-batches before.
        Fault(
            lab="16_halves",
            old="part if parameter.grad is None else parameter.grad + part",
            new="part",
            told="InterleavedZeroBubble, step 0: gradient of ",
        ),
        run="16_schedules",
    ),
    *group_of(
        # I that computes the gradients of the parameters, too, and throws them away.
        Fault(
            lab="16_halves",
            old="torch.autograd.grad(y, [x, *edges], gradient, retain_graph=True)",
            new="torch.autograd.grad(y, [x, *edges, *parameters], gradient, retain_graph=True)"
            "[: 1 + len(edges)]",
            told="I and W cost",
        ),
        Fault(lab="16_halves", old="box.tensor = None", new="pass", told="I should have dropped what W"),
        # The bubble measured by the work, the formula by the whole step.
        Fault(
            lab="16_timeline",
            old='"GPipe": (p - 1) / (m + p - 1)',
            new='"GPipe": (p - 1) / m',
            told="by formula 0.3750",
        ),
        Fault(
            lab="16_timeline",
            old="first_of, *needed)",
            new="first_of)",
            told="the bubble of the devices is 0.0000",
        ),
        ranks=0,
    ),
]
