"""``setup`` on a machine with pretended GPUs.

Arguments: the GPUs that each rank sees, as JSON, and for a bare shell a free port.
"""

import json
import os
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist

import shared  # noqa: F401 - makes labs importable

from lab_01_join import setup

NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
KNOWN = (*NEEDED, "RANK_BY_RANK_DEVICE")
LAUNCHERS = ("TORCHELASTIC_", "LOCAL_", "GROUP_", "ROLE_", "RANK", "WORLD_SIZE", "MASTER_")


def forget_the_launcher(port: str) -> None:
    """Only the variables of a bare shell are left, and rank 0 serves the store."""
    for name in list(os.environ):
        if name.startswith(LAUNCHERS) and name not in KNOWN:
            del os.environ[name]
    os.environ["MASTER_PORT"] = port


def main() -> None:
    rank = int(os.environ["RANK"])
    seen = json.loads(sys.argv[1])[rank]
    for port in sys.argv[2:]:
        forget_the_launcher(port)
    calls: list[str] = []
    join = dist.init_process_group

    def pretend_to_join(backend: str, device_id: torch.device | None, **others) -> None:
        calls.append(f"{backend} bound to {device_id}")
        print(f"bound to {device_id}", flush=True)
        join("gloo", **others)

    torch.cuda.device_count = lambda: len(seen)
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(uuid=seen[device.index])
    torch.cuda.set_device = lambda device: calls.append(f"set {device}")
    dist.init_process_group = pretend_to_join
    device = setup()
    sys.stdout.write(f"rank {rank}: {device}, {', '.join(calls)}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
