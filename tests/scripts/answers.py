"""One rank that checks several answers to an exercise, each in a fork that has torch already.

    torchrun --nproc-per-node=3 answers.py CHECK FOLDER ANSWER...

FOLDER receives what answer A said on rank R as A.R.txt, and with which exit code it ended as A.R.code.
"""

import importlib
import os
import runpy
import signal
import sys
import time
from pathlib import Path

import torch.distributed as dist

from shared.runtime import exercises
from shared.runtime.ports import HERE
from shared.runtime.run import die_with_launcher


def serve(file: Path) -> None:
    """Be the store of one answer, as torchrun's agent is. Does not return."""
    die_with_launcher()
    store = dist.TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(str(store.port))
    unfinished.rename(file)
    signal.pause()


def examine(check: str, answer: str, port: str, said: Path) -> None:
    """What a rank of ``torchrun CHECK --answer ANSWER`` does. Does not return."""
    with said.open("w") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    os.environ.update(MASTER_ADDR=HERE, MASTER_PORT=port)
    sys.argv = [check, "--answer", answer]
    runpy.run_path(check, run_name="__main__")


def main(check: str, folder: Path, answers: list[str]) -> None:
    rank = os.environ["RANK"]
    if (slow := "torch._dynamo") in Path(check).read_text(encoding="utf-8"):
        importlib.import_module(slow)  # once, not in each fork
    for index, answer in enumerate(answers):
        port = folder / f"{index}.port"
        if rank == "0" and not os.fork():
            serve(port)
        while not port.exists():
            time.sleep(0.02)
        child = os.fork()
        if not child:
            examine(check, answer, port.read_text(), folder / f"{index}.{rank}.txt")
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        (folder / f"{index}.{rank}.code").write_text(str(code))
    ends = [folder / f"{len(answers) - 1}.{r}.code" for r in range(int(os.environ["WORLD_SIZE"]))]
    while rank == "0" and not all(end.exists() for end in ends):
        time.sleep(0.02)  # the stores end with this process


if __name__ == "__main__":
    exercises.TIMEOUT_S = 30.0  # the machine may stand still for seconds
    die_with_launcher()
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
