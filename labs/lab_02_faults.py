"""Eight ways to miss each other: what each process says, and how they meet after all.

Run it:      python labs/lab_02_faults.py
Written by:  notebooks/02_rendezvous.ipynb
"""

import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from shared.runtime.errors import CourseError
from shared.runtime.ports import HERE, free_ports, is_taken
from shared.runtime.processes import Child
from shared.runtime.results import record_results
from shared.runtime.run import run

NOWHERE = "no-such-host.invalid"  # nobody's name: RFC 6761 keeps .invalid free
# What differs from run to run, and what is printed instead.
VARYING = {
    r"after \d+ seconds": "after N seconds",
    r"(port: |, )\d{4,}": r"\1PORT",
    r"with .*(Connection refused|Connect timeout).*": "with ... Connection refused, or Connect timeout",
}


@dataclass(frozen=True)
class Config:
    patience_s: float = 20.0  # timeout of a rendezvous that is to succeed
    limit_s: float = 10.0  # then a process that is to fail is ended


@dataclass(frozen=True)
class Fault:
    """Some of ``n`` ranks ``come`` and try to meet by ``method``, or one each. Then all meet ``by`` another.

    ``says`` is a regular expression for each rank that came, ``cure`` says what was changed.
    """

    name: str
    come: tuple[int, ...]
    n: int
    method: str | tuple[str, ...]
    says: tuple[str, ...]
    cure: str
    by: str
    backend: str = "gloo"
    timeout_s: float = 2.0  # retries to connect more than double it, and gloo waits five times as long
    rank_0_longer_s: float = 0.0  # who gives up first takes the store along, and the others say only that

    def child(self, rank: int) -> Child:
        timeout_s = self.timeout_s + (rank == 0) * self.rank_0_longer_s
        return Child(meet, rank, self.n, self.method, timeout_s, self.backend)


def meet(rank: int, n: int, method: str, timeout_s: float, backend="gloo", job="A", crash=False) -> str:
    """Form a group of ``n`` by ``method``; return whom this process met there, in rank order.

    Each introduces itself by job and rank, such as A0. ``crash`` is an end in mid-work.
    """
    timeout = timedelta(seconds=timeout_s)
    time.sleep(0.3 * rank)  # a rank that comes before rank 0 would have to try again
    method = method if isinstance(method, str) else method[rank]
    dist.init_process_group(backend, init_method=method, rank=rank, world_size=n, timeout=timeout)
    names = [None] * n
    dist.all_gather_object(names, f"{job}{rank}")
    if crash:
        os._exit(1)
    dist.barrier()
    dist.destroy_process_group()
    return f"met {', '.join(names)}"


def all_faults(taken: int, left: Path) -> list[Fault]:
    """``taken`` is the port of another job's rank 0, ``left`` a file that a crash has left behind."""
    a, b, c, d, e, f = (f"tcp://{HERE}:{port}" for port in free_ports(6))
    elsewhere, nowhere = f"tcp://{HERE}:{free_ports(1)[0]}", d.replace(HERE, NOWHERE)

    def unreachable(host: str) -> tuple[str, str]:
        return (rf"^DistNetworkError: The client socket has timed out .* connect to \({host}, ",) * 2

    alone = ("^DistStoreError: Timed out .* 1/2 clients joined", unreachable(HERE)[0])
    missing = ("^DistStoreError: Timed out .* 2/3 clients joined", "^DistStoreError: wait timeout after")
    unset = ("MASTER_ADDR expected, but not set",)
    in_use = ("^DistNetworkError: The server socket has failed to listen .* EADDRINUSE", "^met B0, A1$")
    old, refused = f"file://{left}", ("connectFullMesh failed .*(Connection refused|Connect timeout)",)
    no_gpu = ("requires at least one CUDA device|no GPUs found|have NCCL built in",) * 2
    faults = [
        Fault("missing rank", (0, 1), 3, a, missing, "rank 2 comes", a, rank_0_longer_s=3),
        Fault("no rank 0", (1, 2), 3, b, unreachable(HERE), "rank 0 comes", b),
        Fault("wrong address", (0, 1), 2, (c, elsewhere), alone, "the address that rank 0 has", c),
        Fault("unknown name", (0, 1), 2, nowhere, unreachable(NOWHERE), "an address in place of the name", d),
        Fault("no address", (0,), 2, "env://", unset, "MASTER_ADDR set for rank 0 as well", "env://"),
        Fault("taken port", (0, 1), 2, f"tcp://{HERE}:{taken}", in_use, "a free port", e, timeout_s=20),
        Fault("reused file", (0,), 2, old, refused, "the file deleted", old, timeout_s=1),
    ]
    if not torch.cuda.is_available():
        faults.append(Fault("nccl, no GPU", (0, 1), 2, f, no_gpu, "gloo", f, "nccl", timeout_s=20))
    return faults


def main(cfg: Config) -> None:
    assert default_pg_timeout == timedelta(minutes=30)  # so long would most of them wait without ours
    left = Path(tempfile.mkdtemp(prefix="rank-by-rank-")) / "meeting"
    for child in [Child(meet, r, 2, f"file://{left}", cfg.patience_s, crash=True) for r in (0, 1)]:
        child.outcome(cfg.patience_s)
    taken, other = free_ports(2)
    stranger = Child(meet, 0, 2, f"tcp://{HERE}:{taken}", cfg.patience_s, job="B")
    while not is_taken(taken):
        time.sleep(0.01)
    os.environ.pop("MASTER_ADDR", None)
    os.environ["MASTER_PORT"] = str(other)
    seconds, faults = {}, all_faults(taken, left)
    tries = [[f.child(rank) for rank in f.come] for f in faults]  # all at once: most of them only wait
    for fault, children in zip(faults, tries, strict=True):
        print(fault.name)
        outcomes = [child.outcome(cfg.limit_s) for child in children]
        seconds[fault.name] = [waited for _, waited in outcomes]
        for rank, (said, _), expected in zip(fault.come, outcomes, fault.says, strict=True):
            if not re.search(expected, said):
                raise CourseError(f"{fault.name}: rank {rank} said {said!r}, expected {expected!r}")
            for varying, instead in VARYING.items():
                said = re.sub(varying, instead, said)
            print(f"  rank {rank}: {said}")
    assert stranger.outcome(cfg.patience_s)[0] == "met B0, A1"

    os.environ["MASTER_ADDR"] = HERE
    left.unlink()
    tries = [[Child(meet, rank, f.n, f.by, cfg.patience_s) for rank in range(f.n)] for f in faults]
    for fault, children in zip(faults, tries, strict=True):
        said = {child.outcome(cfg.patience_s)[0] for child in children}
        if said != {f"met {', '.join(f'A{rank}' for rank in range(fault.n))}"}:
            raise CourseError(f"{fault.name}: after the cure they said {said}")
        print(f"{fault.name:13} cured by: {fault.cure}")
    shutil.rmtree(left.parent)

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # alone, to record
    record_results("lab_02_faults", {"seconds": seconds})


if __name__ == "__main__":
    run(main, Config())
