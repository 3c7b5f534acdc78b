# accepted: gradients are kept and cleared in place, the count comes last, the steps are returned as a tensor
"""As ``zero_grad(set_to_none=False)`` and views into one buffer make it."""

import torch
import torch.distributed as dist


def train_to_the_end(model, optimizer, loss_sum, batches):
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
