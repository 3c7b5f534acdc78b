"""The overlapped DDP in the shapes of loops of lesson 08: where it does as torch's, and where it does not.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_09/proof_loops.py
"""

from copy import deepcopy
from dataclasses import dataclass, field

import torch

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run

from lab_08_loops import SHAPES, TwoNets
from lab_09_overlapped import OverlappedDDP
from lesson_08.proof_shapes import OUTCOMES, outcome


@dataclass(frozen=True)
class Config:
    # What differs from torch's DDP, and how.
    differs: dict[str, str] = field(default_factory=lambda: {"checkpoint, reentrant": "error"})


def main(cfg: Config) -> None:
    with process_group(timeout_s=20) as group:
        as_torch = []
        for name, shape in SHAPES.items():
            of_torch, _ = OUTCOMES[name]
            if name.startswith("no_sync"):
                continue  # the class of the lab has none; the exercise adds it
            torch.manual_seed(0)
            model = TwoNets().to(group.device)
            ddp = OverlappedDDP(deepcopy(model))
            with record() as log:
                found = outcome(shape, ddp, model, lambda log=log: log.count("all_reduce"))
            expected = cfg.differs.get(name, of_torch)
            if found != expected:
                raise CourseError(f"{name}: {found}, expected {expected}; torch's DDP {of_torch}")
            if name in cfg.differs:
                calls, verdict = of_torch.split(", ")
                print_on_rank_0(f"{name}: ours: {found}; torch's DDP: {calls} all-reduce, {verdict}")
            else:
                as_torch.append(name)
        print_on_rank_0(f"{len(as_torch)} shapes of loops: the same all-reduces and gradients as torch's DDP")


if __name__ == "__main__":
    run(main, Config())
