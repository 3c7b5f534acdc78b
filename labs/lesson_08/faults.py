"""Planted faults of lesson 08."""

from tests.planted import Fault, group_of

FAULTS: list[Fault] = [
    Fault(lab="08_ddp", old="    optimizer.step()\n", new="", told="epochs only "),
    *group_of(
        Fault(
            lab="08_ddp",
            old="torch.save(ddp.module.state_dict(), path)",
            new="torch.save({k: v + 1 for k, v in ddp.module.state_dict().items()}, path)",
            told="the file frozen.weight: differs by",
        ),
        Fault(
            lab="08_ddp",
            old="        dist.broadcast(buffer, src=0)\n",
            new="        pass\n",
            told="evaluate 1.running_mean: rank",
        ),
        Fault(
            lab="08_ddp",
            old="DistributedDataParallel(model, ",
            new="DistributedDataParallel(model, init_sync=False, ",
            told="after construction frozen.weight: differs by",
        ),
        Fault(
            lab="08_ddp",
            old="cross_entropy(ddp(",
            new="cross_entropy(ddp.module(",
            told="gradient first.weight: differs by",
        ),
        Fault(lab="08_ddp", old="loader.sampler.set_epoch(epoch)", new="pass", told="the same order"),
        Fault(
            lab="08_ddp",
            old="DistributedSampler(data,",
            new="DistributedSampler(data, rank=0,",
            told="each image should be on one rank",
        ),
        Fault(lab="08_ddp", old="    dist.all_reduce(counts)\n", new="", told="evaluate counts ("),
        Fault(
            lab="08_ddp",
            old="model.train(was_training)",
            new="model.train()",
            told="evaluate found training=False, and left training=True",
        ),
        Fault(
            lab="08_ddp",
            old="nullcontext() if is_last else ddp.no_sync()",
            new="nullcontext()",
            told="19 steps of 11,344 bytes: {'all_reduce': 114}",
        ),
        run="08_equal",
    ),
    Fault(
        lab="08_equal",
        old="ddp.no_sync = nullcontext",
        new="pass",
        told="without no_sync each micro-batch should all-reduce",
    ),
    Fault(
        lab="08_loops",
        old="    loss_a.backward(retain_graph=True)\n    loss_a.backward()\n",
        new="    (loss_a + loss_a).backward()\n",
        told="forward, two backwards (retain_graph): expected",
        run="08_shapes",
    ),
    Fault(
        lab="08_options",
        old="view in (False, True)",
        new="view in (False, False)",
        told="AssertionError: [2, 2]",
    ),
    Fault(
        lab="08_options",
        old="        for _ in range(2):\n            x = checkpoint",
        new="        for _ in range(1):\n            x = checkpoint",
        told="averaged without static_graph: 0.0",
    ),
    Fault(
        lab="08_options",
        old="apart_after_recomputing(group, static_graph=True)",
        new="apart_after_recomputing(group)",
        told="not averaged with static_graph: ",
    ),
    Fault(
        lab="08_options",
        old="bucket_cap_mb_list=[1, 2]",
        new="bucket_cap_mb_list=[1]",
        told="AssertionError: [1, 1, 1, 1, 1, 1]",
    ),
]
