"""Answers to exercise 06."""

from tests.planted import Right, Wrong, solved

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
AVERAGE_GRADIENTS = solved("06_uneven_average", "average_gradients")
TRAIN_STEP = solved("06_uneven_average", "train_step")

ANSWERS = [
    Wrong(
        what="The mean of means: right for equal shares only.",
        old=FLAT,
        new="flat = torch.cat([count, *gradients])",
        told="unequal shares, on the rank with 8 images: the gradient of first.weight",
    ),
    Wrong(
        what="Weights correctly, then divides by the world size out of habit.",
        old="summed / total",
        new="summed / total / dist.get_world_size()",
        told="the gradient of first.weight is 0.333 times that of one process",
    ),
    Wrong(
        what="Takes it for granted that each rank has a gradient.",
        old=FILL_IN,
        new="",
        told="a gradient is None on the rank with 0 images",
    ),
    Wrong(
        what="Leaves out what has no gradient: the idle rank's buffer is shorter, and gloo aborts a process.",
        old=(FILL_IN, COUNT),
        new=(
            "parameters = [parameter for parameter in parameters if parameter.grad is not None]",
            "count = torch.ones(1, dtype=torch.float64)",
        ),
        told="ranks differ in a collective: rank 0 calls ALLREDUCE [459] Double, rank 2 calls ALLREDUCE [1]",
    ),
    Wrong(
        what="An error of Python's own: its line is told.",
        old=FLAT,
        new="flat = torch.cat([count, *gradients]).size_of() * images",
        told="(exercise.py, line 26: flat =",
    ),
    Wrong(
        what="Fills in zeros wherever a gradient is None, also for parameters that do not learn.",
        old=" if parameter.requires_grad",
        new="",
        told="frozen.weight is frozen (requires_grad=False), but it got a gradient",
    ),
    Wrong(
        what="Knows the frozen layer by its name.",
        old="[parameter for parameter in model.parameters() if parameter.requires_grad]",
        new='[parameter for name, parameter in model.named_parameters() if not name.startswith("frozen")]',
        told="another frozen layer: head.weight is frozen (requires_grad=False), but it got a gradient",
    ),
    Wrong(
        what="Packs the buffer in float32, torch's default, though the gradients are float64.",
        old=FLAT,
        new="flat = torch.cat([count, *gradients]).float() * images",
        told="did float32 come in between?",
    ),
    Wrong(
        what="The rank without images helps to average, but does not update its parameters.",
        old="optimizer.step()",
        new="""
        if len(x) > 0:
            optimizer.step()
        """,
        told="train_step, step 2 (an idle rank), on the rank with 0 images: parameter first.weight",
    ),
    Wrong(
        what="A rank without images returns at once, and the others wait for it.",
        old=FILL_IN,
        new="""
        if images == 0:
            return
        """,
        told="average_gradients, an idle rank: the rank with 0 images calls no collective",
    ),
    Wrong(
        what="The right values, a message for each parameter and one for the count.",
        old=AVERAGE_GRADIENTS,
        new="""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        total = parameters[0].new_tensor(float(images))
        dist.all_reduce(total)
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad *= images / total
            dist.all_reduce(parameter.grad)
        """,
        told="the values are right, but took 6 x all_reduce",
    ),
    Wrong(
        what="The second function is still the stub.",
        old=TRAIN_STEP,
        new="raise NotImplementedError",
        told="average_gradients is right; train_step is not written yet",
    ),
    Wrong(
        what="Does the optimizer's work as well.",
        old=WRITE_BACK,
        new="""
        for parameter, summed in zip(parameters, sums, strict=True):
            parameter.grad.copy_((summed / total).view_as(parameter))
            parameter.data -= 0.1 * parameter.grad
        """,
        told="parameter first.weight was changed, only its gradient should be",
    ),
    Right(
        what="ReduceOp.AVG is right when the count is averaged, too; gradients become views of the buffer.",
        old=(AVERAGE_GRADIENTS, TRAIN_STEP),
        new=(
            """
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
            parts = flat[:-1].split([p.numel() for p in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad = part.view_as(parameter)
            """,
            """
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)  # of no images: not a number, but its gradient is zero
            loss.backward()
            average_gradients(model, len(x))
            optimizer.step()
            """,
        ),
    ),
]
