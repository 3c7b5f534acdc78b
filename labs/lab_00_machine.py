"""Is this machine fit for the course?

Run it:      python labs/lab_00_machine.py
Written by:  notebooks/00_start_here.ipynb
"""

import os
import platform
import shutil
import sys

import torch
import torch.distributed as dist
import torchvision


def release(version: str) -> tuple[int, int]:
    """(major, minor) of a version such as 2.15.0+cpu."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def main() -> None:
    versions = f"torch {torch.__version__}, torchvision {torchvision.__version__}"
    checks = {
        f"Python {platform.python_version()}": sys.version_info >= (3, 11),
        versions: release(torch.__version__) >= (2, 11),
        "torchrun is on the PATH": shutil.which("torchrun") is not None,
        "torch.distributed with gloo": dist.is_available() and dist.is_gloo_available(),
        f"{os.cpu_count()} cores, {platform.system()}": os.name == "posix",
    }
    for what, fit in checks.items():
        print(f"{'ok     ' if fit else 'MISSING'} {what}")

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    forced_to_cpu = os.environ.get("RANK_BY_RANK_DEVICE") == "cpu"
    backend = "nccl" if gpus > 1 and not forced_to_cpu else "gloo on the CPU"
    print(f"        {gpus} GPU(s): labs with 2 ranks use {backend}")
    if not all(checks.values()):
        sys.exit("This machine is not fit yet; notebooks/using.md, Troubleshooting, helps.")
    print("This machine is fit.")


if __name__ == "__main__":
    main()
