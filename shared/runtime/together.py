"""Several proofs in one launch: torch is imported once, and each proof runs in forks of the ranks.

    torchrun --standalone --nproc-per-node=2 -m shared.runtime.together FOLDER PROOF.py PROOF.py ...

What a proof prints goes to FOLDER/PROOF.txt, so that a notebook shows it where it speaks of it.
Each proof has a store and forms a process group of its own, as if it had been started alone. One that fails
does not hide the others: all run. Then its output is shown, and the launch ends with exit code 1.
"""

import os
import signal
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import torch._dynamo  # noqa: F401 - optimizers import it; the forks have it then
import torch.distributed as dist

from shared.runtime.errors import CourseError, InputError
from shared.runtime.group import read_environment
from shared.runtime.run import run

LONGEST = timedelta(minutes=30)  # bounds a hang; a proof has its own timeout
LOOK_S = 0.05
GRACE_S = 1.0  # what another rank may still say when one has failed


class Ranks:
    """What the ranks tell each other about proof ``number``: where they are, and that one has failed."""

    def __init__(self, store: dist.Store, number: int) -> None:
        self.rank, _, self.world_size = read_environment()
        self.store = dist.PrefixStore(f"together {number}", store)

    def meet(self, where: str) -> None:
        self.store.set(f"{where} {self.rank}", "yes")
        self.store.wait([f"{where} {rank}" for rank in range(self.world_size)])

    def port_of_new_store(self) -> int:
        """Of a store without keys, which rank 0 serves while this object lives. Collective."""
        if self.rank == 0:
            address = os.environ["MASTER_ADDR"]
            self.server = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
            self.store.set("port", str(self.server.port))
        return int(self.store.get("port"))

    def tell_failure(self) -> None:
        self.store.set("failed", "yes")

    def has_failed(self) -> bool:
        return self.store.check(["failed"])


def prove(path: Path, output: Path, ranks: Ranks) -> bool:
    """Run the proof ``path`` in a fork of each rank. Collective; the same answer on all ranks."""
    if ranks.rank == 0:
        output.write_text("", encoding="utf-8")
    port = ranks.port_of_new_store()
    warnings.filterwarnings("ignore", "This process .* is multi-threaded")  # a store's server is a thread
    child = os.fork()
    if child == 0:
        os.environ["MASTER_PORT"] = str(port)
        be_script(path, output)
    failed_at = None
    ended = 0
    while not ended:
        ended, status = os.waitpid(child, os.WNOHANG)
        if failed_at is None and ranks.has_failed():
            failed_at = time.monotonic()
        if not ended and failed_at and time.monotonic() > failed_at + GRACE_S:
            os.kill(child, signal.SIGKILL)
        time.sleep(LOOK_S)
    if status:
        ranks.tell_failure()
    ranks.meet("end")
    return not ranks.has_failed()


def be_script(path: Path, output: Path) -> None:
    """Be ``python PATH >> OUTPUT 2>&1`` in a process that has imported torch; do not return."""
    for stream in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND), stream)
    sys.argv = [str(path)]
    sys.path[0] = str(path.parent)
    module = ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = module
    run(exec, compile(path.read_bytes(), path, "exec", dont_inherit=True), module.__dict__)


def main(folder: Path, paths: list[Path]) -> None:
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise InputError(f"there is no file {', '.join(missing)}")
    rank, _, _ = read_environment()
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False, timeout=LONGEST)
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for number, path in enumerate(paths):
        output = folder / f"{path.stem}.txt"
        holds = prove(path, output, Ranks(store, number))
        if rank == 0:
            print(f"{path.name}: {'holds' if holds else 'failed'}", flush=True)
        if not holds:
            failed.append(output)
    if rank == 0:
        for output in failed:
            print(output.read_text(encoding="utf-8"), flush=True)
    if failed and rank == 0:
        names = ", ".join(f"{output.stem}.py" for output in failed)
        raise CourseError(f"{len(failed)} of {len(paths)} proofs failed: {names}")
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("name a folder for the outputs, then the proofs to run")
    run(main, Path(sys.argv[1]), [Path(argument) for argument in sys.argv[2:]])
