"""Failures by what one does not see: calls in a library or a thread, the order and the place of data."""

import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from lesson_26.stage import ANY, ERROR, HANG, WRONG, Case, collector, folder_of_case

CASES: list[Case] = []
case = collector(CASES)
TIMED_OUT = r"Timed out waiting \d+ms for (recv|send) operation to complete"
CROSSED = "op.preamble.length <= op.nbytes"  # gloo may notice that two calls do not fit


class Metric:
    """As a library has it: to compute is to talk to all ranks."""

    def __init__(self) -> None:
        self.total = torch.zeros(1)

    def compute(self) -> float:
        total = self.total.clone()
        dist.all_reduce(total)
        return total.item()


@case(
    HANG,
    says={0: TIMED_OUT, 1: "^validated$"},
    right="^validated$",
    stands="one in a library's call, such as a metric's `compute()` or an FSDP unit's all-gather; the others "
    "past it, or one call ahead",
    did="let this rank's own data decide whether to call it: an empty share of the validation, its own look "
    "at the disk, or a batch without an image for the vision encoder or a token for an expert",
    cause="the library communicates in it",
    cure="always call it, a layer on a dummy whose output is multiplied by 0; or decide by what all ranks "
    "know: rank 0 looks, and broadcasts what it saw",
    lesson="04",
)
def compute_on_own_data(rank: int, cured: bool) -> str:
    metric = Metric()
    boxes = [1.0, 2.0] if rank == 0 else []
    metric.total += sum(boxes)
    if boxes or cured:
        metric.compute()
    return "validated"


@case(
    HANG,
    says={ANY: f"{TIMED_OUT}|{CROSSED}"},
    right="^saved$",
    stands="one in a barrier of the loop, another one in a thread, such as that of `async_save`",
    did="let a thread that communicates share the default group with the loop",
    cause="calls of a group are paired by their order, and two threads have no common order",
    cure="a group for the thread alone: `async_save(..., process_group=group)`",
    lesson="11",
)
def thread_beside_the_loop(rank: int, cured: bool) -> str:
    group = dist.new_group() if cured else dist.group.WORLD
    failed: list[str] = []

    def save() -> None:
        try:
            time.sleep(0.4 * rank)  # here before the loop's barrier, there after it
            dist.all_gather([torch.empty(100) for _ in range(2)], torch.ones(100), group=group)
        except RuntimeError as error:
            failed.append(str(error))

    thread = threading.Thread(target=save)
    thread.start()
    time.sleep(0.2)
    dist.barrier()
    thread.join()
    return failed[0] if failed else "saved"


@case(
    HANG,
    says={0: "wait timeout after", 1: TIMED_OUT},
    right="^2 parameters$",
    stands="rank 0 in a send to another job, such as a sampler; the others in the next gather",
    did="sent each weight on rank 0 right after its `full_tensor()`, in a weight sync",
    cause="the other job does not receive yet: it waits for what is sent after the gathers",
    cure="gather all parameters on all ranks, then let rank 0 send",
    lesson="23",
)
def sends_between_gathers(rank: int, cured: bool) -> str:
    store = dist.PrefixStore("sampler", dist.distributed_c10d._get_default_store())

    def send() -> None:
        if rank == 0:
            store.wait(["it receives"], timedelta(seconds=30 if cured else 3))

    for _ in range(2):
        dist.all_reduce(torch.ones(4))  # in place of full_tensor()
        if not cured:
            send()
    if rank == 1:
        store.set("it receives", "now")  # rank 1 starts the sampler when it is through
    send()
    return "2 parameters"


@case(
    ERROR,
    says={0: r"Unexpected key\(s\) in state_dict: \"_orig_mod.weight\""},
    right="<All keys matched successfully>",
    did="saved the state of `torch.compile(model)`; `strict=False` hides it, and the model stays random",
    cause="the wrapper prefixes each name with `_orig_mod.`",
    cure="`model.compile()`, which compiles in place; or cut the prefix off before loading",
    lesson="10",
)
def saved_by_the_compiled(rank: int, cured: bool) -> str:
    model = nn.Linear(2, 2)
    if cured:
        model.compile(backend="eager")
    else:
        model = torch.compile(model, backend="eager")
    return str(nn.Linear(2, 2).load_state_dict(model.state_dict()))


