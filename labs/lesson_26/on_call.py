"""Failures that people bring from work: data that nobody divides, small state of a resume, shards by hand."""

import argparse
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed import P2POp
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, WeightedRandomSampler

from lesson_26.stage import ERROR, WRONG, Case, collector, folder_of_case

CASES: list[Case] = []
case = collector(CASES)
MIB = 2**20


def far_apart(x: torch.Tensor) -> float:
    """By how much a tensor differs between two ranks."""
    parts = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(parts, x.detach().clone())
    return (parts[0] - parts[1]).abs().max().item()


class Stream(IterableDataset):
    """This rank's half of 16 samples, in an order that follows from the epoch."""

    def __init__(self, rank: int, is_shared: bool) -> None:
        self.rank = rank
        self.epoch = torch.zeros((), dtype=torch.int64)
        self.is_shared = is_shared
        if is_shared:
            self.epoch.share_memory_()  # one number, which the worker processes see, too

    def set_epoch(self, epoch: int) -> None:
        if self.is_shared:
            self.epoch.fill_(epoch)
        else:
            self.epoch = torch.tensor(epoch)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(int(self.epoch))
        yield from torch.randperm(16, generator=generator)[self.rank :: 2].tolist()


@case(
    WRONG,
    says={0: "^1 order in 3 epochs$"},
    right="^3 orders in 3 epochs$",
    symptom="the same samples in each epoch, although `set_epoch` is called; some data is never read",
    did="called `set_epoch` on a dataset whose loader has `persistent_workers=True`",
    cause="the worker processes hold their copy of the first epoch",
    cure="keep the epoch in a tensor with `share_memory_()`; or let a sampler carry it; or do without "
    "persistent workers",
    lesson="10",
    forms_group=False,
)
def epoch_in_workers(rank: int, cured: bool) -> str:
    stream = Stream(rank, is_shared=cured)
    loader = DataLoader(stream, batch_size=8, num_workers=1, persistent_workers=True)
    orders = set()
    for epoch in range(3):
        stream.set_epoch(epoch)
        orders.add(tuple(torch.cat(list(loader)).tolist()))
    return f"{len(orders)} order{'s' * (len(orders) > 1)} in 3 epochs"


@case(
    WRONG,
    says={0: "^200 draws, 100% of them the same on both ranks$"},
    right=r"^100 draws, \d% of them the same on both ranks$",
    symptom="with a sampler of one's own (weights, buckets) an epoch is N times as long, or all ranks see "
    "the same samples",
    did="gave each rank a `WeightedRandomSampler`",
    cause="DDP divides no data; each rank draws a whole epoch, with one seed the same one",
    cure="all ranks draw one epoch with a generator of (seed, epoch), and each takes `[rank::world_size]`",
    lesson="10",
)
def weighted_draws(rank: int, cured: bool) -> str:
    weights = [9.0 if number % 10 == 0 else 1.0 for number in range(100)]
    torch.manual_seed(0)
    drawn = list(WeightedRandomSampler(weights, 100, generator=torch.Generator().manual_seed(0)))
    mine = drawn[rank::2] if cured else drawn
    everyone: list = [None, None]
    dist.all_gather_object(everyone, mine)
    same = sum(one == other for one, other in zip(*everyone, strict=True)) / len(mine)
    return f"{sum(map(len, everyone))} draws, {same:.0%} of them the same on both ranks"


@case(
    WRONG,
    says={0: "^8 of 16 samples$"},
    right="^16 of 16 samples$",
    symptom="two machines learn no faster than one; all machines read the same samples",
    did="gave the sampler `rank=local_rank`",
    cause="local ranks begin at 0 on each machine",
    cure="`DistributedSampler(data)` takes the global rank from the group; give both numbers or none",
    lesson="08",
)
def local_rank_in_sampler(rank: int, cured: bool) -> str:
    local_rank = 0  # two machines with one GPU each
    sampler = DistributedSampler(range(16), 2, rank if cured else local_rank, shuffle=False)
    everyone: list = [None, None]
    dist.all_gather_object(everyone, list(sampler))
    return f"{len({*everyone[0], *everyone[1]})} of 16 samples"


