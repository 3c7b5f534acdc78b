"""Two jobs: after each step, trainers (FSDP2) send their weights to generators (tensor parallel).

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_23_weights.py
Written by:  notebooks/23_rpc.ipynb (edit it there)
"""

import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group, or it holds it: exit code -6, lesson 08
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

VERSIONS, BATCH = 30, 240
PROMPT, HIDDEN, ANSWERS = 24, 96, 12  # 1 to 4 ranks divide them
Box = tuple[slice, ...]


def setup() -> torch.device:
    """Join the group that the launcher describes; return this rank's device: a GPU of its own, or the CPU.

    The CPU is for jobs without a GPU, and for RANK_BY_RANK_DEVICE=cpu. A job with too few GPUs ends here.
    """
    device = torch.device("cpu")
    gpu = "none"
    if torch.cuda.device_count() > 0 and os.environ.get("RANK_BY_RANK_DEVICE") != "cpu":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        gpu = str(torch.cuda.get_device_properties(device).uuid)
    store, rank, world_size = next(dist.rendezvous("env://"))
    store.set(f"GPU of rank {rank}", gpu)  # all ranks must choose the same backend
    gpus = set(store.multi_get([f"GPU of rank {other}" for other in range(world_size)])) - {b"none"}
    if 0 < len(gpus) < world_size:
        mine = f"rank {rank} on {socket.gethostname()} has {device}"
        ways = "start one rank for each GPU, or all with RANK_BY_RANK_DEVICE=cpu"
        sys.exit(f"{world_size} ranks, {len(gpus)} GPUs ({mine}): {ways}")
    backend = "nccl" if gpus else "gloo"
    bound = device if gpus else None
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, device_id=bound)
    if rank == 0:
        print(f"{world_size} ranks on {device.type} with {backend}")
    return device


def divide_jobs() -> tuple[list[int], list[int]]:
    """The ranks that train, and those that generate."""
    half = dist.get_world_size() // 2
    return list(range(half)), list(range(half, dist.get_world_size()))


def build(trainers: list[int], generators: list[int], device: torch.device, sizes: tuple) -> nn.Module:
    """The policy, divided as this rank's job wants it. Each job has a process group of its own."""
    groups = [dist.new_group(ranks) for ranks in (trainers, generators)]  # everybody makes both
    prompt, hidden, answers = sizes
    torch.manual_seed(0)
    layers = [nn.Linear(prompt, hidden, bias=False), nn.Tanh(), nn.Linear(hidden, answers, bias=False)]
    policy = nn.Sequential(*layers).to(device)
    if dist.get_rank() in trainers:
        return fully_shard(policy, mesh=DeviceMesh.from_group(groups[0], device.type))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(policy, DeviceMesh.from_group(groups[1], device.type), plan)


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
def send_whole(policy: nn.Module, boxes: list, trainers: list[int], generators: list[int]) -> int:
    """The first trainer sends each whole parameter to each generator. Returns the bytes that we sent."""
    rank = dist.get_rank()
    sent = 0
    for name, parameter in policy.named_parameters():
        if rank in trainers:
            whole = parameter.full_tensor()  # an all-gather among the trainers
            for generator in generators if rank == trainers[0] else []:
                dist.send(whole, generator)
                sent += whole.nbytes
        else:
            whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
            dist.recv(whole, trainers[0])
            parameter.to_local().copy_(whole[boxes[rank][name]])
    return sent


@torch.no_grad()
def send_slices(policy: nn.Module, boxes: list, trainers: list[int], generators: list[int]) -> int:
    """Each trainer sends each generator what both hold. Returns the bytes that we sent."""
    rank = dist.get_rank()
    transfers = []
    arrivals = []
    sent = 0
    for name, parameter in policy.named_parameters():
        for trainer in trainers:
            for generator in generators:
                part = overlap(boxes[trainer][name], boxes[generator][name])
                if part is None or rank not in (trainer, generator):
                    continue
                ours = parameter.to_local()[within(part, boxes[rank][name])]
                piece = ours.contiguous()
                if rank == trainer:
                    transfers.append(dist.P2POp(dist.isend, piece, generator))
                    sent += piece.nbytes
                else:
                    piece = torch.empty_like(piece)
                    transfers.append(dist.P2POp(dist.irecv, piece, trainer))
                    arrivals.append((ours, piece))
    for work in dist.batch_isend_irecv(transfers):
        work.wait()
    for ours, piece in arrivals:
        ours.copy_(piece)
    return sent


@torch.no_grad()
def generate(policy: nn.Module, version: int, device: torch.device) -> dict:
    """Prompts and sampled answers. With them goes the version of the weights that chose the answers."""
    random = torch.Generator().manual_seed(version)  # all generators compute the same: they share a policy
    patterns = torch.randn(ANSWERS, PROMPT, generator=torch.Generator().manual_seed(1))
    right = torch.randint(ANSWERS, (BATCH,), generator=random)
    prompts = patterns[right] + torch.randn(BATCH, PROMPT, generator=random)
    chances = policy(prompts.to(device)).softmax(1).cpu()
    answers = torch.multinomial(chances, 1, generator=random).flatten()
    return {"version": version, "prompts": prompts, "answers": answers, "rewards": (answers == right).float()}


def train(policy: nn.Module, optimizer: torch.optim.Optimizer, batch: dict, trainers: list[int]) -> None:
    """A step of REINFORCE: answers with more than the mean reward become more likely."""
    mine = slice(dist.get_rank(), None, len(trainers))  # each trainer takes its part of the batch
    device = next(policy.parameters()).device
    advantages = (batch["rewards"] - batch["rewards"].mean())[mine].to(device)
    scores = policy(batch["prompts"][mine].to(device))
    losses = F.cross_entropy(scores, batch["answers"][mine].to(device), reduction="none")
    optimizer.zero_grad()
    (advantages * losses).mean().backward()
    optimizer.step()


def main() -> None:
    device = setup()
    rank = dist.get_rank()
    trainers, generators = divide_jobs()
    policy = build(trainers, generators, device, (PROMPT, HIDDEN, ANSWERS))
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    boxes = all_boxes(policy)
    batch = None
    for version in range(VERSIONS):
        fresh = [None]
        if rank in generators:
            fresh = [generate(policy, version, device)]
        elif batch is not None:
            train(policy, optimizer, batch, trainers)  # on what the generators made of the weights before
            assert batch["version"] == version - 1
        dist.broadcast_object_list(fresh, src=generators[0])
        batch = fresh[0]
        send = send_whole if version % 2 == 0 else send_slices
        sent = send(policy, boxes, trainers, generators)
        if rank == 0 and version < 2:
            print(f"{send.__name__}: rank 0 sends {sent:,} bytes")
    assert batch["rewards"].mean() > 0.8  # by chance it would be 1 in 12
    if rank == 0:
        print(f"version {batch['version']} of the weights: more than 80 % of the answers are right")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
