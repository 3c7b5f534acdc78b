"""Planted faults of lesson 28; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "28_train",
        '    "attention": ENTER,\n',
        "",
        "('tp', 'all_reduce') is (",
        run="28_four",
    ),
    Fault(
        "28_train",
        'fully_shard(block, mesh=mesh["dp"], reshard_after_forward=False)',
        'fully_shard(block, mesh=mesh["dp"])',
        "('dp', 'all_gather') is (",
        run="28_four",
    ),
    Fault(
        "28_train",
        "stage.set_requires_gradient_sync(for_the_last_time)",
        "stage.set_requires_gradient_sync(True)",
        "('dp', 'reduce_scatter') is (",
        run="28_four",
    ),
    Fault("28_train", " / labels.numel()", "", "dp 2 x pp 1 x tp 1: loss: differs", run="28_four"),
    Fault(
        "28_four",
        "FLOAT64 = Numbers(parameter=8, gradient=8,",
        "FLOAT64 = Numbers(parameter=8, gradient=4,",
        "('dp', 'reduce_scatter') is (",
    ),
    Fault(
        "28_lessons",
        '"ZeRO-1": Layout(dp=4, micro_batch=2, zero=1)',
        '"ZeRO-1": Layout(dp=4, micro_batch=2, zero=2)',
        "planned was [1649664, 412416, 824836]",
        ranks=4,
    ),
    Fault("28_lessons", "chosen=cfg.k", "chosen=1", "EP: all ranks called {('ep', 'all_reduce')", ranks=4),
    Fault(
        "28_any_rank",
        "hidden=53248",
        "hidden=53249",
        "the script's model has",
        ranks=0,
        arguments=("5003/8192",),
    ),
    Fault(
        "28_train",
        '    "mlp": ENTER,\n',
        "",
        "rank 5003 of 8192: ('tp', 'all_reduce') is (",
        run="28_any_rank",
        ranks=0,
        arguments=("5003/8192",),
    ),
]

STILL_WITHOUT: list[str] = []
