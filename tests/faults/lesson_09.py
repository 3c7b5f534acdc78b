"""Planted faults of lesson 09; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

EARLY = "0 all-reduces are launched before the last of 6 gradients is ready"
CROSSED = "crossed layers, step"
TOO_EARLY = ": gradient "  # 1 of 12 times it is noticed before the layers cross
ARRIVAL = "let buckets follow the order of arrival"

FAULTS: list[Fault] = [
    Fault("09_naive", "parameter.grad /= self.ranks", "pass", "the gradient of the whole batch"),
    Fault(
        "09_naive",
        "            dist.all_reduce(parameter.grad, group=self.process_group)\n",
        "",
        "gradient first.weight: differs by",
        run="09_equal",
    ),
    Fault(
        "09_naive",
        "            if users == 0:\n                continue\n",
        "",
        "gradient: has [",
        run="09_equal",
    ),
    Fault("09_flat", "        self.flat /= self.ranks\n", "", "gradient first.weight: differs by"),
    Fault("09_flat", "            if share == 0:\n                continue\n", "", "gradient: has ["),
    # All is sent when backward is over.
    Fault(
        "09_overlapped",
        "        self._launch_in_turn()\n\n    def _launch",
        "        if len(self.arrived) == len(self.trainable):\n"
        "            self._launch_in_turn()\n\n    def _launch",
        EARLY,
        run="09_equal",
    ),
    # The all-reduce blocks inside the hook.
    Fault(
        "09_overlapped",
        "            self.launched += 1\n",
        "            bucket.work.wait()\n            self.launched += 1\n",
        "backward waits inside a hook until the other ranks join",
        run="09_equal",
    ),
    # What an easy net does not show: the eight faults below passed all checks before.
    Fault(  # each bucket leaves as soon as it is full, in no fixed order
        "09_overlapped",
        "        while self.launched < len(self.buckets):\n"
        "            bucket = self.buckets[self.launched]\n"
        "            if bucket.missing:\n                return\n",
        "        for bucket in [self.bucket_of[self.arrived[-1]]]:\n"
        "            if bucket.missing:\n                return\n",
        CROSSED,
        run="09_equal",
    ),
    Fault("09_overlapped", "            bucket.work.wait()\n", "", TOO_EARLY, run="09_equal"),
    Fault(
        "09_overlapped",
        "            bucket.work.wait()\n",
        "            if bucket is self.buckets[-1]:\n                bucket.work.wait()\n",
        TOO_EARLY,
        run="09_equal",
    ),
    Fault(  # divides twice from the fourth bucket on
        "09_overlapped",
        "            bucket.work.wait()\n",
        "            bucket.work.wait()\n"
        "            if bucket in self.buckets[3:]:\n                bucket.flat /= self.ranks\n",
        CROSSED,
        run="09_equal",
    ),
    Fault(  # each rank's own order of arrival
        "09_overlapped",
        "            dist.broadcast(order, group=self.process_group, group_src=0)\n",
        "",
        CROSSED,
        run="09_equal",
    ),
    Fault(
        "09_overlapped",
        "        broadcast_from_rank_0(self.module.buffers(), self.process_group)\n        return",
        "        return",
        "a forward began with buffers of its own",
        run="09_equal",
    ),
    Fault(
        "09_overlapped",
        "dist.all_reduce(bucket.flat, group=self.process_group, async_op=True)",
        "dist.all_reduce(bucket.flat, async_op=True)",
        CROSSED,
        run="09_equal",
    ),
    Fault(  # no guard after the first step
        "09_overlapped",
        "        if unused:\n",
        "        if unused and not self.follows_arrival:\n",
        "after 2 backwards, one that left a parameter out ended without an error",
        run="09_equal",
    ),
    # Buckets ignore the order of arrival.
    Fault(
        "09_overlapped",
        "self._make_buckets(order.tolist())",
        "self._make_buckets(list(reversed(range(len(order)))))",
        ARRIVAL,
        run="09_equal",
    ),
    Fault(
        "09_overlapped",
        "torch.div(parameter.grad, self.ranks, out=view)",
        "view.copy_(parameter.grad)",
        "gradient first.weight: differs by",
        run="09_equal",
    ),
    Fault("09_overlapped", "[bucket_cap_mb * MIB] * 2", "[2 * MIB] * 2", "ours are [[", run="09_equal"),
    Fault(
        "09_equal",
        "overlapped = train_side_by_side(\n            lambda net: OverlappedDDP(net, cfg.cap)",
        "overlapped = train_side_by_side(\n            lambda net: net",
        "after construction",
    ),
    Fault(
        "09_paced",
        "works.append(dist.all_reduce(flat, async_op=True))",
        "works.append(dist.all_reduce(flat, async_op=True))\n        works[-1].wait()",
        "this rank waited while backward was under way",
    ),
    Fault(
        "09_paced", "if overlap and layer == bucket[-1]", "if overlap and layer == 0", "('overlapped', 16)"
    ),
    Fault("09_paced", "time.sleep(ctx.seconds)", "time.sleep(ctx.seconds / 20)", "('overlapped', 0."),
    Fault(
        "09_wrong_turn",
        "buckets = [b, a]  # the turn that all ranks know",
        "buckets = [b, a] if group.rank else [a, b]",
        "in turn: the gradients are wrong, unlike in this lab",
    ),
    Fault(
        "09_wrong_turn",
        "if group.rank % 2 == 0:",
        "if group.rank >= 0:",
        "as soon as full: the gradients are right",
    ),
]
