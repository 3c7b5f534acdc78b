"""Planted faults of lesson 10."""

from tests.planted import Fault, group_of

STEP = "10_one_step"

FAULTS: list[Fault] = [
    Fault(
        lab="10_batch",
        old='"same rate, same epochs": ("epochs", False)',
        new='"same rate, same epochs": ("steps", False)',
        told="the largest batch should have learnt least",
    ),
    Fault(
        lab="10_claims",
        old="sampler.set_epoch(epoch)",
        new="pass",
        told="assert same == {False: True, True: False}",
    ),
    Fault(
        lab="10_one_process",
        old="lr=0.05",
        new="lr=1e9",
        told="the loss is not finite; try a lower learning rate",
        ranks=0,
    ),
    # The script, by itself and in the labs that prove it.
    Fault(
        lab="10_train",
        old="return F.cross_entropy(",
        new="return -F.cross_entropy(",
        told="the loss or the model is not finite; try a lower --lr",
        arguments=("--lr", "10", "--clip", "0"),
    ),
    *group_of(
        Fault(
            lab="10_train",
            old="                    loss = self.task.loss(self.ddp, self.move(x), self.move(y))",
            new="                    scores = self.ddp(self.move(x))\n"
            "                loss = self.task.loss(lambda _: scores, x, self.move(y))",
            told="bf16: scores are torch.bfloat16, the loss is torch.bfloat16",
        ),
        Fault(
            lab="10_train",
            old="nullcontext() if number == pieces else self.ddp.no_sync()",
            new="nullcontext()",
            told="in micro-batches: a step communicates by",
        ),
        Fault(
            lab="10_train",
            old="loss * self.ranks.size / count",
            new="loss / len(samples)",
            told="whole, step 1: 0.weight: differs by",
        ),
        Fault(
            lab="10_batches",
            old='seed_of(self.seed, "order", epoch)',
            new='seed_of(self.seed, "order", epoch, self.rank)',
            told="on 2 ranks step 0 takes other images than one process does",
        ),
        Fault(
            lab="10_batches",
            old='seed_of(self.seed, "order", epoch)',
            new='seed_of(self.seed, "order")',
            told="two epochs have the same order",
        ),
        Fault(
            lab="10_batches",
            old='seed_of(self.seed, "augmentation", epoch, index)',
            new='seed_of(self.seed, "augmentation", epoch)',
            told="all images of an epoch move alike",
        ),
        Fault(
            lab="10_batches",
            old="numpy.random.seed(seed % 2**32)",
            new="pass",
            told="NumPy: a draw depends on what was drawn before it",
        ),
        Fault(
            lab="10_batches",
            old="            random.setstate(of_random)\n",
            new="",
            told="random: an augmentation changes what the rank draws after it",
        ),
        Fault(
            lab="10_train",
            old="share = range(ranks.rank, len(data.test), ranks.size)",
            new="padded = len(data.test) + ranks.size - 1\n"
            "    share = [i % len(data.test) for i in range(ranks.rank, padded, ranks.size)]",
            told="evaluates 60 images,",
        ),
        Fault(
            lab="10_train",
            old="nn.GroupNorm(4, 32)",
            new="nn.BatchNorm2d(32)",
            told="the default model mixes the images of a batch",
        ),
        Fault(
            lab="13_stopping",
            old="self.work = dist.all_reduce(self.answer, "
            "dist.ReduceOp.MAX, group=self.group, async_op=True)",
            new="pass",
            told="the stop sign communicates by",
        ),
        run=STEP,
    ),
    # Each rank divides by its own labels.
    Fault(
        lab="10_tokens",
        old="        dist.all_reduce(counted)\n",
        new="        counted *= dist.get_world_size()\n",
        told="step 1: place: differs by",
        run="10_token_steps",
    ),
    # torch's fused attention, which the counter does not see
    Fault(
        lab="10_train",
        old="torch.backends.mha.set_fastpath_enabled(False)",
        new="pass",
        told="a line takes 50,331,648 FLOPs, not",
        run="10_token_steps",
    ),
    # Each rank keeps its own sums of the gradient.
    Fault(
        lab="lesson_10/sync_batch_norm",
        old="mean = sums / count\n",
        new="mean = sums.detach() / count\n",
        told="2 rank(s), even shares, step 0: gradient of x: differs by",
        run="10_sync_batch_norm",
        ranks=4,
    ),
    Fault(
        lab="lesson_10/sync_batch_norm",
        old="        mean = sums / count\n",
        new="        dist.all_reduce(count.clone(), group=self.group)\n        mean = sums / count\n",
        told="one collective per pass, not",
        run="10_sync_batch_norm",
        ranks=4,
    ),
]
