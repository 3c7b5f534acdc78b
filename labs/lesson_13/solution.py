"""Exercise 13: a run that is killed five times, ends equal, and does few steps twice."""

import math
from pathlib import Path

from shared.runtime.group import Group
from shared.training.checkpoint import load_checkpoint, save_atomically


def choose_interval(steps: int, kills: int, save_cost: float) -> int:
    """How many steps from one snapshot to the next, when ``kills`` are expected within ``steps`` steps.

    A snapshot takes as long as ``save_cost`` steps.
    """
    # solution: begin
    return round(math.sqrt(2 * save_cost * steps / kills))
    # solution: end


def train(run, path: Path, interval: int, group: Group) -> None:
    """Bring ``run`` to its end. After a kill this is called again, on all ranks, with a new ``run``.

    ``run.model`` and ``run.optimizer`` are those of step 0, equal on all ranks. ``run.do(step)`` does one
    of the steps 1, 2, ... ``run.steps``; a kill may come in any. The snapshot, if any, lies at ``path``, and
    every rank can read it. Each ``save_atomically`` of rank 0 counts, the others may not save.
    """
    # solution: begin
    done = 0
    if path.exists():
        saved = load_checkpoint(path, group.device)
        run.model.load_state_dict(saved["model"])
        run.optimizer.load_state_dict(saved["optimizer"])
        done = saved["step"]
    for step in range(done + 1, run.steps + 1):
        run.do(step)
        if step % interval == 0 and group.rank == 0:
            state = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}
            save_atomically({"step": step, **state}, path)
    # solution: end
