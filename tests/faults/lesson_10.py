"""Planted faults of lesson 10; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "10_batch",
        'mine[f"{rule} {factor}"] = train(cfg.batch * factor, rate, images, cfg)',
        'mine[f"{rule} {factor}"] = train(cfg.batch, rate, images, cfg)',
        "the largest batch was to learn least",
    ),
    Fault("10_claims", "sampler.set_epoch(epoch)", "pass", "assert same == {False: True, True: False}"),
    Fault(
        "10_launch_process",
        '"RANK": rank, "LOCAL_RANK": rank,',
        '"RANK": rank,',
        "LOCAL_RANK not set",
        ranks=0,
    ),
    Fault(
        "10_launch_spawn",
        '"RANK": index, "LOCAL_RANK": index,',
        '"RANK": index,',
        "LOCAL_RANK not set",
        ranks=0,
    ),
    Fault(
        "10_one_process",
        "loss = F.cross_entropy(",
        "loss = -F.cross_entropy(",
        "the loss is no number any more",
        ranks=0,
    ),
    Fault(
        "10_sync_batch_norm",
        "convert_batch_norm(ours, pg)",
        "ours",
        "one collective per pass, not {}",
        ranks=4,
    ),
    Fault(
        "10_train", "loss = F.cross_entropy(", "loss = -F.cross_entropy(", "the loss is no number any more"
    ),
]

STILL_WITHOUT: list[str] = []
