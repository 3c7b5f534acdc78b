"""Answers to exercise 16; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

W_IN_BETWEEN = """
if number >= rank:  # later ranks forward less to begin with, so they may put off more W
    actions.append(("W", number - rank))
"""
FORWARD = """
if number + warm_up < micro_batches:
    actions.append(("F", number + warm_up))
"""
LAST_W = """
for number in range(max(0, micro_batches - rank), micro_batches):
    actions.append(("W", number))
"""

ANSWERS = [
    wrong(
        "Does not make up for the W that it has put off.",
        "rank 1 never does W of micro-batch 3 in stage 1",
        (LAST_W, ""),
    ),
    wrong(
        "Begins with a micro-batch before it has let go of another one.",
        "rank 0 holds 3 micro-batches at once, 2 are allowed",
        (W_IN_BETWEEN, ""),
        (FORWARD, FORWARD + W_IN_BETWEEN.lstrip()),
    ),
    wrong(
        "Plays the whole pipeline, unit by unit: a rank does I if it can, else F if there is room, else W.",
        "3 ranks, 6 micro-batches: a step takes 21, allowed is 20",
        schedule="""
        plan = [[] for _ in range(ranks)]
        ends = {}
        pending = [[] for _ in range(ranks)]
        forwarded = [0] * ranks
        sent_back = [0] * ranks
        let_go = [0] * ranks
        now = 0
        while min(let_go) < micro_batches:
            for r in range(ranks):
                number = sent_back[r]
                gradient = ("F", r, number) if r == ranks - 1 else ("I", r + 1, number)
                input_is_there = r == 0 or ends.get(("F", r - 1, forwarded[r]), now + 1) <= now
                if number < forwarded[r] and ends.get(gradient, now + 1) <= now:
                    plan[r].append(("I", number))
                    ends["I", r, number] = now + 1
                    pending[r].append(number)
                    sent_back[r] += 1
                elif forwarded[r] < micro_batches and forwarded[r] - let_go[r] < ranks and input_is_there:
                    plan[r].append(("F", forwarded[r]))
                    ends["F", r, forwarded[r]] = now + 1
                    forwarded[r] += 1
                elif pending[r]:
                    plan[r].append(("W", pending[r].pop(0)))
                    let_go[r] += 1
            now += 1
        return plan[rank]
        """,
    ),
    wrong(
        "1F1B as it is.",
        "a step takes 15, allowed is 13",
        ('("I", number)', '("B", number)'),
        (W_IN_BETWEEN, ""),
        (LAST_W, ""),
    ),
    wrong(
        "Gives triples, as the executor takes them.",
        'expected a list of pairs such as ("F", 0)',
        schedule='return [(kind, rank, number) for kind in "FB" for number in range(micro_batches)]',
    ),
    wrong(
        "Puts off all W until the end.",
        "rank 0 holds 4 micro-batches at once, 2 are allowed",
        (W_IN_BETWEEN, ""),
        ("range(max(0, micro_batches - rank), micro_batches)", "range(micro_batches)"),
    ),
    wrong(
        "Computes the gradients of the parameters before that of the input.",
        "rank 0 is to do W of micro-batch 0 in stage 0 before I of micro-batch 0",
        schedule="""
        actions = [("F", number) for number in range(micro_batches)]
        for number in range(micro_batches):
            actions += [("W", number), ("I", number)]
        return actions
        """,
    ),
    wrong(
        "Splits backward, but does each W right after its I.",
        "a step takes 14, allowed is 13",
        (W_IN_BETWEEN, 'actions.append(("W", number))'),
        (LAST_W, ""),
    ),
    wrong(
        "Later ranks forward more to begin with, instead of less.",
        "deadlock: rank 0 waits with I of micro-batch 0 in stage 0 for the gradient from stage 1",
        ("ranks - rank, micro_batches", "rank + 1, micro_batches"),
        (W_IN_BETWEEN, 'actions.append(("W", number))'),
        (LAST_W, ""),
    ),
    right(
        "Rank 0, which nobody waits for, computes I and W in one; the list is a generator of lists.",
        (
            "return actions",
            """
            for kind, number in actions:
                if rank > 0:
                    yield [kind, number]
                elif kind != "W":
                    yield ["B" if kind == "I" else kind, number]
            """,
        ),
    ),
]
