"""What a checkpoint keeps of several ranks, when it is complete, and what a loss is divided by."""

import threading
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F

from lesson_26.stage import ERROR, WRONG, Case, collector, folder_of_case

CASES: list[Case] = []
case = collector(CASES)
NOT_COUNTED = -100


@case(
    WRONG,
    says={1: "^own: False$", 0: "^own: True$"},
    right="^own: True$",
    symptom="after a resume all ranks draw the same random numbers, or read the same part of the data",
    did="saved each rank's generator or position under one name with `dcp.save`",
    cause="DCP takes tensors of one name on several ranks for copies, and keeps one of them",
    cure='the rank in the name, `f"rng_{rank}"`; a `DTensor` for what is sharded',
    lesson="11",
)
def one_name_for_all_ranks(rank: int, cured: bool) -> str:
    name = f"rng_{rank}" if cured else "rng"
    saved = {name: torch.tensor([7 + 100 * rank])}
    dcp.save(saved, checkpoint_id=folder_of_case())
    loaded = {name: torch.zeros(1, dtype=torch.int64)}
    dcp.load(loaded, checkpoint_id=folder_of_case())
    return f"own: {torch.equal(loaded[name], saved[name])}"


class Slow(dcp.FileSystemWriter):
    """A writer that has written all shards, and waits before it writes ``.metadata``, its last file."""

    def __init__(self, path: Path, may_end: threading.Event) -> None:
        super().__init__(path)
        self.may_end = may_end

    def finish(self, metadata, results) -> None:
        self.may_end.wait(30)
        super().finish(metadata, results)


@case(
    ERROR,
    says={0: r"No such file or directory: '.*\.metadata'"},
    right="^step 4$",
    symptom="`AssertionError: metadata is None`, `No such file or directory: '.../.metadata'` in `dcp.load`",
    did="moved `latest`, or deleted the older checkpoint, as soon as `async_save` had returned; then the job "
    "died",
    cause="the save has only started",
    cure="wait for `future.result()`, then move `latest` and delete; resume from the newest folder with "
    "`.metadata` ([KempnerForge #102](https://github.com/KempnerInstitute/KempnerForge/issues/102))",
    lesson="11",
    forms_group=False,
)
def latest_before_it_is_written(rank: int, cured: bool) -> str:
    path = folder_of_case() / f"step_4_of_{rank}"
    may_end = threading.Event()
    future = dcp.async_save({"step": torch.tensor(4)}, storage_writer=Slow(path, may_end), no_dist=True)
    if cured:
        may_end.set()
        future.result()
    state = {"step": torch.tensor(0)}
    try:
        dcp.load(state, checkpoint_id=path, no_dist=True)  # as the next life does
    finally:
        may_end.set()
        future.result()
    return f"step {state['step']}"


@case(
    WRONG,
    says={0: "^finite: False$"},
    right="^finite: True$",
    symptom="all parameters are NaN from one step on, though no loss was large",
    did="scaled the gradients by 1 / tokens in a step whose labels are all -100",
    cause="0 / 0: prompts that were cut before their answers leave no token that counts",
    cure="`tokens.clamp_(min=1)` after the all-reduce",
    lesson="12",
)
def no_token_counts(rank: int, cured: bool) -> str:
    weight = torch.ones(4, 8, requires_grad=True)
    labels = torch.full((2,), NOT_COUNTED)
    F.cross_entropy(torch.ones(2, 8) @ weight.T, labels, ignore_index=NOT_COUNTED, reduction="sum").backward()
    tokens = (labels != NOT_COUNTED).sum()
    dist.all_reduce(tokens)
    if cured:
        tokens.clamp_(min=1)
    weight.grad.div_(tokens)
    return f"finite: {bool(weight.grad.isfinite().all())}"


@case(
    WRONG,
    says={0: "^2.5$"},
    right="^1.3$",
    symptom="with context parallelism the loss is not that of one GPU",
    did="counted tokens, and took the factor, in the data-parallel group",
    cause="the wrapper averages over the context-parallel ranks, too",
    cure="both over all ranks that the wrapper averages",
    lesson="12",
)
def tokens_of_the_wrong_group(rank: int, cured: bool) -> float:
    loss_sum, tokens = ((4.0, 1), (9.0, 9))[rank]  # a sequence of 10 tokens, split over the two ranks
    factor, count = 1, torch.tensor(tokens)
    if cured:
        factor = 2
        dist.all_reduce(count)
    averaged = factor * loss_sum / count
    dist.all_reduce(averaged)  # as DDP and FSDP do: the sum over the ranks ...
    return round(averaged.item() / 2, 4)  # ... by their number
