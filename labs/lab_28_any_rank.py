"""The script as any rank of thousands, in one process without data: Llama 3 405B beside its plan.

Run it:      python labs/lab_28_any_rank.py --ranks 16384 --rank 0
Written by:  notebooks/28_plan_a_cluster.ipynb

The backend "fake" talks to nobody, and fake tensors have a shape and no numbers. All that depends on shapes
alone is real: which groups there are, what this rank holds, what it calls with how many bytes.
"""

import argparse
import resource
import time

import lab_28_train as script
import torch
import torch.distributed as dist
from lab_28_four import assert_planned, found_traffic, held_bytes, layout_of, model_of, planned_bytes
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore  # also registers the backend "fake"

from shared.comm.record import record
from shared.planner import Layout, model_named, traffic_of
from shared.planner.memory import Numbers
from shared.runtime.errors import CourseError, InputError
from shared.runtime.results import record_results
from shared.runtime.run import run

BFLOAT16 = Numbers(parameter=2, gradient=2, optimizer=0, activation=2)
LLAMA_405B = script.Config(
    layers=126,
    width=16384,
    heads=128,
    kv_heads=8,
    hidden=53248,
    vocabulary=128256,
    length=8192,
    micro_batches=2,
    dtype=torch.bfloat16,
)


PIPELINE = 16
TENSOR = 8


def as_rank(layout: Layout, rank: int, cfg: script.Config) -> dict:
    """One step of the script, as this rank; what it counted."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.ranks)
    shape = (layout.dp, layout.pp, layout.tp)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "pp", "tp"))
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, torch.device("cpu"):
        stage = script.Stage(cfg, mesh.get_local_rank("pp"), layout.pp)
    script.divide(stage, mesh)  # outside of the mode: a mesh is made of real numbers
    with fake:
        rows = torch.zeros(cfg.micro_batches, cfg.length + 1, dtype=torch.long)
        with record() as log:
            script.forward_and_backward(stage, mesh, rows[:, :-1], rows[:, 1:], cfg)
    found = {
        "position": {name: mesh.get_local_rank(name) for name in ("dp", "pp", "tp")},
        "traffic": found_traffic(log, mesh),
        "held": held_bytes(stage),
    }
    dist.destroy_process_group()
    return found


def check(layout: Layout, rank: int, cfg: script.Config) -> dict:
    """Hold a rank against the plan."""
    model = model_of(cfg)
    found = as_rank(layout, rank, cfg)
    what = f"rank {rank} of {layout.ranks}"
    sequences = layout.dp * cfg.micro_batches
    position = layout.position(rank)
    assert_planned(what, found["position"], {name: position[name] for name in ("dp", "pp", "tp")})
    assert_planned(what, found["traffic"], traffic_of(model, layout, sequences, BFLOAT16, position))
    assert_planned(what, found["held"], planned_bytes(model, layout, sequences, rank, BFLOAT16))
    print(f"{what}: {found['position']}, holds {found['held']['parameters']:,} bytes of parameters")
    for (dimension, op), (calls, size) in sorted(found["traffic"].items()):
        print(f"    {dimension} {op:14} {calls:3} calls {size:15,} bytes, as planned")
    found["traffic"] = {" ".join(key): counts for key, counts in found["traffic"].items()}
    return {"rank": rank, "ranks": layout.ranks, **found}


def main(ranks: int, rank: int, cfg: script.Config) -> None:
    begin = time.perf_counter()
    group = PIPELINE * TENSOR
    if ranks < 1 or ranks % group or not 0 <= rank < ranks:
        raise InputError(
            f"--ranks must be a multiple of {group}, and --rank below it, not {ranks} and {rank}"
        )
    torch.set_default_dtype(cfg.dtype)
    with torch.device("meta"):
        whole = sum(p.numel() for p in script.Stage(cfg, 0, 1).parameters())
    planned = model_named("405b").parameters()
    if whole != planned:
        raise CourseError(f"the script's model has {whole:,} parameters, the planner's {planned:,}")
    print(f"{whole:,} parameters, as the planner counts them")
    found = check(layout_of(ranks // group, PIPELINE, TENSOR), rank, cfg)
    found["seconds"] = time.perf_counter() - begin
    found["bytes of this process"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    record_results(f"lab_28_any_rank_{ranks}_{rank}", found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run the script as one rank of many.")
    parser.add_argument("--ranks", type=int, default=16384)
    parser.add_argument("--rank", type=int, default=0)
    options = parser.parse_args()
    run(main, options.ranks, options.rank, LLAMA_405B)
