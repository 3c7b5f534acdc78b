"""``setup`` gives each rank a GPU of its own, or the CPU to all, under each launcher; without one, a line."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from shared.runtime.ports import free_port
from tests.helpers import ROOT, Done, python
from tests.launch import warm_torchrun

import lab_01_join

ROOM = Path(__file__).parent
CPU = "cpu, gloo bound to None"
OWN = ["cuda:0, set cuda:0, nccl bound to cuda:0", "cuda:1, set cuda:1, nccl bound to cuda:1"]
FIRST = "cuda:0, set cuda:0, nccl bound to cuda:0"


def joined(port: int | None, gpus: list[list[str]], **variables: str) -> Done:
    """``setup`` of two ranks that see these GPUs, under torchrun, or with the variables of a bare shell."""
    arguments = [json.dumps(gpus)] if port is None else [json.dumps(gpus), str(port)]
    return warm_torchrun(ROOM / "join_with_gpus.py", *arguments, ranks=2, **variables)


@pytest.fixture(params=["torchrun", "a bare shell"])
def port(request: pytest.FixtureRequest) -> int | None:
    """None under torchrun; else where rank 0 serves the store, as under srun and mpirun."""
    return None if request.param == "torchrun" else free_port()


@pytest.mark.parametrize(
    ("gpus", "asked", "expected"),
    [
        ([["a", "b"], ["a", "b"]], "cuda", OWN),
        ([["a"], ["b"]], "cuda", [FIRST, FIRST]),  # as with --gpus-per-task=1
        ([[], []], "cuda", [CPU, CPU]),
        ([["a"], []], "cpu", [CPU, CPU]),
    ],
)
def test_each_rank_joins_with_a_gpu_of_its_own_or_all_with_the_cpu(port, gpus, asked, expected):
    done = joined(port, gpus, RANK_BY_RANK_DEVICE=asked)
    assert done.returncode == 0, done.stdout
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert lines == [f"rank {rank}: {words}" for rank, words in enumerate(expected)]


@pytest.mark.parametrize(
    "gpus", [[["a"], ["a"]], [["a"], []]], ids=["one GPU for both", "a node lost its GPU"]
)
def test_with_fewer_gpus_than_ranks_no_group_forms(port, gpus):
    done = joined(port, gpus, RANK_BY_RANK_DEVICE="cuda")
    assert done.returncode == 1, done.stdout
    ways = "start one rank for each GPU, or all with RANK_BY_RANK_DEVICE=cpu"
    line = rf"^2 ranks, 1 GPUs \(rank 0 on .* has cuda:0\): {ways}$"
    assert re.search(line, done.stdout, re.MULTILINE), done.stdout
    assert "bound" not in done.stdout


def test_without_a_launcher_one_line_says_what_to_do():
    done = python(ROOT / "labs" / "lab_01_join.py")
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith("start me with torchrun: torchrun --standalone --nproc-per-node=2 ")
    assert "RANK, WORLD_SIZE" in line


def test_a_start_with_more_ranks_does_not_read_the_count_of_the_one_before(monkeypatch):
    """torchrun's store survives when a job grows: ranks 1 to 3 ask before rank 0 has counted again."""
    store = dist.HashStore()
    me = threading.local()
    monkeypatch.setattr(lab_01_join, "own_device", lambda: (torch.device("cuda", me.rank), f"GPU {me.rank}"))
    monkeypatch.setattr(dist, "rendezvous", lambda *args, **limit: iter([(store, me.rank, me.ranks)]))
    monkeypatch.setattr(dist, "init_process_group", lambda *args, **others: None)
    for name in lab_01_join.NEEDED:
        monkeypatch.setenv(name, "0")

    def join(rank: int, ranks: int) -> str:
        me.rank, me.ranks = rank, ranks
        return str(lab_01_join.setup())

    with ThreadPoolExecutor() as pool:
        for ranks in (2, 4):
            joined = [pool.submit(join, rank, ranks) for rank in reversed(range(ranks))]  # rank 0 is last
            assert [place.result(10) for place in joined] == [f"cuda:{r}" for r in reversed(range(ranks))]
