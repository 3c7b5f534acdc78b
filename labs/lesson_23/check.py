"""Check of exercise 23. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

from types import ModuleType

import torch
import torch.distributed as dist

from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

COLUMNS = 3
LAYOUTS = [  # {name: rows}, trainers, generators
    ({"q": 12, "k": 4, "v": 4}, 2, 2),
    ({"q": 12, "k": 4, "v": 4}, 3, 2),  # a trainer may hold fewer rows
    ({"q": 12, "k": 8, "v": 8}, 5, 4),  # or none
    ({"q": 12, "k": 6, "v": 3}, 1, 3),
    ({"q": 12, "k": 6, "v": 6}, 4, 1),
]
Row = tuple[str, int]


def held(rows: int, trainers: int) -> list[list[int]]:
    """The rows of each trainer, as torch divides them."""
    chunks = [chunk.tolist() for chunk in torch.arange(rows).chunk(trainers)]
    return chunks + [[]] * (trainers - len(chunks))


def expected_rows(sizes: dict[str, int], generators: int, generator: int) -> list[Row]:
    """What a generator's fused parameter is made of."""
    rows = []
    for name, size in sizes.items():
        share = size // generators
        rows += [(name, row) for row in range(generator * share, (generator + 1) * share)]
    return rows


def rows_of(what: str, span: object, size: int, there_are: str) -> range:
    """The rows of a source or a target, or ``Wrong``."""
    if not isinstance(span, tuple) or len(span) != 2 or not all(type(end) is int for end in span):
        raise Wrong(f"{what} is {span!r}, expected two whole numbers: first row, and the one behind the last")
    first, behind = span
    if not 0 <= first < behind <= size:
        raise Wrong(f"{what} is rows {first} to {behind - 1}, but {there_are} {size}, counted from 0")
    return range(first, behind)


def fill(plan: list, sizes: dict[str, int], trainers: int, generators: int) -> list[dict[int, Row]]:
    """By generator: {row of the fused parameter: the row that the plan puts there}."""
    length = sum(size // generators for size in sizes.values())
    filled: list[dict[int, Row]] = [{} for _ in range(generators)]
    for transfer in plan:
        name, trainer, generator = transfer.name, transfer.trainer, transfer.generator
        if name not in sizes or trainer not in range(trainers) or generator not in range(generators):
            raise Wrong(f"{transfer} names a parameter, a trainer or a generator that is not there")
        theirs = held(sizes[name], trainers)[trainer]
        who = f"trainer {trainer}"
        source = rows_of(f"the source of {name} in {who}", transfer.source, len(theirs), "it holds")
        into = f"the target of {name} in generator {generator}"
        target = rows_of(into, transfer.target, length, "its fused parameter has")
        if len(source) != len(target):
            raise Wrong(f"{who} sends {len(source)} rows of {name}, the target has {len(target)}")
        for row, place in zip(source, target, strict=True):
            if place in filled[generator]:
                raise Wrong(f"row {place} of generator {generator} is written twice")
            filled[generator][place] = (name, theirs[row])
    return filled


def look_at(plan: object, sizes: dict[str, int], trainers: int, generators: int) -> None:
    """Raise ``Wrong`` unless each generator gets each of its rows once."""
    layout = f"{trainers} trainer(s), {generators} generator(s), rows {sizes}"
    if not isinstance(plan, list) or not all(type(transfer).__name__ == "Transfer" for transfer in plan):
        raise Wrong(f"{layout}: plan must return a list of Transfer")
    try:
        filled = fill(plan, sizes, trainers, generators)
    except Wrong as wrong:
        raise Wrong(f"{layout}: {wrong}") from None
    for generator, rows in enumerate(filled):
        for place, (name, row) in enumerate(expected_rows(sizes, generators, generator)):
            if place not in rows:
                missing = f"row {place} of generator {generator}, row {row} of {name}"
                raise Wrong(f"{layout}: nobody sends {missing}")
            if rows[place] != (name, row):
                other, number = rows[place]
                raise Wrong(
                    f"{layout}: row {place} of generator {generator} is row {row} of {name}, "
                    f"the plan puts row {number} of {other} there"
                )


def move(plan: list, sizes: dict[str, int], group: Group, trainers: int) -> None:
    """The plan between the ranks of this job: the first half are trainers, each other rank generates."""
    generators = group.world_size - trainers
    whole = {}
    for number, (name, size) in enumerate(sizes.items()):
        rows = torch.arange(size * COLUMNS, dtype=torch.float32, device=group.device)
        whole[name] = (rows + 1000 * number).reshape(size, COLUMNS)
    length = sum(size // generators for size in sizes.values())
    fused = torch.full((length, COLUMNS), -1.0, device=group.device)
    transfers = []
    arrivals = []
    for transfer in plan:
        if group.rank == transfer.trainer:
            mine = whole[transfer.name][held(sizes[transfer.name], trainers)[group.rank]]
            piece = mine[slice(*transfer.source)].contiguous()
            transfers.append(dist.P2POp(dist.isend, piece, trainers + transfer.generator))
        elif group.rank == trainers + transfer.generator:
            piece = torch.empty_like(fused[slice(*transfer.target)])
            arrivals.append((transfer.target, piece))
            transfers.append(dist.P2POp(dist.irecv, piece, transfer.trainer))
    for work in dist.batch_isend_irecv(transfers) if transfers else []:
        work.wait()
    for target, piece in arrivals:
        fused[slice(*target)] = piece
    if group.rank >= trainers:
        rows = expected_rows(sizes, generators, group.rank - trainers)
        right = torch.stack([whole[name][row] for name, row in rows])
        if not torch.equal(fused, right):
            raise Wrong("between these ranks the generators got other weights than the trainers have")


def verify(answer: ModuleType, group: Group) -> str:
    for sizes, trainers, generators in LAYOUTS:
        look_at(answer.plan(dict(sizes), trainers, generators), sizes, trainers, generators)
    trainers = group.world_size // 2 or 1
    generators = group.world_size - trainers
    moved = ""
    if generators:
        sizes = {"q": 4 * generators, "k": generators, "v": generators}
        plan = answer.plan(dict(sizes), trainers, generators)
        look_at(plan, sizes, trainers, generators)
        move(plan, sizes, group, trainers)
        moved = f", and {trainers} rank(s) sent {generators} rank(s) theirs"
    return f"{len(LAYOUTS)} layouts, each row sent once{moved}. Well done."


if __name__ == "__main__":
    check_exercise("23_reshard", verify, ranks=2)
