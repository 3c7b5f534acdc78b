"""Planted faults of lesson 26."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="26_stage",
        old="self.case, rank, self.cured",
        new="self.case, rank, True",
        told="collective_on_rank_0: rank 0 said '8.0', expected 'Timed out waiting",
        run="26_gallery",
        ranks=0,
        arguments=("collective_on_rank_0",),
    ),
    Fault(
        lab="26_waiting",
        old="calls.reverse()",
        new="pass",
        told="kinds_in_another_order: a rank said",
        run="26_gallery",
        ranks=0,
        arguments=("kinds_in_another_order",),
    ),
    Fault(
        lab="26_starting",
        old='consume_prefix_in_state_dict_if_present(state, "module.")',
        new='consume_prefix_in_state_dict_if_present(state, "ddp.")',
        told="module_prefix, cured: rank",
        run="26_gallery",
        ranks=0,
        arguments=("module_prefix",),
    ),
    Fault(
        lab="26_training",
        old="use_reentrant=not cured",
        new="use_reentrant=False",
        told="ready_twice: rank 0 said",
        run="26_gallery",
        ranks=0,
        arguments=("ready_twice",),
    ),
    Fault(
        lab="26_wrong",
        old="    sampler.set_epoch(epoch)\n        orders",
        new="    sampler.set_epoch(0)\n        orders",
        told="no_set_epoch, cured: rank",
        run="26_gallery",
        ranks=0,
        arguments=("no_set_epoch",),
    ),
    Fault(
        lab="26_gallery",
        old="(waiting, starting, training, wrong)",
        new="(waiting, waiting, training, wrong)",
        told="two cases have the same name",
        ranks=0,
    ),
    Fault(
        lab="26_look",
        old="dist.barrier()  # to be safe",
        new="dist.broadcast(torch.ones(1), src=1)",
        told="gloo:broadcast of [[1]], not",
    ),
]
