# rejected: deadlock: rank 0 waits with I of micro-batch 0 in stage 0 for the gradient from stage 1
"""Later ranks forward more to begin with, instead of less."""


def schedule(rank, ranks, micro_batches):
    warm_up = min(rank + 1, micro_batches)
    actions = [("F", number) for number in range(warm_up)]
    for number in range(micro_batches):
        actions.append(("I", number))
        actions.append(("W", number))
        if number + warm_up < micro_batches:
            actions.append(("F", number + warm_up))
    return actions
