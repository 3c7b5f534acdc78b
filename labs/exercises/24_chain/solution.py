"""Exercise 24: the gradients of a chain of stages, each on its owner."""

import torch
import torch.nn.functional as F
from torch.distributed import autograd as dist_autograd
from torch.distributed import rpc


def forward(stage: rpc.RRef, x: torch.Tensor) -> torch.Tensor:
    """Run a stage where it is: (batch, inputs) to (batch, outputs). To be called on the stage's owner."""
    return stage.local_value()(x)


def gradients_of(stage: rpc.RRef, context_id: int) -> dict[str, torch.Tensor]:
    """{name of the parameter: its gradient in this context}. To be called on the stage's owner."""
    # solution: begin
    gradients = dist_autograd.get_gradients(context_id)
    return {name: gradients[parameter] for name, parameter in stage.local_value().named_parameters()}
    # solution: end


def chain_gradients(
    stages: list[rpc.RRef], x: torch.Tensor, y: torch.Tensor
) -> tuple[float, list[dict[str, torch.Tensor]]]:
    """Return the loss, and for each stage {name of the parameter: its gradient}.

    The loss is the mean cross entropy between the last stage's scores and the labels ``y``. Every stage
    runs on its owner, and ``.grad`` of its parameters stays None: other workers may use the same stages
    at the same time.
    """
    # solution: begin
    with dist_autograd.context() as context_id:
        for stage in stages:
            x = rpc.rpc_sync(stage.owner(), forward, args=(stage, x))
        loss = F.cross_entropy(x, y)
        dist_autograd.backward(context_id, [loss])
        grads = [rpc.rpc_sync(stage.owner(), gradients_of, args=(stage, context_id)) for stage in stages]
    return loss.item(), grads
    # solution: end
