"""Planted faults of lesson 08; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("08_ddp", "train_step(ddp, optimizer", "train_step(model, optimizer", "equal gradients keep equal"),
    Fault("08_ddp", "ddp = wrap(model, device)", "ddp = model", "sends rank 0's parameters to all"),
    Fault("08_equal", "train_step(ddp, optimizer", "train_step(model, optimizer", "differs by"),
    Fault("08_equal", "y[mine])", "y[:len(x[mine])])", "differs by"),
    Fault("08_loader", "ddp.module.state_dict()", "ddp.state_dict()", "Missing key(s) in state_dict"),
    Fault("08_loader", "            optimizer.step()\n", "", "the model has not learned"),
    Fault("08_loader", "loader.sampler.set_epoch(epoch)", "pass", "the same order", run="08_steps"),
    Fault(
        "08_loader",
        " / MICRO_BATCHES\n            loss.b",
        "\n            loss.b",
        "gradient ",
        run="08_steps",
    ),
    Fault(
        "08_loader",
        "DistributedSampler(data,",
        "DistributedSampler(data, rank=0,",
        "one rank",
        run="08_steps",
    ),
    Fault(
        "08_loader",
        "nullcontext() if is_last else ddp.no_sync()",
        "nullcontext()",
        "all-reduces with, without no_sync",
        run="08_steps",
    ),
    Fault(
        "08_loader",
        "nullcontext() if is_last else ddp.no_sync()",
        "ddp.no_sync()",
        "gradient ",
        run="08_steps",
    ),
    Fault("08_steps", "if synchronized:", "if not synchronized:", "all-reduces with, without no_sync"),
    Fault("08_train", "F.cross_entropy(ddp(", "F.cross_entropy(ddp.module(", "ranks [1] differ from rank 0"),
    Fault("08_train", "batch[group.rank :: group.world_size]", "batch", "the ranks trained on"),
    Fault("08_train", "slice(group.rank, None, group.world_size)", "slice(None)", "images recognised"),
    Fault("08_options", "view in (False, True)", "view in (False, False)", "[2, 2]"),
    Fault(
        "08_options", "cap in (None, 25, 1)", "cap in (None, 25, 2)", "AssertionError: {None: 2, 25: 1, 2: 2}"
    ),
    Fault("08_options", "find_unused_parameters=True)", "find_unused_parameters=False)", "Expected to have"),
    Fault("08_faults", "ddp.module if bypass else ddp", "ddp", "which is not what this lab shows"),
    Fault("08_faults", "use_reentrant=self.reentrant", "use_reentrant=False", "use_reentrant=True: no error"),
    Fault(
        "08_faults",
        "if group.rank == 0:\n        try",
        "if group.rank >= 0:\n        try",
        "rank 0 alone: None",
    ),
]
