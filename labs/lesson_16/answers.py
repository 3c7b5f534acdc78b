"""Answers to exercise 16."""

from tests.planted import Right, Wrong, solved

W_IN_BETWEEN = """
if number >= rank:  # later ranks forward less to begin with, so they may put off more W
    actions.append(("W", number - rank))
"""
LAST_W = """
for number in range(max(0, micro_batches - rank), micro_batches):
    actions.append(("W", number))
"""
SCHEDULE = solved("16_schedule", "schedule")

ANSWERS = [
    Wrong(
        what="Does not make up for the W that it has put off.",
        old=LAST_W,
        new="",
        told="rank 1 never does W of micro-batch 3 in stage 1",
    ),
    Wrong(
        what="1F1B as it is.",
        old=('("I", number)', W_IN_BETWEEN, LAST_W),
        new=('("B", number)', "", ""),
        told="a step takes 15, allowed is 13",
    ),
    Wrong(
        what="Gives triples, as the executor takes them.",
        old=SCHEDULE,
        new='return [(kind, rank, number) for kind in "FB" for number in range(micro_batches)]',
        told='expected a list of pairs such as ("F", 0)',
    ),
    Wrong(
        what="Puts off all W until the end.",
        old=(W_IN_BETWEEN, "range(max(0, micro_batches - rank), micro_batches)"),
        new=("", "range(micro_batches)"),
        told="rank 0 holds 4 micro-batches at once, 2 are allowed",
    ),
    Wrong(
        what="Computes the gradients of the parameters before that of the input.",
        old=SCHEDULE,
        new="""
        actions = [("F", number) for number in range(micro_batches)]
        for number in range(micro_batches):
            actions += [("W", number), ("I", number)]
        return actions
        """,
        told="rank 0 is to do W of micro-batch 0 in stage 0 before I of micro-batch 0",
    ),
    Wrong(
        what="Later ranks forward more to begin with, instead of less.",
        old=("ranks - rank, micro_batches", W_IN_BETWEEN, LAST_W),
        new=("rank + 1, micro_batches", 'actions.append(("W", number))', ""),
        told="deadlock: rank 0 waits with I of micro-batch 0 in stage 0 for the gradient from stage 1",
    ),
    Wrong(
        what="Puts off W for the numbers of ranks that it has tried, and for no others.",
        old=SCHEDULE,
        new="""
        delay = rank if ranks in (1, 2, 3, 4, 8) else 0
        warm_up = min(ranks - rank, micro_batches)
        actions = [("F", number) for number in range(warm_up)]
        for number in range(micro_batches):
            actions.append(("I", number))
            if number >= delay:
                actions.append(("W", number - delay))
            if number + warm_up < micro_batches:
                actions.append(("F", number + warm_up))
        return actions + [("W", number) for number in range(max(0, micro_batches - delay), micro_batches)]
        """,
        told="5 ranks, 7 micro-batches: a step takes",
    ),
    Right(
        what="Rank 0, which nobody waits for, computes I and W in one; the list is a generator of lists.",
        old="return actions",
        new="""
        for kind, number in actions:
            if rank > 0:
                yield [kind, number]
            elif kind != "W":
                yield ["B" if kind == "I" else kind, number]
        """,
    ),
]
