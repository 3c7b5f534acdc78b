"""The script on few ranks, beside one process and beside the plan: loss, gradients, calls, bytes, storage.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_28_four.py
Written by:  notebooks/28_plan_a_cluster.ipynb
"""

import gc
from collections.abc import Iterable
from dataclasses import replace

import lab_28_train as script
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from rank_tools.planner import Layout, Model, memory_of, traffic_of
from rank_tools.planner.stack import FLOAT64, STACKS, Numbers
from shared.comm.record import CommRecord, record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.parity import assert_equal
from shared.training.storages import local_of

TOLERANCE = 1e-12
IN_FLOAT64 = replace(FLOAT64, per_tensor=8)  # AdamW counts the steps in torch's default dtype
GREETING = 4  # bytes of each message with which stages greet each other before the first step
Traffic = dict[tuple[str, str], tuple[int, int]]


def model_of(cfg: script.Config) -> Model:
    """The script's model, as the planner knows models."""
    sizes = (cfg.layers, cfg.width, cfg.heads, cfg.kv_heads, cfg.ffn, cfg.vocabulary, cfg.length)
    return Model("the lab's Llama", *sizes)


def layout_of(pp: int, dp: int, tp: int, cfg: script.Config, numbers: Numbers) -> Layout:
    """The script's choices: FSDP2 whose shards stay gathered, interleaved stages, one sequence at once."""
    return Layout(
        pp=pp,
        dp=dp,
        tp=tp,
        chunks=cfg.vpp,
        schedule="interleaved" if cfg.vpp > 1 else "1F1B",
        recompute="full" if cfg.recompute else "none",
        zero=3,
        resharding=False,
        sequence_parallel=tp > 1,
        stack=replace(STACKS["torch"], numbers=numbers),
    )


def meshes_for(ranks: int) -> list[tuple[int, int, int]]:
    """All (pp, dp, tp) of so many ranks with at most two for pp and two for tp."""
    meshes = []
    for pp in (1, 2):
        for tp in (1, 2):
            if ranks % (pp * tp) == 0:
                meshes.append((pp, ranks // (pp * tp), tp))
    return meshes


def found_traffic(log: CommRecord, mesh: DeviceMesh) -> Traffic:
    """{(dimension, collective): (calls, bytes handed in)}."""
    dimensions = {}
    for name in ("pp", "dp", "tp"):
        dimensions[tuple(dist.get_process_group_ranks(mesh.get_group(name)))] = name
    traffic: Traffic = {}
    for call in log.calls:
        key = (dimensions[call.ranks], call.op)
        if key[0] != "pp" or call.bytes > GREETING:
            calls, size = traffic.get(key, (0, 0))
            traffic[key] = (calls + 1, size + call.bytes)
    return traffic


def assert_planned(what: str, found: dict, planned: dict) -> None:
    """Raise CourseError unless what was counted is what was planned."""
    for key in sorted({*found, *planned}, key=str):
        if found.get(key) != planned.get(key):
            raise CourseError(f"{what}: {key} is {found.get(key)}, planned was {planned.get(key)}")


def held_bytes(stages: Iterable[script.Stage], optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Of parameters, gradients and optimizer state that this rank holds between two steps."""
    parameters = [p for stage in stages for p in stage.parameters()]
    states = [value for state in optimizer.state.values() for value in state.values()]
    return {
        "parameters": sum(local_of(p).nbytes for p in parameters),
        "gradients": sum(local_of(p.grad).nbytes for p in parameters),
        "optimizer": sum(local_of(value).nbytes for value in states),
    }


def planned_bytes(model: Model, layout: Layout, sequences: int, rank: int) -> dict[str, int]:
    memory = memory_of(model, layout, sequences, layout.position(rank))
    return {name: getattr(memory, name) for name in ("parameters", "gradients", "optimizer")}


def rows_of(cfg: script.Config, dp: int) -> torch.Tensor:
    """Tokens of the whole batch, and the one that follows each row: (sequences, length + 1)."""
    return torch.cat([script.batch_of(cfg, 0, index) for index in range(dp)])


def alone(cfg: script.Config, dp: int) -> tuple[script.Stage, torch.Tensor]:
    """The whole model in one process after a backward pass over the whole batch, and the mean loss."""
    torch.manual_seed(3)
    whole = script.Stage(cfg, 0, 1)
    rows = rows_of(cfg, dp)
    loss = script.loss_fn(whole(rows[:, :-1]), rows[:, 1:])
    loss.backward()
    return whole, loss.detach()


def check(sizes: tuple[int, int, int], group: Group, cfg: script.Config) -> dict:
    """One mesh; the numbers of this rank."""
    pp, dp, tp = sizes
    cfg = replace(cfg, vpp=2 if pp > 1 else 1, recompute=pp - 1)
    name = f"pp {pp} x dp {dp} x tp {tp}, vpp {cfg.vpp}"
    whole, loss_alone = alone(cfg, dp)
    mesh = init_device_mesh(group.device.type, sizes, mesh_dim_names=("pp", "dp", "tp"))
    stages = script.build_stages(cfg, mesh, group.device)
    for stage in stages.values():
        own = set(stage.state_dict())
        stage.load_state_dict({key: value for key, value in whole.state_dict().items() if key in own})
    script.parallelize(stages, mesh, cfg)
    schedule = script.build_schedule(stages, mesh, cfg, group.device)
    parameters = [p for stage in stages.values() for p in stage.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    rows = script.batch_of(cfg, 0, mesh.get_local_rank("dp")).to(group.device)
    with record() as log:
        loss = script.forward_and_backward(schedule, mesh, rows[:, :-1], rows[:, 1:])
    optimizer.step()

    dist.all_reduce(loss)
    assert_equal(f"{name}: loss", loss / (dp * tp), loss_alone.to(group.device), TOLERANCE)
    layout = layout_of(pp, dp, tp, cfg, IN_FLOAT64)
    gradients = {key: p.grad for key, p in whole.named_parameters()}
    for stage in stages.values():
        for key, p in stage.named_parameters():
            expected = own_part(key, gradients[key], layout, group.rank).to(group.device)
            assert_equal(f"{name}: gradient of {key}", local_of(p.grad), expected, TOLERANCE)
    norm = script.clip_gradients(parameters, most=1.0)
    norm_alone = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    assert_equal(f"{name}: norm of gradients", norm, norm_alone.to(group.device), TOLERANCE)
    sequences = dp * cfg.micro_batches
    model = model_of(cfg)
    traffic = found_traffic(log, mesh)
    planned = traffic_of(model, layout, sequences, layout.position(group.rank))
    assert_planned(f"{name}, rank {group.rank}", traffic, planned)
    held = held_bytes(stages.values(), optimizer)
    assert_planned(name, held, planned_bytes(model, layout, sequences, group.rank))
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
        for sizes in meshes_for(group.world_size):
            result = check(sizes, group, cfg)
            name = "pp {} x dp {} x tp {}".format(*sizes)
            results[name] = result
            counts = [f"{key} {calls} x" for key, (calls, _) in sorted(result["traffic"].items())]
            held = f"holds {sum(result['held'].values()):,} bytes"
            print_on_rank_0(f"{name}: {', '.join(counts) or 'no calls'}; {held}")
            gc.collect()
        print_on_rank_0("each: loss and gradients as one process; calls, bytes and storage as planned")
        record_results("lab_28_four", results)


if __name__ == "__main__":
    run(main)
