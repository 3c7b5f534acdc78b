"""Two jobs: trainers (FSDP2) call generators (tensor parallel), and a process group moves the weights.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_23_weights.py
Written by:  notebooks/23_rpc.ipynb (edit it there)
"""

import os
import sys
import warnings
from dataclasses import dataclass
from datetime import timedelta
from queue import SimpleQueue

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import rpc
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

VERSIONS, BATCH = 30, 240
PROMPT, HIDDEN, ANSWERS = 24, 96, 12  # 1 to 4 ranks divide them
CALL_S = 600.0  # of a call: answers of a real model take minutes; torch's default is 60 seconds
MOVE_S = 120.0  # of the groups that move weights
RECEIVE_S = 60.0  # of the calls that prepare and receive: shorter, so that the call reports first
Box = tuple[slice, ...]


@dataclass(frozen=True)
class Jobs:
    """Which ranks do what, and their groups. The wire joins the first trainer and all generators.

    ``move_whole`` broadcasts over the wire, ``move_slices`` sends in ``everyone``.
    """

    trainers: list[int]
    generators: list[int]
    training: dist.ProcessGroup
    generating: dist.ProcessGroup
    wire: dist.ProcessGroup
    everyone: dist.ProcessGroup


def divide_jobs() -> Jobs:
    """The first half of the ranks trains, the second generates. All ranks make all groups, in one order."""
    half = dist.get_world_size() // 2
    trainers = list(range(half))
    generators = list(range(half, dist.get_world_size()))
    moving = timedelta(seconds=MOVE_S)
    return Jobs(
        trainers,
        generators,
        training=dist.new_group(trainers, timeout=timedelta(seconds=2 * CALL_S)),  # trainers wait for answers
        generating=dist.new_group(generators),
        wire=dist.new_group(trainers[:1] + generators, timeout=moving),
        everyone=dist.new_group(timeout=moving),
    )


def start_calls() -> None:
    """From here on each rank can call functions of the others, known as ``worker0``, ``worker1``, ..."""
    if os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]:  # all on one machine
        # TensorPipe otherwise looks up the host's name, which may not lead back here.
        os.environ.setdefault("TP_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    warnings.filterwarnings("ignore", "You are using a Backend")  # torch's own, pytorch/pytorch#149393
    rpc.init_rpc(f"worker{dist.get_rank()}", rank=dist.get_rank(), world_size=dist.get_world_size())


def build(jobs: Jobs, device: torch.device, sizes: tuple[int, int, int]) -> nn.Module:
    """The policy, divided as this rank's job wants it."""
    prompt, hidden, answers = sizes
    for ranks in (len(jobs.trainers), len(jobs.generators)):
        if hidden % ranks or answers % ranks:
            raise SystemExit(
                f"{ranks} ranks of a job do not divide {hidden} hidden units and {answers} answers"
            )
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(prompt, hidden), nn.Tanh(), nn.Linear(hidden, answers)).to(device)
    if dist.get_rank() in jobs.trainers:
        return fully_shard(policy, mesh=DeviceMesh.from_group(jobs.training, device.type))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(policy, DeviceMesh.from_group(jobs.generating, device.type), plan)


def box_of(parameter: DTensor) -> Box:
    """Which part of the whole parameter this rank holds: a slice of each dimension."""
    (placement,) = parameter.placements
    box = [slice(0, size) for size in parameter.shape]
    if placement.is_shard():
        size = parameter.to_local().shape[placement.dim]  # the same on all ranks: our sizes divide
        begin = size * parameter.device_mesh.get_local_rank()
        box[placement.dim] = slice(begin, begin + size)
    return tuple(box)


def all_boxes(policy: nn.Module) -> list[dict[str, Box]]:
    """By rank: {name of the parameter: the part that this rank holds}. Once, before the first step."""
    boxes = [{}] * dist.get_world_size()
    dist.all_gather_object(boxes, {name: box_of(p) for name, p in policy.named_parameters()})
    return boxes


