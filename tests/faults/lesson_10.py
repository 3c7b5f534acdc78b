"""Planted faults of lesson 10; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

STEP = "10_one_step"

FAULTS: list[Fault] = [
    Fault(
        "10_batch",
        '"same rate, same epochs": ("epochs", False)',
        '"same rate, same epochs": ("steps", False)',
        "the largest batch was to have learnt least",
    ),
    Fault("10_claims", "sampler.set_epoch(epoch)", "pass", "assert same == {False: True, True: False}"),
    Fault(
        "10_one_process", "lr=0.05", "lr=1e9", "the loss is not finite; try a lower learning rate", ranks=0
    ),
    Fault(
        "10_one_step",
        "nn.utils.clip_grad_norm_(model.parameters(), 0.5)",
        "pass",
        "whole conv1.weight: differs by",
    ),
    Fault(
        "10_sync_batch_norm",
        "convert_batch_norm(ours, pg)",
        "ours",
        "one collective per pass, not {}",
        ranks=4,
    ),
    # The script, by itself and in the labs that prove it.
    Fault(
        "10_train",
        'loss = F.cross_entropy(self.ddp(x), y, reduction="sum")',
        'loss = -F.cross_entropy(self.ddp(x), y, reduction="sum")',
        "the loss is not finite; try a lower --lr",
        arguments=("--lr", "10", "--clip", "0"),
    ),
    Fault(
        "10_train",
        '                    loss = F.cross_entropy(self.ddp(x), y, reduction="sum")\n',
        "                    scores = self.ddp(x)\n"
        '                loss = F.cross_entropy(scores, y, reduction="sum")\n',
        "bf16: scores are torch.bfloat16, the loss is torch.bfloat16",
        run=STEP,
    ),
    Fault(
        "10_train",
        "nullcontext() if is_last else self.ddp.no_sync()",
        "nullcontext()",
        "in micro-batches: a step communicates by",
        run=STEP,
    ),
    Fault(
        "10_train",
        "loss * (ranks.size / options.batch_size)",
        "loss / len(images)",
        "whole conv1.weight: differs by",
        run=STEP,
    ),
    Fault(
        "10_train",
        'seed_of(self.options.seed, "order", self.epoch)',
        'seed_of(self.options.seed, "order", self.epoch, self.ranks.rank)',
        "on 2 ranks step 0 takes other images than one process does",
        run=STEP,
    ),
    Fault(
        "10_train",
        'seed_of(self.options.seed, "order", self.epoch)',
        'seed_of(self.options.seed, "order")',
        "two epochs have the same order",
        run=STEP,
    ),
    Fault(
        "10_train",
        'seed_of(self.seed, "augmentation", epoch, index)',
        'seed_of(self.seed, "augmentation", epoch)',
        "all images of an epoch move alike",
        run=STEP,
    ),
    Fault(
        "10_train",
        "share = range(ranks.rank, len(data.test), ranks.size)",
        "padded = len(data.test) + ranks.size - 1\n"
        "    share = [i % len(data.test) for i in range(ranks.rank, padded, ranks.size)]",
        "evaluates 60 images,",
        run=STEP,
    ),
    Fault(
        "10_train",
        "clip = options.clip or math.inf",
        "clip = math.inf",
        "whole conv1.weight: differs by",
        run=STEP,
    ),
    Fault(
        "10_train",
        "self.norm1 = nn.GroupNorm(4, width)",
        "self.norm1 = nn.BatchNorm2d(width)",
        "the default model mixes the images of a batch",
        run=STEP,
    ),
    Fault(
        "10_train",
        '[p for p in parameters if p.ndim > 1], "weight_decay": options.weight_decay',
        '[p for p in parameters if p.ndim > 1], "weight_decay": 0.0',
        "whole conv1.weight: differs by",
        run=STEP,
    ),
    # Each rank keeps its own sums of the gradient.
    Fault(
        "lesson_10/sync_batch_norm",
        "dist.all_reduce(sums, group=ctx.group)",
        "dist.all_reduce(sums.clone(), group=ctx.group)",
        "2 rank(s), even shares, step 0: gradient of x: differs by",
        run="10_sync_batch_norm",
        ranks=4,
    ),
    Fault(
        "lesson_10/sync_batch_norm",
        "self._follow(mean, var * total / (total - 1))",
        "self._follow(mean, var)",
        "1 rank(s), even shares, step 0: running_var: differs by",
        run="10_sync_batch_norm",
        ranks=4,
    ),
    Fault(
        "lesson_10/sync_batch_norm",
        "        dist.all_gather(ranks, own, group=group)\n",
        "        dist.all_gather(ranks, own, group=group)\n        dist.all_reduce(own, group=group)\n",
        "one collective per pass, not",
        run="10_sync_batch_norm",
        ranks=4,
    ),
]
