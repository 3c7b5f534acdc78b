"""One executor for all schedules: each rank has a list of actions, and does them one after the other.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_16_executor.py
Written by:  notebooks/16_pipeline_parallel.ipynb (edit it there)
"""

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

Action = tuple[str, int, int]  # kind, stage, micro-batch


def gpipe(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """Forward of all micro-batches, then backward of all. Source: Huang et al., 2019, arXiv 1811.06965."""
    actions = [("F", rank, number) for number in range(micro_batches)]
    for number in range(micro_batches):
        actions.append(("B", rank, number))
    return actions


def one_f_one_b(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """Some forward passes to begin with, then one backward and one forward in turn.

    Rank r holds at most ranks - r micro-batches at once. Source: Narayanan et al., 2021, arXiv 2104.04473.
    """
    warm_up = min(ranks - rank, micro_batches)
    actions = [("F", rank, number) for number in range(warm_up)]
    for number in range(micro_batches):
        actions.append(("B", rank, number))
        if number + warm_up < micro_batches:
            actions.append(("F", rank, number + warm_up))
    return actions


class Pipeline:
    """The stages that this rank holds, and how it does a list of actions with them.

    - F: receive the activations, compute forward, send the result.
    - B: receive the gradient, compute backward, send the gradient of the stage's input.

    Args:
        stages: {number: module} of this rank. The first takes an input, the last makes logits.
        owner: the rank of each stage of the model.
        dtype: of the activations.
        timeout: for a message that does not come; torch's default is 30 minutes.

    Sends do not block, so no order of actions can make two ranks wait for each other's *receive*. What goes
    forward and what comes back have a process group each: with nccl, messages between two ranks in one group
    would go in the order in which they are called. All ranks must build it, and step, together.
    """

    def __init__(
        self,
        stages: dict[int, nn.Module],
        owner: Sequence[int],
        device: torch.device,
        dtype: torch.dtype,
        timeout: timedelta | None = None,
    ) -> None:
        self.stages = stages
        self.owner = owner
        self.rank = dist.get_rank()
        self.device = device
        self.dtype = dtype
        self.groups = {what: dist.new_group(timeout=timeout) for what in ("activations", "gradients")}

    def step(
        self,
        actions: Sequence[Action],
        inputs: Sequence[torch.Tensor],
        shapes: Sequence[torch.Size],
        share_of_loss: Callable[[int, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Do all actions; gradients add up in the parameters.

        Args:
            inputs: of each micro-batch; needed on the rank of the first stage.
            shapes: of each micro-batch's activations between two stages.
            share_of_loss: from number and output of a micro-batch to what it adds to the loss of the batch.

        Returns:
            The loss of the whole batch on the rank of the last stage, 0 elsewhere.
        """
        self.inputs = inputs
        self.shapes = shapes
        self.share_of_loss = share_of_loss
        self.loss = torch.zeros((), dtype=self.dtype, device=self.device)
        self.kept: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}  # input and output
        self.handed_over: dict[tuple[str, int, int], torch.Tensor] = {}  # between two stages of this rank
        self.sends: dict[tuple[str, int, int], tuple[dist.Work, torch.Tensor]] = {}  # not free to reuse yet
        self.live = 0  # micro-batches in flight, and the most of them at once
        self.peak_live = 0
        for kind, stage, number in actions:
            self.do(kind, stage, number)
        for work, _ in self.sends.values():
            work.wait()
        self.sends.clear()
        return self.loss

    def do(self, kind: str, stage: int, number: int) -> None:
        if kind == "F":
            self.forward(stage, number)
        elif kind == "B":
            self.backward(stage, number)
        else:
            raise ValueError(f"{kind} is no action of this executor")

    def forward(self, stage: int, number: int) -> None:
        if stage == 0:
            x = self.inputs[number]
        else:
            x = self.receive("activations", stage - 1, stage, number).requires_grad_()
        y = self.stages[stage](x)
        if stage == len(self.owner) - 1:
            y = self.share_of_loss(number, y)
            self.loss += y.detach()
        else:
            self.send("activations", stage + 1, number, y.detach())
        self.kept[stage, number] = (x, y)
        self.live += 1
        self.peak_live = max(self.peak_live, self.live)

    def backward(self, stage: int, number: int) -> None:
        x, y = self.kept.pop((stage, number))
        y.backward(self.gradient_of_output(stage, number))
        self.live -= 1
        if stage > 0:
            self.send("gradients", stage - 1, number, x.grad)

    def gradient_of_output(self, stage: int, number: int) -> torch.Tensor | None:
        """None for the last stage: its output is the loss itself."""
        if stage == len(self.owner) - 1:
            return None
        gradient = self.receive("gradients", stage + 1, stage, number)
        sent = self.sends.pop(("activations", stage + 1, number), None)
        if sent:
            sent[0].wait()  # returns at once: the gradient could not be here, had the activations not arrived
        return gradient

    def send(self, what: str, target: int, number: int, tensor: torch.Tensor) -> None:
        if self.owner[target] == self.rank:
            self.handed_over[what, target, number] = tensor
            return
        tensor = tensor.contiguous()
        work = dist.isend(tensor, self.owner[target], self.groups[what], tag=self.tag(target, number))
        self.sends[what, target, number] = (work, tensor)

    def receive(self, what: str, source: int, target: int, number: int) -> torch.Tensor:
        if self.owner[source] == self.rank:
            return self.handed_over.pop((what, target, number))
        tensor = torch.empty(self.shapes[number], dtype=self.dtype, device=self.device)
        dist.recv(tensor, self.owner[source], self.groups[what], tag=self.tag(target, number))
        return tensor

    def tag(self, target: int, number: int) -> int:
        """Which message it is. gloo looks at it, nccl does not."""
        return target * len(self.shapes) + number


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    x = torch.randn(16, 32, dtype=torch.float64, device=device)
    micro_batches = list(x.chunk(8))
    whole = nn.Sequential()  # small enough to be here on each rank, so that we can compare
    for _ in range(ranks):
        whole.append(nn.Sequential(nn.Linear(32, 32, dtype=torch.float64, device=device), nn.Tanh()))
    expected = whole(x).square().sum() / x.numel()
    truth = torch.autograd.grad(expected, list(whole[rank].parameters()))
    for build in (gpipe, one_f_one_b):
        actions = build(rank, ranks, len(micro_batches))
        pipeline = Pipeline({rank: whole[rank]}, range(ranks), device, x.dtype)
        shapes = [micro_batch.shape for micro_batch in micro_batches]
        loss = pipeline.step(actions, micro_batches, shapes, lambda _, y: y.square().sum() / x.numel())
        dist.broadcast(loss, src=ranks - 1)
        assert abs(loss - expected) < 1e-12, f"{build.__name__}: the loss is {loss}, expected {expected}"
        for ours, theirs in zip(whole[rank].parameters(), truth, strict=True):
            assert torch.allclose(ours.grad, theirs, rtol=0, atol=1e-12), f"{build.__name__}: a gradient"
        whole.zero_grad()
        peaks = [None] * ranks
        dist.all_gather_object(peaks, pipeline.peak_live)
        if rank == 0:
            print(f"{build.__name__}, rank 0: {' '.join(f'{kind}{number}' for kind, _, number in actions)}")
            print(f"    as one process; micro-batches that the ranks hold at once: {peaks}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