def overlap(one: Box, other: Box) -> Box | None:
    """What lies in both."""
    both = [slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, other, strict=True)]
    return tuple(both) if all(part.start < part.stop for part in both) else None


def within(part: Box, box: Box) -> Box:
    """The same part, counted from where ``box`` begins."""
    return tuple(slice(p.start - b.start, p.stop - b.start) for p, b in zip(part, box, strict=True))


@torch.no_grad()
def move_whole(policy: nn.Module, boxes: list, jobs: Jobs) -> int:
    """Trainers gather each parameter, the first broadcasts it. Returns the bytes that arrive at this rank."""
    rank = dist.get_rank()
    arrived = 0
    for name, parameter in policy.named_parameters():
        whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        arrived += whole.nbytes
        if rank in jobs.trainers:
            whole = parameter.full_tensor()  # an all-gather among the trainers
            arrived -= parameter.to_local().nbytes
        if rank == jobs.trainers[0] or rank in jobs.generators:
            dist.broadcast(whole, src=jobs.trainers[0], group=jobs.wire)
        if rank in jobs.generators:
            parameter.to_local().copy_(whole[boxes[rank][name]])
    return arrived


@torch.no_grad()
def move_slices(policy: nn.Module, boxes: list, jobs: Jobs) -> int:
    """Each trainer sends each generator what both hold. Returns the bytes that arrive at this rank."""
    rank = dist.get_rank()
    transfers = []
    arrivals = []
    for name, parameter in policy.named_parameters():
        for trainer in jobs.trainers:
            for generator in jobs.generators:
                part = overlap(boxes[trainer][name], boxes[generator][name])
                if part is None or rank not in (trainer, generator):
                    continue
                ours = parameter.to_local()[within(part, boxes[rank][name])]
                if rank == trainer:
                    transfers.append(dist.P2POp(dist.isend, ours.contiguous(), generator, jobs.everyone))
                else:
                    piece = torch.empty_like(ours, memory_format=torch.contiguous_format)
                    transfers.append(dist.P2POp(dist.irecv, piece, trainer, jobs.everyone))
                    arrivals.append((ours, piece))
    for work in dist.batch_isend_irecv(transfers):
        work.wait()
    for ours, piece in arrivals:
        ours.copy_(piece)
    return sum(piece.nbytes for _, piece in arrivals)


TASKS = SimpleQueue()  # what others have asked this rank to do


@rpc.functions.async_execution
def ask(task: str, *arguments: object) -> torch.futures.Future:
    """To be called from elsewhere: leave a task for the main thread. The caller's future gets its result.

    So a generator communicates in one thread only, in the order of calls whose caller waits for each round.
    """
    answer = torch.futures.Future()
    TASKS.put((answer, task, arguments))
    return answer


def serve(policy: nn.Module, boxes: list, jobs: Jobs) -> None:
    """What a generator does: its tasks, one after the other, until it is asked to stop.

    A task that fails ends nothing here: its caller gets the error, and raises it.
    """
    version = 0  # of the weights
    task = ""
    while task != "stop":
        answer, task, arguments = TASKS.get()
        result = None
        try:
            if task == "generate":
                result = generate(policy, version, *arguments)
            elif task == "prepare":
                check_layout(policy, *arguments)
            elif task == "receive":
                move, arriving = arguments
                result = move(policy, boxes, jobs)
                version = arriving  # only now: a move that fails leaves the old number
            elif task != "stop":
                raise ValueError(f"there is no task {task!r}")
        except Exception as error:
            result = error
        answer.set_result(result)


def layout_of(policy: nn.Module) -> list[tuple]:
    return [(name, tuple(p.shape), str(p.dtype)) for name, p in policy.named_parameters()]


def check_layout(policy: nn.Module, expected: list[tuple]) -> None:
    """Names, shapes and types as the trainers have them, in their order; else the move would mix them up."""
    if layout_of(policy) != expected:
        raise ValueError(f"the trainers have {expected}, this generator {layout_of(policy)}")