def private_bytes() -> int:
    """Memory that this process shares with nobody."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


@case(
    WRONG,
    says={0: "^2 copies$"},
    right="^0 copies$",
    symptom="the host's memory is full: N ranks hold N times the data set, or N copies of a checkpoint",
    did="read the data set into memory in each rank, such as a cache of all images",
    cause="each process has its own copy, and each loader's worker may make one more",
    cure="`torch.load(..., mmap=True)`, `np.memmap` or Arrow files: one copy in the page cache of a machine",
    lesson="10",
    timeout_s=30.0,
)
def copies_in_memory(rank: int, cured: bool) -> str:
    path = folder_of_case() / "images.pt"
    if rank == 0:
        torch.save(torch.ones(64 * MIB, dtype=torch.uint8), path)
    dist.barrier()
    before = private_bytes()
    images = torch.load(path, mmap=cured)
    images[::4096].sum()  # touches each page
    dist.barrier()  # both ranks have read
    held = torch.tensor((private_bytes() - before) / (64 * MIB))
    dist.all_reduce(held)
    return f"{held:.0f} copies"


class Both(nn.Module):
    """A generator and its judge."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(3, 5)
        self.judge = nn.Linear(5, 1)

    def forward(self, part: str, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, part)(x)


@case(
    ERROR,
    says={0: "Expected to have finished reduction in the prior iteration before starting a new one"},
    symptom="`RuntimeError: Expected to have finished reduction in the prior iteration before starting a "
    "new one`, with two losses",
    right="^3 steps$",
    did="put two nets with a loss each, as in a GAN, into one DDP",
    cause="each backward pass leaves the other net's parameters without a gradient, and DDP waits for them",
    cure="a DDP for each net that has a backward pass of its own; `find_unused_parameters` would hide it",
    lesson="08",
)
def two_nets_one_wrapper(rank: int, cured: bool) -> str:
    nets = Both()
    if cured:
        nets.generator = DistributedDataParallel(nets.generator)
        nets.judge = DistributedDataParallel(nets.judge)
    call = nets if cured else DistributedDataParallel(nets)
    for _ in range(3):
        for part in ("judge", "generator"):
            nets.zero_grad()
            made = call("generator", torch.randn(4, 3))
            call("judge", made.detach() if part == "judge" else made).square().mean().backward()
    return "3 steps"


@case(
    WRONG,
    says={0: "^weights differ$"},
    right="^weights equal$",
    symptom="from a later phase on, such as when a backbone is unfrozen: the loss is a little worse than on "
    "one GPU",
    did="set `requires_grad` after the model was wrapped by DDP",
    cause="DDP takes the parameters that require a gradient when it is built, and averages no others",
    cure="wrap again after unfreezing; or unfreeze before, with a learning rate of 0 at first",
    lesson="08",
)
def unfrozen_later(rank: int, cured: bool) -> str:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    ddp = DistributedDataParallel(model)
    model[0].requires_grad_(True)
    if cured:
        ddp = DistributedDataParallel(model)
    torch.manual_seed(1 + rank)
    ddp(torch.randn(8, 4)).square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return "weights differ" if far_apart(model[0].weight) else "weights equal"


class Speaker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens))

    def generate(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens)).argmax(-1)


@case(
    ERROR,
    says={0: "got mixed torch.Tensor and DTensor"},
    symptom="`RuntimeError: aten.embedding.default got mixed torch.Tensor and DTensor`",
    right="^generated 3 tokens$",
    did="called a method other than `forward` on an FSDP2 model, such as `generate`",
    cause="FSDP2 gathers parameters by hooks of `forward`; another method finds shards",
    cure="`register_fsdp_forward_method(model, 'generate')`",
    lesson="19",
)
def generate_of_fsdp(rank: int, cured: bool) -> str:
    model = fully_shard(Speaker(), mesh=init_device_mesh("cpu", (2,)))
    if cured:
        register_fsdp_forward_method(model, "generate")
    return f"generated {len(model.generate(torch.arange(3)))} tokens"


