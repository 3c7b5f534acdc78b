"""Answers to exercise 23."""

from tests.planted import Right, Wrong, solved

PLAN = solved("23_reshard", "plan")

ANSWERS = [
    Wrong(
        what="Takes q, k and v for the beginning of the fused parameter, each.",
        old="\nfused += share",
        new="fused += 0",
        told="row 0 of generator 0 is written twice",
    ),
    Wrong(
        what="Moves on by the whole parameter, as if it were not divided.",
        old="fused += share",
        new="fused += rows",
        told="the target of k in generator 0 is rows 12 to 13",
    ),
    Wrong(
        what="Counts the source in the whole parameter.",
        old="source = (low - first, high - first)",
        new="source = (low, high)",
        told="the source of q in trainer 1 is rows 6 to 11, but it holds 6, counted from 0",
    ),
    Wrong(
        what="Counts the target in the whole parameter.",
        old="target = (fused + low - begin, fused + high - begin)",
        new="target = (fused + low, fused + high)",
        told="the target of q in generator 1 is rows 6 to 11, but its fused parameter has 10",
    ),
    Wrong(
        what="Divides the rows evenly among the trainers, and loses the rest.",
        old="enumerate(held(rows, trainers))",
        new="enumerate([(t * (rows // trainers), (t + 1) * (rows // trainers)) for t in range(trainers)])",
        told="3 trainer(s), 2 generator(s), rows {'q': 12, 'k': 4, 'v': 4}",
    ),
    Wrong(
        what="Trainer i sends to generator i alone.",
        old="if low < high:",
        new="if low < high and trainer == generator:",
        told="nobody sends row 4 of generator 0, row 4 of q",
    ),
    Wrong(
        what="Sends each generator a trainer's rows of the whole parameter.",
        old=("low = max(first, begin)", "high = min(last, begin + share)"),
        new=("low = first", "high = last"),
        told="the target of q in generator 0 is rows",
    ),
    Wrong(
        what="Fuses in the order of the alphabet.",
        old="in sizes.items():",
        new="in sorted(sizes.items()):",
        told="row 0 of generator 0 is row 0 of q, the plan puts row 0 of k there",
    ),
    Wrong(
        what="Sends the rows of a generator that share a trainer twice.",
        old="transfers.append(Transfer(name, trainer, generator, source, target))",
        new="transfers += [Transfer(name, trainer, generator, source, target)] * 2",
        told="is written twice",
    ),
    Wrong(
        what="Returns tuples.",
        old="transfers.append(Transfer(name, trainer, generator, source, target))",
        new="transfers.append((name, trainer, generator, source, target))",
        told="plan must return a list of Transfer",
    ),
    Right(
        what="Row by row, in any order.",
        old=PLAN,
        new="""
        transfers = []
        for generator in range(generators):
            place = 0
            for name, rows in sizes.items():
                share = rows // generators
                for row in range(generator * share, (generator + 1) * share):
                    for trainer, (first, last) in enumerate(held(rows, trainers)):
                        if first <= row < last:
                            source = (row - first, row - first + 1)
                            transfers.append(Transfer(name, trainer, generator, source, (place, place + 1)))
                    place += 1
        return transfers[::-1]
        """,
    ),
    Right(
        what="Begins at the trainers.",
        old=PLAN,
        new="""
        transfers = []
        for trainer in range(trainers):
            before = 0
            for name, rows in sizes.items():
                share = rows // generators
                first, last = held(rows, trainers)[trainer]
                at = first
                while at < last:
                    generator = at // share
                    end = min(last, (generator + 1) * share)
                    begin = before + at - generator * share
                    source = (at - first, end - first)
                    transfers.append(Transfer(name, trainer, generator, source, (begin, begin + end - at)))
                    at = end
                before += share
        return transfers
        """,
    ),
]
