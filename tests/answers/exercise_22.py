"""Answers to exercise 22; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

ANSWERS = [
    wrong(
        "One all-reduce for each parameter.",
        "right, but by 5 x all_reduce",
        (
            "total += part.double().square().sum() / copies",
            """
            squares = part.double().square().sum() / copies
            dist.all_reduce(squares)
            total += squares
            """,
        ),
        ("dist.all_reduce(total)", ""),
    ),
    wrong(
        "Sums over all ranks, whatever they hold in common.",
        "counts copies as often as there are",
        (" / copies", ""),
    ),
    wrong(
        "Counts down.",
        "the same ranks in ascending order",
        ("range(math.prod(sizes.values()))", "reversed(range(math.prod(sizes.values())))"),
    ),
    wrong(
        "Keeps the dimensions that it is asked about, and lets the others differ.",
        "these ranks differ along",
        ("own[name] for name in sizes if name not in names", "own[name] for name in sizes if name in names"),
    ),
    wrong(
        "Squares in float32.",
        "is off by",
        ("double().square().sum()", "float().square().sum().double()"),
    ),
    wrong(
        "Squares the gradients themselves.",
        "the gradients have changed",
        (".square(", ".square_("),
    ),
    wrong(
        "Takes the first dimension for the innermost, as the Llama 3 paper writes it.",
        "the last dimension is the innermost, where ranks are neighbours",
        ("reversed(sizes)", "sizes"),
    ),
    wrong(
        "Each rank takes the norm of what it holds.",
        "is that of this rank's gradients alone",
        (" / copies", ""),
        ("dist.all_reduce(total)", ""),
    ),
    wrong(
        "Forgets that two dimensions can divide the batch.",
        "['replicate', 'shard']) is (0, 4), expected (0, 8)",
        batch_part="""
        last = list(data)[-1]
        return position(rank, sizes)[last], sizes[last]
        """,
    ),
    wrong(
        "Returns float32.",
        "expected a 0-dim tensor of float64",
        ("total.sqrt()", "total.sqrt().float()"),
    ),
    wrong(
        "Divides the batch by the ranks of the world, as a sampler does by default.",
        "ranks of one model would read different rows",
        batch_part="return rank, math.prod(sizes.values())",
    ),
    wrong(
        "Adds up norms.",
        "is the sum of the ranks' norms: add up squares",
        (" / copies", ""),
        ("dist.all_reduce(total)", ""),
        (
            "return total.sqrt()",
            """
            norm = total.sqrt()
            dist.all_reduce(norm)
            return norm
            """,
        ),
    ),
    wrong(
        "Leaves out the rank that asks.",
        "the rank itself is a member, too",
        ("if all(its", "if other != rank and all(its"),
    ),
    right(
        "Groups by slices of a tensor of ranks, and an all-gather in place of the all-reduce.",
        ("torch.zeros((), dtype", "torch.zeros(1, dtype"),
        (
            """
            dist.all_reduce(total)
            return total.sqrt()
            """,
            """
            everyone = total.new_empty(dist.get_world_size())
            dist.all_gather_into_tensor(everyone, total)
            return everyone.sum().sqrt()
            """,
        ),
        position="""
        ranks = torch.arange(math.prod(sizes.values())).view(tuple(sizes.values()))
        place = (ranks == rank).nonzero()[0].tolist()
        return dict(zip(sizes, place, strict=True))
        """,
        members="""
        names = set(names)
        place = position(rank, sizes)
        chosen = tuple(slice(None) if name in names else place[name] for name in sizes)
        ranks = torch.arange(math.prod(sizes.values())).view(tuple(sizes.values()))
        return ranks[chosen].flatten().tolist()
        """,
    ),
    right(
        "Of several copies one rank counts its own, and the others nothing: a norm without a division.",
        global_norm="""
        total = torch.zeros((), dtype=torch.float64, device=held[0][0].device)
        place = position(dist.get_rank(), sizes)
        for part, divided in held:
            if all(place[name] == 0 for name in sizes if name not in divided):
                total += torch.linalg.vector_norm(part.double()) ** 2
        dist.all_reduce(total)
        return total**0.5
        """,
    ),
]
