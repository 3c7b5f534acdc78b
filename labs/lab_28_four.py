"""The script on few ranks, beside one process and beside the plan: loss, gradients, calls, bytes, storage.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_28_four.py
Written by:  notebooks/28_plan_a_cluster.ipynb
"""

import gc

import lab_28_train as script
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from shared.comm.record import CommRecord, record
from shared.planner import Layout, Model, memory_of, traffic_of
from shared.planner.memory import Numbers
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.parity import assert_equal
from shared.training.storages import local_of

TOLERANCE = 1e-12
FLOAT64 = Numbers(parameter=8, gradient=8, optimizer=0, activation=8)
Traffic = dict[tuple[str, str], tuple[int, int]]


def model_of(cfg: script.Config) -> Model:
    """The script's model, as the planner knows models."""
    return Model(
        "the lab's Llama",
        cfg.layers,
        cfg.width,
        cfg.heads,
        cfg.kv_heads,
        cfg.hidden,
        cfg.vocabulary,
        cfg.length,
    )


def layout_of(dp: int, pp: int, tp: int) -> Layout:
    """The script's choices: FSDP whose shards stay gathered, GPipe, one sequence at once."""
    return Layout(dp=dp, pp=pp, tp=tp, zero=3, resharding=False, schedule="GPipe")


def layouts_for(ranks: int) -> list[Layout]:
    """All meshes of so many ranks with at most two for pp and two for tp."""
    found = []
    for pp in (1, 2):
        for tp in (1, 2):
            if ranks % (pp * tp) == 0:
                found.append(layout_of(ranks // (pp * tp), pp, tp))
    return found


def found_traffic(log: CommRecord, mesh: DeviceMesh) -> Traffic:
    """{(dimension, collective): (calls, bytes handed in)}. Messages between stages use the world's group."""
    dimensions = {}
    for name in ("dp", "pp", "tp"):
        dimensions[tuple(dist.get_process_group_ranks(mesh.get_group(name)))] = name
    found: Traffic = {}
    for call in log.calls:
        name = "pp" if call.op in ("send", "recv") else dimensions[call.ranks]
        calls, size = found.get((name, call.op), (0, 0))
        found[name, call.op] = (calls + 1, size + call.bytes)
    return found


def assert_planned(what: str, found: dict, planned: dict) -> None:
    """Raise CourseError unless what was counted is what was planned."""
    for key in sorted({*found, *planned}, key=str):
        if found.get(key) != planned.get(key):
            raise CourseError(f"{what}: {key} is {found.get(key)}, planned was {planned.get(key)}")


def held_bytes(stage: script.Stage) -> dict[str, int]:
    """Of parameters and gradients that this rank holds between two steps."""
    parameters = sum(local_of(p).nbytes for p in stage.parameters())
    gradients = sum(local_of(p.grad).nbytes for p in stage.parameters())
    return {"parameters": parameters, "gradients": gradients}


def planned_bytes(
    model: Model, layout: Layout, sequences: int, rank: int, numbers: Numbers
) -> dict[str, int]:
    memory = memory_of(model, layout, sequences, numbers, layout.position(rank))
    return {"parameters": memory.parameters, "gradients": memory.gradients}


def rows_of(cfg: script.Config, dp: int) -> torch.Tensor:
    """Tokens of the whole batch, and the one that follows each row: (sequences, length + 1)."""
    generator = torch.Generator().manual_seed(7)
    return torch.randint(cfg.vocabulary, (dp * cfg.micro_batches, cfg.length + 1), generator=generator)


def alone(cfg: script.Config, dp: int) -> tuple[script.Stage, torch.Tensor]:
    """The whole model in one process after a backward pass over the whole batch, and the mean loss."""
    torch.manual_seed(3)
    whole = script.Stage(cfg, 0, 1)
    rows = rows_of(cfg, dp)
    logits = whole(rows[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()
    return whole, loss.detach()


def check(layout: Layout, group: Group, cfg: script.Config) -> dict:
    """One mesh; the numbers of this rank."""
    shape = (layout.dp, layout.pp, layout.tp)
    name = f"dp {layout.dp} x pp {layout.pp} x tp {layout.tp}"
    whole, loss_alone = alone(cfg, layout.dp)
    mesh = init_device_mesh(group.device.type, shape, mesh_dim_names=("dp", "pp", "tp"))
    stage = script.Stage(cfg, mesh.get_local_rank("pp"), layout.pp)
    own = set(stage.state_dict())
    stage.load_state_dict({key: value for key, value in whole.state_dict().items() if key in own})
    script.divide(stage.to(group.device), mesh)
    rows = rows_of(cfg, layout.dp).chunk(layout.dp)[mesh.get_local_rank("dp")].to(group.device)
    with record() as log:
        loss = script.forward_and_backward(stage, mesh, rows[:, :-1], rows[:, 1:], cfg)

    dist.all_reduce(loss)
    assert_equal(f"{name}: loss", loss / (layout.dp * layout.tp), loss_alone.to(group.device), TOLERANCE)
    gradients = {key: p.grad for key, p in whole.named_parameters()}
    for key, p in stage.named_parameters():
        expected = own_part(key, gradients[key], layout, group.rank).to(group.device)
        assert_equal(f"{name}: gradient of {key}", local_of(p.grad), expected, TOLERANCE)
    sequences = layout.dp * cfg.micro_batches
    model = model_of(cfg)
    planned = traffic_of(model, layout, sequences, FLOAT64, layout.position(group.rank))
    traffic = found_traffic(log, mesh)
    assert_planned(f"{name}, rank {group.rank}", traffic, planned)
    held = held_bytes(stage)
    assert_planned(name, held, planned_bytes(model, layout, sequences, group.rank, FLOAT64))
    return {"traffic": {" ".join(key): counts for key, counts in traffic.items()}, "held": held}


def own_part(key: str, whole: torch.Tensor, layout: Layout, rank: int) -> torch.Tensor:
    """What this rank holds of a tensor: its part along tp, and of that its rows along dp."""
    position = layout.position(rank)
    layer = key.split(".")[-2]
    if layer in ("out", "down"):
        whole = whole.chunk(layout.tp, 1)[position["tp"]]
    elif not layer.startswith("norm"):
        whole = whole.chunk(layout.tp)[position["tp"]]
    return whole.chunk(layout.dp)[position["dp"]]


def main() -> None:
    torch.set_default_dtype(torch.float64)
    cfg = script.Config(dtype=torch.float64)
    results = {}
    with process_group(timeout_s=60) as group:
        for layout in layouts_for(group.world_size):
            found = check(layout, group, cfg)
            name = f"dp {layout.dp} x pp {layout.pp} x tp {layout.tp}"
            results[name] = found
            counts = [f"{key} {calls} x" for key, (calls, _) in sorted(found["traffic"].items())]
            print_on_rank_0(
                f"{name}: {', '.join(counts) or 'no calls'}; holds {found['held']['parameters']:,} bytes"
            )
            gc.collect()
        print_on_rank_0("each: loss and gradients as one process; calls, bytes and storage as planned")
        record_results("lab_28_four", results)


if __name__ == "__main__":
    run(main)
