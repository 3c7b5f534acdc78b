"""Planted faults of lesson 08."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="08_ddp",
        old="train_step(ddp, optimizer",
        new="train_step(model, optimizer",
        told="equal gradients keep equal",
    ),
    Fault(
        lab="08_ddp",
        old="ddp = wrap(model, device)",
        new="ddp = model",
        told="sends rank 0's parameters to all",
    ),
    Fault(
        lab="08_equal",
        old="train_step(ddp, optimizer",
        new="train_step(model, optimizer",
        told="gradient first.weight: differs by",
    ),
    Fault(lab="08_loader", old="            optimizer.step()\n", new="", told="the model has not learned"),
    Fault(
        lab="08_loader",
        old="loader.sampler.set_epoch(epoch)",
        new="pass",
        told="the same order",
        run="08_steps",
    ),
    Fault(
        lab="08_loader",
        old="y.to(device)) / MICRO_BATCHES",
        new="y.to(device))",
        told="gradient 0.weight: differs by",
        run="08_steps",
    ),
    Fault(
        lab="08_loader",
        old="DistributedSampler(data,",
        new="DistributedSampler(data, rank=0,",
        told="each point should be on one rank",
        run="08_steps",
    ),
    Fault(
        lab="08_loader",
        old="nullcontext() if is_last else ddp.no_sync()",
        new="nullcontext()",
        told="all-reduces with, without no_sync",
        run="08_steps",
    ),
    Fault(
        lab="08_train",
        old="F.cross_entropy(ddp(",
        new="F.cross_entropy(ddp.module(",
        told="ranks [1] differ from rank 0",
    ),
    Fault(
        lab="08_train", old="batch[group.rank :: group.world_size]", new="batch", told="the ranks trained on"
    ),
    Fault(
        lab="08_train",
        old="slice(group.rank, None, group.world_size)",
        new="slice(None)",
        told="images recognised",
    ),
    Fault(
        lab="08_options",
        old="view in (False, True)",
        new="view in (False, False)",
        told="AssertionError: [2, 2]",
    ),
]
