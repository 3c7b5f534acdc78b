# rejected: rank 0 holds 4 micro-batches at once, 2 are allowed
"""Puts off all W until the end."""


def schedule(rank, ranks, micro_batches):
    warm_up = min(ranks - rank, micro_batches)
    actions = [("F", number) for number in range(warm_up)]
    for number in range(micro_batches):
        actions.append(("I", number))
        if number + warm_up < micro_batches:
            actions.append(("F", number + warm_up))
    for number in range(micro_batches):
        actions.append(("W", number))
    return actions
