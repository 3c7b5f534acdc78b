"""One executor for many schedules: each rank has a list of actions, and does them one after the other.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_16_executor.py
Written by:  notebooks/16_pipeline_parallel.ipynb (edit it there)
"""

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU
from lab_16_gpipe import assert_as_one_process, batch, layers, layers_of, share_of_loss

Action = tuple[str, int, int]  # kind, stage, micro-batch


def gpipe(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """Forward of all micro-batches, then backward of all. Source: Huang et al., 2019, arXiv 1811.06965."""
    return [(kind, rank, number) for kind in "FB" for number in range(micro_batches)]


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


SCHEDULES = {"gpipe": gpipe, "1f1b": one_f_one_b}


class Pipeline:
    """The stages that this rank holds, and how it does a list of actions with them.

    Args:
        stages: {number: module} of this rank. The first takes an input, the last makes logits.
        owner: the rank of each stage of the model.
        dtype: of the activations.
        timeout: for a message that does not come; torch's default is 30 minutes.

    Sends do not block, because neighbours send to each other at the same time. What is sent stays in memory
    until it has arrived, so a send waits for the oldest gradient once more of them are on their way than
    there are ranks. A list that receives gradients in another order than they were sent can hang. All ranks
    must build a pipeline, and step, together.

    With nccl, build the groups with ``backend="nccl-lazy"``. The two suffice for one stage per rank. For a V,
    or a loop on two ranks, take a group for each ordered pair of ranks.
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
        """Do all actions; gradients add up in the parameters. Returns the loss on the rank of the last stage.

        Args:
            inputs: of each micro-batch; needed on the rank of the first stage.
            shapes: of each micro-batch's activations between two stages.
            share_of_loss: from number and output of a micro-batch to what it adds to the loss of the batch.
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
        {"F": self.forward, "B": self.backward}[kind](stage, number)

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
        self.wait_for("activations", stage + 1, number)  # else this gradient could not be here
        return gradient

    def send(self, what: str, target: int, number: int, tensor: torch.Tensor) -> None:
        if self.owner[target] == self.rank:
            self.handed_over[what, target, number] = tensor
            return
        tensor = tensor.contiguous()
        work = dist.isend(tensor, self.owner[target], self.groups[what], tag=self.tag(target, number))
        self.sends[what, target, number] = (work, tensor)
        gradients = [key for key in self.sends if key[0] == "gradients"]
        if len(gradients) > len(set(self.owner)):
            self.wait_for(*gradients[0])  # the oldest; else the gradients of all micro-batches would stay

    def wait_for(self, what: str, target: int, number: int) -> None:
        """Wait until this message has arrived, and let its tensor go."""
        if (what, target, number) in self.sends:
            work, _ = self.sends.pop((what, target, number))
            work.wait()

    def receive(self, what: str, source: int, target: int, number: int) -> torch.Tensor:
        if self.owner[source] == self.rank:
            return self.handed_over.pop((what, target, number))
        tensor = torch.empty(self.shapes[number], dtype=self.dtype, device=self.device)
        dist.recv(tensor, self.owner[source], self.groups[what], tag=self.tag(target, number))
        return tensor

    def tag(self, target: int, number: int) -> int:
        """Identifies the message. gloo matches tags; nccl ignores them."""
        return target * len(self.shapes) + number


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    names = sys.argv[1:2] or SCHEDULES  # by default both
    micro_batches = int(sys.argv[2]) if sys.argv[2:] else 2 * ranks
    inputs, labels = (tensor.tensor_split(micro_batches) for tensor in batch(device))
    for name in names:
        actions = SCHEDULES[name](rank, ranks, micro_batches)
        mine = layers_of(rank, ranks)
        stage = layers(mine).to(device)
        pipeline = Pipeline({rank: stage}, range(ranks), device, inputs[0].dtype)
        shapes = [x.shape for x in inputs]
        loss = pipeline.step(actions, inputs, shapes, lambda number, y: share_of_loss(y, labels[number]))
        assert_as_one_process({mine: stage}, loss)
        peaks = [None] * ranks
        dist.all_gather_object(peaks, pipeline.peak_live)
        if rank == 0:
            print(f"{name}, rank 0: {' '.join(f'{kind}{number}' for kind, _, number in actions)}")
            print(f"    equals one process; micro-batches that the ranks hold at once: {peaks}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