def optimizer_of(ddp: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(ddp.parameters(), lr=1.0)


@case(
    ERROR,
    says={0: "param 'initial_lr' is not specified in param_groups"},
    right="^step 3, rate 0.125$",
    did="built a scheduler with `last_epoch=step` for an optimizer that `dcp.load` has filled",
    cause="`dcp.load` fills only the keys that the new optimizer has, and it has no `initial_lr` yet",
    cure="build the scheduler with its defaults first, then load both states",
    lesson="11",
)
def scheduler_before_its_state(rank: int, cured: bool) -> str:
    path = folder_of_case() / "checkpoint"
    ddp = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = optimizer_of(ddp)
    scheduler = ExponentialLR(optimizer, 0.5)
    for _ in range(3):
        ddp(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        scheduler.step()
    dcp.save({"optimizer": get_optimizer_state_dict(ddp, optimizer)}, checkpoint_id=path)
    of_scheduler = scheduler.state_dict()
    optimizer = optimizer_of(ddp)  # as a new process makes it
    optimizer.zero_grad()
    if cured:
        scheduler = ExponentialLR(optimizer, 0.5)
        scheduler.load_state_dict(of_scheduler)
    state = {"optimizer": get_optimizer_state_dict(ddp, optimizer)}
    dcp.load(state, checkpoint_id=path)
    set_optimizer_state_dict(ddp, optimizer, state["optimizer"])
    if not cured:
        scheduler = ExponentialLR(optimizer, 0.5, last_epoch=3)
    return f"step {scheduler.last_epoch}, rate {optimizer.param_groups[0]['lr']}"


@case(
    ERROR,
    says={0: "Weights only load failed"},
    right="^rate 0.1$",
    did="saved an object, such as a Namespace, a Path or numpy's state, in a checkpoint",
    cause="since torch 2.6 `torch.load` reads tensors and plain values alone",
    cure="save plain values: `vars(options)`, `str(path)`; read an old file of your own once with "
    "`weights_only=False`, and save it again",
    lesson="11",
    forms_group=False,
)
def object_in_the_file(rank: int, cured: bool) -> str:
    path = folder_of_case() / f"options_{rank}.pt"
    options = argparse.Namespace(rate=0.1)
    torch.save({"options": vars(options) if cured else options}, path)
    loaded = torch.load(path)["options"]
    return f"rate {loaded['rate']}"


def sharded_parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (2,)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


@case(
    WRONG,
    says={0: r"^AdamW has made no steps$"},
    right=r"^AdamW has made 5 steps$",
    symptom="after a resume the loss jumps; the optimizer's moments are those of a new one",
    did="loaded by `dcp.load` into `optimizer.state_dict()` of a new optimizer",
    cause="before its first step its state is empty, so DCP is asked for nothing",
    cure="`get_state_dict(model, optimizer)`, which makes that state; then `dcp.load` and `set_state_dict`",
    lesson="11",
)
def state_of_a_new_optimizer(rank: int, cured: bool) -> str:
    path = folder_of_case() / "checkpoint"
    model, optimizer = sharded_parts()
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    if not cured:
        weights, moments = model.state_dict(), optimizer.state_dict()
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=path)
    model, optimizer = sharded_parts()  # a new process
    weights, moments = model.state_dict(), optimizer.state_dict()
    if cured:
        weights, moments = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=path)
    if cured:
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    else:
        optimizer.load_state_dict(moments)
    steps = [int(state["step"]) for state in optimizer.state.values()]
    return f"AdamW has made {max(steps, default='no')} steps"


@case(
    WRONG,
    says={0: "^weights of step 1, moments of step 2$"},
    right="^weights of step 1, moments of step 1$",
    symptom="a checkpoint that was saved in the background has the values of two different steps",
    did="passed the state to a thread that writes it while training continues",
    cause="the thread reads tensors on the CPU, such as step counters, when it gets to them",
    cure="pass copies: `.clone()` what is on the CPU; `dcp.async_save` copies it from torch 2.7 on "
    "([#145408](https://github.com/pytorch/pytorch/pull/145408))",
    lesson="11",
    forms_group=False,
)
def later_values_saved(rank: int, cured: bool) -> str:
    state = {"weights": torch.tensor(1), "moments": torch.tensor(1)}
    written = {}
    may_write = threading.Event()

    def save(given: dict[str, torch.Tensor]) -> None:
        written["weights"] = int(given["weights"])
        may_write.wait(10)
        written["moments"] = int(given["moments"])

    handed = {name: value.clone() for name, value in state.items()} if cured else state
    thread = threading.Thread(target=save, args=(handed,))
    thread.start()
    state["moments"] += 1  # the next step
    may_write.set()
    thread.join()
    return f"weights of step {written['weights']}, moments of step {written['moments']}"


