"""The checklist of lesson 10: each rule is red for its fault alone, and green without it."""

import sys
from pathlib import Path
from shutil import copytree
from typing import NamedTuple

import pytest

from shared.checklist.findings import RULES, findings
from tests.helpers import ROOT, SCRIPTS, command, python

TEMPLATE = ROOT / "labs" / "lab_10_train.py"
ALONE = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module('checklist', run_name='__main__')"
)
WELL = (SCRIPTS / "trains_well.py").read_text(encoding="utf-8")


class Fault(NamedTuple):
    """A change of ``trains_well.py``: the rule that finds it, what it says, the line that it points at."""

    rule: str
    told: str
    at: str
    old: str
    new: str


def read_faults() -> list[Fault]:
    """The blocks of ``trains_well.faults``: ``rule: told``, ``at: line``, lines to remove and to add."""
    faults = []
    for block in (SCRIPTS / "trains_well.faults").read_text(encoding="utf-8").strip().split("\n\n"):
        (head, at), changes = block.splitlines()[:2], block.splitlines()[2:]
        old, new = (["", *(line[1:] for line in changes if line[0] == sign), ""] for sign in "-+")
        rule, _, told = head.partition(": ")
        faults.append(Fault(rule, told, at.removeprefix("at: "), "\n".join(old), "\n".join(new)))
    return faults


FAULTS = read_faults()


def test_a_good_script_has_no_finding():
    assert findings(WELL) == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.rule}-{fault.told}")
def test_a_planted_fault_is_found_and_nothing_else(fault: Fault):
    assert WELL.count(fault.old) == 1
    source = WELL.replace(fault.old, fault.new)
    found = findings(source)
    assert [(rule, fault.told in text) for _, rule, text in found] == [(fault.rule, True)]
    assert source.splitlines()[found[0][0][0] - 1].strip() == fault.at


def test_each_rule_asks_and_has_a_planted_fault():
    assert {rule.__name__ for rule in RULES} == {fault.rule for fault in FAULTS}
    assert len(FAULTS) > 40
    for rule in RULES:
        question, _, otherwise = rule.__doc__.partition("? Else ")
        assert question and otherwise.endswith(".")


def test_no_python_file_of_this_course_is_too_much():
    paths = [path for folder in ("shared", "labs", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 100
    for path in paths:
        assert all(lines[0] >= 1 for lines, _, _ in findings(path.read_text(encoding="utf-8"))), path


def check(*arguments: str | Path) -> tuple[int, list[str]]:
    done = python("-m", "shared.checklist", *arguments)
    return done.returncode, done.stdout.splitlines()


def test_the_template_is_clean():
    assert check(TEMPLATE) == (0, ["lab_10_train.py: 22 questions, 0 findings"])


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("loader.sampler.set_epoch(epoch)", "pass", "epoch"),
        ("DataLoader(data.train, sampler=sampler,", "DataLoader(data.train,", "sampler"),
        ("args.seed + group.rank)", "args.seed)", "seeds"),
        ("if group.rank == 0:", "if args.checkpoint:", "save"),
        ("save(args.checkpoint,", "group.rank == 0 and save(args.checkpoint,", "meet"),
        ("= train_epoch(ddp,", "= train_epoch(model,", "bypass"),
        ('"scaler": scaler}', "}", "saved"),
        ("dist.all_reduce(counts :=", "(counts :=", "reduce"),
    ],
)
def test_a_fault_in_the_template_is_found(old: str, new: str, expected: str):
    template = TEMPLATE.read_text(encoding="utf-8")
    assert template.count(old) == 1
    assert [rule for _, rule, _ in findings(template.replace(old, new))] == [expected]


def test_a_script_is_read_and_not_run(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text("open('written', 'w')\nimport no_such_module\nprint('running')\n", encoding="utf-8")
    code, lines = check(script)
    assert code == 1
    assert lines == [
        "script.py:1: group: there is no init_process_group in this file",
        "script.py:3: talk: every rank speaks: let rank 0 do it, or say which rank it is",
        "script.py: 22 questions, 2 findings",
    ]
    assert not (ROOT / "written").exists() and not (tmp_path / "written").exists()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "script.py: No such file or directory"),
        (b"def main(:\n", "script.py:1: no Python: invalid syntax"),
        (b"\xff\xfe", "script.py: no text in UTF-8"),
        (b"x = 1\0", "script.py:1: no Python: "),
    ],
)
def test_what_cannot_be_read_is_told_in_one_line(content: bytes | None, told: str, tmp_path: Path):
    script = tmp_path / "script.py"
    if content is not None:
        script.write_bytes(content)
    code, lines = check(script)
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith(told)


def test_a_copy_of_the_folder_works_alone_with_nothing_installed(tmp_path: Path):
    copytree(ROOT / "shared" / "checklist", tmp_path / "checklist")
    done = command(sys.executable, "-I", "-S", "-c", ALONE, tmp_path, TEMPLATE, root=None, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "lab_10_train.py: 22 questions, 0 findings\n")


def test_it_lists_its_questions():
    code, lines = check("--questions")
    assert (code, len(lines)) == (0, len(RULES))
    assert all("? Else " in line for line in lines)