@torch.no_grad()
def generate(policy: nn.Module, version: int, number: int) -> dict:
    """Prompts and sampled answers. With them goes the version of the weights that chose the answers."""
    random = torch.Generator().manual_seed(number)  # all generators compute the same: they share a policy
    patterns = torch.randn(ANSWERS, PROMPT, generator=torch.Generator().manual_seed(1))
    right = torch.randint(ANSWERS, (BATCH,), generator=random)
    prompts = patterns[right] + torch.randn(BATCH, PROMPT, generator=random)
    device = next(policy.parameters()).device
    chances = policy(prompts.to(device)).softmax(1).cpu()
    answers = torch.multinomial(chances, 1, generator=random).flatten()
    return {"version": version, "prompts": prompts, "answers": answers, "rewards": (answers == right).float()}


def train(policy: nn.Module, optimizer: torch.optim.Optimizer, batch: dict, jobs: Jobs) -> None:
    """A step of REINFORCE: answers with more than the mean reward become more likely."""
    mine = slice(dist.get_rank(), None, len(jobs.trainers))  # each trainer takes its part of the batch
    device = next(policy.parameters()).device
    advantages = (batch["rewards"] - batch["rewards"].mean())[mine].to(device)
    scores = policy(batch["prompts"][mine].to(device))
    losses = F.cross_entropy(scores, batch["answers"][mine].to(device), reduction="none")
    optimizer.zero_grad()
    (advantages * losses).mean().backward()
    optimizer.step()


def ask_all(
    workers: list[str], task: str, *arguments: object, timeout: float = CALL_S
) -> list[torch.futures.Future]:
    return [rpc.rpc_async(worker, ask, args=(task, *arguments), timeout=timeout) for worker in workers]


def results_of(calls: list[torch.futures.Future]) -> list:
    """What the calls return, when all have ended. Raises the error of a task that failed."""
    results = torch.futures.wait_all(calls)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def to_call(jobs: Jobs) -> list[str]:
    """Whom this rank calls: the first trainer calls all generators, nobody else calls."""
    first = dist.get_rank() == jobs.trainers[0]
    return [f"worker{rank}" for rank in jobs.generators] if first else []


def lead(policy: nn.Module, boxes: list, jobs: Jobs, versions: int) -> dict:
    """What the trainers do. Returns the last batch."""
    workers = to_call(jobs)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    batch = None
    for version in range(versions):
        calls = ask_all(workers, "generate", version)
        if batch is not None:
            train(policy, optimizer, batch, jobs)  # meanwhile, on answers of the version before
            assert batch["version"] == version - 1
        fresh = results_of(calls)[:1] or [None]
        dist.broadcast_object_list(fresh, src=jobs.trainers[0], group=jobs.training)
        batch = fresh[0]

        calls = ask_all(workers, "prepare", layout_of(policy), timeout=RECEIVE_S)
        results_of(calls)  # raises before any byte moves
        move = move_whole if version % 2 == 0 else move_slices
        calls = ask_all(workers, "receive", move, version + 1, timeout=RECEIVE_S)
        arrived = move(policy, boxes, jobs)
        there = results_of(calls)  # all have received the weights; over nccl they have queued the move
        if there and version < 2:
            print(f"{move.__name__}: {arrived:,} bytes arrive at a trainer, {there[0]:,} at a generator")
    return batch


def main() -> None:
    device = setup()
    jobs = divide_jobs()
    policy = build(jobs, device, (PROMPT, HIDDEN, ANSWERS))
    boxes = all_boxes(policy)
    start_calls()
    if dist.get_rank() in jobs.generators:
        serve(policy, boxes, jobs)
    else:
        batch = lead(policy, boxes, jobs, VERSIONS)
        results_of(ask_all(to_call(jobs), "stop"))
        assert batch["rewards"].mean() > 0.8  # by chance it would be 1 in 12
        if dist.get_rank() == 0:
            print(f"answers of version {batch['version']}: more than 80 % are right")
    rpc.shutdown()  # waits for all ranks, and until no call is under way
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
