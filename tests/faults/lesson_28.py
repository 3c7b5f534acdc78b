"""Planted faults of lesson 28; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("28_train", '        "attention": gather_once,\n', "", "('tp', 'all_gather') is (", run="28_four"),
    Fault(
        "28_train",
        "fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=False)",
        "fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True)",
        "('dp', 'all_gather') is (",
        run="28_four",
    ),
    Fault(
        "28_train",
        "local(p.grad).square().sum() / copies",
        "local(p.grad).square().sum()",
        "norm of gradients: differs",
        run="28_four",
        ranks=4,
    ),
    Fault(
        "28_train", "labels.flatten())", 'labels.flatten(), reduction="sum")', "loss: differs", run="28_four"
    ),
    Fault("28_four", "IN_FLOAT64 = replace(FLOAT64, per_tensor=8)", "IN_FLOAT64 = FLOAT64", "optimizer is "),
    Fault(
        "28_any_rank",
        "ffn=53248",
        "ffn=53249",
        "the script's model has",
        ranks=0,
        arguments=("5003/8192",),
    ),
    Fault(
        "28_train",
        '        "mlp": gather_once,\n',
        "",
        "rank 5003 of 8192: ('tp', 'all_gather') is (",
        run="28_any_rank",
        ranks=0,
        arguments=("5003/8192",),
    ),
]
