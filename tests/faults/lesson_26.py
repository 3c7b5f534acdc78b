"""Planted faults of lesson 26; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "26_waiting",
        "def collective_on_rank_0(rank: int, cured: bool) -> float:\n"
        "    x = torch.ones(4)\n    if cured or rank == 0:",
        "def collective_on_rank_0(rank: int, cured: bool) -> float:\n"
        "    x = torch.ones(4)\n    if cured or rank == 1:",
        "collective_on_rank_0: rank 0 said '4.0'",
        run="26_gallery",
        ranks=0,
        arguments=("collective_on_rank_0",),
    ),
    Fault(
        "26_stage",
        "self.case, rank, self.cured",
        "self.case, rank, True",
        "collective_on_rank_0: rank 0 said '8.0', expected 'Timed out waiting",
        run="26_gallery",
        ranks=0,
        arguments=("collective_on_rank_0",),
    ),
    Fault(
        "26_stage",
        "self.case, rank, self.cured",
        "self.case, rank, False",
        "collective_on_rank_0, cured: rank",
        run="26_gallery",
        ranks=0,
        arguments=("collective_on_rank_0",),
    ),
    Fault(
        "26_waiting",
        "calls.reverse()",
        "pass",
        "kinds_in_another_order: a rank said",
        run="26_gallery",
        ranks=0,
        arguments=("kinds_in_another_order",),
    ),
    Fault(
        "26_starting",
        'consume_prefix_in_state_dict_if_present(state, "module.")',
        'consume_prefix_in_state_dict_if_present(state, "ddp.")',
        "module_prefix, cured: rank",
        run="26_gallery",
        ranks=0,
        arguments=("module_prefix",),
    ),
    Fault(
        "26_training",
        "use_reentrant=not cured",
        "use_reentrant=False",
        "ready_twice: rank 0 said",
        run="26_gallery",
        ranks=0,
        arguments=("ready_twice",),
    ),
    Fault(
        "26_wrong",
        "    sampler.set_epoch(epoch)\n        orders",
        "    sampler.set_epoch(0)\n        orders",
        "no_set_epoch, cured: rank",
        run="26_gallery",
        ranks=0,
        arguments=("no_set_epoch",),
    ),
    Fault(
        "26_wrong",
        "if cured and micro_batch < 7",
        "if cured and micro_batch < 6",
        "reduces_too_often, cured: rank",
        run="26_gallery",
        ranks=0,
        arguments=("reduces_too_often",),
    ),
    Fault(
        "26_gallery",
        "(waiting, starting, training, wrong)",
        "(waiting, waiting, training, wrong)",
        "two cases have the same name",
        ranks=0,
    ),
    Fault(
        "26_look",
        "dist.barrier()  # to be safe",
        "dist.broadcast(torch.ones(1), src=1)",
        "gloo:broadcast of [[1]], not",
    ),
    Fault("26_look", "model(torch.ones(2, 4))", "model(torch.ones(2, 5))", "shapes cannot be multiplied"),
]
