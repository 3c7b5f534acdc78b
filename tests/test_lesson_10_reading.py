"""How lesson 10 reads a script: imported names, guards on the rank, what some ranks alone come to."""

import pytest

from shared.checklist.findings import findings
from tests.helpers import SCRIPTS

WELL = (SCRIPTS / "trains_well.py").read_text(encoding="utf-8")


def rules_of(source: str) -> list[str]:
    return [rule for _, rule, _ in findings(source)]


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("from torch import distributed as comm", "comm.init_process_group"),
        ("from torch.distributed import init_process_group as join", "join"),
        ("import torch.distributed", "torch.distributed.init_process_group"),
    ],
)
def test_imported_names_are_followed(imports: str, call: str):
    source = f"{imports}\n{WELL}".replace("dist.init_process_group(", f"{call}(")
    assert rules_of(source) == []
    assert rules_of(source.replace('"nccl" if on_gpu else "gloo"', '"nccl"')) == ["backend"]


@pytest.mark.parametrize(
    ("guard", "expected"),
    [
        ("if rank == 0:", []),
        ("if 0 == dist.get_rank():", []),
        ("if not rank:", []),
        ("if rank < 1 and epoch % 2:", []),
        ("if not rank > 0:", []),
        ("if 1 > rank:", []),
        ("if rank in [-1, 0]:", []),
        ("if not dist.is_initialized() or rank == 0:", []),
        ('if int(os.environ["RANK"]) == 0:', []),
        ("if is_main_process():", []),
        ("if (first := rank == 0) and first:", []),
        ("if rank == 0 or epoch == 1:", ["save", "talk"]),
        ("if world_size > 1:", ["save", "talk"]),
        ("if lora_rank == 0:", ["save", "talk"]),
        ("if rank is not None:", ["save", "talk"]),
        ("if rank:", ["save", "talk"]),
        ("if rank != 0:", ["save", "talk"]),
    ],
)
def test_guards_are_understood(guard: str, expected: list[str]):
    assert sorted(rules_of(WELL.replace("if rank == 0:", guard))) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("if rank == 0:\n    dist.barrier()", ["meet"]),
        ("if rank == 0:\n    dist.barrier()\nelse:\n    dist.barrier()", []),
        ("if rank != 0:\n    dist.barrier()\nload()\nif rank == 0:\n    dist.barrier()", []),
        ("if rank not in (-1, 0):\n    dist.barrier()", ["meet"]),
        ("if rank != 0:\n    return\ndist.barrier()", ["meet"]),
        ("if rank < 2:\n    dist.all_reduce(x, group=pair)", []),
        ("x = dist.new_group([0]) if rank == 0 else None", ["meet"]),
        ("import torch.distributed.checkpoint as dcp\nif rank == 0:\n    dcp.save(x)", ["meet"]),
        ("if rank == 0:\n    x.gather(0, y)\n    torch.gather(x, 0, y)", []),
        ("print_in_rank_order(x) if rank == 0 else None", ["meet"]),
    ],
)
def test_meetings_of_some_ranks(body: str, expected: list[str]):
    helper = "from shared.runtime.report import print_in_rank_order"
    imports = f"import torch\nimport torch.distributed as dist\n{helper}\n"
    lines = body.replace("\n", "\n    ")
    source = f"{imports}dist.init_process_group()\ndef main(rank):\n    {lines}\ndist.destroy_process_group()"
    assert rules_of(source) == expected


@pytest.mark.parametrize(("starts", "expected"), [("mp.spawn(main)", []), ("main()", ["talk"])])
def test_a_launcher_may_speak(starts: str, expected: list[str]):
    source = WELL.replace("    main()\n", f"    print('starting')\n    {starts}\n")
    assert rules_of(f"import torch.multiprocessing as mp\n{source}") == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("common = {'sampler': sampler}", []),
        ("common = {'num_workers': 1}", ["sampler"]),
        ("common = {'sampler': sampler, 'shuffle': True}", ["shuffle"]),
        ("common = {'num_workers': 1}\n    common.update(more)", []),
        ("common = read_options()", []),
    ],
)
def test_packed_arguments_are_read_where_they_can_be(given: str, expected: list[str]):
    (loader,) = (line for line in WELL.splitlines() if line.startswith("    loader = "))
    source = WELL.replace(loader, f"    {given}\n    loader = DataLoader(train_set, 16, **common)")
    assert rules_of(source) == expected
