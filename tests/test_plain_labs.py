"""A plain lab runs where nothing of ours can be imported: alone in a folder, as the command it shows does."""

import re
from pathlib import Path
from shutil import copy

import pytest

from shared.tools.lessons import read_lessons
from shared.tools.outputs import LEAKS
from tests.helpers import ROOT, SCRIPTS, Done, command, torchrun, torchrun_command
from tests.launch import warm_torchrun
from tests.rules.labs import command_of, exit_code_of, is_plain, siblings

PLAIN_LABS = [ROOT / name for lesson in read_lessons() for name in lesson.labs if is_plain(ROOT / name)]
# What torchrun itself tells about a rank that has failed and is started again.
LAUNCHER_SAYS = re.compile(r"^[WE]\d{4} .*torch/distributed/elastic/.*\n", re.MULTILINE)
MAKES_OPTIMIZERS = re.compile(r"torch\.optim|DistributedDataParallel\(|fully_shard\(")
ALONE = {"lab_24_context"}  # no group of gloo
IMPORTS_IT = re.compile(r"torch\.distributed\.(nn\.functional|checkpoint|fsdp)")
BLOCKED = 'raise ImportError("shared is not there: a plain lab stands alone")\n'
JOINS_IN_ITS_OWN_WAY = {
    "lab_00_echo": "fails on purpose, gloo",
    "lab_00_hello": "the first script, gloo",
    "lab_01_join": "the module",
    "lab_02_ways": "joins four groups, gloo",
    "lab_03_stuck": "hangs on purpose, gloo",
    "lab_03_tags": "gloo alone has tags",
    "lab_10_train": "the script has options",
    "lab_11_loop": "an example, gloo",
    "lab_12_one_more": "hangs on purpose, gloo",
    "lab_13_restart": "a store for each attempt, which torchrun may restart",
    "lab_26_look": "hangs on purpose, gloo",
}


def run_alone(lab: Path, folder: Path) -> Done:
    """Copy ``lab`` and what it imports into the empty ``folder`` and run it there, without ``shared``."""
    blocked = folder / "not_ours"
    (blocked / "shared").mkdir(parents=True)
    (blocked / "shared" / "__init__.py").write_text(BLOCKED, encoding="utf-8")
    alone = folder / "alone"
    alone.mkdir()
    for file in (lab, *siblings(lab)):
        copy(file, alone)
    words = command_of(lab)
    place = words.index(f"labs/{lab.name}")
    launcher, option, ranks, *options = words[:place]
    arguments = words[place + 1 :]
    assert (launcher, option) == ("torchrun", "--standalone"), "this test cannot launch it"
    count = int(ranks.removeprefix("--nproc-per-node="))
    alone_there = {"cwd": alone, "PYTHONPATH": str(blocked), "CUDA_VISIBLE_DEVICES": ""}
    if not options:
        return warm_torchrun(alone / lab.name, *arguments, ranks=count, **alone_there)
    done = command(*torchrun_command(alone / lab.name, count, *arguments, options=options), **alone_there)
    return Done(done.args, done.returncode, LAUNCHER_SAYS.sub("", done.stdout))


def problems_of(done: Done, code: int) -> list[str]:
    problems = []
    if done.returncode != code:
        problems.append(f"exit code {done.returncode}, announced is {code}\n{done.stdout}")
    if not done.stdout.strip():
        problems.append("it printed nothing")
    warning = LEAKS["a warning"].search(done.stdout)
    if warning and code == 0:
        problems.append(f"it printed a warning, {warning[0]}\n{done.stdout}")
    return problems


@pytest.mark.slow
@pytest.mark.parametrize("lab", PLAIN_LABS, ids=lambda lab: lab.stem)
def test_a_plain_lab_runs_alone(lab: Path, tmp_path: Path):
    assert problems_of(run_alone(lab, tmp_path), exit_code_of(lab)) == []


def source_of(lab: Path) -> str:
    """All that is copied with a lab."""
    return "".join(path.read_text(encoding="utf-8") for path in (lab, *siblings(lab)))


def imports_too_late(source: str) -> bool:
    """Whether an optimizer would import, with a group already there, what then holds it: see lesson 08."""
    return bool(MAKES_OPTIMIZERS.search(source)) and not IMPORTS_IT.search(source)


def test_plain_labs_import_first_what_would_hold_their_group():
    late = {path.stem for path in PLAIN_LABS if imports_too_late(source_of(path))}
    assert late <= ALONE, late


def threads_of_gloo(lab: Path) -> int:
    """How many threads of gloo are left on rank 0 when ``main`` of the lab is over."""
    done = torchrun(SCRIPTS / "threads_left.py", lab)
    assert done.returncode == 0, done.stdout
    return int(re.search(r"^threads left: (\d+)$", done.stdout, re.MULTILINE)[1])


@pytest.mark.slow
def test_a_group_ends_with_its_lab_unless_it_is_held(tmp_path: Path):
    lab = ROOT / "labs" / "lab_08_ddp.py"
    assert threads_of_gloo(lab) == 0
    early = re.compile(r"^import torch.distributed.nn.functional.*\n", re.MULTILINE)
    for file in (lab, *siblings(lab)):  # lab_01_join.py has the import
        held = tmp_path / file.name
        held.write_text(early.sub("", file.read_text(encoding="utf-8")), encoding="utf-8")
    assert threads_of_gloo(tmp_path / lab.name) > 0


def test_plain_labs_join_by_one_module():
    for lab in PLAIN_LABS:
        joins = "init_process_group" in lab.read_text(encoding="utf-8")
        assert not joins or lab.stem in JOINS_IN_ITS_OWN_WAY, lab.name
