"""How lesson 10 reads a script: imported names, guards on the rank, what some ranks alone come to."""

from pathlib import Path

import pytest

from shared.checklist.findings import examine, findings
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
        ("if rank == 0 or epoch == 1:", []),  # it cannot be told
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


def test_local_imports_are_followed_and_findings_name_their_file(tmp_path: Path):
    package = tmp_path / "parts"
    package.mkdir()
    (package / "__init__.py").write_text("from .saving import keep\n", encoding="utf-8")
    (package / "saving.py").write_text(
        "import torch\nfrom . import keep as again\n"
        "def keep(model):\n    torch.save(model.state_dict(), 'm.pt')\n"
        "def unused(model):\n    torch.save(model.state_dict(), 'n.pt')\n",
        encoding="utf-8",
    )
    (tmp_path / "joining.py").write_text(
        "import torch.distributed as dist\nimport train\n"
        "def start():\n    dist.init_process_group()\n    return dist.get_rank()\n",
        encoding="utf-8",
    )
    script = tmp_path / "train.py"
    body = (
        "from joining import start\nfrom parts import keep\nimport torch.distributed as dist\n"
        "def main(model):\n    rank = start()\n    {}\n    dist.destroy_process_group()\nmain(1)\n"
    )
    script.write_text(body.format("keep(model)"), encoding="utf-8")
    found = examine(script.read_bytes(), script)
    assert [(one.path and one.path.name, one.lines, one.rule) for one in found] == [
        ("saving.py", [4], "save")
    ]
    script.write_text(body.format("rank == 0 and keep(model)"), encoding="utf-8")
    assert examine(script.read_bytes(), script) == []


def test_a_module_that_cannot_be_read_is_unknown(tmp_path: Path):
    (tmp_path / "joining.py").write_text("def (", encoding="utf-8")
    script = tmp_path / "train.py"
    script.write_text("from joining import start\nstart()\nloss.backward()\n", encoding="utf-8")
    assert examine(script.read_bytes(), script) == []
    assert rules_of("loss = f()\nloss.backward()\n") == ["group"]


ACCELERATED = """
from accelerate import Accelerator
import torch
def main():
    accelerator = Accelerator()
    model, loader = accelerator.prepare(build(), torch.utils.data.DataLoader(data, shuffle=True))
    for x in loader:
        accelerator.backward(model(x))
    {}
main()
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("accelerator.print('done')", []),
        ("print('done')", ["talk"]),
        ("accelerator.wait_for_everyone()", []),
        ("accelerator.is_main_process and accelerator.wait_for_everyone()", ["meet"]),
        ("accelerator.is_main_process and torch.save(model.state_dict(), 'm.pt')", []),
        ("torch.save(model.state_dict(), 'm.pt')", ["save"]),
    ],
)
def test_accelerate_is_known(line: str, expected: list[str]):
    assert rules_of(ACCELERATED.format(line)) == expected


@pytest.mark.parametrize(
    "imports",
    [
        "from lightning import Trainer",
        "from transformers import Trainer",
        "from lightning.pytorch import Trainer",
    ],
)
def test_a_trainer_of_a_framework_joins_and_wraps_by_itself(imports: str):
    source = f"import torch\n{imports}\nloader = torch.utils.data.DataLoader(data, shuffle=True)\n"
    assert rules_of(f"{source}torch.manual_seed(0)\nprint(1)\nTrainer().fit(model, loader)\n") == []


def test_for_gpus_alone_nccl_is_right():
    lines = [
        (
            'torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")',
            'torch.device("cuda", local_rank)',
        ),
        ('"nccl" if on_gpu else "gloo"', '"nccl"'),
    ]
    source = WELL
    for old, new in lines:
        assert source.count(old) == 1
        source = source.replace(old, new)
    assert rules_of(source) == []


@pytest.mark.parametrize(
    ("seeded", "expected"),
    [
        ("torch.default_generator.manual_seed(SEED + rank)", set()),
        ("torch.default_generator.manual_seed(SEED)", {"seeds"}),
        ("torch.Generator().manual_seed(SEED + rank)", {"seeds"}),  # not the one that a model draws from
    ],
)
def test_the_generator_of_a_model_may_be_seeded_by_itself(seeded: str, expected: set[str]):
    line = "torch.manual_seed(SEED + rank)"
    assert WELL.count(line) == 1
    assert set(rules_of(WELL.replace(line, f"torch.manual_seed(SEED)\n    {seeded}"))) == expected


def test_a_sharded_model_needs_the_same_seed_on_all_ranks():
    same_seed = WELL.replace("SEED + rank", "SEED")
    assert set(rules_of(same_seed)) == {"seeds"}
    wrapped = "ddp = DDP(model, device_ids=[local_rank] if on_gpu else None)"
    assert same_seed.count(wrapped) == 1
    sharded = same_seed.replace(wrapped, "ddp = torch.distributed.fsdp.fully_shard(model)")
    assert "seeds" not in rules_of(sharded)


def test_a_model_is_what_it_is_at_that_line():
    before = "    ddp = DDP(model"
    source = WELL.replace(before, f"    if rank == 0:\n        model(x).sum().backward()\n{before}", 1)
    assert rules_of(source) == []


def test_torch_accelerator_is_known():
    source = WELL.replace('torch.device("cuda", local_rank) if', "torch.accelerator.current_accelerator() if")
    joined = source.replace('"nccl" if on_gpu else "gloo"', "dist.get_default_backend_for_device(device)")
    assert rules_of(joined) == []
