# rejected: rank 0 holds 3 micro-batches at once, 2 are allowed
"""Begins with a micro-batch before it has let go of another one."""


def schedule(rank, ranks, micro_batches):
    warm_up = min(ranks - rank, micro_batches)
    actions = [("F", number) for number in range(warm_up)]
    for number in range(micro_batches):
        actions.append(("I", number))
        if number + warm_up < micro_batches:
            actions.append(("F", number + warm_up))
        if number >= rank:
            actions.append(("W", number - rank))
    for number in range(max(0, micro_batches - rank), micro_batches):
        actions.append(("W", number))
    return actions
