"""The script as any rank of thousands, a process each and no data: Llama 3 405B beside its plan.

Run it:      python labs/lab_28_any_rank.py 5003/8192 0/16384 16383/16384
Written by:  notebooks/28_plan_a_cluster.ipynb

The backend "fake" talks to nobody, and fake tensors have a shape and no numbers. All that depends on shapes
alone is real: which groups there are, what this rank holds, what it calls with how many bytes.

Each rank has a process of its own: torch remembers meshes, and two ranks of a cluster have equal ones.
"""

import argparse
import json
import resource
import time
from dataclasses import replace

import lab_28_train as script
import torch
import torch._dynamo  # else each fork imports it for itself
import torch.distributed as dist
from lab_28_four import assert_planned, found_traffic, held_bytes, layout_of, model_of, planned_bytes
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore  # also registers the backend "fake"

from rank_tools.planner import Layout, memory_of, model_named, traffic_of
from rank_tools.planner.stack import FSDP2
from shared.comm.record import record
from shared.runtime.children import Child
from shared.runtime.errors import CourseError, InputError
from shared.runtime.results import record_results
from shared.runtime.run import run

LIMIT_S = 300  # for a rank, which takes seconds
LLAMA_405B = script.Config(
    layers=126,
    width=16384,
    heads=128,
    kv_heads=8,
    ffn=53248,
    vocabulary=128256,
    length=8192,
    micro_batches=2,
    vpp=8,
    recompute=1,
)
PIPELINE = 16
TENSOR = 8


def as_rank(layout: Layout, rank: int, cfg: script.Config) -> dict:
    """One step of the script, as this rank; what it counted."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.ranks)
    sizes = {"pp": layout.pp, "dp": layout.dp, "tp": layout.tp}
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        stages = script.build_stages(cfg, mesh, torch.device("cpu"))
    script.parallelize(stages, mesh, cfg)  # outside of the mode: a mesh is made of real numbers
    schedule = script.build_schedule(stages, mesh, cfg, torch.device("cpu"))
    optimizer = torch.optim.AdamW([p for stage in stages.values() for p in stage.parameters()])
    with fake:
        rows = torch.zeros(cfg.micro_batches, cfg.length + 1, dtype=torch.long)
        with record() as log:
            script.forward_and_backward(schedule, mesh, rows[:, :-1], rows[:, 1:])
        optimizer.step()
    counted = {
        "position": {name: mesh.get_local_rank(name) for name in sizes},
        "traffic": found_traffic(log, mesh),
        "held": held_bytes(stages.values(), optimizer),
    }
    dist.destroy_process_group()
    return counted


def check(rank: int, ranks: int, cfg: script.Config) -> str:
    """Hold a rank against the plan; what it counted, as JSON."""
    layout = layout_of(PIPELINE, ranks // (PIPELINE * TENSOR), TENSOR, cfg, replace(FSDP2, per_tensor=4))
    model = model_of(cfg)
    counted = as_rank(layout, rank, cfg)
    what = f"rank {rank} of {ranks}"
    sequences = layout.dp * cfg.micro_batches
    position = layout.position(rank)
    assert_planned(what, counted["position"], {name: position[name] for name in counted["position"]})
    assert_planned(what, counted["traffic"], traffic_of(model, layout, sequences, position))
    assert_planned(what, counted["held"], planned_bytes(model, layout, sequences, rank))
    counted["traffic"] = {" ".join(key): counts for key, counts in sorted(counted["traffic"].items())}
    counted["whole units"] = memory_of(model, layout, sequences, position).gathered
    counted["CPU seconds"] = time.process_time()
    counted["bytes of its process"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return json.dumps({"rank": rank, "ranks": ranks, **counted})


def report(found: dict) -> None:
    what = f"rank {found['rank']} of {found['ranks']}"
    held = ", ".join(f"{size:,} of {kind}" for kind, size in found["held"].items())
    print(f"{what}: {found['position']}, holds bytes: {held}")
    for call, (calls, size) in found["traffic"].items():
        dimension, op = call.split()
        print(f"    {dimension} {op:14} {calls:3} calls {size:15,} bytes, as planned")


def place(text: str) -> tuple[int, int]:
    """The rank, and of how many: ``"5003/8192"``.

    Raises:
        InputError: there is no such rank, or so many do not form a mesh.
    """
    group = PIPELINE * TENSOR
    rank, _, ranks = text.partition("/")
    if not (rank.isdecimal() and ranks.isdecimal()):
        raise InputError(f"{text!r} is no rank of so many, such as 0/16384")
    if int(ranks) % group or not int(rank) < int(ranks):
        raise InputError(f"{text}: there must be a multiple of {group} ranks, and the first is 0")
    return int(rank), int(ranks)


def main(texts: list[str], cfg: script.Config) -> None:
    places = [place(text) for text in texts]
    with torch.device("meta"):
        whole = sum(p.numel() for p in script.Stage(cfg, 0, 1).parameters())
    planned = model_named("405b").parameters()
    if whole != planned:
        raise CourseError(f"the script's model has {whole:,} parameters, the planner's {planned:,}")
    print(f"{whole:,} parameters, as the planner counts them")
    children = [Child(check, rank, ranks, cfg) for rank, ranks in places]
    results = []
    for child in children:
        answer, _ = child.outcome(LIMIT_S)
        if not answer.startswith("{"):
            raise CourseError(answer.removeprefix("CourseError: "))
        results.append(json.loads(answer))
        report(results[-1])
    record_results("lab_28_any_rank", {"places": results})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run the script as one rank of many, or some.")
    parser.add_argument("places", nargs="+", metavar="RANK/RANKS", help="such as 0/16384")
    run(main, parser.parse_args().places, LLAMA_405B)
