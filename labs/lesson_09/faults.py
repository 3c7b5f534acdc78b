"""Planted faults of lesson 09."""

from tests.planted import Fault, group_of

EARLY = "0 all-reduces are launched before the last of 6 gradients is ready"
CROSSED = "crossed layers, step"
TOO_EARLY = ": gradient first."  # 1 of 12 times it is noticed before the layers cross
ARRIVAL = "let buckets follow the order of arrival"

FAULTS: list[Fault] = [
    Fault(
        lab="09_after",
        old="            parameter.grad /= self.ranks\n",
        new="",
        told="gradient first.weight: differs by",
    ),
    Fault(
        lab="09_after",
        old="            if users == 0:\n                continue\n",
        new="",
        told="gradient: has [",
    ),
    *group_of(
        # All is sent when backward is over.
        Fault(
            lab="09_overlapped",
            old="        self._launch_in_turn()\n\n    def _launch",
            new="        if len(self.arrived) == len(self.trainable):\n"
            "            self._launch_in_turn()\n\n    def _launch",
            told=EARLY,
        ),
        # The all-reduce blocks inside the hook.
        Fault(
            lab="09_overlapped",
            old="            self.launched += 1\n",
            new="            bucket.work.wait()\n            self.launched += 1\n",
            told="backward waits inside a hook until the other ranks join",
        ),
        # What an easy net does not show: the eight faults below passed all checks before.
        Fault(
            lab="09_overlapped",
            old="            bucket.work.wait()\n",
            new="            pass\n",
            told=TOO_EARLY,
        ),
        Fault(  # each rank's own order of arrival
            lab="09_overlapped",
            old="            dist.broadcast(order, group=self.process_group, group_src=0)\n",
            new="",
            told=CROSSED,
        ),
        Fault(
            lab="09_overlapped",
            old="        broadcast_from_rank_0(self.module.buffers(), self.process_group)\n        if",
            new="        if",
            told="a forward began with buffers of its own",
        ),
        Fault(  # no guard after the first step
            lab="09_overlapped",
            old="        if unused:\n",
            new="        if unused and not self.follows_arrival:\n",
            told="after 2 backwards, one that left a parameter out ended without an error",
        ),
        # Buckets ignore the order of arrival.
        Fault(
            lab="09_overlapped",
            old="self._make_buckets(order.tolist())",
            new="self._make_buckets(list(reversed(range(len(order)))))",
            told=ARRIVAL,
        ),
        Fault(  # what a refused backward leaves behind
            lab="09_overlapped",
            old="        if torch.is_grad_enabled():\n",
            new="        if torch.is_grad_enabled() and len(self.arrived) in (0, len(self.trainable)):\n",
            told="after a refused backward",
        ),
        Fault(
            lab="09_overlapped",
            old="[bucket_cap_mb * MIB] * 2",
            new="[2 * MIB] * 2",
            told="float32, bucket_cap_mb 25: ours are [[",
        ),
        Fault(
            lab="09_overlapped",
            old="cap = caps[1] if dtype in begun else caps[0]",
            new="cap = caps[1] if begun else caps[0]",
            told="float32 and bfloat16, bucket_cap_mb None: ours are",
        ),
        run="09_equal",
    ),
    Fault(  # it averages each backward, as it did once; torch's DDP does not
        lab="09_overlapped",
        old="        if not self.armed:\n            return\n",
        new="        if not self.armed:\n            self._arm()\n",
        told="two forwards, two backwards: 2, equal, expected 1, WRONG",
        run="09_loops",
    ),
    Fault(
        lab="09_paced",
        old="works.append(dist.all_reduce(flat, async_op=True))",
        new="works.append(dist.all_reduce(flat, async_op=True))\n        works[-1].wait()",
        told="this rank waited while backward was under way",
    ),
    Fault(
        lab="09_paced",
        old="if overlap and layer == bucket[-1]",
        new="if overlap and layer == 0",
        told="('overlapped', 16)",
    ),
    Fault(
        lab="09_wrong_turn",
        old="buckets = [b, a]  # the turn that all ranks know",
        new="buckets = [b, a] if group.rank else [a, b]",
        told="in turn: the gradients are wrong, unlike in this lab",
    ),
]