@case(
    ERROR,
    says={0: "Missing key in checkpoint state_dict: data.rank_1", 1: "in part: rank 1 begins at sample 0"},
    right="^goes on at sample 24$",
    did="saved each rank's dataloader position under its own key, and resumed with more ranks",
    cause="nobody wrote the new ranks' keys; with `allow_partial_load=True` they start the data at 0",
    cure="one place for all ranks, such as the samples seen; else resume with the same number of ranks",
    lesson="11",
)
def place_of_a_rank(rank: int, cured: bool) -> str:
    path = folder_of_case() / "checkpoint"
    key = "data" if cured else f"data.rank_{rank}"
    if rank == 0:  # an earlier run, on one rank
        dcp.save({key: torch.tensor(24)}, checkpoint_id=path, no_dist=True)
    dist.barrier()
    state = {key: torch.tensor(0)}
    try:
        dcp.load(state, checkpoint_id=path)
    except dcp.CheckpointException as error:
        dcp.load(state, checkpoint_id=path, planner=dcp.DefaultLoadPlanner(allow_partial_load=True))
        return f"{error}\nin part: rank {rank} begins at sample {state[key]}"
    return f"goes on at sample {state[key]}"


@case(
    WRONG,
    says={0: r"^(?!64 )\d+ of 64 samples came$"},
    right="^64 of 64 samples came$",
    symptom="after a resume in mid-epoch some samples repeat, others are never read",
    did="restored the random state in mid-epoch, and skipped the batches that were done",
    cause="`shuffle=True` draws another order from that state",
    cure="an order from seed and epoch alone: a sampler with `set_epoch`, or a `generator` of the loader",
    lesson="11",
    forms_group=False,
)
def order_drawn_again(rank: int, cured: bool) -> str:
    def loader(epoch: int) -> DataLoader:
        generator = torch.Generator().manual_seed(1000 + epoch) if cured else None
        return DataLoader(range(64), batch_size=4, shuffle=True, generator=generator)

    came: list[int] = []
    torch.manual_seed(7)
    for number, batch in enumerate(loader(epoch=0)):
        if number == 5:
            state = torch.get_rng_state()
            break  # this life ends here
        came += batch.tolist()
        torch.rand(3)  # dropout, augmentation
    torch.manual_seed(8)  # another process
    torch.set_rng_state(state)  # as the checkpoint brings it back
    for number, batch in enumerate(loader(epoch=0)):
        if number >= 5:
            came += batch.tolist()
    return f"{len(set(came))} of 64 samples came"


class Stream(IterableDataset):
    """Eight samples with a name, or one rank's share of them."""

    def __init__(self, name: str, first: int = 0, step: int = 1) -> None:
        self.name = name
        self.first = first
        self.step = step

    def __iter__(self) -> Iterator[str]:
        return (f"{self.name}{i}" for i in range(self.first, 8, self.step))

    def split(self, rank: int) -> "Stream":
        return type(self)(self.name, rank, 2)


class Mixed(Stream):
    """Two streams, mixed by a library that opens them by their names, and so whole."""

    def __iter__(self) -> Iterator[str]:
        streams = [Stream(name) for name in self.name]
        samples = [sample for pair in zip(*streams, strict=True) for sample in pair]
        return iter(samples[self.first :: self.step])


@case(
    WRONG,
    says={0: "^16 of 32 are doubles$"},
    right="^0 of 16 are doubles$",
    symptom="all ranks have the same samples, although the streams were split",
    did="mixed streams after the split: `interleave_datasets` or `concatenate_datasets` after "
    "`split_dataset_by_node`",
    cause="the library makes a new dataset of the undivided sources; `.map()` and `.shuffle()` keep the "
    "split",
    cure="mix first, split last; gather the first samples of all ranks, and assert that they differ",
    lesson="12",
)
def mixed_after_the_split(rank: int, cured: bool) -> str:
    if cured:
        own = list(Mixed("ab").split(rank))
    else:
        parts = [Stream(name).split(rank) for name in "ab"]
        own = list(Mixed("".join(part.name for part in parts)))
    everything: list = [None, None]
    dist.all_gather_object(everything, own)
    read = everything[0] + everything[1]
    return f"{len(read) - len(set(read))} of {len(read)} are doubles"


@case(
    WRONG,
    says={0: "^the rate ends at 0.5$"},
    right="^the rate ends at 0.0$",
    symptom="with N GPUs the learning rate ends too high, or its schedule starts over",
    did="counted the schedule's steps by the loader before it was divided, or stepped once for each rank",
    cause="a rank makes 1/N of those steps",
    cure="count the loader that the rank has; one `scheduler.step()` for each step of the optimizer",
    lesson="10",
    forms_group=False,
)
def schedule_of_the_undivided(rank: int, cured: bool) -> str:
    undivided = DataLoader(range(64), batch_size=8)
    own = DataLoader(range(32), batch_size=8)
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    steps = len(own if cured else undivided)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    for _ in own:
        optimizer.step()
        scheduler.step()
    return f"the rate ends at {optimizer.param_groups[0]['lr']:.1f}"
