# rejected: rank 0 is to do W of micro-batch 0 in stage 0 before I of micro-batch 0
"""Computes the gradients of the parameters before that of the input."""


def schedule(rank, ranks, micro_batches):
    actions = [("F", number) for number in range(micro_batches)]
    for number in range(micro_batches):
        actions.append(("W", number))
        actions.append(("I", number))
    return actions