@case(
    WRONG,
    says={0: r"^saved \[1, 0\]$"},
    right=r"^saved \[1, 1\]$",
    symptom="a checkpoint from a preemption is torn: some parameters are a step ahead of others; or it hangs",
    did="saved in the handler of SIGTERM or SIGUSR1",
    cause="a handler runs in the middle of a step, and elsewhere on each rank",
    cure="let the handler set a flag; all ranks agree on it at the end of a step, and save there",
    lesson="13",
    forms_group=False,
)
def saved_in_the_handler(rank: int, cured: bool) -> str:
    steps = [0, 0]  # of two parameters
    saved = []
    wanted = []

    def on_signal(number: int, frame: object) -> None:
        wanted.append(number)
        if not cured:
            saved.append(list(steps))

    signal.signal(signal.SIGUSR1, on_signal)
    steps[0] += 1
    signal.raise_signal(signal.SIGUSR1)  # in the middle of a step
    steps[1] += 1
    if cured and wanted:
        saved.append(list(steps))
    return f"saved {saved[0]}"


@case(
    WRONG,
    says={0: r"^off by (1|2)\d%$", 1: r"^off by (1|2)\d%$"},
    right="^off by 0%$",
    symptom="with a pipeline, gradients are too small as soon as they are accumulated over several steps",
    did="called `schedule.step` more than once before `optimizer.step`, with `scale_grads=True`",
    cause="each call divides all gradients that have been added so far: the first ones again",
    cure="`scale_grads=False`, and divide the loss by micro-batches times accumulated steps",
    lesson="16",
)
def accumulated_pipeline(rank: int, cured: bool) -> str:
    micro_batches, steps = 4, 2
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
    x, y = torch.randn(2, steps, 8, 4)
    for step in range(steps):  # one process: the mean over all rows
        (F.mse_loss(layers[1](layers[0](x[step])), y[step]) / steps).backward()
    truth = layers[rank].weight.grad.clone()
    layers[rank].zero_grad()

    def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(output, target) / steps / (micro_batches if cured else 1)

    stage = PipelineStage(layers[rank], rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, micro_batches, loss_fn=loss_of, scale_grads=not cured)
    for step in range(steps):
        if rank == 0:
            schedule.step(x[step])
        else:
            schedule.step(target=y[step])
    off = (layers[rank].weight.grad - truth).abs().max() / truth.abs().max()
    return f"off by {off:.0%}"


@case(
    WRONG,
    says={0: "^exchanged$"},
    right="^right$",
    symptom="with two ranks in a ring, activations and gradients are exchanged, or shapes are swapped",
    did="sent two messages to one peer, which is the next rank and the previous one",
    cause="nccl knows no tags, and gloo pairs messages of one tag by order: each is taken for the other",
    cure="a group for each direction; or one order of the messages that all ranks keep",
    lesson="16",
)
def two_messages_to_one_peer(rank: int, cured: bool) -> str:
    forward = dist.group.WORLD
    back = dist.new_group([0, 1]) if cured else forward
    peer = 1 - rank
    from_before, from_after = torch.zeros(1), torch.zeros(1)
    calls = [
        P2POp(dist.isend, torch.tensor([-10.0 - rank]), peer, back),  # a gradient, to the previous rank
        P2POp(dist.irecv, from_before, peer, forward),
        P2POp(dist.isend, torch.tensor([10.0 + rank]), peer, forward),  # an activation, to the next one
        P2POp(dist.irecv, from_after, peer, back),
    ]
    for direction in dict.fromkeys((forward, back)):
        for work in dist.batch_isend_irecv([call for call in calls if call.group is direction]):
            work.wait()
    is_right = from_before.item() == 10 + peer and from_after.item() == -10 - peer
    return "right" if is_right else "exchanged"


class Ring(torch.autograd.Function):
    """Scores of this rank's query with the keys of all ranks; backward gathers them again, or does not."""

    @staticmethod
    def forward(ctx, query: torch.Tensor, key: torch.Tensor, cured: bool) -> torch.Tensor:
        keys = [torch.empty_like(key) for _ in range(2)]
        dist.all_gather(keys, key)
        ctx.save_for_backward(*(keys if cured else [key, key]))
        return torch.stack([query * other for other in keys])

    @staticmethod
    def backward(ctx, above: torch.Tensor) -> tuple:
        keys = ctx.saved_tensors
        return sum(part * key for part, key in zip(above, keys, strict=True)), None, None


