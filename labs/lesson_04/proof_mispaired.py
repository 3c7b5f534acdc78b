"""Two collectives of the same shape in a different order on one rank: wrong numbers, no error; what finds it.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_04/proof_mispaired.py
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import zip_longest

import torch
import torch.distributed as dist

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    timeout_s: float = 5.0  # for the groups in which something is to go wrong


# A call in an error of DETAIL, which prints much more of it.
CALL = re.compile(r"Rank (\d+) is running collective: .*?(OpType=\w+, TensorShape=\[[\d, ]*\])")


class OrderError(CourseError):
    """The ranks did not call the same collectives in the same order."""


@dataclass
class Calls:
    """What this rank calls, in order. ``group`` is one of its own: the comparison pairs with nothing else."""

    group: dist.ProcessGroup
    noted: list[tuple[str, str]] = field(default_factory=list)

    def note(self, what: str, call: str, x: torch.Tensor) -> None:
        """``what`` says what ``x`` means: kind, shape and dtype do not tell two tensors apart."""
        self.noted.append((what, f"{call} {list(x.shape)} {x.dtype}"))

    def compare(self, names: bool = True) -> None:
        """Compare a fingerprint of 7 bytes, and the calls only if it differs. Collective: all ranks call it.

        Raises:
            OrderError: on every rank; it names the first call that differs.
        """
        lines = [f"{call} of {what}" if names else call for what, call in self.noted]
        digest = hashlib.sha256("\n".join(lines).encode()).digest()
        mine = torch.tensor([int.from_bytes(digest[:7], "big")])
        digests = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(digests, mine, group=self.group)
        if all(torch.equal(theirs, mine) for theirs in digests):
            return
        ranks = [None] * len(digests)
        dist.all_gather_object(ranks, lines, group=self.group)
        for number, calls in enumerate(zip_longest(*ranks, fillvalue="nothing"), start=1):
            other = next((rank for rank, call in enumerate(calls) if call != calls[0]), None)
            if other is not None:
                raise OrderError(f"call {number}: {calls[0]} on rank 0, {calls[other]} on rank {other}")


def gradients(group: Group) -> dict[str, torch.Tensor]:
    """Two of one shape, (2,) in float64: 1, 2, 3, ... and 100, 200, 300, ... by rank."""
    ones = torch.ones(2, dtype=torch.float64)
    return {"weight": ones * (group.rank + 1), "bias": ones * 100 * (group.rank + 1)}


def reference(n: int) -> dict[str, float]:
    """The sums over n ranks, by one process."""
    return {"weight": n * (n + 1) / 2, "bias": 100 * n * (n + 1) / 2}


def add_up(order: list[str], group: Group, pg: dist.ProcessGroup, calls: Calls) -> dict[str, float]:
    """All-reduce the gradients one by one in this order; return the sums."""
    sums = gradients(group)
    for name in order:
        calls.note(name, "all_reduce", sums[name])
        dist.all_reduce(sums[name], group=pg)
    return {name: x[0].item() for name, x in sums.items()}


def raised(function: Callable, *args) -> str:
    """The text of the error that ``function`` raises, or "no error"."""
    try:
        function(*args)
    except (OrderError, RuntimeError) as error:
        return str(error)
    return "no error"


def detail_group(cfg: Config) -> dist.ProcessGroup:
    """A group that checks each call, as all groups do with TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    pg = dist.new_group(timeout=timedelta(seconds=cfg.timeout_s), backend="gloo")
    dist.set_debug_level(dist.DebugLevel.OFF)
    return pg


def different_shape(group: Group, pg: dist.ProcessGroup) -> None:
    dist.all_reduce(torch.ones(2 if group.rank == 0 else 3), group=pg)


def different_kind(group: Group, pg: dist.ProcessGroup) -> None:
    x = torch.ones(2)
    if group.rank == 0:
        dist.all_reduce(x, group=pg)
    else:
        dist.broadcast(x, src=0, group=pg)


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        n = group.world_size
        right = reference(n)
        plain = dist.new_group(backend="gloo")
        own_group = dist.new_group(backend="gloo")
        names = sorted(gradients(group))
        # As if the names came out of a set: the order may differ from process to process.
        own_order = names if group.rank == 0 else names[::-1]

        first = 100 + right["weight"] - 1  # rank 0's bias and the weights of the others
        second = 1 + right["bias"] - 100
        wrong = {"weight": second, "bias": first} if group.rank == 0 else {"weight": first, "bias": second}
        for pg in (plain, detail_group(cfg)):
            calls = Calls(own_group)
            got = add_up(own_order, group, pg, calls)
            assert got != right, "the sums are right: nothing was mispaired"
            # no error, not even with DETAIL
            assert got == wrong, f"mispaired, the sums are {wrong}, not {got}"
        print_in_rank_order(f"weight {got['weight']:g}, bias {got['bias']:g}, and no error")
        print_on_rank_0(f"one process: weight {right['weight']:g}, bias {right['bias']:g}")

        without_names = raised(calls.compare, False)
        with_names = raised(calls.compare, True)
        assert without_names == "no error", f"without names the comparison finds: {without_names}"
        assert with_names.startswith("call 1: all_reduce"), f"with names the comparison finds: {with_names}"
        print_on_rank_0(f"calls compared by kind, shape and dtype: {without_names}")
        print_on_rank_0(f"compared by name, too: {with_names}")

        calls = Calls(own_group)
        got = add_up(names, group, plain, calls)
        assert got == right, f"in sorted order the sums are {right}, not {got}"
        assert raised(calls.compare) == "no error"
        print_on_rank_0("fix, sorted names: the sums are right, and the comparison finds nothing")

        for function in (different_shape, different_kind):
            texts = [None] * n
            dist.all_gather_object(texts, raised(function, group, detail_group(cfg)))
            mismatches = [text for text in texts if text.startswith("Detected mismatch between collectives")]
            assert mismatches, f"DETAIL did not name a mismatch: {texts}"
            assert "no error" not in texts, texts  # a rank may hear only that another has left
            named = dict(CALL.findall(mismatches[0]))
            first = named.pop("0")
            (other,) = named.values()
            name = function.__name__.replace("_", " ")
            print_on_rank_0(f"DETAIL, {name}: rank 0 is running {first}, another rank {other}")


if __name__ == "__main__":
    run(main, Config())
