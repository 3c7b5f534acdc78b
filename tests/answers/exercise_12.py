"""Answers to exercise 12; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

ANSWERS = [
    wrong(
        "Asks only after the step whether anybody had data. With momentum, a step with zeros moves.",
        "equal streams: the optimizer made 4 steps of 3",
        (
            """
            if total.item() == 0:
                return steps
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad = (part / total).view_as(parameter)
            optimizer.step()
            """,
            """
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad = (part / total.clamp(min=1)).view_as(parameter)
            optimizer.step()
            if total.item() == 0:
                return steps
            """,
        ),
    ),
    wrong(
        "Nobody hangs, but the data that some ranks still have is left unused.",
        "one batch more by rank: 3 steps on the rank with 5 batches",
        (
            "images = 0",
            """
            images = 0
            has_data = torch.tensor([float(batch is not None)])
            dist.all_reduce(has_data, op=dist.ReduceOp.MIN)
            if not has_data:
                return steps
            """,
        ),
    ),
    wrong(
        "A rank without data answers the count, but not the gradients.",
        "one batch more by rank: rank 0 calls all_reduce of 8 bytes, rank 1 calls all_reduce of",
        train_to_the_end="""
        stream = iter(batches)
        steps = 0
        while True:
            batch = next(stream, None)
            images = torch.zeros(1, dtype=torch.float64)
            if batch is not None:
                images += len(batch[0])
            dist.all_reduce(images)
            if not images:
                return steps
            optimizer.zero_grad()
            if batch is not None:
                (loss_sum(model(batch[0]), batch[1]) / images).backward()
                gradients = [parameter.grad for parameter in model.parameters()]
                flat = torch.nn.utils.parameters_to_vector(gradients)
                dist.all_reduce(flat)
                torch.nn.utils.vector_to_parameters(flat, gradients)
            optimizer.step()
            steps += 1
        """,
    ),
    wrong(
        "Sums of losses divided by the number of ranks.",
        "equal streams: after training, parameter 1.weight (torch.float64) is off",
        ("part / total", "part / dist.get_world_size()"),
    ),
    wrong(
        "A rank without data answers, but its parameters stand still.",
        "one batch more by rank: the optimizer made 3 steps of",
        (
            "optimizer.step()",
            """
            if images:
                optimizer.step()
            """,
        ),
    ),
    wrong(
        "The loop of one process: a rank without data goes home, and the others wait.",
        "one batch more by rank: rank 0 calls nothing more, rank 1 calls all_reduce",
        (
            "images = 0",
            """
            images = 0
            if batch is None:
                return steps
            """,
        ),
    ),
    wrong(
        "The mean of means over ranks that are left, as Join's divide_by_initial_world_size=False.",
        "uneven streams: after training, parameter 1.weight (torch.float64) is off",
        ("images = len(x)", "images = 1"),
        ("loss_sum(model(x), y).backward()", "(loss_sum(model(x), y) / len(x)).backward()"),
    ),
    wrong(
        "Clears gradients only before backward: a rank without data adds the average of the last step.",
        "one batch more by rank: after training, parameter 1.weight (torch.float64) is off by",
        ("optimizer.zero_grad()", ""),
        (
            "x, y = batch",
            """
            x, y = batch
            optimizer.zero_grad()
            """,
        ),
    ),
    wrong(
        "Right, with an all-reduce for each parameter.",
        "equal streams: all is right, but 3 steps took",
        ("flat = torch.cat([count, *(gradient.flatten() for gradient in gradients)])", ""),
        ("dist.all_reduce(flat)", "dist.all_reduce(count)"),
        (
            "total, *parts = flat.split([1, *(p.numel() for p in parameters)])",
            "total, parts = count, gradients",
        ),
        (
            "parameter.grad = (part / total).view_as(parameter)",
            """
            dist.all_reduce(part)
            parameter.grad = part / total
            """,
        ),
    ),
    wrong(
        "Counts the batches first. A stream has no length.",
        "equal streams: batch 1 was asked for after 0 steps",
        ("iter(batches)", "iter(list(batches))"),
    ),
    wrong(
        "The flat buffer is float32: the gradients lose half of their digits on the way.",
        "equal streams: after training, parameter 1.weight (torch.float64) is off by",
        (
            "dist.all_reduce(flat)",
            """
            flat = flat.float()
            dist.all_reduce(flat)
            """,
        ),
        ("view_as(parameter)", "view_as(parameter).double()"),
    ),
    right(
        "A rank without data runs forward and backward on a batch of no images; averages by ReduceOp.AVG.",
        train_to_the_end="""
        stream = iter(batches)
        first = next(model.parameters())
        steps = 0
        while True:
            batch = next(stream, None)
            if batch is None:
                x = first.new_zeros(0, 1, 8, 8)
                y = torch.zeros(0, dtype=torch.int64, device=first.device)
            else:
                x, y = batch
            images = first.new_tensor(float(len(x)))
            dist.all_reduce(images)
            if not images:
                return steps
            optimizer.zero_grad()
            (loss_sum(model(x), y) * (dist.get_world_size() / images)).backward()
            flat = torch.nn.utils.parameters_to_vector([p.grad for p in model.parameters()])
            dist.all_reduce(flat, op=dist.ReduceOp.AVG)
            torch.nn.utils.vector_to_parameters(flat, [p.grad for p in model.parameters()])
            optimizer.step()
            steps += 1
        """,
    ),
    right(
        "Gradients are kept and cleared in place, the count comes last, the steps are returned as a tensor.",
        train_to_the_end="""
        stream = iter(batches)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        images = next(model.parameters()).new_zeros(1)
        tensors = [*(parameter.grad for parameter in model.parameters()), images]
        steps = torch.zeros((), dtype=torch.int64)
        while True:
            for tensor in tensors:
                tensor.zero_()
            batch = next(stream, None)
            if batch is not None:
                images += len(batch[0])
                loss_sum(model(batch[0]), batch[1]).backward()
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            dist.all_reduce(flat)
            if flat[-1] == 0:
                return steps
            sizes = [tensor.numel() for tensor in tensors]
            for tensor, part in zip(tensors, (flat / flat[-1]).split(sizes), strict=True):
                tensor.copy_(part.view_as(tensor))
            optimizer.step()
            steps += 1
        """,
    ),
]
