"""Eight collectives, and what every rank holds after each of them.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_04_collectives.py
Written by:  notebooks/04_collectives.ipynb (edit it there)
"""

from string import ascii_uppercase

import torch
import torch.distributed as dist

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

# Older torch calls them all_gather_into_tensor and reduce_scatter_tensor.
if hasattr(dist, "all_gather_single"):
    all_gather_single, reduce_scatter_single = dist.all_gather_single, dist.reduce_scatter_single
else:
    all_gather_single, reduce_scatter_single = dist.all_gather_into_tensor, dist.reduce_scatter_tensor

# x is a whole tensor, contiguous and of one shape on every rank. A piece is 1 / n of its rows, for n ranks.


def check_divides(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    n = dist.get_world_size(group)
    if x.dim() == 0 or len(x) % n > 0:
        raise ValueError(f"a tensor of shape {tuple(x.shape)} does not divide into {n} equal pieces")


def broadcast(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """The first rank's x, on every rank. It overwrites x."""
    dist.broadcast(x, group_src=0, group=group)
    return x


def scatter(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """On rank r piece r of the first rank's x. Elsewhere only the shape and dtype of x are used."""
    check_divides(x, group)
    pieces = list(x.chunk(dist.get_world_size(group)))
    piece = torch.empty_like(pieces[0])
    if dist.get_rank(group) == 0:
        dist.scatter(piece, pieces, group_src=0, group=group)
    else:
        dist.scatter(piece, group_src=0, group=group)
    return piece


def gather(piece: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor | None:
    """The pieces of all ranks, on the first rank; None elsewhere. Only the destination passes a list."""
    if dist.get_rank(group) > 0:
        dist.gather(piece, group_dst=0, group=group)
        return None
    pieces = [torch.empty_like(piece) for _ in range(dist.get_world_size(group))]
    dist.gather(piece, pieces, group_dst=0, group=group)
    return torch.cat(pieces)


def all_gather(piece: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """The pieces of all ranks, on every rank."""
    x = piece.new_empty(dist.get_world_size(group) * len(piece), *piece.shape[1:])
    all_gather_single(x, piece, group=group)
    return x


def all_to_all(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """On rank r piece r of every rank's x."""
    check_divides(x, group)
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x, group=group)
    return received


def reduce(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor | None:
    """The sum, on the first rank; None elsewhere. It overwrites x, which is undefined elsewhere."""
    dist.reduce(x, group_dst=0, group=group)
    return x if dist.get_rank(group) == 0 else None


def all_reduce(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """The sum, on every rank. It overwrites x."""
    dist.all_reduce(x, group=group)
    return x


def reduce_scatter(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """On rank r piece r of the sum."""
    check_divides(x, group)
    piece = x.new_empty(len(x) // dist.get_world_size(group), *x.shape[1:])
    reduce_scatter_single(piece, x, group=group)
    return piece


MOVING = (broadcast, scatter, gather, all_gather, all_to_all)
ADDING = (reduce, all_reduce, reduce_scatter)


def brings(rank: int, n: int) -> torch.Tensor:
    """What a rank brings: int64 (n,). Rank 0 of 4 brings 10, 11, 12, 13, rank 1 brings 20, 21, 22, 23."""
    return 10 ** len(str(n)) * (rank + 1) + torch.arange(n)  # no two ranks bring the same number


def labels(n: int) -> dict[int, str]:
    """A name for each number: A0 is what rank 0 brings in place 0, B0 what rank 1 does, Σ0 their sum."""
    everything = torch.stack([brings(rank, n) for rank in range(n)])
    names = {}
    for rank in range(n):
        letter = ascii_uppercase[rank % 26] + "'" * (rank // 26)
        for place in range(n):
            names[everything[rank, place].item()] = f"{letter}{place}"
    for place, total in enumerate(everything.sum(0).tolist()):
        names.setdefault(total, f"Σ{place}")  # alone, a rank has its own numbers
    return names


def main() -> None:
    device = setup()
    rank, n = dist.get_rank(), dist.get_world_size()

    everything = torch.stack([brings(r, n) for r in range(n)]).to(device)  # row r is what rank r brings
    total = all_reduce(everything[rank].clone())
    assert torch.equal(total, everything.sum(0)), f"all_reduce leaves {total.tolist()}"
    column = all_to_all(everything[rank])
    assert torch.equal(column, everything[:, rank]), f"all_to_all leaves {column.tolist()}"

    names = labels(n)
    width = n * (max(map(len, names.values())) + 1) + 1
    if rank == 0:
        print(" " * 15 + "".join(f"{f'rank {r}':{width}}" for r in range(n)).rstrip())
    for collective in MOVING + ADDING:
        x = everything[rank].clone()
        if collective in (gather, all_gather):
            x = x[:1]  # these two begin with a piece
        after = collective(x)
        mine = "-" if after is None else " ".join(names[number] for number in after.tolist())
        rows = [None] * n if rank == 0 else None
        dist.gather_object(mine, rows)
        if rank == 0:
            print(f"{collective.__name__:15}" + "".join(f"{row:{width}}" for row in rows).rstrip())

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
