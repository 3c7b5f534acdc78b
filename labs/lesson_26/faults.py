"""Planted faults of lesson 26."""

from tests.planted import Fault, group_of

FAULTS: list[Fault] = [
    *group_of(
        Fault(
            lab="26_stage",
            old="self.case, rank, self.cured",
            new="self.case, rank, True",
            told="collective_on_rank_0: rank 0 said '8.0', expected 'Timed out waiting",
            arguments=("collective_on_rank_0",),
        ),
        Fault(
            lab="26_waiting",
            old="calls.reverse()",
            new="pass",
            told="kinds_in_another_order: a rank said",
            arguments=("kinds_in_another_order",),
        ),
        Fault(
            lab="26_starting",
            old='consume_prefix_in_state_dict_if_present(state, "module.")',
            new='consume_prefix_in_state_dict_if_present(state, "ddp.")',
            told="module_prefix, cured: rank",
            arguments=("module_prefix",),
        ),
        Fault(
            lab="26_training",
            old="use_reentrant=not cured",
            new="use_reentrant=False",
            told="ready_twice: rank 0 said",
            arguments=("ready_twice",),
        ),
        Fault(
            lab="26_wrong",
            old="    sampler.set_epoch(epoch)\n        orders",
            new="    sampler.set_epoch(0)\n        orders",
            told="no_set_epoch, cured: rank",
            arguments=("no_set_epoch",),
        ),
        run="26_gallery",
        ranks=0,
    ),
    Fault(
        lab="26_gallery",
        old="(waiting, starting, training, divided,",
        new="(waiting, waiting, training, divided,",
        told="two cases have the same name",
        ranks=0,
    ),
    Fault(
        lab="26_look",
        old="dist.barrier()  # to be safe",
        new="dist.broadcast(torch.ones(1), src=1)",
        told="gloo:broadcast of [[1]], not",
    ),
    Fault(
        lab="26_divided",
        old="expert.grad /= dist.get_world_size()",
        new="pass",
        told="experts_not_divided, cured: rank",
        run="26_gallery",
        ranks=0,
        arguments=("experts_not_divided",),
    ),
    Fault(
        lab="26_hidden",
        old="steps = len(own if cured else undivided)",
        new="steps = len(own)",
        told="schedule_of_the_undivided: rank 0 said",
        run="26_gallery",
        ranks=0,
        arguments=("schedule_of_the_undivided",),
    ),
]
