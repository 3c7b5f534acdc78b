"""``make test-elsewhere``: lessons show what is committed on processors with older vector instructions, too.

Other instructions add up a float32 sum in another order, and training makes much of little. torch, oneDNN and
MKL can be told to leave out what this processor has; the variables are read when torch is imported. So each
set is a run of nbmake over the notebooks.

    .venv/bin/python -m tests.elsewhere [LESSON ...]
"""

import os
import subprocess
import sys
from collections.abc import Callable

from tests.helpers import LESSON_PATHS, ROOT

PROCESSORS = {
    "default": {  # what each x86-64 processor has; MKL's own choice for those of other makers
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "MKL_CBWR": "COMPATIBLE",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}
SAY_WHICH = "import torch; print(torch.backends.cpu.get_cpu_capability().lower())"


def in_use(variables: dict[str, str]) -> str:
    """The vector instructions that torch says it uses with these variables."""
    command = [sys.executable, "-c", SAY_WHICH]
    done = subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def nbmake(lessons: list[str], variables: dict[str, str]) -> bool:
    """Whether all lessons show what is committed; if not, pytest prints what differs."""
    paths = [str(path) for path in LESSON_PATHS if not lessons or path.name[:2] in lessons]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *paths]
    return subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=False).returncode == 0


def main(lessons: list[str], in_use: Callable = in_use, green: Callable = nbmake) -> int:
    differ = []
    for name, variables in PROCESSORS.items():
        used = in_use(variables)
        if used != name:
            print(f"{name}: not run, torch uses {used} on this processor")
        elif green(lessons, variables):
            print(f"{name}: the committed outputs")
        else:
            differ.append(name)
    if differ:
        print(f"other outputs than the committed ones with: {', '.join(differ)}")
    return int(bool(differ))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
