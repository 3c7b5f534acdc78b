"""Answers to exercise 12."""

from tests.planted import Right, Wrong, solved

TRAIN_TO_THE_END = solved("12_has_data", "train_to_the_end")

ANSWERS = [
    Wrong(
        what="Asks only after the step whether anybody had data. With momentum, a step with zeros moves.",
        old="""
        if total.item() == 0:
            return steps
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = (part / total).view_as(parameter)
        optimizer.step()
        """,
        new="""
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = (part / total.clamp(min=1)).view_as(parameter)
        optimizer.step()
        if total.item() == 0:
            return steps
        """,
        told="equal streams: the optimizer made 4 steps of 3",
    ),
    Wrong(
        what="Nobody hangs, but the data that some ranks still have is left unused.",
        old="images = 0",
        new="""
        images = 0
        has_data = torch.tensor([float(batch is not None)])
        dist.all_reduce(has_data, op=dist.ReduceOp.MIN)
        if not has_data:
            return steps
        """,
        told="one batch more by rank: 3 steps on the rank with 5 batches",
    ),
    Wrong(
        what="The loop of one process: a rank without data goes home, and the others wait.",
        old="images = 0",
        new="""
        images = 0
        if batch is None:
            return steps
        """,
        told="one batch more by rank: rank 0 calls nothing more, rank 1 calls all_reduce",
    ),
    Wrong(
        what="The mean of means over ranks that are left, as Join's divide_by_initial_world_size=False.",
        old=("images = len(x)", "loss_sum(model(x), y).backward()"),
        new=("images = 1", "(loss_sum(model(x), y) / len(x)).backward()"),
        told="uneven streams: after training, parameter 1.weight (torch.float64) is off",
    ),
    Wrong(
        what="Right, with an all-reduce for each parameter.",
        old=(
            "flat = torch.cat([count, *(gradient.flatten() for gradient in gradients)])",
            "dist.all_reduce(flat)",
            "total, *parts = flat.split([1, *(p.numel() for p in parameters)])",
            "parameter.grad = (part / total).view_as(parameter)",
        ),
        new=(
            "",
            "dist.all_reduce(count)",
            "total, parts = count, gradients",
            """
            dist.all_reduce(part)
            parameter.grad = part / total
            """,
        ),
        told="equal streams: all is right, but 3 steps took",
    ),
    Wrong(
        what="Counts the batches first. A stream has no length.",
        old="iter(batches)",
        new="iter(list(batches))",
        told="equal streams: batch 1 was asked for after 0 steps",
    ),
    Right(
        what="A rank without data runs forward and backward on a batch of no images.",
        old=TRAIN_TO_THE_END,
        new="""
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
]
