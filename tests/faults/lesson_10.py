"""Planted faults of lesson 10; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

STEP = "10_one_step"
SAVING = "10_saving"

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
        "args=(rank, options.ranks, port, arguments)",
        "args=(0, options.ranks, port, arguments)",
        "EADDRINUSE",
        ranks=0,
    ),
    Fault(
        "10_launch_spawn",
        'os.environ["RANK"] = str(index)',
        'os.environ["RANK"] = "0"',
        "EADDRINUSE",
        ranks=0,
    ),
    Fault(
        "10_one_process",
        "(loss_sum / self.options.batch_size).backward()",
        "(-loss_sum / self.options.batch_size).backward()",
        "the loss is not finite; try a lower --lr",
        ranks=0,
        arguments=("--lr", "10"),
    ),
    Fault(
        "10_one_step",
        "nn.utils.clip_grad_norm_(model.parameters(), 0.5)",
        "pass",
        "whole conv1.weight: differs by",
    ),
    Fault(
        "10_saving",
        '        one.checkpoints.finish()\n    expect("when',
        '    expect("when',
        "when it is written: ['step_00000002.part'], expected",
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
        "            nn.utils.clip_grad_norm_(self.ddp.parameters(), options.clip)\n",
        "            pass\n",
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
        'part = final.with_suffix(".part")\n        problem = ""',
        'part = final\n        problem = ""',
        "while it is written: ['step_00000002'], expected ['step_00000002.part']",
        run=SAVING,
    ),
    Fault(
        "10_train",
        "if not self.failed_anywhere(final, problem) and self.ranks.rank == 0:\n            part",
        "if not problem and self.ranks.rank == 0:\n            part",
        "saved on a full disk: True",
        run=SAVING,
    ),
    Fault(
        "10_train",
        'shutil.rmtree(old.rename(old.with_suffix(".part")))',
        "print(old.name)",
        "the newest two: ['step_00000002', 'step_00000004', 'step_00000005'], expected",
        run=SAVING,
    ),
    Fault(
        "10_train",
        '        trainer.step = description["step"]\n',
        "",
        "step 3 after a restart",
        run=SAVING,
    ),
]

STILL_WITHOUT: list[str] = []
