# accepted: a rank without data runs forward and backward on a batch of no images; averages by ReduceOp.AVG
"""An empty batch gives a loss of 0 and gradients of 0, so no rank needs a case of its own."""

import torch
import torch.distributed as dist


def train_to_the_end(model, optimizer, loss_sum, batches):
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