@case(
    WRONG,
    says={0: "^the gradient of q is 2.0, not 3.0$", 1: "^the gradient of q is 4.0, not 3.0$"},
    right="^the gradient of q is 3.0, not 3.0$",
    symptom="context parallelism: the loss equals that of one process, and training is worse all the same",
    did="wrote a ring whose backward pass uses the keys that this rank had at first",
    cause="each block needs the keys that travelled",
    cure="save or send the travelling keys again; compare the gradients of q, k and v with one process",
    lesson="20",
)
def stale_keys(rank: int, cured: bool) -> str:
    query = torch.ones(1, requires_grad=True)
    key = torch.tensor([1.0 + rank])
    Ring.apply(query, key, cured).sum().backward()
    return f"the gradient of q is {query.grad.item()}, not 3.0"


@case(
    ERROR,
    says={1: r"max\(\): Expected reduction dim to be specified for input.numel\(\) == 0"},
    right="^stepped$",
    did="wrote an optimizer over the shards of FSDP2; a parameter has fewer rows than ranks",
    cause="rows are dealt by ceil(rows / N), so the last ranks may have none; others hang in its call",
    cure="let a rank with an empty shard take part with a zero; pad what is sent to ceil(rows / N)",
    lesson="19",
)
def empty_shard(rank: int, cured: bool) -> str:
    gate = nn.Linear(8, 1, bias=False)  # one row, two ranks
    fully_shard(gate, mesh=init_device_mesh("cpu", (2,)))
    gate(torch.randn(4, 8)).square().mean().backward()
    gradient = gate.weight.grad.to_local()
    largest = torch.zeros(()) if cured and gradient.numel() == 0 else gradient.abs().max()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return "stepped"


@case(
    WRONG,
    says={0: "^token 0 by the weights of step 0$"},
    right="^token 0 by the weights of step 1$",
    symptom="after each weight sync, log-probabilities of rollout and trainer diverge more and more",
    did="kept the generator's prefix cache over a weight sync",
    cause="new requests with an old prompt read keys of old weights",
    cure="clear it in each sync: vLLM's `pause_generation` does so by default; `reset_prefix_cache()` alone "
    "clears nothing while an answer is in flight",
    lesson="23",
    forms_group=False,
)
def cache_outlives_the_weights(rank: int, cured: bool) -> str:
    cache: dict[int, int] = {}
    for step in range(2):
        if cured:
            cache.clear()
        cache.setdefault(0, step)  # the key of token 0, computed by the weights of this step
    return f"token 0 by the weights of step {cache[0]}"


@case(
    WRONG,
    says={0: "^loss nan$"},
    right="^loss 2.0$",
    symptom="the loss is NaN with N ranks, and never with one",
    did="took a mean over the tokens or boxes that count, on a rank that has none of them",
    cause="the mean of nothing is 0 / 0",
    cure="reduce the sum and the number, and divide once; a rank that has none adds zeros",
    lesson="12",
)
def mean_of_nothing(rank: int, cured: bool) -> str:
    losses = torch.tensor([1.0, 3.0]) if rank == 0 else torch.tensor([])
    total = torch.tensor([losses.sum(), float(len(losses))]) if cured else torch.tensor([losses.mean(), 1.0])
    dist.all_reduce(total)
    return f"loss {(total[0] / total[1]).item()}"


class Small(Dataset):
    def __len__(self) -> int:
        return 600

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.tensor(number)


@case(
    ERROR,
    says={0: "Too many open files|received 0 items of ancdata|unable to open shared memory"},
    right="^600 batches$",
    did="kept the batches of a loader with workers, or started many workers on each of many ranks",
    cause="each tensor that a worker sends holds a file descriptor, and `ulimit -n` is small",
    cure="`ulimit -n 65536`; do not keep what workers sent, or clone it; "
    "`torch.multiprocessing.set_sharing_strategy('file_system')`",
    lesson="10",
    forms_group=False,
)
def too_many_open_files(rank: int, cured: bool) -> str:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 200, most))
    kept = []
    for batch in DataLoader(Small(), batch_size=1, num_workers=1):
        kept.append(batch.clone() if cured else batch)
    return f"{len(kept)} batches"
