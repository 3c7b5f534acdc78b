"""``rank-check``: each rule finds wrong excerpts and is silent about the same lines once they are mended.

``EXCERPTS`` has three lines or more of each rule: what is wrong, and what takes its place.
"""

import json
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from typing import NamedTuple

import pytest

from helpers import PACKAGE, environment, python
from rank_tools.checklist import report
from rank_tools.checklist.__main__ import main
from rank_tools.checklist.program import Program
from rank_tools.checklist.rules import RULES
from rank_tools.checklist.source import Source

ALONE = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module('checklist', run_name='__main__')"
)
SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets


def train_one(model, loader, optimizer):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


def main(args):
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    if local_rank == 0:
        datasets.CIFAR10("data", download=True)
    dist.barrier()
    data = datasets.CIFAR10("data")
    sampler = DistributedSampler(data, world_size, rank, seed=args.seed)
    loader = DataLoader(data, 32, sampler=sampler)
    net = build().cuda()
    ddp = DDP(net, device_ids=[local_rank])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler()
    first = 0
    if os.path.exists("last.pt"):
        state = torch.load("last.pt", map_location=f"cuda:{local_rank}")
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(ddp(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        train_one(ddp, loader, optimizer)
        if rank == 0:
            state = {"epoch": epoch, "model": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, "last.pt.part")
            os.replace("last.pt.part", "last.pt")
            torch.save(net.state_dict(), f"model_{epoch}.pt")


main(parse())
"""


class Excerpt(NamedTuple):
    """Right lines of the script, and wrong lines in their place."""

    rule: str
    right: str
    wrong: str


GUARDED = 'if local_rank == 0:\n        datasets.CIFAR10("data", download=True)\n    dist.barrier()\n    data'
DATA = "DistributedSampler(data, world_size, rank, seed=args.seed)"
JOIN = 'dist.init_process_group("nccl", rank=rank'
CLIP = "scaler.unscale_(optimizer)\n            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)"
CLIPS = CLIP.partition("\n            ")[2]
PART = 'torch.save(state, "last.pt.part")\n            os.replace("last.pt.part", "last.pt")'
LAST = 'if rank == 0:\n            state = {"epoch"'
MODEL = '            torch.save(net.state_dict(), f"model_{epoch}.pt")'
LOAD = 'torch.load("last.pt", map_location=f"cuda:{local_rank}")'
BAD = SCRIPT.replace("set_device(local_rank)", "set_device(rank)")
EXCERPTS = (
    Excerpt("share", DATA, DATA.replace("rank,", "local_rank,")),
    Excerpt("share", DATA, "DistributedSampler(data, rank=int(os.environ['LOCAL_RANK']))"),
    Excerpt("share", DATA, DATA.replace("args.seed", "args.seed + rank")),
    Excerpt("epoch", "sampler.set_epoch(epoch)", "pass"),
    Excerpt("epoch", "sampler.set_epoch(epoch)", "print(epoch)"),
    Excerpt("epoch", "        sampler.set_epoch(epoch)\n", ""),
    Excerpt("download", GUARDED, 'datasets.CIFAR10("data", download=True)\n    data'),
    Excerpt("download", GUARDED, 'data = datasets.CIFAR10("data", download=True)\n    data'),
    Excerpt("download", GUARDED, 'if args.fetch:\n        datasets.CIFAR10("data", download=True)\n    data'),
    Excerpt("bypass", "cross_entropy(ddp(x), y)", "cross_entropy(ddp.module(x), y)"),
    Excerpt("bypass", "cross_entropy(ddp(x), y)", "cross_entropy(net(x), y)"),
    Excerpt("bypass", "train_one(ddp, loader", "train_one(net, loader"),
    Excerpt("scaler", CLIP, CLIPS),
    Excerpt("scaler", CLIP, CLIPS.replace("clip_grad_norm_", "clip_grad_value_")),
    Excerpt("scaler", CLIP, f"{CLIPS}\n            scaler.unscale_(optimizer)"),
    Excerpt("device", "set_device(local_rank)", "set_device(rank)"),
    Excerpt("device", "set_device(local_rank)", 'set_device(f"cuda:{rank}")'),
    Excerpt("device", "device_ids=[local_rank]", "device_ids=[dist.get_rank()]"),
    Excerpt("number", JOIN, JOIN.replace("=rank", "=local_rank")),
    Excerpt("number", JOIN, JOIN.replace("=rank", '=int(os.environ["LOCAL_RANK"])')),
    Excerpt("number", JOIN, JOIN.replace("=rank", "=args.local_rank")),
    Excerpt("save", f"\n{MODEL}", f"\n{MODEL[4:]}"),
    Excerpt("save", f"\n{MODEL}", '\n        torch.save(net.state_dict(), "model.pt")'),
    Excerpt("save", f"\n{MODEL}", f"\n        if epoch % 5 == 0:\n{MODEL}"),
    Excerpt("load", LOAD, 'torch.load("last.pt")'),
    Excerpt("load", LOAD, 'torch.load("last.pt", weights_only=True)'),
    Excerpt("load", LOAD, "torch.load(args.resume)"),
    Excerpt("overwrite", PART, 'torch.save(state, "last.pt")'),
    Excerpt("overwrite", PART, 'path = "last.pt"\n            torch.save(state, path)'),
    Excerpt("overwrite", PART, 'torch.save(state, "last.pt", pickle_protocol=4)'),
)
# Right, though it looks like what a rule is about: (lines of the script, others that are right as well).
RIGHT = (
    (DATA, "DistributedSampler(data, torch.cuda.device_count(), local_rank)"),
    (DATA, "DistributedSampler(data)"),
    (DATA, "DistributedSampler(data, seed=args.seed + 1)"),
    ("sampler.set_epoch(epoch)", "loader.sampler.set_epoch(epoch)"),
    ("sampler.set_epoch(epoch)", "tell(sampler, epoch)"),
    ("seed=args.seed)\n", "shuffle=False)\n    tell = print\n"),
    (GUARDED, "data"),
    (GUARDED, 'data = datasets.CIFAR10("data", download=False)\n    data'),
    (GUARDED, 'with first_of_all():\n        datasets.CIFAR10("data", download=True)\n    data'),
    ("cross_entropy(ddp(x), y)", "cross_entropy(ddp(net.augment(x)), y)"),
    ("train_one(ddp, loader, optimizer)", "with torch.no_grad():\n            net(x)"),
    ("train_one(ddp, loader, optimizer)", "print(net(x).argmax())"),
    (
        CLIP,
        f"if args.clip:\n                {CLIP}".replace("\n            torch", "\n                torch"),
    ),
    (CLIP, "pass"),
    (CLIP, "scaler.unscale_(optimizer)\n            torch.nn.utils.clip_grad_value_(net.parameters(), 1.0)"),
    ("set_device(local_rank)", "set_device(rank % torch.cuda.device_count())"),
    ("set_device(local_rank)", 'set_device(f"cuda:{local_rank}")'),
    ("device_ids=[local_rank]", "device_ids=None"),
    (JOIN, 'dist.init_process_group("nccl", rank=dist.get_rank()'),
    (f"{JOIN}, world_size=world_size", f"{JOIN.replace('=rank', '=local_rank')}, world_size=2"),
    (f"{JOIN}, world_size=world_size", 'dist.init_process_group("nccl"'),
    (f"\n{MODEL}", '\n        torch.save(net.state_dict(), f"model_{rank}.pt")'),
    (f"\n{MODEL}", f"\n        if is_first():\n{MODEL}"),
    (f"\n{MODEL}", f"\n        if rank != 0:\n            continue\n{MODEL[4:]}"),
    (LOAD, 'torch.load("last.pt", "cpu")'),
    (LOAD, LOAD.replace('f"cuda:{local_rank}"', "net.device")),
    (LOAD, "torch.load(args.resume, **options)"),
    (PART, 'torch.save(state, f"{epoch}.pt")'),
    (PART, 'torch.save(state, os.path.join(str(epoch), "last.pt"))'),
    (PART, 'torch.save(net.state_dict(), "last.pt")'),
)


SHARDED_SCRIPT = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard


def save(net, path):
    torch.save(net.state_dict(), path)


def evaluate(net, batches):
    return sum(net(x).sum() for x in batches)


def main(args):
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = build()
    model = FSDP(model)
    torch.manual_seed(args.seed + rank)
    for epoch in range(args.epochs):
        for x in loader:
            model(x).sum().backward()
        evaluate(model, valid)
        for image in images[:n]:
            model(image)
        state = model.state_dict()
        if rank == 0:
            torch.save(state, f"{epoch}.pt")


main(parse())
"""
WRAP = "model = FSDP(model)"
EVALUATES = "evaluate(model, valid)"
TAKES = "images[:n]"
SEED = "torch.manual_seed(args.seed)\n"
STATE = "state = model.state_dict()\n        if rank == 0:\n"
KEPT = "torch.save(state, f"
# Wrong lines of the sharded script.
SHARDED = (
    Excerpt("init", SEED, "torch.manual_seed(args.seed + rank)\n"),
    Excerpt("init", SEED, "seed = args.seed * 100 + rank\n    torch.manual_seed(seed)\n"),
    Excerpt("init", SEED, "torch.manual_seed(dist.get_rank())\n"),
    Excerpt("forwards", EVALUATES, "if rank == 0:\n            evaluate(model, valid)"),
    Excerpt("forwards", EVALUATES, "if dist.get_rank() == 0:\n            model.generate(prompt)"),
    Excerpt("forwards", TAKES, "images[rank::world]"),
    Excerpt("forwards", TAKES, "range(rank, n, world)"),
    Excerpt("shard", STATE, "if rank == 0:\n            state = model.state_dict()\n"),
    Excerpt(
        "shard",
        STATE,
        "main_rank = rank == 0\n        if main_rank:\n            state = model.state_dict()\n",
    ),
    Excerpt("shard", f"{STATE}            {KEPT}", "if rank == 0:\n            save(model, f"),
)
RIGHT_SHARDED = (
    (SEED, "torch.manual_seed(args.seed + rank)\n    torch.manual_seed(args.seed)\n"),
    (WRAP, "model = FSDP(model, sync_module_states=True)"),
    (WRAP, "fully_shard(model)"),
    (TAKES, "images[rank : n // world * world : world]"),
    (EVALUATES, "if epoch % 5 == 0:\n            evaluate(model, valid)"),
    (EVALUATES, "if rank == 0:\n            evaluate(ema, valid)"),
)


def changed(old: str, new: str, script: str = SCRIPT) -> str:
    assert script.count(old) == 1, old
    return script.replace(old, new)


def found(text: str, path: str = "train.py") -> set[str]:
    program = Program(Source(path, text))
    return {rule.name for rule in RULES for _ in rule.find(program)}


@pytest.mark.parametrize("excerpt", EXCERPTS, ids=lambda one: f"{one.rule}: {one.wrong[:30]}")
def test_a_wrong_excerpt_is_found_by_its_rule(excerpt: Excerpt):
    assert found(changed(excerpt.right, excerpt.wrong)) == {excerpt.rule}


@pytest.mark.parametrize("wrap", [WRAP, "fully_shard(model)"])
@pytest.mark.parametrize("excerpt", SHARDED, ids=lambda one: f"{one.rule}: {one.wrong[:30]}")
def test_a_fault_of_a_sharded_model_is_found(excerpt: Excerpt, wrap: str):
    script = changed(WRAP, wrap, SHARDED_SCRIPT)
    assert found(changed(excerpt.right, excerpt.wrong, script)) == {excerpt.rule}


def test_a_right_script_with_a_sharded_model_stays_silent():
    assert found(SHARDED_SCRIPT) == set()
    for right, other in RIGHT_SHARDED:
        assert found(changed(right, other, SHARDED_SCRIPT)) == set(), other


def test_a_seed_by_rank_does_not_matter_where_weights_are_synchronized():
    script = changed(SEED, "torch.manual_seed(args.seed + rank)\n", SHARDED_SCRIPT)
    assert found(script) == {"init"}
    assert found(changed(WRAP, "model = FSDP(model, sync_module_states=True)", script)) == set()


HEAD = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
"""
GIVEN = """
class Trainer:
    def __init__(self, model, train_data, snapshot_path):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.train_data = train_data
        self.snapshot_path = snapshot_path
        self.model = DDP(model.cuda(), device_ids=[self.local_rank])
        if os.path.exists(snapshot_path):
            self._load_snapshot(snapshot_path)

    def _load_snapshot(self, snapshot_path):
        snapshot = torch.load(snapshot_path, map_location="cpu")
        self.model.load_state_dict(snapshot["MODEL_STATE"])
        self.epochs_run = snapshot["EPOCHS_RUN"]

    def _save_snapshot(self, epoch):
        snapshot = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch}
        torch.save(snapshot, self.snapshot_path)

    def _run_batch(self, x):
        self.model(x).sum().backward()

    def _run_epoch(self, epoch):
        print(len(next(iter(self.train_data))))
        self.train_data.sampler.set_epoch(epoch)
        for x in self.train_data:
            self._run_batch(x)

    def train(self, epochs):
        for epoch in range(epochs):
            self._run_epoch(epoch)
            if self.local_rank == 0:
                self._save_snapshot(epoch)


def prepare(data):
    return DataLoader(data, 8, sampler=DistributedSampler(data))


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    data = prepare(dataset)
    trainer = Trainer(model, data, "snapshot.pt")
    trainer.train(10)


main()
"""
OWN = """
class Trainer:
    def __init__(self, options):
        sampler = DistributedSampler(data, shuffle=True)
        self.loader, self.valid = DataLoader(data, 8, sampler=sampler), None

    def fit(self):
        for self.epoch in range(10):
            self.sampler.set_epoch(self.epoch)
            self.one_epoch()

    def one_epoch(self):
        for number, x in enumerate(self.loader):
            self.step(x).backward()


trainer = Trainer(parse())
trainer.fit()
"""
CYCLED = """
def cycle(loader, sampler):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for batch in loader:
            yield batch
        epoch += 1


def choose(data, shuffle):
    return DistributedSampler(data, shuffle=shuffle)


def main():
    sampler = choose(dataset, True)
    loader = cycle(DataLoader(dataset, 8, sampler=sampler), sampler)
    for step in range(1000):
        net(next(loader)).backward()


main()
"""
MODULE = """
class Loader(DataLoader):
    pass


sampler = DistributedSampler(dataset)
loader = Loader(dataset, 8, sampler=sampler)


def train():
    for epoch in range(10):
        sampler.set_epoch(epoch)
        batches = iter(loader)
        for _ in range(len(loader)):
            net(next(batches)).backward()


train()
"""
# (script, a right line of it, what takes its place, the rule that finds it)
SHAPES = (
    (GIVEN, "        self.train_data.sampler.set_epoch(epoch)\n", "", "epoch"),
    (GIVEN, ', map_location="cpu"', "", "load"),
    (OWN, "            self.sampler.set_epoch(self.epoch)\n", "", "epoch"),
    (CYCLED, "        sampler.set_epoch(epoch)\n", "", "epoch"),
    (CYCLED, "data, shuffle=shuffle", "data, shuffle=shuffle, seed=seed", "share"),
    (MODULE, "        sampler.set_epoch(epoch)\n", "", "epoch"),
)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda one: f"{one[3]}: {one[1].strip()[:30]}")
def test_values_are_followed_through_classes_calls_and_variables(shape: tuple[str, str, str, str]):
    script, right, wrong, rule = shape
    assert found(HEAD + script) == set()
    seed = "seed = 7 * dist.get_rank()\n"
    assert found(HEAD + seed + changed(right, wrong, script)) == {rule}


IMPORTED = "from library.comm import get_local_rank\n" + HEAD
SHARE = "DistributedSampler(data, world_size, get_local_rank())\n"
DEFINED = f"""{HEAD}
def get_local_rank():
    return int(os.environ["LOCAL_RANK"])


{SHARE}"""


def test_a_function_is_taken_at_what_it_returns_and_not_at_its_name():
    assert found(IMPORTED + SHARE) == set()
    assert found(DEFINED) == {"share"}
    assert found(DEFINED.replace('int(os.environ["LOCAL_RANK"])', "dist.get_rank()")) == set()


def test_a_reader_who_has_enough_is_no_error(tmp_path: Path):
    script = HEAD + "DistributedSampler(data, seed=dist.get_rank())\n" * 800  # more than a pipe holds
    ask = [sys.executable, "-m", "rank_tools.checklist", write(tmp_path, "bad.py", script)]
    asked = subprocess.Popen(ask, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    asked.stdout.readline()
    asked.stdout.close()
    assert asked.stderr.read() == b""
    assert asked.wait() == 1


def test_the_repaired_twin_of_each_excerpt_stays_silent():
    assert found(SCRIPT) == set()
    for right, other in RIGHT:
        assert found(changed(right, other)) == set(), other


def test_each_rule_has_three_wrong_excerpts():
    for rule in RULES:
        assert sum(excerpt.rule == rule.name for excerpt in (*EXCERPTS, *SHARDED)) >= 3
    assert len({rule.code for rule in RULES}) == len(RULES) == 13


def test_what_a_file_does_not_show_is_not_accused():
    sampler = changed("sampler.set_epoch(epoch)", "pass")
    assert found(sampler.replace("loader = DataLoader", "share(sampler)\n    loader = DataLoader")) == set()
    assert found(f"from accelerate import Accelerator\nAccelerator()\n{sampler}") == set()
    uncalled = changed(f"\n{MODEL}", f"\n{MODEL[4:]}")
    assert found(uncalled.replace("\nmain(parse())", "")) == set()
    assert found(changed("set_device(local_rank)", "set_device(rank)"), "tests/train.py") == set()
    spawned = changed("set_device(local_rank)", "set_device(rank)")
    assert found(spawned.replace("main(parse())", "torch.multiprocessing.spawn(main)")) == set()


PLACE = "21:5: RC309 the second machine has no GPU with the number of a global rank: use LOCAL_RANK [device]"


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_exit_code_tells_whether_something_was_found(tmp_path: Path, capsys):
    right, bad = write(tmp_path, "right.py", SCRIPT), write(tmp_path, "bad.py", BAD)
    broken = write(tmp_path, "broken.py", "def")
    assert main([right]) == 0
    assert capsys.readouterr().out == "1 file, 13 rules: nothing found\n"
    assert main([right, bad]) == 1
    assert capsys.readouterr().out == f"{bad}:{PLACE}\n2 files, 13 rules: 1 finding\n"
    assert main([bad, broken]) == 2
    told = capsys.readouterr()
    assert "broken.py:1: cannot be read as Python 3." in told.err
    assert told.out.endswith("2 files, 13 rules: 1 finding, 1 file could not be read\n")
    assert main([str(tmp_path / "none.py")]) == 2
    assert capsys.readouterr().out == "1 file, 13 rules: 1 file could not be read\n"
    assert main([bad, "--select", "nonsense"]) == 2
    assert "nonsense is no rule" in capsys.readouterr().err


SELECTIONS = {
    "--select RC309": 1,
    "--select RC3": 1,
    "--select device": 1,
    "--select RC2,save": 0,
    "--ignore RC3": 0,
    "--ignore meet": 2,
}


def test_rules_are_selected_by_code_and_name(tmp_path: Path, capsys):
    path = write(tmp_path, "bad.py", BAD)
    assert {words: main([path, *words.split()]) for words in SELECTIONS} == SELECTIONS
    assert "meet is no rule" in capsys.readouterr().err


COMMENTS = {
    "  # rank-check: ignore": 0,
    "  # rank-check: ignore[RC309]": 0,
    "  # rank-check: ignore[RC101, device]": 0,
    "  # rank-check: ignore[RC202]": 1,
    "; x = '# rank-check: ignore'": 1,
}


def test_a_comment_asks_for_silence(tmp_path: Path):
    for comment, code in COMMENTS.items():
        text = BAD.replace("set_device(rank)", f"set_device(rank){comment}")
        assert main([write(tmp_path, "bad.py", text)]) == code, comment


def test_folders_and_notebooks(tmp_path: Path, capsys, monkeypatch):
    write(tmp_path, "train/bad.py", BAD)
    write(tmp_path, "train/.hidden/bad.py", BAD)
    write(tmp_path, "train/old/bad.py", BAD)
    cells = [
        {"cell_type": "code", "source": ["!ls\n", "%time x\n"]},
        {"cell_type": "code", "source": BAD.splitlines(True)},
        {"cell_type": "code", "source": "%%writefile train.py\n" + BAD},
    ]
    write(tmp_path, "train/book.ipynb", json.dumps({"cells": cells}))
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--exclude", "old"]) == 1
    written = PLACE.replace("21:", "22:")
    assert capsys.readouterr().out.splitlines()[:3] == [
        f"train/bad.py:{PLACE}",
        f"train/book.ipynb:cell 2:{PLACE}",
        f"train/book.ipynb:cell 3:{written}",
    ]


def test_json_tells_the_same(tmp_path: Path, capsys):
    path = write(tmp_path, "bad.py", BAD)
    assert main([path, "--output-format", "json"]) == 1
    (told,) = json.loads(capsys.readouterr().out)["findings"]
    assert (told["path"], told["cell"], told["line"], told["column"]) == (path, None, 21, 5)
    assert (told["code"], told["name"]) == ("RC309", "device")


SOURCES = (
    b"",
    b"\xef\xbb\xbfimport torch\n",
    b"# coding: latin-1\nname = '\xe9'  # RANK\n",
    b"RANK = " + b" + ".join([b"f(1)"] * 400) + b"\n",
    b"RANK = x = x.next()\nx = x.next().next()\n",
    b"def f(RANK):\n    return f(RANK)\nf(f)\n",
    b"def f(g, RANK):\n    return g(f)\nx, y = f(f)\nx, y = y, x\n(a, *b), c = x, y\n",
    b"class A(B): pass\nclass B(A): pass\nA().RANK.c = B().d\n",
    b"async def f():\n    async with a as b, c:\n        async for x in y: await dist.barrier(RANK)\n",
    b"import torch\nfrom torch.utils.data import DistributedSampler\nDistributedSampler(*a, **b)\n"
    b"torch.save()\ntorch.load()\ntorch.cuda.set_device()\ntorch.device(f'')\nlambda: (yield)\n",
)


def test_no_source_is_too_much(tmp_path: Path):
    script = tmp_path / "script.py"
    for source in SOURCES:
        script.write_bytes(source)
        assert main([str(script)]) in (0, 1), source


def test_an_error_of_ours_is_told_and_the_other_files_are_read(tmp_path: Path, capsys, monkeypatch):
    class Failing(Program):
        def __init__(self, source: Source) -> None:
            super().__init__(source)
            assert "first" not in source.path, "planted"

    monkeypatch.setattr(report, "Program", Failing)
    assert main([write(tmp_path, "first.py", SCRIPT), write(tmp_path, "bad.py", BAD)]) == 2
    told = capsys.readouterr()
    assert "RC309" in told.out and "first.py: rank-check failed: AssertionError: planted" in told.err


def test_it_reads_the_standard_input():
    ask = [sys.executable, "-m", "rank_tools.checklist", "-"]
    done = subprocess.run(ask, input=BAD, capture_output=True, env=environment(), encoding="utf-8")
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, f"-:{PLACE}")


def test_a_copy_of_the_folder_works_alone_with_nothing_installed(tmp_path: Path):
    copytree(PACKAGE / "checklist", tmp_path / "checklist")
    script = write(tmp_path, "right.py", SCRIPT)
    done = python("-I", "-S", "-c", ALONE, tmp_path, script, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1 file, 13 rules: nothing found\n")


def test_it_lists_its_rules(capsys):
    assert main(["--rules"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(RULES)
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2


def test_what_python_warns_of_while_it_reads_is_no_finding(tmp_path: Path):
    script = tmp_path / "escapes.py"
    script.write_text('DIGITS = "\\d+"\n', encoding="utf-8")
    done = python("-W", "always", "-m", "rank_tools.checklist", script)
    assert "Warning" not in done.stdout
    assert done.returncode == 0
