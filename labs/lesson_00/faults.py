"""Planted faults of lesson 00."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="00_hello",
        old="items[rank::world_size]",
        new="items.chunk(world_size)[0]",
        told="the sum over all ranks is",
    ),
    Fault(
        lab="00_digits",
        old="dist.all_reduce(weight.grad)",
        new="dist.broadcast(weight.grad, src=0)",
        told="from what one process finds",
    ),
    Fault(
        lab="00_digits",
        old="dist.all_reduce(not_shared)",
        new="dist.all_reduce(not_shared, op=dist.ReduceOp.AVG)",
        told="without the share the gradient is 1.000 times as large",
    ),
    Fault(
        lab="00_digits",
        old="own = weight.grad / number_of_images",
        new="own = after_backward(images, labels).grad / number_of_images",
        told="without all_reduce a rank has the gradient of all images",
    ),
    Fault(
        lab="00_echo",
        old="dist.get_rank() == 1:",
        new="dist.get_rank() == 3:",
        told="no rank failed before it",
    ),
    Fault(
        lab="00_left_over",
        old="torchrun.kill()",
        new="torchrun.terminate()",
        told="torchrun was killed, and 0 of 2 ranks are left",
        ranks=0,
    ),
]
