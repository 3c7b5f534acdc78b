"""Answers to exercise 06; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

FILL_IN = """
for parameter in parameters:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
"""
COUNT = "count = parameters[0].new_tensor([1.0])"
FLAT = "flat = torch.cat([count, *gradients]) * images"
WRITE_BACK = """
for parameter, summed in zip(parameters, sums, strict=True):
    parameter.grad.copy_((summed / total).view_as(parameter))
"""

ANSWERS = [
    wrong(
        "A flat buffer, but the count travels in messages of its own.",
        "the values are right, but took 2 x all_gather, 1 x all_reduce",
        (
            COUNT,
            """
            count = parameters[0].new_tensor([1.0])
            counts = [None] * dist.get_world_size()
            dist.all_gather_object(counts, images)
            """,
        ),
        ("summed / total", "summed / sum(counts)"),
    ),
    wrong(
        "The mean of means: right for equal shares only.",
        "unequal shares, on the rank with 8 images: the gradient of first.weight (torch.float64) is off by",
        (FLAT, "flat = torch.cat([count, *gradients])"),
    ),
    wrong(
        "Weights correctly, then divides by the world size out of habit.",
        "the gradient of first.weight is 0.333 times that of one process",
        ("summed / total", "summed / total / dist.get_world_size()"),
    ),
    wrong(
        "Takes it for granted that each rank has a gradient.",
        "a gradient is None on the rank with 0 images: 'NoneType' object has no attribute 'flatten'",
        (FILL_IN, ""),
    ),
    wrong(
        "Leaves out what has no gradient: the idle rank's buffer is shorter, and gloo aborts a process.",
        "ranks differ in a collective: rank 0 calls ALLREDUCE [459] Double, rank 2 calls ALLREDUCE [1]",
        (FILL_IN, "parameters = [parameter for parameter in parameters if parameter.grad is not None]"),
        (COUNT, "count = torch.ones(1, dtype=torch.float64)"),
    ),
    wrong(
        "An error of Python's own: its line is told.",
        "wrong: AttributeError: 'Tensor' object has no attribute 'size_of' (exercise.py, line 26: flat =",
        (FLAT, "flat = torch.cat([count, *gradients]).size_of() * images"),
    ),
    wrong(
        "Gradients of earlier steps stay in the sum.",
        "train_step, step 1 (unequal shares), on the rank with 8 images: parameter first.weight",
        ("optimizer.zero_grad()", ""),
    ),
    wrong(
        "A flat buffer, but the counts are gathered into a tensor before.",
        "the values are right, but took 1 x all_gather, 1 x all_reduce",
        (
            COUNT,
            """
            count = parameters[0].new_tensor([1.0])
            counts = torch.empty(dist.get_world_size(), dtype=torch.int64)
            dist.all_gather_into_tensor(counts, torch.tensor([images]))
            """,
        ),
        ("summed / total", "summed / counts.sum()"),
    ),
    wrong(
        "Fills in zeros wherever a gradient is None, also for parameters that do not learn.",
        "frozen.weight is frozen (requires_grad=False), but it got a gradient",
        (" if parameter.requires_grad", ""),
    ),
    wrong(
        "Packs the buffer in float32, torch's default, though the gradients are float64.",
        "did float32 come in between?",
        (FLAT, "flat = torch.cat([count, *gradients]).float() * images"),
    ),
    wrong(
        "average_gradients could cope with a rank without images, but is not called on it.",
        "train_step, step 2 (an idle rank): the rank with 0 images calls no collective",
        (
            "optimizer.zero_grad()",
            """
            if len(x) == 0:
                return
            optimizer.zero_grad()
            """,
        ),
    ),
    wrong(
        "A rank without images takes part, but does not keep the result.",
        "on the rank with 0 images: the gradient of first.weight is still None",
        (FILL_IN, "grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]"),
        ("[parameter.grad.flatten() for parameter in parameters]", "[grad.flatten() for grad in grads]"),
        (
            WRITE_BACK,
            """
            for grad, summed in zip(grads, sums, strict=True):
                grad.copy_((summed / total).view_as(grad))
            """,
        ),
    ),
    wrong(
        "The rank without images helps to average, but does not update its parameters.",
        "train_step, step 2 (an idle rank), on the rank with 0 images: parameter first.weight",
        (
            "optimizer.step()",
            """
            if len(x) > 0:
                optimizer.step()
            """,
        ),
    ),
    wrong(
        "A rank without images returns at once, and the others wait for it.",
        "average_gradients, an idle rank: the rank with 0 images calls no collective",
        (
            FILL_IN,
            """
            if images == 0:
                return
            """,
        ),
    ),
    wrong(
        "The right values, a message for each parameter and one for the count.",
        "the values are right, but took 6 x all_reduce",
        average_gradients="""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        total = parameters[0].new_tensor(float(images))
        dist.all_reduce(total)
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad *= images / total
            dist.all_reduce(parameter.grad)
        """,
    ),
    wrong(
        "The second function is still the stub.",
        "average_gradients is right; train_step is not written yet",
        train_step="raise NotImplementedError",
    ),
    wrong(
        "The optimizer has already used the rank's own gradients.",
        "train_step, step 0 (equal shares), on the rank with 12 images: parameter first.weight",
        (
            """
            average_gradients(model, len(x))
            optimizer.step()
            """,
            """
            optimizer.step()
            average_gradients(model, len(x))
            """,
        ),
    ),
    wrong(
        "Does the optimizer's work as well.",
        "parameter first.weight was changed, only its gradient should be",
        (
            WRITE_BACK,
            """
            for parameter, summed in zip(parameters, sums, strict=True):
                parameter.grad.copy_((summed / total).view_as(parameter))
                parameter.data -= 0.1 * parameter.grad
            """,
        ),
    ),
    wrong(
        "A sum over images, then weighted by images once more.",
        "train_step, step 0 (equal shares), on the rank with 12 images: parameter first.weight (torch",
        ("model(x), y", 'model(x), y, reduction="sum"'),
    ),
    right(
        "train_step does not use average_gradients: a sum over images, autograd.grad, no backward.",
        train_step="""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        loss = F.cross_entropy(model(x), y, reduction="sum")
        gradients = torch.autograd.grad(loss, parameters)
        count = loss.new_tensor([len(x)])
        flat = torch.cat([count, *[gradient.flatten() for gradient in gradients]])
        dist.all_reduce(flat)
        total, *sums = flat.split([1, *[gradient.numel() for gradient in gradients]])
        for parameter, summed in zip(parameters, sums, strict=True):
            parameter.grad = (summed / total).view_as(parameter)
        optimizer.step()
        """,
    ),
    right(
        "ReduceOp.AVG is right when the count is averaged, too; gradients become views of the buffer.",
        average_gradients="""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        pieces = []
        for parameter in parameters:
            if images == 0:
                pieces.append(torch.zeros_like(parameter).flatten())
            else:
                pieces.append(images * parameter.grad.flatten())
        pieces.append(torch.full_like(pieces[0][:1], images))
        flat = torch.cat(pieces)
        work = dist.all_reduce(flat, op=dist.ReduceOp.AVG, async_op=True)
        work.wait()
        flat /= flat[-1].clone()
        for parameter, part in zip(parameters, flat[:-1].split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)
        """,
        train_step="""
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)  # of no images: not a number, but its gradient is zero
        loss.backward()
        average_gradients(model, len(x))
        optimizer.step()
        """,
    ),
    right(
        "Calls the collective by a name of its own: a check that replaces dist.all_reduce would not see it.",
        ("dist.all_reduce", "all_reduce"),
        below="from torch.distributed import all_reduce",
    ),
]
