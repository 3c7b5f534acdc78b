"""A record that compares the ranks' collectives before they are launched. Taught in lesson 18."""

from typing import Any, cast

import torch.distributed as dist

from shared.comm.record import Call, CommRecord
from shared.runtime.errors import CourseError

NOT_COMPARED = ("send", "recv", "all_to_all")  # ranks may differ there


class DifferentCalls(CourseError):
    """The ranks are about to call different collectives, which would hang, abort or mix them up."""


class SameCalls(CommRecord):
    """As ``record()``, but all ranks compare each collective of the whole world before it is launched.

        with SameCalls() as log:
            optimizer.step()

    Collective: construct and use it on all ranks; at the end of the context they compare, too. Raises
    ``DifferentCalls`` on all ranks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.group = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))  # all ranks are in it
        dist.barrier(group=self.group)  # nobody leaves while another one connects

    def note(self, call: Call) -> None:
        if len(call.ranks) == dist.get_world_size() and call.op not in NOT_COMPARED:
            root = "" if call.peer is None else f" with root {call.peer}"
            self._compare(f"{call.op} of {call.bytes:,} bytes{root}")
        super().note(call)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if error[0] is None:
            self._compare("nothing more")

    def _compare(self, mine: str) -> None:
        texts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(texts, mine, group=self.group)
        for rank, text in enumerate(texts):
            if text != texts[0]:
                raise DifferentCalls(f"rank 0 calls {texts[0]}, rank {rank} calls {text}")
